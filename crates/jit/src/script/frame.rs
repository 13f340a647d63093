//! The scratch slot that one run of a script's action works in.
//!
//! Slots lie in private memory of the process, so nobody else sees the registers in them, and the
//! slots of a process end with it. A thread owns a slot from the entry of an action to its end.
//!
//! All offsets are in bytes from the slot's start.

use lancet_script::ir::{Action, BufId, Program, Reg};

/// Who has the slot: 0 for nobody.
pub(crate) const OWNER: i32 = 0;
/// The site's general registers by their number.
const REGISTERS: i32 = 8;
/// The site's address.
pub(crate) const SITE: i32 = REGISTERS + 16 * 8;
/// Where the region's part for scripts is mapped.
pub(crate) const REGION: i32 = SITE + 8;
/// Where the private page is.
pub(crate) const MODE: i32 = REGION + 8;
/// Id of the attach point.
pub(crate) const PROBE: i32 = MODE + 8;
/// Id of the function.
pub(crate) const FUNC: i32 = PROBE + 8;
/// The CPU at the action's begin.
pub(crate) const CPU: i32 = FUNC + 8;
/// The thread's id; only where the action wants it.
pub(crate) const TID: i32 = CPU + 8;
/// The time stamp counter at the action's begin; only where the action wants it.
pub(crate) const TSC: i32 = TID + 8;
/// Rounds that loops may still go.
pub(crate) const FUEL: i32 = TSC + 8;
/// A key of one word.
pub(crate) const KEY: i32 = FUEL + 8;
/// What a clock says: seconds and nanoseconds.
pub(crate) const TIME: i32 = KEY + 8;
/// Two vectors of one part, of process_vm_readv: here, there.
pub(crate) const VECTORS: i32 = TIME + 16;
/// A system call's result, and its six arguments.
pub(crate) const CALL: i32 = VECTORS + 32;
/// A word that the kernel writes, such as an integer that was read.
pub(crate) const WORD: i32 = CALL + 7 * 8;
/// The site's flags; only where the action wants them.
pub(crate) const FLAGS: i32 = WORD + 16;
/// Where the names of attach point and function lie: their length, then the bytes, whole words.
pub(crate) const PROBE_NAME: i32 = FLAGS + 8;
pub(crate) const FUNC_NAME: i32 = PROBE_NAME + 8;
/// What a search has found: an entry with the key, an entry for it; 0 for none.
pub(crate) const FOUND: i32 = FUNC_NAME + 8;
pub(crate) const FREE: i32 = FOUND + 8;
/// A hash in the making.
pub(crate) const HASH: i32 = FREE + 8;
/// What an operation on a map comes to.
pub(crate) const RESULT: i32 = HASH + 8;
/// Where key and bucket of the entry in question lie.
pub(crate) const KEY_AT: i32 = RESULT + 8;
pub(crate) const BUCKET: i32 = KEY_AT + 8;
/// An array of texts that is read, and the text whose turn it is.
pub(crate) const ARRAY: i32 = BUCKET + 8;
pub(crate) const TEXT: i32 = ARRAY + 8;
/// Virtual registers of the action.
const REGS: i32 = TEXT + 8;

/// Slots of a process: so many threads can be inside actions at the same moment.
pub const SLOTS: u32 = 128;

/// Offset of a site's register.
pub(crate) const fn register(number: usize) -> i32 {
    REGISTERS + 8 * number as i32
}

/// Where registers and buffers of one action lie in a slot.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    buffers: Vec<i32>,
    size: i32,
}

impl Frame {
    pub(crate) fn new(action: &Action) -> Option<Self> {
        let mut at = REGS.checked_add(i32::try_from(action.regs).ok()?.checked_mul(8)?)?;
        let mut buffers = Vec::new();
        for size in &action.buffers {
            buffers.push(at);
            at = at.checked_add(i32::try_from(*size).ok()?)?;
        }
        Some(Self { buffers, size: at })
    }

    pub(crate) fn reg(&self, reg: Reg) -> i32 {
        REGS + 8 * reg.0 as i32
    }

    pub(crate) fn buffer(&self, buffer: BufId) -> i32 {
        self.buffers[buffer.index()]
    }
}

/// Bytes of a slot that serves every action of a program; `None` where that is more than 1 MiB.
pub(crate) fn slot_size(program: &Program) -> Option<u32> {
    const MOST: i32 = 1 << 20;
    let mut size = REGS;
    for action in &program.actions {
        size = size.max(Frame::new(action)?.size);
    }
    (size <= MOST).then(|| (size as u32).next_multiple_of(64))
}

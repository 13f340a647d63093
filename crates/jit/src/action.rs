//! What an action is, and what it is compiled for.

use std::sync::Arc;

use lancet_abi::units::RuntimeAddr;
use lancet_abi::{Layout, MapId, SlotId};

use crate::script::Scripts;

/// Private memory of a process, `Scripts::scratch_size` bytes, all zero at first and again after a
/// fork; anywhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scratch {
    /// Where it begins.
    pub at: RuntimeAddr,
}

/// A general register at the site, by the names that scripts use.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)]
pub enum Register {
    Ax,
    Bx,
    Cx,
    Dx,
    Si,
    Di,
    Bp,
    /// The stack pointer as it was at the site.
    Sp,
    R8,
    R9,
    R10,
    R11,
    R12,
    R13,
    R14,
    R15,
    /// The site's address in the original text.
    Ip,
}

/// A 64-bit number that is there at the site.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Value {
    /// An integer argument, at a function's entry: 0 to 5 are registers; from 6
    /// on they lie in the caller's frame. At most [`Value::MAX_ARG`]. Reading
    /// an argument that the function does not have gives whatever lies there.
    Arg(u8),
    /// A register.
    Register(Register),
}

impl Value {
    /// The last argument that can be read. The slots up to it lie within 96
    /// bytes above the stack pointer of a function's entry, which are part of
    /// the stack of every thread that runs on one.
    pub const MAX_ARG: u8 = 15;
}

/// What a hit adds to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Update {
    /// One more.
    Count,
    /// The value, as 64 bits that wrap.
    Sum(Value),
    /// One more in the value's bucket of `lancet_abi::histogram`.
    Hist(Value),
}

/// What a keyed map is keyed by.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Key {
    /// The thread's id as the libc keeps it, else as the kernel says: in the
    /// target's pid namespace. A vfork child shows its parent's.
    Tid,
    /// A value.
    Value(Value),
}

/// One thing that a site does at each hit.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// Updates slots that belong to nobody else.
    Plain {
        /// The slot, or the first of 66 for a histogram.
        slot: SlotId,
        /// How.
        update: Update,
    },
    /// Updates the slots of a key.
    Keyed {
        /// Which map.
        map: MapId,
        /// With `Some`, the key is the pair of this index and `key`.
        function: Option<u32>,
        /// The key.
        key: Key,
        /// How.
        update: Update,
    },
    /// Runs an action of a script.
    Run {
        /// The action's number in its program.
        action: u32,
        /// What the fact `probe` is.
        probe: u32,
        /// What the fact `func` is.
        func: u32,
    },
    /// The sentinel before a system call that makes a child: from now on every
    /// hit in this process takes the lock form. Runs before a site's other
    /// actions.
    MarkUncertain {
        /// For which children.
        when: Mark,
    },
}

/// Which children a sentinel marks for. Such a child runs on a thread block
/// whose rseq area is not its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mark {
    /// All.
    Always,
    /// At a clone call whose arguments are in place: when the flags say that
    /// the child shares the memory and is no thread as the libc makes them.
    CloneFlags {
        /// clone3: the flags are the word that rdi points to. It must be
        /// readable. Else they are in edi.
        in_memory: bool,
    },
}

impl Mark {
    /// `CLONE_VM`: the child shares its parent's memory.
    pub const SHARED_MEMORY: u32 = 0x100;
    /// The flags that the libc makes a thread with: the child has a thread
    /// block of its own (`CLONE_SETTLS`) and registers it before it runs code
    /// of the program. With any other shared-memory flags nobody knows.
    pub const LIBC_THREAD: u32 = 0x3d_0f00;

    /// What both of two sentinels at one site together mark for.
    pub(crate) fn join(self, other: Self) -> Self {
        if self == other { self } else { Self::Always }
    }
}

/// Which form of the counters a site gets.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Form {
    /// Lock-prefixed only, without any read through fs: for thread start and
    /// exit code, and for start-up code where fs is not set yet.
    LockOnly,
    /// An rseq section, and the lock form wherever it can't be used.
    Fused,
}

/// The rseq area that the libc registers for each thread.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Rseq {
    /// The area's offset from the thread pointer.
    pub area_from_fs: i32,
    /// The signature that it was registered with.
    pub signature: u32,
}

/// What the code is compiled for: one process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Env {
    /// The rseq area, checked by the caller; `None`: lock form only.
    pub rseq: Option<Rseq>,
    /// Where the libc keeps the thread's id, from the thread pointer, checked
    /// by the caller; `None`: by the gettid system call.
    pub tid_from_fs: Option<i32>,
    /// The private page's mode word; may be anywhere.
    pub mode: RuntimeAddr,
    /// The region in this process; all of it within 2 GiB of the code.
    pub region: RuntimeAddr,
    /// The region's layout.
    pub layout: Layout,
    /// The script whose actions may be run, and this process's memory for them.
    pub script: Option<(Arc<Scripts>, Scratch)>,
    /// Whether each hit asserts [`lancet_abi::Invariant`] and counts in the region what does not
    /// hold. For tests: such a hit costs many times as much, and more stack.
    pub check: bool,
}

/// Machine code for one address in one process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Code {
    /// The bytes, to be put at the address that they were made for.
    pub bytes: Vec<u8>,
    /// Offset of the first instruction, where the site's jump goes to. Before
    /// it lie rseq descriptors (32-aligned) and the code's rare parts.
    pub entry: u32,
    /// Offset of what follows: always `bytes.len()`. Control falls through
    /// here with all registers, flags and the stack as at the site; the
    /// displaced instructions come next.
    pub end: u32,
    /// Bytes at the begin that are functions of scripts' actions, each proven when it was made.
    pub functions: u32,
}

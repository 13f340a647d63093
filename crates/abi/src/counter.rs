//! The lock form of an addition: right on any thread of any process, at any time.
//!
//! The emitted machine code follows [`add_locked`] step by step. The other form, a section that
//! the kernel restarts when it takes the CPU away, exists as machine code alone.
//!
//! - writers: actions in every process of the trust domain add; the tracer or guardian writes
//!   the off switch.
//! - readers: the tracer, whenever it likes; what it reads is final once the text is restored and
//!   no thread is in an action.
//! - ordering: none between slots. A hit that read `on` before it was cleared may still count.

use crate::layout::{Layout, SlotId};
use crate::memory::Memory;
use crate::private;

/// Memory in which slots are added to, with the mode word of the process that adds.
pub trait CounterMemory: Memory {
    /// The mode word of the private page.
    fn mode(&self) -> u64;

    /// Adds to the word at `offset`, as one step; wraps.
    fn add(&self, offset: u64, addend: u64);
}

/// Adds `addend` to a slot, unless hits don't count any more; whether it did. `cpu` only spreads
/// the load: any number is right.
pub fn add_locked<M: CounterMemory + ?Sized>(
    memory: &M,
    layout: &Layout,
    cpu: u32,
    slot: SlotId,
    addend: u64,
) -> bool {
    let off = memory.mode() >> (8 * private::OFF_BYTE) & 0xff;
    if off != 0 || memory.load(layout.on()).unwrap_or(0) == 0 {
        return false;
    }
    let cpu = if cpu < layout.ncpus() { cpu } else { 0 };
    let backed = memory.load(layout.cpu_table() + 8 * u64::from(cpu));
    // The table was nulled after the look at `on`: CPU 0 always has a block.
    let block = match backed.unwrap_or(0) {
        0 => layout.block(0).unwrap_or_default(),
        block => block,
    };
    memory.add(block + layout.lock_slot(slot), addend);
    true
}

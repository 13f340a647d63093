//! Rings of records: what actions write and the tracer drains.
//!
//! A ring is a head word on a line of its own and a power of two of slots, each of one size that
//! all records of the program fit into. There is one ring a CPU; a record goes into the ring of
//! the CPU that the thread was on when it looked, so producers meet on a ring only where one was
//! preempted or migrated between two instructions. There may be any number of them, in any of the
//! processes that share the region; the one consumer is the tracer, whose position is its own.
//!
//! A slot's first word says whose turn it is in lap `n` (position divided by slots):
//!
//! ```text
//! 2n        free for the producer of this lap, or taken by it and not yet finished
//! 2n + 1    holds a record
//! 2n + 2    drained: free for the next lap
//! u64::MAX  dead: given up while a producer had it, never used again
//! ```
//!
//! All words start as zero, so a fresh region needs no set-up.
//!
//! - writers: producers take a position by compare-and-swap of the head, write the slot's other
//!   words, then finish by compare-and-swap of its first word; the consumer frees it by a store.
//! - readers: the consumer reads a record after it saw the slot's first word say so.
//! - ordering: finishing releases the record, the consumer's load acquires it; freeing releases
//!   the slot, the next producer's load acquires it.
//!
//! A producer that is killed between taking and finishing would hold up the ring: the consumer
//! marks the slot dead once it knows, or has waited long enough, and counts one record as lost. A
//! producer that was only slow then fails to finish, and has written into a slot that nobody
//! reads or uses again.

use crate::memory::{Memory, RingMemory};

/// Most positions that a producer tries before its record is lost.
pub const MAX_TRIES: u32 = 64;
/// The first word of a slot that is never used again.
pub const DEAD: u64 = u64::MAX;
/// Offset of the record in its slot.
pub const RECORD: u64 = 8;

const LINE: u64 = 64;

/// Where one ring lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingLayout {
    /// Offset of the head word in the region; the slots begin one line further.
    pub at: u64,
    /// How many slots; a power of two.
    pub slots: u32,
    /// Bytes of a slot, its first word among them; a multiple of 8.
    pub stride: u32,
}

impl RingLayout {
    /// Bytes of the whole ring.
    #[must_use]
    pub const fn size(&self) -> u64 {
        LINE + self.slots as u64 * self.stride as u64
    }

    const fn slot(&self, position: u64) -> u64 {
        self.at + LINE + (position & (self.slots as u64 - 1)) * self.stride as u64
    }

    /// The first word of a free slot in the lap of a position.
    const fn free(&self, position: u64) -> u64 {
        (position >> self.slots.trailing_zeros()) * 2
    }
}

/// A slot that a producer has taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Taken {
    /// Offset of the record in the region.
    pub record: u64,
    slot: u64,
    free: u64,
}

/// Takes a slot; `None` when the ring is full, or too many others take slots at this moment: the
/// record is lost, and whoever called counts it.
pub fn take<M: RingMemory + ?Sized>(memory: &M, ring: &RingLayout) -> Option<Taken> {
    for _ in 0..MAX_TRIES {
        let position = memory.load(ring.at)?;
        let (slot, free) = (ring.slot(position), ring.free(position));
        let turn = memory.load(slot)?;
        if turn == free || turn == DEAD {
            let mine = memory.replace(ring.at, position, position.wrapping_add(1));
            if mine && turn == free {
                return Some(Taken {
                    record: slot + RECORD,
                    slot,
                    free,
                });
            }
        } else if turn < free {
            return None;
        }
    }
    None
}

/// Hands a record over; false where the consumer has given the slot up, and counted it as lost.
pub fn finish<M: RingMemory + ?Sized>(memory: &M, taken: Taken) -> bool {
    memory.replace(taken.slot, taken.free, taken.free + 1)
}

/// What the consumer finds at its position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// A record at this offset of the region. It stays until [`Consumer::free`].
    Record(u64),
    /// A slot that a producer has taken and not finished.
    Unfinished,
    /// Nothing more.
    Empty,
}

/// The tracer's side of a ring.
#[derive(Clone, Debug)]
pub struct Consumer {
    ring: RingLayout,
    position: u64,
    dead: u32,
}

impl Consumer {
    /// A consumer of a ring that none has drained yet.
    #[must_use]
    pub const fn new(ring: RingLayout) -> Self {
        Self {
            ring,
            position: 0,
            dead: 0,
        }
    }

    /// Slots that were given up.
    #[must_use]
    pub const fn dead(&self) -> u32 {
        self.dead
    }

    /// Looks at the next slot that is not dead. Whatever the memory holds, it looks at no slot
    /// twice in one call.
    pub fn next<M: Memory + ?Sized>(&mut self, memory: &M) -> Next {
        for _ in 0..self.ring.slots {
            let slot = self.ring.slot(self.position);
            let free = self.ring.free(self.position);
            match memory.load(slot) {
                Some(DEAD) => self.position = self.position.wrapping_add(1),
                Some(turn) if turn == free + 1 => return Next::Record(slot + RECORD),
                Some(turn) if turn == free => {
                    // The head may be anything in a hostile region: it decides nothing but this.
                    // It may lie behind by slots that are dead.
                    let head = memory.load(self.ring.at).unwrap_or(self.position);
                    let taken = head.wrapping_sub(self.position).cast_signed() > 0;
                    return if taken { Next::Unfinished } else { Next::Empty };
                }
                _ => return Next::Empty,
            }
        }
        Next::Empty
    }

    /// Gives the slot of the last [`Next::Record`] back.
    pub fn free<M: RingMemory + ?Sized>(&mut self, memory: &M) {
        let slot = self.ring.slot(self.position);
        memory.store(slot, self.ring.free(self.position) + 2);
        self.position = self.position.wrapping_add(1);
    }

    /// Gives the slot of the last [`Next::Unfinished`] up for good; false where it was finished
    /// meanwhile.
    pub fn give_up<M: RingMemory + ?Sized>(&mut self, memory: &M) -> bool {
        let slot = self.ring.slot(self.position);
        let given_up = memory.replace(slot, self.ring.free(self.position), DEAD);
        if given_up {
            self.dead += 1;
            self.position = self.position.wrapping_add(1);
        }
        given_up
    }
}

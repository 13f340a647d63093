//! Immutable snapshots in shared memory: one writer, any number of readers, no lock.
//!
//! ```text
//! word 0  mark    word 1  pid namespace    word 2  latest generation    ... to HEADER
//! slot 0: [sequence | bytes | data ...]  slot 1: ...
//! ```
//! Generation `g` (from 1) lies in slot `g % slots`. A slot's sequence is `2g + 1` while `g` is being written into it and
//! `2g` when it is whole; so a snapshot stays readable while the next `slots - 1` are published. All stores release and all
//! loads acquire: whoever has read a word of a later snapshot then also sees the later sequence, and knows.
//!
//! | field | writer | readers | order |
//! |---|---|---|---|
//! | sequence | service | clients, before and after the data | odd before the first word of data, even after the last |
//! | data, bytes | service | clients | between the two |
//! | latest | service | clients | after the sequence is even |

use lancet_abi::memory::{Memory, RingMemory};

/// First word of every such memory.
const MARK: u64 = 0x0001_7865_646e_696c;
/// Where slots begin.
const HEADER: u64 = 4096;
/// Sequence and length of a slot.
const SLOT_HEADER: u64 = 16;

/// How the memory is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slots {
    /// How many.
    pub count: u64,
    /// Bytes of data that each has room for; a multiple of eight.
    pub room: u64,
}

/// Why a snapshot was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Missed {
    /// It was replaced before or while it was read: ask for a newer one.
    #[error("the snapshot was replaced while it was read")]
    Replaced,
    /// The memory is not such a memory, or says impossible things.
    #[error("the shared memory is not an index's")]
    Invalid,
}

impl Slots {
    /// Bytes of the whole memory.
    #[must_use]
    pub const fn size(self) -> u64 {
        HEADER + self.count * (SLOT_HEADER + self.room)
    }

    const fn slot(self, generation: u64) -> u64 {
        HEADER + (generation % self.count) * (SLOT_HEADER + self.room)
    }

    /// Prepares a memory of zeros; before anybody else has it.
    pub fn prepare(self, memory: &(impl RingMemory + ?Sized), namespace: u64) {
        memory.store(0, MARK);
        memory.store(8, namespace);
    }

    /// Writes a generation; false when the data have no room. Only one thread of one process may do so.
    pub fn publish(
        self,
        memory: &(impl RingMemory + ?Sized),
        generation: u64,
        data: &[u8],
    ) -> bool {
        if data.len() as u64 > self.room {
            return false;
        }
        let slot = self.slot(generation);
        memory.store(slot, 2 * generation + 1);
        for (at, bytes) in data.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            memory.store(slot + SLOT_HEADER + 8 * at as u64, u64::from_ne_bytes(word));
        }
        memory.store(slot + 8, data.len() as u64);
        memory.store(slot, 2 * generation);
        memory.store(16, generation);
        true
    }

    /// The latest generation, 0 for none; and the pid namespace whose processes they show.
    ///
    /// # Errors
    /// [`Missed::Invalid`].
    pub fn latest(self, memory: &(impl Memory + ?Sized)) -> Result<(u64, u64), Missed> {
        let word = |offset| memory.load(offset).ok_or(Missed::Invalid);
        if word(0)? != MARK || memory.len() < self.size() {
            return Err(Missed::Invalid);
        }
        Ok((word(16)?, word(8)?))
    }

    /// Reads a generation, whole or not at all.
    ///
    /// # Errors
    /// [`Missed`].
    pub fn read(self, memory: &(impl Memory + ?Sized), generation: u64) -> Result<Vec<u8>, Missed> {
        let slot = self.slot(generation);
        let word = |offset| memory.load(offset).ok_or(Missed::Invalid);
        if word(slot)? != 2 * generation {
            return Err(Missed::Replaced);
        }
        let bytes = word(slot + 8)?;
        if bytes > self.room {
            // Either is possible; the sequence tells.
            return match word(slot)? == 2 * generation {
                true => Err(Missed::Invalid),
                false => Err(Missed::Replaced),
            };
        }
        let mut data = Vec::with_capacity(bytes as usize + 8);
        let mut at = 0;
        while at < bytes {
            data.extend_from_slice(&word(slot + SLOT_HEADER + at)?.to_ne_bytes());
            at += 8;
        }
        if word(slot)? != 2 * generation {
            return Err(Missed::Replaced);
        }
        data.truncate(bytes as usize);
        Ok(data)
    }
}

//! The kernel's records in a ring: read one after the other, their room given back.

use lancet_abi::memory::{Memory, RingMemory, SharedMut};

// Offsets in the page before the ring, of `perf_event_mmap_page`.
const HEAD: u64 = 1024;
const TAIL: u64 = 1032;

pub(crate) const LOST: u32 = 2;
pub(crate) const COMM: u32 = 3;
pub(crate) const EXIT: u32 = 4;
pub(crate) const FORK: u32 = 7;
pub(crate) const MMAP2: u32 = 10;
pub(crate) const LOST_SAMPLES: u32 = 13;

/// One record. Its words begin behind the eight bytes of its header.
pub(crate) struct Record<'a> {
    pub(crate) kind: u32,
    pub(crate) misc: u16,
    words: u64,
    word: &'a dyn Fn(u64) -> u64,
}

impl Record<'_> {
    /// A word; 0 behind the record's end.
    pub(crate) fn word(&self, index: u64) -> u64 {
        if index < self.words {
            (self.word)(index)
        } else {
            0
        }
    }

    /// The last one, which a ring that asks for times has them in.
    pub(crate) fn last(&self) -> u64 {
        self.word(self.words.saturating_sub(1))
    }

    /// How many records found no room before this one, where it is about that.
    pub(crate) fn lost(&self) -> Option<u64> {
        match self.kind {
            LOST => Some(self.word(1).max(1)),
            LOST_SAMPLES => Some(self.word(0).max(1)),
            _ => None,
        }
    }
}

/// Reads a ring to its head and gives the room back; false when something in it is not as the kernel
/// writes: nothing behind that can be understood.
pub(crate) fn drain(memory: &SharedMut<'_>, mut each: impl FnMut(&Record<'_>)) -> bool {
    let page = rustix::param::page_size() as u64;
    let size = memory.len() - page;
    let word = |at: u64| memory.load(page + (at & (size - 1) & !7)).unwrap_or(0);
    let (Some(head), Some(mut tail)) = (memory.load(HEAD), memory.load(TAIL)) else {
        return true;
    };
    let mut understood = true;
    while head.wrapping_sub(tail) >= 8 {
        let first = word(tail);
        let (kind, misc, length) = (first as u32, (first >> 32) as u16, first >> 48);
        if length < 8 || length > head.wrapping_sub(tail) {
            understood = false;
            tail = head;
            break;
        }
        each(&Record {
            kind,
            misc,
            words: length / 8 - 1,
            word: &|index| word(tail + 8 + index * 8),
        });
        tail = tail.wrapping_add(length);
    }
    memory.store(TAIL, tail);
    understood
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost(kind: u32, words: [u64; 2]) -> Option<u64> {
        let record = Record {
            kind,
            misc: 0,
            words: 2,
            word: &|index| words[index as usize],
        };
        record.lost()
    }

    #[test]
    fn what_found_no_room_is_counted() {
        assert_eq!(lost(LOST, [7, 5]), Some(5));
        assert_eq!(lost(LOST_SAMPLES, [3, 0]), Some(3));
        assert_eq!(lost(LOST, [7, 0]), Some(1));
        assert_eq!(lost(FORK, [7, 5]), None);
    }
}

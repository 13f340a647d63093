//! Access to the shared region: the only module here that dereferences.

use core::marker::PhantomData;
use core::sync::atomic::{AtomicU64, Ordering};

/// Memory in which a region lies. Offsets are in bytes from its start.
pub trait Memory {
    /// Bytes there are.
    fn len(&self) -> u64;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The word at `offset`, or `None` when it is misaligned or outside.
    fn load(&self, offset: u64) -> Option<u64>;
}

/// Memory in which keyed maps are updated: what [`crate::map`] needs more.
/// The machine code of actions does the same with x86-64 instructions; a model
/// checker brings its own.
pub trait MapMemory: Memory {
    /// In one step: where both words at `offset` are zero, they become
    /// `(meta, key)` and the result is true; else nothing changes.
    fn publish(&self, offset: u64, meta: u64, key: u64) -> bool;

    /// Adds to the word at `offset`, as one step; wraps.
    fn add(&self, offset: u64, addend: u64);
}

/// Memory in which records are passed on: what [`crate::ring`] needs more.
/// Outside the memory nothing happens.
pub trait RingMemory: Memory {
    /// In one step: where the word at `offset` is `old`, it becomes `new` and
    /// the result is true; else nothing changes. Acquires and releases.
    fn replace(&self, offset: u64, old: u64, new: u64) -> bool;

    /// Writes the word at `offset`. Releases.
    fn store(&self, offset: u64, word: u64);
}

/// A copy of a region, such as one read from its file.
impl Memory for [u8] {
    fn len(&self) -> u64 {
        <[u8]>::len(self) as u64
    }

    fn load(&self, offset: u64) -> Option<u64> {
        if !offset.is_multiple_of(8) {
            return None;
        }
        let start = usize::try_from(offset).ok()?;
        let word = self.get(start..)?.first_chunk::<8>()?;
        Some(u64::from_ne_bytes(*word))
    }
}

impl<M: Memory + ?Sized> Memory for &M {
    fn len(&self) -> u64 {
        (**self).len()
    }

    fn load(&self, offset: u64) -> Option<u64> {
        (**self).load(offset)
    }
}

/// A living region, mapped into this process, which others write meanwhile.
#[derive(Clone, Copy, Debug)]
pub struct Shared<'a> {
    base: *const AtomicU64,
    words: u64,
    mapping: PhantomData<&'a AtomicU64>,
}

// SAFETY: each word is only used as an atomic.
unsafe impl Send for Shared<'_> {}
// SAFETY: as above.
unsafe impl Sync for Shared<'_> {}

impl<'a> Shared<'a> {
    /// A view of `len` bytes at `base`; a partial last word is left out.
    ///
    /// # Safety
    /// For `'a`, `base` is 8-aligned and `len` bytes from it are mapped
    /// readable and backed (no access beyond the end of a file). Others may
    /// write them at any time, but in this process only as atomics.
    #[must_use]
    pub const unsafe fn new(base: *const u8, len: usize) -> Self {
        Self {
            base: base.cast(),
            words: len as u64 / 8,
            mapping: PhantomData,
        }
    }

    fn word(&self, offset: u64) -> Option<&AtomicU64> {
        let word = offset / 8;
        if !offset.is_multiple_of(8) || word >= self.words {
            return None;
        }
        // SAFETY: aligned and inside what `new` was promised, and used as an
        // atomic, so that a writer in another process is no data race.
        Some(unsafe { &*self.base.add(usize::try_from(word).ok()?) })
    }
}

impl Memory for Shared<'_> {
    fn len(&self) -> u64 {
        self.words * 8
    }

    fn load(&self, offset: u64) -> Option<u64> {
        // Acquire: an entry's key is read after the meta word that published it.
        Some(self.word(offset)?.load(Ordering::Acquire))
    }
}

/// A living region that this process writes too.
#[derive(Clone, Copy, Debug)]
pub struct SharedMut<'a>(Shared<'a>);

impl SharedMut<'_> {
    /// A view of `len` bytes at `base`; a partial last word is left out.
    ///
    /// # Safety
    /// As [`Shared::new`], and the bytes are mapped writable.
    #[must_use]
    pub const unsafe fn new(base: *const u8, len: usize) -> Self {
        // SAFETY: promised by the caller.
        Self(unsafe { Shared::new(base, len) })
    }
}

impl Memory for SharedMut<'_> {
    fn len(&self) -> u64 {
        self.0.len()
    }

    fn load(&self, offset: u64) -> Option<u64> {
        self.0.load(offset)
    }
}

impl RingMemory for SharedMut<'_> {
    fn replace(&self, offset: u64, old: u64, new: u64) -> bool {
        self.0.word(offset).is_some_and(|word| {
            word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire)
                .is_ok()
        })
    }

    fn store(&self, offset: u64, new: u64) {
        if let Some(word) = self.0.word(offset) {
            word.store(new, Ordering::Release);
        }
    }
}

impl crate::table::TableMemory for SharedMut<'_> {
    fn exchange(&self, offset: u64, new: u64) -> u64 {
        let word = self.0.word(offset);
        word.map_or(0, |word| word.swap(new, Ordering::AcqRel))
    }

    fn fetch_add(&self, offset: u64, addend: u64) -> u64 {
        let word = self.0.word(offset);
        word.map_or(0, |word| word.fetch_add(addend, Ordering::AcqRel))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_are_bounded_and_aligned() {
        let words = [1u64, 2, 3];
        // SAFETY: `words` outlives the view and is not written.
        let shared = unsafe { Shared::new(words.as_ptr().cast(), 23) };
        assert_eq!(shared.len(), 16);
        assert_eq!(shared.load(8), Some(2));
        assert_eq!(
            (shared.load(16), shared.load(4), shared.load(u64::MAX - 7)),
            (None, None, None)
        );
        let bytes = [7u8; 15];
        assert_eq!(bytes[..].load(0), Some(0x0707_0707_0707_0707));
        assert_eq!(
            (bytes[..].load(8), bytes[..].load(1), bytes[..].load(!7)),
            (None, None, None)
        );
    }

    #[test]
    fn updates_are_bounded_too() {
        let words = [1u64, 2, 3].map(AtomicU64::new);
        // SAFETY: `words` outlives the view and is an array of atomics.
        let shared = unsafe { SharedMut::new(words.as_ptr().cast(), 24) };
        assert!(shared.replace(8, 2, 7) && !shared.replace(8, 2, 9));
        shared.store(0, 5);
        assert!(!shared.replace(24, 0, 1));
        shared.store(24, 1);
        assert_eq!(
            [0, 8, 16].map(|at| shared.load(at)),
            [Some(5), Some(7), Some(3)]
        );
    }
}

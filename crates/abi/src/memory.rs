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

// SAFETY: the words are only read, each as an atomic.
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
}

impl Memory for Shared<'_> {
    fn len(&self) -> u64 {
        self.words * 8
    }

    fn load(&self, offset: u64) -> Option<u64> {
        let word = offset / 8;
        if !offset.is_multiple_of(8) || word >= self.words {
            return None;
        }
        // SAFETY: aligned and inside what `new` was promised, and read as an
        // atomic, so that a writer in another process is no data race.
        let word = unsafe { &*self.base.add(usize::try_from(word).ok()?) };
        // Acquire: an entry's key is read after the meta word that published it.
        Some(word.load(Ordering::Acquire))
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
}

//! Keyed maps: finding or claiming the entry of a key.
//!
//! An entry is two words, `(meta, key)`, 16-aligned. Both zero: free. It is
//! claimed once by a 16-byte compare-and-swap and never changed or freed in
//! the session, so whoever reads a non-zero `meta` reads the final key after
//! it, and two threads can't claim two entries for one key: both walk the same
//! probe sequence and the later one finds the earlier one's entry.
//!
//! - writers: actions in every process of the trust domain.
//! - readers: the same, and the tracer.
//! - ordering: the compare-and-swap; loads acquire.
//!
//! The emitted machine code follows [`find_or_insert`] step by step.

use crate::layout::MapLayout;
use crate::memory::MapMemory;

/// Most entries that one hit looks at.
pub const MAX_PROBES: u32 = 64;
/// Largest function index that fits into an entry's meta word, exclusive.
pub const MAX_FUNCTION: u32 = 1 << 29;

/// Multiplier of the hash: 2^64 divided by the golden ratio, odd.
pub const HASH_MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
/// Spreads functions that share keys over the table.
const FUNCTION_MULTIPLIER: u32 = 0x85eb_ca6b;

/// The meta word of a key: never zero, and below 2^31, so that it is an
/// immediate operand. `None` when the function index is too large.
#[must_use]
pub const fn meta(function: Option<u32>) -> Option<u32> {
    match function {
        None => Some(1),
        Some(f) if f < MAX_FUNCTION => Some((f + 1) << 1 | 1),
        Some(_) => None,
    }
}

/// The function of a meta word, `Some(None)` for none; `None` for a word that
/// [`meta`] never makes.
#[must_use]
pub const fn function(meta: u64) -> Option<Option<u32>> {
    let tag = meta >> 1;
    if meta & 1 == 0 || tag > MAX_FUNCTION as u64 {
        None
    } else if tag == 0 {
        Some(None)
    } else {
        Some(Some(tag as u32 - 1))
    }
}

/// What is added to the hash of every key with this meta word.
#[must_use]
pub const fn seed(meta: u32, capacity: u32) -> u32 {
    (meta >> 1).wrapping_mul(FUNCTION_MULTIPLIER) & (capacity - 1)
}

/// The first entry to look at.
#[must_use]
pub const fn first_probe(meta: u32, key: u64, capacity: u32) -> u32 {
    let hash = key.wrapping_mul(HASH_MULTIPLIER) >> (64 - capacity.trailing_zeros());
    // Below the capacity, which is at most 2^24.
    (hash as u32 + seed(meta, capacity)) & (capacity - 1)
}

/// How many entries a hit looks at in a map of this capacity.
#[must_use]
pub const fn probes(capacity: u32) -> u32 {
    if capacity < MAX_PROBES {
        capacity
    } else {
        MAX_PROBES
    }
}

/// The entry of `(meta, key)`, claimed if there is none yet; `None` when
/// [`probes`] entries are all taken by others: the hit counts as dropped.
pub fn find_or_insert<M: MapMemory + ?Sized>(
    memory: &M,
    map: &MapLayout,
    meta: u32,
    key: u64,
) -> Option<u32> {
    let meta_word = u64::from(meta);
    let mut index = first_probe(meta, key, map.capacity);
    for _ in 0..probes(map.capacity) {
        let entry = map.entries + 16 * u64::from(index);
        let mut found = memory.load(entry)?;
        if found == 0 {
            if memory.publish(entry, meta_word, key) {
                return Some(index);
            }
            // Somebody claimed it just now, perhaps for the same key.
            found = memory.load(entry)?;
        }
        if found == meta_word && memory.load(entry + 8)? == key {
            return Some(index);
        }
        index = (index + 1) & (map.capacity - 1);
    }
    None
}

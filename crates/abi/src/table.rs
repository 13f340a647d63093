//! The maps of scripts: hash tables with keys and values of several words, shared by the actions
//! in targets and the blocks in the tracer.
//!
//! All words are of 64 bits; offsets are from the begin of the region's part for scripts. A fresh
//! table is all zero.
//!
//! ```text
//! header   64 bytes: live entries; updates dropped as the table was full; as a lock was held
//! buckets  64-aligned each: lock, then entries
//! entry    state, key words, value words
//! ```
//!
//! A key belongs to one bucket. A table without key has one bucket of one entry, whose key is
//! always there.
//!
//! An entry's state is [`UNUSED`], [`ABSENT`] (its key is there, nothing is kept) or [`LIVE`].
//!
//! - In a table from which no action in a target deletes, a key stays in its entry for good, and
//!   entries of a bucket are filled in order. So a search needs no lock, and values change by
//!   atomic steps. Only a new key is written under the bucket's lock. Who takes an entry away makes
//!   it absent first and then exchanges its words with 0: a change by somebody else lands before,
//!   and is in what was taken, or after, and makes the entry live again. Nothing is lost.
//! - In a *locked* table every operation holds the bucket's lock, and an entry that was deleted
//!   may get any key.
//! - Values of several words that belong together (a text) are read and written under the lock in
//!   every table.
//!
//! A lock that is not free after [`YIELDS`] times [`SPINS`] tries (its holder was stopped or killed), or that the
//! thread itself holds (a signal's handler interrupted it), drops the operation, which is counted.

use crate::memory::{Memory, RingMemory};

/// Offset in the header: live entries.
pub const LEN: u64 = 0;
/// Offset in the header: updates dropped since there was no room for a key.
pub const FULL: u64 = 8;
/// Offset in the header: operations dropped since a lock was held for too long.
pub const LOCKED_OUT: u64 = 16;
/// How often a lock is tried in one go.
pub const SPINS: u32 = 256;
/// How often an action gives its CPU away, and then tries again: the thread that holds the lock may
/// wait for it.
pub const YIELDS: u32 = 64;
/// State of an entry without key.
pub const UNUSED: u64 = 0;
/// State of an entry that keeps nothing.
pub const ABSENT: u64 = 1;
/// State of an entry that is in the map.
pub const LIVE: u64 = 3;
/// What a key's words are multiplied by.
pub const HASH_MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;

const HEADER: u64 = 64;
const LINE: u64 = 64;
/// Entries of a bucket, where there are as many.
const ENTRIES: u32 = 16;
/// Room for keys, as a multiple of the keys that a table takes.
const SPARE: u32 = 4;

/// Where a table lies, and its shape.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableLayout {
    /// Offset of the header.
    pub at: u64,
    /// Words of a key; 0: there is but one entry.
    pub key_words: u32,
    /// Words of a value.
    pub value_words: u32,
    /// Most live entries.
    pub capacity: u32,
    /// How many buckets.
    pub buckets: u32,
    /// Entries of a bucket.
    pub entries: u32,
    /// Whether every operation holds the bucket's lock.
    pub locked: bool,
}

impl TableLayout {
    /// The layout at a 64-aligned offset; `None` for no capacity, or too large a table.
    #[must_use]
    pub fn new(
        at: u64,
        key_words: u32,
        value_words: u32,
        capacity: u32,
        locked: bool,
    ) -> Option<Self> {
        let all = capacity.checked_mul(SPARE)?;
        let (entries, buckets) = if key_words == 0 {
            (1, 1)
        } else {
            let entries = all.min(ENTRIES);
            (entries, all.checked_div(entries)?)
        };
        let layout = Self {
            at,
            key_words,
            value_words,
            capacity,
            buckets,
            entries,
            locked,
        };
        let fits = u64::from(buckets)
            .checked_mul(layout.bucket_stride())
            .is_some_and(|size| size < 1 << 40);
        (capacity > 0 && value_words > 0 && at.is_multiple_of(LINE) && fits).then_some(layout)
    }

    /// Bytes of an entry.
    #[must_use]
    pub const fn stride(&self) -> u64 {
        8 * (1 + self.key_words as u64 + self.value_words as u64)
    }

    const fn bucket_stride(&self) -> u64 {
        (8 + self.entries as u64 * self.stride()).next_multiple_of(LINE)
    }

    /// Offset of a bucket.
    #[must_use]
    pub const fn bucket(&self, bucket: u32) -> u64 {
        self.at + HEADER + bucket as u64 * self.bucket_stride()
    }

    /// Offset of an entry.
    #[must_use]
    pub const fn entry(&self, bucket: u32, entry: u32) -> u64 {
        self.bucket(bucket) + 8 + entry as u64 * self.stride()
    }

    /// Bytes of the table.
    #[must_use]
    pub const fn size(&self) -> u64 {
        HEADER + self.buckets as u64 * self.bucket_stride()
    }

    /// The bucket of a key.
    #[must_use]
    pub fn bucket_of(&self, key: &[u64]) -> u32 {
        let hash = key.iter().fold(0u64, |hash, word| {
            let mixed = (hash ^ word).wrapping_mul(HASH_MULTIPLIER);
            mixed ^ (mixed >> 32)
        });
        // Below the number of buckets.
        (((hash & 0xffff_ffff) * u64::from(self.buckets)) >> 32) as u32
    }

    /// Whether the one key is always there.
    const fn is_single(&self) -> bool {
        self.key_words == 0
    }
}

/// Memory in which tables are changed.
pub trait TableMemory: RingMemory {
    /// In one step: the word at `offset` becomes `new`; what it was, 0 outside.
    fn exchange(&self, offset: u64, new: u64) -> u64;

    /// Adds to the word at `offset`, as one step; wraps.
    fn fetch_add(&self, offset: u64, addend: u64) -> u64;
}

/// A table in memory. Whatever bytes are there, each operation ends soon and panics nowhere.
pub struct Table<'m, M: ?Sized> {
    memory: &'m M,
    layout: TableLayout,
    /// Where the offsets count from.
    base: u64,
    /// What this user's locks hold; not 0.
    who: u64,
}

/// An entry that was found or made, and what has to be unlocked after its use.
#[derive(Clone, Copy)]
struct Place {
    entry: u64,
    lock: Option<u64>,
}

impl<'m, M: Memory + ?Sized> Table<'m, M> {
    /// The table in a part of memory that begins at `base`. `who` is what its locks hold while
    /// this user has them: not 0.
    #[must_use]
    pub const fn new(memory: &'m M, layout: TableLayout, base: u64, who: u64) -> Self {
        Self {
            memory,
            layout,
            base,
            who,
        }
    }

    /// Its shape.
    #[must_use]
    pub const fn layout(&self) -> &TableLayout {
        &self.layout
    }

    fn word(&self, offset: u64) -> u64 {
        self.memory.load(self.base + offset).unwrap_or(0)
    }

    fn value_at(&self, entry: u64) -> u64 {
        entry + 8 + 8 * u64::from(self.layout.key_words)
    }

    /// How many entries are live, as the header says.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.word(self.layout.at + LEN)
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Updates that were dropped: for want of room, and of a lock.
    #[must_use]
    pub fn dropped(&self) -> (u64, u64) {
        (
            self.word(self.layout.at + FULL),
            self.word(self.layout.at + LOCKED_OUT),
        )
    }

    fn has_key(&self, entry: u64, key: &[u64]) -> bool {
        let words = (entry + 8..).step_by(8);
        key.iter()
            .zip(words)
            .all(|(word, at)| self.word(at) == *word)
    }

    /// The entry with the key, and the first unused one.
    fn search(&self, bucket: u32, key: &[u64]) -> (Option<u64>, Option<u64>) {
        let mut free = None;
        for entry in 0..self.layout.entries {
            let at = self.layout.entry(bucket, entry);
            if self.word(at) == UNUSED {
                free = free.or(Some(at));
                if !self.layout.locked {
                    break;
                }
            } else if self.has_key(at, key) {
                return (Some(at), free);
            }
        }
        (None, free)
    }

    /// The first live entry at or behind a position: the position behind it; its key is copied.
    pub fn next(&self, cursor: u64, key: &mut [u64]) -> Option<u64> {
        let entries = u64::from(self.layout.entries);
        let all = u64::from(self.layout.buckets) * entries;
        let found = (cursor..all).find(|position| self.word(self.at(*position)) == LIVE)?;
        let words = (self.at(found) + 8..).step_by(8);
        for (word, at) in key.iter_mut().zip(words) {
            *word = self.word(at);
        }
        Some(found + 1)
    }

    fn at(&self, position: u64) -> u64 {
        let entries = u64::from(self.layout.entries);
        // Both are below what a layout can have.
        self.layout
            .entry((position / entries) as u32, (position % entries) as u32)
    }
}

impl<M: TableMemory + ?Sized> Table<'_, M> {
    fn add_at(&self, offset: u64, addend: u64) -> u64 {
        self.memory.fetch_add(self.base + offset, addend)
    }

    fn replace(&self, offset: u64, old: u64, new: u64) -> bool {
        self.memory.replace(self.base + offset, old, new)
    }

    fn drop_update(&self, why: u64) {
        self.add_at(self.layout.at + why, 1);
    }

    fn lock(&self, bucket: u32) -> Option<u64> {
        let at = self.layout.bucket(bucket);
        for _ in 0..SPINS * YIELDS {
            if self.replace(at, 0, self.who) {
                return Some(at);
            }
            if self.word(at) == self.who {
                break;
            }
            core::hint::spin_loop();
        }
        self.drop_update(LOCKED_OUT);
        None
    }

    fn unlock(&self, lock: u64) {
        self.memory.store(self.base + lock, 0);
    }

    fn release(&self, place: Place) {
        if let Some(lock) = place.lock {
            self.unlock(lock);
        }
    }

    /// The entry with the key.
    fn find(&self, key: &[u64]) -> Option<Place> {
        let bucket = self.layout.bucket_of(key);
        if self.layout.is_single() {
            let entry = self.layout.entry(0, 0);
            return Some(Place { entry, lock: None });
        }
        let lock = match self.layout.locked {
            true => Some(self.lock(bucket)?),
            false => None,
        };
        let found = self.search(bucket, key).0;
        match (found, lock) {
            (Some(entry), lock) => Some(Place { entry, lock }),
            (None, lock) => {
                lock.into_iter().for_each(|lock| self.unlock(lock));
                None
            }
        }
    }

    /// The entry with the key, which is made if there is none.
    fn find_or_insert(&self, key: &[u64]) -> Option<Place> {
        let bucket = self.layout.bucket_of(key);
        if !self.holds_lock()
            && let Some(place) = self.find(key)
        {
            return Some(place);
        }
        let lock = self.lock(bucket)?;
        let (found, free) = self.search(bucket, key);
        let place = match (found, free) {
            (Some(entry), _) => Some(entry),
            (None, Some(entry)) if !self.layout.locked || self.has_room() => {
                self.write_key(entry, key);
                Some(entry)
            }
            _ => {
                self.drop_update(FULL);
                None
            }
        };
        match place {
            Some(entry) if self.layout.locked => Some(Place {
                entry,
                lock: Some(lock),
            }),
            place => {
                self.unlock(lock);
                place.map(|entry| Place { entry, lock: None })
            }
        }
    }

    fn write_key(&self, entry: u64, key: &[u64]) {
        for (word, at) in key.iter().zip((entry + 8..).step_by(8)) {
            self.memory.store(self.base + at, *word);
        }
        if self.layout.locked {
            for at in (self.value_at(entry)..).step_by(8).take(self.words()) {
                self.memory.store(self.base + at, 0);
            }
            self.memory.store(self.base + entry, LIVE);
            self.add_at(self.layout.at + LEN, 1);
        } else {
            self.memory.store(self.base + entry, ABSENT);
        }
    }

    fn words(&self) -> usize {
        self.layout.value_words as usize
    }

    fn has_room(&self) -> bool {
        self.len() < u64::from(self.layout.capacity)
    }

    fn holds_lock(&self) -> bool {
        self.layout.locked && !self.layout.is_single()
    }

    /// Changes an entry's value by `change` and makes it live.
    fn live_by(&self, entry: u64, change: impl FnOnce(u64)) -> bool {
        if self.holds_lock() {
            change(self.value_at(entry));
            return true;
        }
        let absent = || self.word(entry) != LIVE;
        // The last place may have been given to this very entry meanwhile: the state is looked at again.
        if !self.layout.is_single() && absent() && !self.has_room() && absent() {
            self.drop_update(FULL);
            return false;
        }
        change(self.value_at(entry));
        let state = self.word(entry);
        if state != LIVE && self.replace(entry, state, LIVE) {
            self.add_at(self.layout.at + LEN, 1);
        }
        true
    }

    fn update_entry(&self, key: &[u64], change: impl FnOnce(u64)) -> bool {
        let Some(place) = self.find_or_insert(key) else {
            return false;
        };
        let done = self.live_by(place.entry, change);
        self.release(place);
        done
    }

    /// Runs `part` with nobody else at an entry's value of several words.
    fn whole<T>(&self, key: &[u64], part: impl FnOnce() -> T) -> Option<T> {
        if self.holds_lock() {
            return Some(part());
        }
        let lock = self.lock(self.layout.bucket_of(key))?;
        let result = part();
        self.unlock(lock);
        Some(result)
    }

    /// An entry's value words, as many as there is room for; whether it is live. Each word by
    /// itself is one that the entry had.
    pub fn get(&self, key: &[u64], words: &mut [u64]) -> bool {
        let Some(place) = self.find(key) else {
            return false;
        };
        let live = self.word(place.entry) == LIVE;
        if live {
            let offsets = (self.value_at(place.entry)..).step_by(8);
            for (word, at) in words.iter_mut().zip(offsets).take(self.words()) {
                *word = self.word(at);
            }
        }
        self.release(place);
        live
    }

    /// The same, all words of one moment.
    pub fn get_whole(&self, key: &[u64], words: &mut [u64]) -> bool {
        if self.holds_lock() {
            return self.get(key, words);
        }
        self.whole(key, || self.get(key, words)).unwrap_or(false)
    }

    /// Whether an entry is live.
    pub fn has(&self, key: &[u64]) -> bool {
        self.get(key, &mut [])
    }

    /// The first value word becomes this; whether there was room.
    pub fn set(&self, key: &[u64], word: u64) -> bool {
        self.update_entry(key, |at| self.memory.store(self.base + at, word))
    }

    /// The value becomes these words; whether there was room.
    pub fn set_whole(&self, key: &[u64], words: &[u64]) -> bool {
        self.update_entry(key, |at| {
            let _ = self.whole(key, || {
                for (word, at) in words.iter().zip((at..).step_by(8)).take(self.words()) {
                    self.memory.store(self.base + at, *word);
                }
            });
        })
    }

    /// Adds to value words, by their index; whether there was room.
    pub fn add(&self, key: &[u64], addends: &[(u32, u64)]) -> bool {
        self.update_entry(key, |at| {
            for (index, addend) in addends {
                if *index < self.layout.value_words {
                    self.add_at(at + 8 * u64::from(*index), *addend);
                }
            }
        })
    }

    /// The first value word becomes what `change` makes of it, as one step: what it was, and is;
    /// `None` without room, or where others change it all the time.
    pub fn update(&self, key: &[u64], change: impl Fn(u64) -> u64) -> Option<(u64, u64)> {
        const TRIES: u32 = 1 << 16;
        let mut result = None;
        self.update_entry(key, |at| {
            for _ in 0..TRIES {
                let old = self.word(at);
                let new = change(old);
                if self.replace(at, old, new) {
                    result = Some((old, new));
                    break;
                }
            }
        });
        result
    }

    /// Takes an entry away; the words that it had go to `taken`. Whether it was live.
    pub fn take(&self, key: &[u64], taken: &mut [u64]) -> bool {
        let Some(place) = self.find(key) else {
            return false;
        };
        let was = self.take_entry(place.entry, taken);
        self.release(place);
        was
    }

    fn take_entry(&self, entry: u64, taken: &mut [u64]) -> bool {
        let becomes = if self.holds_lock() { UNUSED } else { ABSENT };
        if !self.replace(entry, LIVE, becomes) {
            return false;
        }
        self.add_at(self.layout.at + LEN, u64::MAX);
        for (index, at) in (self.value_at(entry)..)
            .step_by(8)
            .take(self.words())
            .enumerate()
        {
            let word = self.memory.exchange(self.base + at, 0);
            if let Some(to) = taken.get_mut(index) {
                *to = word;
            }
        }
        true
    }

    /// Takes all entries away.
    pub fn clear(&self) {
        for bucket in 0..self.layout.buckets {
            let lock = match self.holds_lock() {
                true => match self.lock(bucket) {
                    Some(lock) => Some(lock),
                    None => continue,
                },
                false => None,
            };
            for entry in 0..self.layout.entries {
                self.take_entry(self.layout.entry(bucket, entry), &mut []);
            }
            lock.into_iter().for_each(|lock| self.unlock(lock));
        }
    }

    /// Sets all words of all live entries to 0.
    pub fn zero(&self) {
        for bucket in 0..self.layout.buckets {
            for entry in 0..self.layout.entries {
                let at = self.layout.entry(bucket, entry);
                if self.word(at) == LIVE {
                    for at in (self.value_at(at)..).step_by(8).take(self.words()) {
                        self.memory.exchange(self.base + at, 0);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;

//! Every interleaving of threads that claim entries of a keyed map.
#![allow(missing_docs)]

use lancet_abi::map::{find_or_insert, first_probe, function, meta, probes};
use lancet_abi::memory::{MapMemory, Memory};
use lancet_abi::{MapLayout, SlotId};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};

/// Entries as single atomics, key in the upper half: claimed in one step, but
/// read by halves, as 16-byte entries are. Then the counters.
struct Model {
    entries: Vec<AtomicU64>,
    counts: Vec<AtomicU64>,
}

const COUNTS: u64 = 1 << 20;

impl Model {
    fn new(capacity: u32) -> Self {
        let zeroes = |n| (0..n).map(|_| AtomicU64::new(0)).collect();
        Self {
            entries: zeroes(capacity),
            counts: zeroes(capacity + 1),
        }
    }
}

impl Memory for Model {
    fn len(&self) -> u64 {
        u64::MAX
    }

    fn load(&self, offset: u64) -> Option<u64> {
        let word = self
            .entries
            .get(offset as usize / 16)?
            .load(Ordering::Acquire);
        Some(if offset.is_multiple_of(16) {
            word & 0xffff_ffff
        } else {
            word >> 32
        })
    }
}

impl MapMemory for Model {
    fn publish(&self, offset: u64, meta: u64, key: u64) -> bool {
        let new = meta | key << 32;
        self.entries[offset as usize / 16]
            .compare_exchange(0, new, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    fn add(&self, offset: u64, addend: u64) {
        self.counts[(offset - COUNTS) as usize / 8].fetch_add(addend, Ordering::Relaxed);
    }
}

fn layout(capacity: u32) -> MapLayout {
    MapLayout {
        entries: 0,
        capacity,
        width: 1,
        values: SlotId(0),
        dropped: SlotId(capacity),
    }
}

fn hit(model: &Model, map: &MapLayout, meta: u32, key: u64) {
    let slot = find_or_insert(model, map, meta, key).unwrap_or(map.dropped.0);
    model.add(COUNTS + 8 * u64::from(slot), 1);
}

/// Each thread hits its keys; then: no key twice, every hit counted once, and
/// dropped ones only where the map has more keys than entries.
fn check(capacity: u32, threads: &'static [&'static [(Option<u32>, u64)]]) {
    loom::model(move || {
        let model = Arc::new(Model::new(capacity));
        let map = layout(capacity);
        let run = move |model: &Model, keys: &[(Option<u32>, u64)]| {
            for (function, key) in keys {
                hit(model, &map, meta(*function).unwrap(), *key);
            }
        };
        let others: Vec<_> = threads[1..]
            .iter()
            .map(|keys| {
                let model = model.clone();
                loom::thread::spawn(move || run(&model, keys))
            })
            .collect();
        run(&model, threads[0]);
        others.into_iter().for_each(|thread| thread.join().unwrap());

        let mut found = Vec::new();
        let mut counted = 0;
        for index in 0..capacity {
            let at = 16 * u64::from(index);
            let count = model.counts[index as usize].load(Ordering::Relaxed);
            counted += count;
            let word = model.load(at).unwrap();
            if word == 0 {
                assert_eq!(count, 0, "a free entry was counted");
                continue;
            }
            let key = (function(word).unwrap(), model.load(at + 8).unwrap());
            assert!(!found.contains(&key), "{key:?} has two entries");
            let hits = threads
                .iter()
                .flat_map(|keys| keys.iter())
                .filter(|k| **k == key)
                .count();
            assert!(count <= hits as u64);
            let all: std::collections::HashSet<_> = threads.iter().copied().flatten().collect();
            if all.len() <= capacity as usize {
                assert_eq!(count, hits as u64, "{key:?}");
            }
            found.push(key);
        }
        let dropped = model.counts[capacity as usize].load(Ordering::Relaxed);
        let hits: usize = threads.iter().map(|keys| keys.len()).sum();
        assert_eq!(counted + dropped, hits as u64);
    });
}

#[test]
fn same_key_from_two_and_three_threads() {
    check(2, &[&[(None, 5), (None, 5)], &[(None, 5)]]);
    check(2, &[&[(None, 5)], &[(None, 5)], &[(None, 5)]]);
}

#[test]
fn different_keys_that_collide() {
    assert_eq!(
        first_probe(1, 0, 4),
        first_probe(1, 8, 4).min(first_probe(1, 0, 4))
    );
    check(2, &[&[(None, 0), (None, 1)], &[(None, 1), (None, 0)]]);
    check(4, &[&[(None, 0)], &[(None, 0)], &[(None, 2)]]);
    check(2, &[&[(None, 7), (Some(0), 7)], &[(Some(0), 7), (None, 7)]]);
}

#[test]
fn a_full_map_drops_and_counts() {
    check(2, &[&[(None, 1), (None, 2)], &[(None, 3), (None, 1)]]);
}

#[test]
fn probing_is_bounded() {
    assert_eq!((probes(2), probes(64), probes(1 << 20)), (2, 64, 64));
}

#[test]
fn meta_words_come_back() {
    for f in [
        None,
        Some(0),
        Some(1),
        Some(lancet_abi::map::MAX_FUNCTION - 1),
    ] {
        let word = meta(f).unwrap();
        assert!(word != 0 && word < 1 << 31);
        assert_eq!(function(word.into()), Some(f));
    }
    assert_eq!(meta(Some(lancet_abi::map::MAX_FUNCTION)), None);
    assert_eq!(
        (function(0), function(2), function(u64::MAX)),
        (None, None, None)
    );
}

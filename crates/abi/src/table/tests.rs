use super::*;
use crate::memory::SharedMut;
use core::sync::atomic::AtomicU64;
use std::collections::BTreeMap;
use std::vec;
use std::vec::Vec;

fn memory(layout: &TableLayout) -> Vec<AtomicU64> {
    (0..(layout.at + layout.size()) / 8)
        .map(|_| AtomicU64::new(0))
        .collect()
}

fn view(words: &[AtomicU64]) -> SharedMut<'_> {
    // SAFETY: an array of atomics that outlives the view.
    unsafe { SharedMut::new(words.as_ptr().cast(), 8 * words.len()) }
}

fn entries(table: &Table<'_, SharedMut<'_>>, layout: &TableLayout) -> BTreeMap<Vec<u64>, Vec<u64>> {
    let mut all = BTreeMap::new();
    let mut cursor = 0;
    let mut key = vec![0; layout.key_words as usize];
    while let Some(next) = table.next(cursor, &mut key) {
        let mut words = vec![0; layout.value_words as usize];
        assert!(table.get(&key, &mut words));
        assert_eq!(all.insert(key.clone(), words), None);
        cursor = next;
    }
    assert_eq!(table.len(), all.len() as u64);
    all
}

#[test]
fn behaves_as_a_map() {
    for locked in [false, true] {
        for (key_words, value_words) in [(0, 1), (1, 1), (2, 3), (4, 2)] {
            let layout = TableLayout::new(64, key_words, value_words, 40, locked).unwrap();
            let words = memory(&layout);
            let memory = view(&words);
            let table = Table::new(&memory, layout, 0, 1);
            let mut model: BTreeMap<Vec<u64>, Vec<u64>> = BTreeMap::new();
            let mut random = 1u64;
            for _ in 0..20_000 {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let n = random >> 33;
                // Keys that stay in an unlocked table for good fill it at last.
                let key = vec![n % 37; key_words as usize];
                let room = model.len() < 40 || model.contains_key(&key);
                let fresh = || vec![0; value_words as usize];
                match n / 37 % 6 {
                    0 if room => {
                        assert!(table.set(&key, n));
                        model.entry(key).or_insert_with(fresh)[0] = n;
                    }
                    1 if room => {
                        let last = value_words - 1;
                        assert!(table.add(&key, &[(0, n), (last, 3)]));
                        let value = model.entry(key).or_insert_with(fresh);
                        value[0] = value[0].wrapping_add(n);
                        value[last as usize] = value[last as usize].wrapping_add(3);
                    }
                    2 if room => {
                        let value = model.entry(key.clone()).or_insert_with(fresh);
                        let (old, new) = table.update(&key, |old| old ^ n).unwrap();
                        assert_eq!(old, value[0]);
                        value[0] = new;
                    }
                    3 => {
                        let mut taken = fresh();
                        let was = table.take(&key, &mut taken);
                        assert_eq!(was.then_some(taken), model.remove(&key));
                    }
                    4 if room => {
                        let value: Vec<u64> = (0..value_words.into()).map(|w| n + w).collect();
                        assert!(table.set_whole(&key, &value));
                        model.insert(key, value);
                    }
                    _ => {
                        let mut got = fresh();
                        let is = table.get_whole(&key, &mut got);
                        assert_eq!(is.then_some(got), model.get(&key).cloned());
                    }
                }
            }
            assert_eq!(entries(&table, &layout), model);
            assert_eq!(table.dropped(), (0, 0));
            table.zero();
            assert!(entries(&table, &layout).values().flatten().all(|w| *w == 0));
            table.clear();
            assert!(table.is_empty() && entries(&table, &layout).is_empty());
        }
    }
}

#[test]
fn a_full_table_drops_and_counts() {
    for locked in [false, true] {
        let layout = TableLayout::new(0, 1, 1, 5, locked).unwrap();
        let words = memory(&layout);
        let memory = view(&words);
        let table = Table::new(&memory, layout, 0, 1);
        let done = (0..9).filter(|key| table.add(&[*key], &[(0, 1)])).count();
        assert_eq!((done, table.len(), table.dropped()), (5, 5, (4, 0)));
        assert!(table.add(&[2], &[(0, 1)]));
        assert!(table.take(&[2], &mut []) && table.set(&[7], 1));
        assert!(!table.set(&[8], 1));
    }
}

#[test]
fn a_lock_that_is_held_drops_and_counts() {
    let layout = TableLayout::new(0, 1, 1, 5, true).unwrap();
    let words = memory(&layout);
    let memory = view(&words);
    let table = Table::new(&memory, layout, 0, 1);
    (0..layout.buckets).for_each(|bucket| memory.store(layout.bucket(bucket), 9));
    assert!(!table.set(&[1], 1) && !table.has(&[1]));
    assert_eq!(table.dropped(), (0, 2));
}

#[test]
fn nothing_that_is_counted_is_lost_when_entries_are_taken() {
    let layout = TableLayout::new(0, 1, 1, 8, false).unwrap();
    let words = memory(&layout);
    let memory = view(&words);
    let (mut taken, mut added) = (0, 0);
    std::thread::scope(|scope| {
        let adders: Vec<_> = (0..4u64)
            .map(|who| {
                let memory = &memory;
                scope.spawn(move || {
                    let table = Table::new(memory, layout, 0, who + 2);
                    // One that finds a bucket locked by a thread that does not run is dropped.
                    let added = |n: &u64| table.add(&[n % 5], &[(0, 1)]);
                    (0..20_000).filter(added).count() as u64
                })
            })
            .collect();
        let table = Table::new(&memory, layout, 0, 1);
        while !adders.iter().all(|adder| adder.is_finished()) {
            for key in 0..5 {
                let mut words = [0];
                if table.take(&[key], &mut words) {
                    taken += words[0];
                }
            }
        }
        added = adders.into_iter().map(|adder| adder.join().unwrap()).sum();
    });
    let table = Table::new(&memory, layout, 0, 1);
    let left: u64 = entries(&table, &layout).values().flatten().sum();
    assert_eq!(taken + left, added);
    // A key that is being taken takes its room until it is gone, so there may be none for a moment.
    let (no_room, no_lock) = table.dropped();
    assert_eq!(added + no_room + no_lock, 80_000);
}

#[test]
fn hostile_bytes_are_bounded() {
    let layout = TableLayout::new(0, 2, 2, 10, true).unwrap();
    for fill in [u64::MAX, 1, 3, 0x0303_0303_0303_0303] {
        let words = memory(&layout);
        words.iter().for_each(|word| {
            word.store(fill, core::sync::atomic::Ordering::Relaxed);
        });
        let memory = view(&words);
        let table = Table::new(&memory, layout, 0, 1);
        let _ = (table.set(&[1, 2], 3), table.get(&[1, 2], &mut [0; 2]));
        table.clear();
        let mut cursor = 0;
        let mut rounds = 0;
        while let Some(next) = table.next(cursor, &mut [0; 2]) {
            (cursor, rounds) = (next, rounds + 1);
        }
        assert!(rounds <= 40);
    }
}

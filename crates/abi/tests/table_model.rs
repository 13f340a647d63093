//! Every interleaving of users of one table, up to a bound of preemptions.
#![allow(missing_docs)]

use lancet_abi::memory::{Memory, RingMemory};
use lancet_abi::table::{Table, TableLayout, TableMemory};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};

struct Model {
    words: Vec<AtomicU64>,
    layout: TableLayout,
}

impl Model {
    fn new(layout: TableLayout) -> Self {
        let words = (0..layout.size() / 8).map(|_| AtomicU64::new(0)).collect();
        Self { words, layout }
    }

    fn table(&self, who: u64) -> Table<'_, Self> {
        Table::new(self, self.layout, 0, who)
    }

    fn word(&self, offset: u64) -> &AtomicU64 {
        &self.words[offset as usize / 8]
    }
}

impl Memory for Model {
    fn len(&self) -> u64 {
        self.layout.size()
    }

    fn load(&self, offset: u64) -> Option<u64> {
        Some(self.word(offset).load(Ordering::Acquire))
    }
}

impl RingMemory for Model {
    fn replace(&self, offset: u64, old: u64, new: u64) -> bool {
        let done = self
            .word(offset)
            .compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire)
            .is_ok();
        if !done {
            // Who waits for a lock lets its holder run.
            loom::thread::yield_now();
        }
        done
    }

    fn store(&self, offset: u64, word: u64) {
        self.word(offset).store(word, Ordering::Release);
    }
}

impl TableMemory for Model {
    fn exchange(&self, offset: u64, new: u64) -> u64 {
        self.word(offset).swap(new, Ordering::AcqRel)
    }

    fn fetch_add(&self, offset: u64, addend: u64) -> u64 {
        self.word(offset).fetch_add(addend, Ordering::AcqRel)
    }
}

fn layout(key_words: u32, value_words: u32, locked: bool) -> TableLayout {
    // One bucket of four entries.
    TableLayout::new(0, key_words, value_words, 1, locked).expect("a small table")
}

fn check(preemptions: usize, run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(run);
}

/// Two threads run beside each other on one table.
fn beside(
    layout: TableLayout,
    first: fn(&Table<'_, Model>) -> u64,
    second: fn(&Table<'_, Model>) -> u64,
    after: fn(&Table<'_, Model>, u64, u64),
) {
    check(3, move || {
        let model = Arc::new(Model::new(layout));
        let other = model.clone();
        let thread = loom::thread::spawn(move || second(&other.table(2)));
        let mine = first(&model.table(1));
        let theirs = thread.join().expect("no panic");
        let table = model.table(3);
        let (_, locked_out) = table.dropped();
        assert_eq!(locked_out, 0);
        after(&table, mine, theirs);
    });
}

fn add(table: &Table<'_, Model>) -> u64 {
    u64::from(table.add(&[7], &[(0, 1)]))
}

fn take(table: &Table<'_, Model>) -> u64 {
    let mut words = [0];
    table.take(&[7], &mut words);
    words[0]
}

fn left(table: &Table<'_, Model>) -> u64 {
    let mut words = [0];
    let live = table.get(&[7], &mut words);
    assert_eq!(table.len(), u64::from(live));
    words[0]
}

#[test]
fn two_inserters_of_one_key_make_one_entry() {
    for locked in [false, true] {
        beside(layout(1, 1, locked), add, add, |table, a, b| {
            assert_eq!((a, b, left(table)), (1, 1, 2));
            let mut key = [0];
            let next = table.next(0, &mut key).expect("an entry");
            assert_eq!((key, table.next(next, &mut key)), ([7], None));
        });
    }
}

#[test]
fn what_is_added_while_an_entry_is_taken_is_taken_or_left() {
    for locked in [false, true] {
        let adds = |table: &Table<'_, Model>| add(table) + add(table);
        beside(layout(1, 1, locked), take, adds, |table, taken, added| {
            assert_eq!(taken + left(table), added);
            assert_eq!(added, 2);
        });
    }
}

#[test]
fn the_only_entry_of_a_map_without_key_loses_nothing() {
    let adds = |table: &Table<'_, Model>| u64::from(table.add(&[], &[(0, 1)])) * 2 - 1;
    let takes = |table: &Table<'_, Model>| {
        let mut words = [0];
        table.take(&[], &mut words);
        words[0]
    };
    beside(layout(0, 1, false), takes, adds, |table, taken, _| {
        let mut words = [0];
        let live = table.get(&[], &mut words);
        assert_eq!(taken + words[0], 1);
        assert_eq!(table.len(), u64::from(live));
    });
}

#[test]
fn values_of_several_words_are_never_torn() {
    let write = |table: &Table<'_, Model>| u64::from(table.set_whole(&[], &[5, 5]));
    let read = |table: &Table<'_, Model>| {
        let mut words = [0, 0];
        table.get_whole(&[], &mut words);
        assert_eq!(words[0], words[1]);
        words[0]
    };
    beside(layout(0, 2, false), read, write, |table, seen, done| {
        assert!(seen == 0 || seen == 5);
        assert_eq!((done, read_back(table)), (1, [5, 5]));
    });
}

fn read_back(table: &Table<'_, Model>) -> [u64; 2] {
    let mut words = [0, 0];
    table.get_whole(&[], &mut words);
    words
}

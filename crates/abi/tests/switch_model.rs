//! Every interleaving of hits with the tracer that registers, removes and switches off, up to a
//! bound of preemptions.
//!
//! What the tracer does here is what a detach does in this order: text, then the wait until no
//! thread is in an action, then the final numbers. A hit is: one jump through the text, then the
//! additions of the pad that the jump went to.
#![allow(missing_docs)]

use std::collections::BTreeMap;

use lancet_abi::counter::{self, CounterMemory};
use lancet_abi::memory::Memory;
use lancet_abi::{Layout, LayoutBuilder, Region, SlotId};
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::sync::{Arc, Mutex};

/// The words of a region that are touched here.
struct Model {
    layout: Layout,
    words: BTreeMap<u64, AtomicU64>,
    /// The mode word of the one process.
    mode: AtomicU64,
}

impl Model {
    fn new(slots: u32, cpus: u32) -> Self {
        let mut builder = LayoutBuilder::new();
        let _ = builder.plain(slots);
        let layout = builder.build(cpus).unwrap();
        let mut words = BTreeMap::new();
        words.insert(layout.on(), AtomicU64::new(1));
        for cpu in 0..cpus {
            let block = layout.block(cpu).unwrap();
            words.insert(
                layout.cpu_table() + 8 * u64::from(cpu),
                AtomicU64::new(block),
            );
            for slot in (0..slots).map(SlotId) {
                words.insert(block + layout.rseq_slot(slot), AtomicU64::new(0));
                words.insert(block + layout.lock_slot(slot), AtomicU64::new(0));
            }
        }
        Self {
            layout,
            words,
            mode: AtomicU64::new(0),
        }
    }

    /// The off switch: a plain write through the region's file, word by word.
    fn switch_off(&self) {
        let (start, length) = self.layout.off_switch();
        for (_, word) in self.words.range(start.0..start.0 + length as u64) {
            word.store(0, Ordering::Relaxed);
        }
    }

    fn total(&self, slot: u32) -> u64 {
        let region = Region::with_layout(self, self.layout.clone()).unwrap();
        region.slot_total(SlotId(slot), 0).unwrap()
    }
}

impl Memory for Model {
    fn len(&self) -> u64 {
        self.layout.size()
    }

    fn load(&self, offset: u64) -> Option<u64> {
        Some(self.words.get(&offset)?.load(Ordering::Acquire))
    }
}

impl CounterMemory for Model {
    fn mode(&self) -> u64 {
        self.mode.load(Ordering::Acquire)
    }

    fn add(&self, offset: u64, addend: u64) {
        self.words[&offset].fetch_add(addend, Ordering::Relaxed);
    }
}

/// A thread's hits on one CPU; how many of them counted.
fn hits(model: &Model, cpu: u32, times: u64) -> u64 {
    (0..times)
        .filter(|_| counter::add_locked(model, &model.layout, cpu, SlotId(0), 1))
        .count() as u64
}

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

#[test]
fn off_word_every_hit_counts_or_knows_that_it_does_not() {
    check(|| {
        let model = Arc::new(Model::new(1, 2));
        let threads: Vec<_> = (0..2)
            .map(|cpu| {
                let model = model.clone();
                loom::thread::spawn(move || hits(&model, cpu, 2))
            })
            .collect();
        model.switch_off();
        let counted: u64 = threads.into_iter().map(|t| t.join().unwrap()).sum();
        assert_eq!(
            model.total(0),
            counted,
            "hits that were under way may count"
        );
        assert_eq!(
            hits(&model, 0, 1) + hits(&model, 1, 1),
            0,
            "it is off for good"
        );
        assert_eq!(model.total(0), counted);
    });
}

#[test]
fn the_mode_of_one_process_stops_that_process_alone() {
    check(|| {
        let mine = Arc::new(Model::new(1, 1));
        let thread = {
            let mine = mine.clone();
            loom::thread::spawn(move || hits(&mine, 0, 2))
        };
        mine.mode
            .store(1 << (8 * lancet_abi::private::OFF_BYTE), Ordering::Release);
        let counted = thread.join().unwrap();
        assert_eq!(mine.total(0), counted);
        assert_eq!(hits(&mine, 0, 1), 0);
        mine.mode.store(1, Ordering::Release);
        assert_eq!(hits(&mine, 0, 1), 1, "an uncertain process counts on");
    });
}

/// A site whose text leads to nothing, to a pad of one consumer, or to one of two; and the one
/// thread that executes it.
struct Site {
    counters: Model,
    /// For each pad, whether its bytes are there.
    written: [AtomicBool; 3],
    /// The text, and the thread's instruction pointer. A thread moves by whole instructions, and
    /// the tracer writes text and looks at instruction pointers while all threads are stopped:
    /// that is what the lock stands for.
    stop: Mutex<Place>,
}

struct Place {
    text: usize,
    inside: usize,
}

/// The consumers of each pad.
const PADS: [&[u32]; 3] = [&[], &[0], &[0, 1]];

impl Site {
    fn new() -> Self {
        Self {
            counters: Model::new(2, 1),
            written: std::array::from_fn(|_| AtomicBool::new(false)),
            stop: Mutex::new(Place { text: 0, inside: 0 }),
        }
    }

    /// One execution of the site; the pad that it went through.
    fn execute(&self) -> usize {
        let pad = {
            let mut place = self.stop.lock().unwrap();
            place.inside = place.text;
            place.text
        };
        for &consumer in PADS[pad] {
            assert!(
                self.written[pad].load(Ordering::Relaxed),
                "a thread is in a pad that is not there"
            );
            let _ = counter::add_locked(
                &self.counters,
                &self.counters.layout,
                0,
                SlotId(consumer),
                1,
            );
        }
        self.stop.lock().unwrap().inside = 0;
        pad
    }

    /// The pad first, then the text.
    fn lead_to(&self, pad: usize) {
        self.written[pad].store(true, Ordering::Relaxed);
        self.stop.lock().unwrap().text = pad;
    }

    /// Waits until the thread is in no pad other than `but`.
    fn quiesce(&self, but: usize) {
        while ![0, but].contains(&self.stop.lock().unwrap().inside) {
            loom::thread::yield_now();
        }
    }
}

#[test]
fn a_new_consumer_is_seen_and_a_removed_one_counts_at_most_the_hit_under_way() {
    check(|| {
        let site = Arc::new(Site::new());
        site.lead_to(1);
        let thread = {
            let site = site.clone();
            loom::thread::spawn(move || [site.execute(), site.execute()])
        };
        site.lead_to(0);
        let at_removal = site.counters.total(0);
        site.quiesce(0);
        let settled = site.counters.total(0);
        assert!(settled - at_removal <= 1, "one last hit of the one thread");
        let pads = thread.join().unwrap();
        assert_eq!(
            site.counters.total(0),
            settled,
            "nothing counts after the wait"
        );
        assert_eq!(pads.iter().filter(|p| **p == 1).count() as u64, settled);
        site.lead_to(2);
        assert_eq!(site.execute(), 2, "registered again: the next hit sees it");
        assert_eq!(site.counters.total(1), 1);
    });
}

#[test]
fn removal_never_beats_a_registration_that_came_after_it() {
    check(|| {
        let site = Arc::new(Site::new());
        site.lead_to(1);
        let thread = {
            let site = site.clone();
            loom::thread::spawn(move || [site.execute(), site.execute()])
        };
        // Consumer 1 joins; the first pad may go once nobody is in it.
        site.lead_to(2);
        site.quiesce(2);
        site.written[1].store(false, Ordering::Relaxed);
        let pads = thread.join().unwrap();
        assert_eq!(
            site.counters.total(0),
            2,
            "the first consumer misses nothing"
        );
        let second = pads.iter().filter(|p| **p == 2).count() as u64;
        assert_eq!(site.counters.total(1), second);
        assert_eq!(site.execute(), 2, "what was registered last is there");
    });
}

//! Every interleaving of producers and the consumer of a ring, up to a bound of preemptions.
#![allow(missing_docs)]

use lancet_abi::memory::{Memory, RingMemory};
use lancet_abi::ring::{Consumer, Next, finish, take};
use lancet_abi::{RingLayout, SharedMut};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};

const RING: RingLayout = RingLayout {
    at: 0,
    slots: 2,
    stride: 24,
};

struct Model(Vec<AtomicU64>);

impl Model {
    fn new() -> Self {
        Self((0..RING.size() / 8).map(|_| AtomicU64::new(0)).collect())
    }

    fn put(&self, offset: u64, word: u64) {
        self.0[offset as usize / 8].store(word, Ordering::Relaxed);
    }

    fn get(&self, offset: u64) -> u64 {
        self.0[offset as usize / 8].load(Ordering::Relaxed)
    }
}

impl Memory for Model {
    fn len(&self) -> u64 {
        RING.size()
    }

    fn load(&self, offset: u64) -> Option<u64> {
        Some(self.0.get(offset as usize / 8)?.load(Ordering::Acquire))
    }
}

impl RingMemory for Model {
    fn replace(&self, offset: u64, old: u64, new: u64) -> bool {
        self.0[offset as usize / 8]
            .compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    fn store(&self, offset: u64, word: u64) {
        self.0[offset as usize / 8].store(word, Ordering::Release);
    }
}

/// What became of one record, as its producer knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sent {
    HandedOver,
    Full,
    GivenUp,
}

fn send(model: &Model, record: u64) -> Sent {
    let Some(taken) = take(model, &RING) else {
        return Sent::Full;
    };
    model.put(taken.record, record);
    model.put(taken.record + 8, record);
    if finish(model, taken) {
        Sent::HandedOver
    } else {
        Sent::GivenUp
    }
}

/// Takes what there is; where told to, gives up what is not finished.
fn drain(model: &Model, consumer: &mut Consumer, give_up: bool, received: &mut Vec<u64>) {
    loop {
        match consumer.next(model) {
            Next::Record(at) => {
                let words = (model.get(at), model.get(at + 8));
                assert_eq!(words.0, words.1, "a torn record");
                received.push(words.0);
                consumer.free(model);
            }
            Next::Unfinished if give_up => {
                let _ = consumer.give_up(model);
            }
            Next::Unfinished | Next::Empty => return,
        }
    }
}

/// Producers send their records while the consumer drains; then all is accounted for.
fn check(preemptions: usize, producers: &'static [&'static [u64]], give_up: bool) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(move || {
        let model = Arc::new(Model::new());
        let threads: Vec<_> = producers
            .iter()
            .map(|records| {
                let model = model.clone();
                loom::thread::spawn(move || -> Vec<Sent> {
                    records.iter().map(|&record| send(&model, record)).collect()
                })
            })
            .collect();
        let mut consumer = Consumer::new(RING);
        let mut received = Vec::new();
        drain(&model, &mut consumer, give_up, &mut received);
        let sent: Vec<Vec<Sent>> = threads.into_iter().map(|t| t.join().unwrap()).collect();
        drain(&model, &mut consumer, false, &mut received);
        assert_eq!(consumer.next(&*model), Next::Empty, "nobody is at work");

        let mut given_up = 0;
        for (records, fates) in producers.iter().zip(&sent) {
            let handed_over: Vec<u64> = records
                .iter()
                .zip(fates)
                .filter_map(|(&record, fate)| (*fate == Sent::HandedOver).then_some(record))
                .collect();
            let mine = |record: &&u64| records.contains(record);
            let got: Vec<u64> = received.iter().filter(mine).copied().collect();
            assert_eq!(got, handed_over, "all that was handed over, once, in order");
            given_up += fates.iter().filter(|fate| **fate == Sent::GivenUp).count();
        }
        assert_eq!(consumer.dead() as usize, given_up);
    });
}

#[test]
fn producers_that_meet() {
    check(3, &[&[11, 12], &[21, 22]], false);
}

#[test]
fn a_lap_is_full_until_it_is_drained() {
    check(4, &[&[11, 12, 13, 14]], false);
}

#[test]
fn a_slow_producer_is_given_up() {
    check(3, &[&[11], &[21, 22]], true);
}

#[test]
fn a_producer_that_never_finishes() {
    let words = [const { std::sync::atomic::AtomicU64::new(0) }; 16];
    // SAFETY: `words` outlives the view and is an array of atomics.
    let memory = unsafe { SharedMut::new(words.as_ptr().cast(), size_of_val(&words)) };
    let mut consumer = Consumer::new(RING);
    let dead = take(&memory, &RING).unwrap();
    for record in 0..10 {
        let taken = take(&memory, &RING).expect("one slot is enough");
        memory.store(taken.record, record);
        assert!(finish(&memory, taken));
        assert!(take(&memory, &RING).is_none(), "the lap is full");
        if record == 0 {
            assert_eq!(consumer.next(&memory), Next::Unfinished);
            assert!(consumer.give_up(&memory));
        }
        let Next::Record(at) = consumer.next(&memory) else {
            panic!("record {record} is not there");
        };
        assert_eq!(memory.load(at), Some(record));
        consumer.free(&memory);
        assert_eq!(consumer.next(&memory), Next::Empty);
    }
    assert!(!finish(&memory, dead), "it was counted as lost");
    assert_eq!(consumer.dead(), 1);
}

#[test]
fn hostile_words_end_every_loop() {
    for word in [1, 2, 3, u64::MAX - 1, u64::MAX, 1 << 63] {
        let words = [const { std::sync::atomic::AtomicU64::new(0) }; 16];
        words
            .iter()
            .for_each(|w| w.store(word, std::sync::atomic::Ordering::Relaxed));
        // SAFETY: `words` outlives the view and is an array of atomics.
        let memory = unsafe { SharedMut::new(words.as_ptr().cast(), size_of_val(&words)) };
        let mut consumer = Consumer::new(RING);
        for _ in 0..100 {
            match consumer.next(&memory) {
                Next::Record(_) => consumer.free(&memory),
                Next::Unfinished => drop(consumer.give_up(&memory)),
                Next::Empty => break,
            }
        }
        let _ = take(&memory, &RING);
    }
}

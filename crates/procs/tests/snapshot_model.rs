//! Every interleaving of a writer that publishes with a reader, up to a bound of preemptions.
#![allow(missing_docs)]

use std::collections::BTreeMap;

use lancet_abi::memory::{Memory, RingMemory};
use lancet_procs::{Missed, Slots};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};

/// The words of the shared memory that are touched here.
struct Model {
    words: BTreeMap<u64, AtomicU64>,
    size: u64,
}

impl Model {
    fn new(slots: Slots) -> Self {
        let size = slots.size();
        let offsets = [0, 8, 16].into_iter().chain((4096..size).step_by(8));
        Self {
            words: offsets.map(|at| (at, AtomicU64::new(0))).collect(),
            size,
        }
    }
}

impl Memory for Model {
    fn len(&self) -> u64 {
        self.size
    }

    fn load(&self, offset: u64) -> Option<u64> {
        Some(self.words.get(&offset)?.load(Ordering::Acquire))
    }
}

impl RingMemory for Model {
    fn replace(&self, offset: u64, old: u64, new: u64) -> bool {
        self.words.get(&offset).is_some_and(|word| {
            word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire)
                .is_ok()
        })
    }

    fn store(&self, offset: u64, word: u64) {
        self.words[&offset].store(word, Ordering::Release);
    }
}

/// Data of different lengths, in which each byte says its generation.
fn data(generation: u64) -> Vec<u8> {
    vec![generation as u8; 8 + 8 * (generation % 2) as usize]
}

fn a_reader_beside_a_writer(slots: Slots, generations: u64, preemptions: usize) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(move || {
        let model = Model::new(slots);
        slots.prepare(&model, 7);
        assert!(slots.publish(&model, 1, &data(1)));
        let memory = Arc::new(model);
        let writer = {
            let memory = Arc::clone(&memory);
            loom::thread::spawn(move || {
                for generation in 2..=generations {
                    assert!(slots.publish(&*memory, generation, &data(generation)));
                }
            })
        };
        let (latest, namespace) = slots.latest(&*memory).unwrap();
        assert!(latest >= 1 && namespace == 7);
        match slots.read(&*memory, latest) {
            // Whole, and of the generation that was asked for.
            Ok(read) => assert_eq!(read, data(latest)),
            Err(missed) => assert_eq!(missed, Missed::Replaced),
        }
        writer.join().unwrap();
        // Nobody writes any more: the latest is there.
        assert_eq!(slots.latest(&*memory).unwrap().0, generations);
        assert_eq!(
            slots.read(&*memory, generations).unwrap(),
            data(generations)
        );
    });
}

#[test]
fn one_slot_is_read_whole_or_not_at_all() {
    let slots = Slots { count: 1, room: 16 };
    a_reader_beside_a_writer(slots, 2, 4);
}

#[test]
fn two_slots_over_three_generations() {
    let slots = Slots { count: 2, room: 16 };
    a_reader_beside_a_writer(slots, 3, 3);
}

#[test]
fn hostile_memory_is_refused() {
    let slots = Slots { count: 2, room: 16 };
    let bytes = vec![0xff_u8; slots.size() as usize];
    assert_eq!(slots.latest(&bytes[..]), Err(Missed::Invalid));
    assert_eq!(slots.read(&bytes[..], 1), Err(Missed::Replaced));
    assert_eq!(slots.read(&bytes[..64], 1), Err(Missed::Invalid));
    let mut bytes = vec![0_u8; slots.size() as usize];
    bytes[4096 + 32..4096 + 40].copy_from_slice(&2_u64.to_ne_bytes());
    bytes[4096 + 40..4096 + 48].copy_from_slice(&u64::MAX.to_ne_bytes());
    assert_eq!(slots.read(&bytes[..], 1), Err(Missed::Invalid));
}

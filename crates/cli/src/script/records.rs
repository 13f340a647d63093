//! Records that hits leave in the rings: taken out in the order of their times.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use lancet_abi::Memory;
use lancet_abi::ring::{Consumer, Next};
use lancet_engine::Session;
use lancet_engine::scripts::{Count, RECORD_HEAD};

/// A producer that has a slot for so long has been stopped or killed in the middle.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often the rings are looked at: often while much is in them.
const SOON: Duration = Duration::from_millis(1);
const LATER: Duration = Duration::from_millis(20);
/// Records of one look from which on the next is soon.
const MANY: usize = 256;

/// The tracer's side of all rings.
#[derive(Default)]
pub(super) struct Drain {
    /// By CPU; from where the script's part of the memory begins.
    rings: Vec<(Consumer, Option<Instant>)>,
    base: u64,
    /// Slots that were given up: each held a record that is lost.
    given_up: u64,
    /// Records by format.
    taken: HashMap<u32, u64>,
    /// Which formats an action writes.
    formats: Vec<Vec<u32>>,
    many: bool,
}

impl Drain {
    /// For a program whose actions write these formats.
    pub(super) fn new(formats: Vec<Vec<u32>>) -> Self {
        Self {
            formats,
            ..Self::default()
        }
    }

    /// When to look again; none where nothing is ever written.
    pub(super) fn next(&self, session: &Session) -> Option<Instant> {
        let writes = session
            .script_layout()
            .is_some_and(|layout| layout.rings().next().is_some());
        writes.then(|| Instant::now() + if self.many { SOON } else { LATER })
    }

    /// All records that are there, format and fields, oldest first. `last`: nobody writes any more.
    pub(super) fn take(&mut self, session: &Session, last: bool) -> Vec<(u32, Vec<u8>)> {
        let (Some(memory), Some(layout)) = (session.script_memory(), session.script_layout())
        else {
            return Vec::new();
        };
        if self.rings.is_empty() || self.base != memory.base {
            self.base = memory.base;
            let consumer = |ring: &lancet_abi::ring::RingLayout| {
                let mut ring = *ring;
                ring.at += memory.base;
                (Consumer::new(ring), None)
            };
            self.rings = layout.rings().map(consumer).collect();
        }
        let mut all = Vec::new();
        for ((consumer, waits), ring) in self.rings.iter_mut().zip(layout.rings()) {
            // What comes in meanwhile is for the next look.
            for _ in 0..ring.slots {
                match consumer.next(&memory.memory) {
                    Next::Record(at) => {
                        all.push(record(&memory.memory, at, ring.stride));
                        consumer.free(&memory.memory);
                        *waits = None;
                    }
                    Next::Unfinished => {
                        let since = *waits.get_or_insert_with(Instant::now);
                        if !(last || since.elapsed() > PATIENCE) {
                            break;
                        }
                        self.given_up += u64::from(consumer.give_up(&memory.memory));
                        *waits = None;
                    }
                    Next::Empty => break,
                }
            }
        }
        self.many = all.len() >= MANY;
        all.sort_by_key(|(time, ..)| *time);
        all.into_iter()
            .map(|(_, format, bytes)| {
                *self.taken.entry(format).or_default() += 1;
                (format, bytes)
            })
            .collect()
    }

    /// What was counted of an action.
    pub(super) fn count(&self, session: &Session, action: usize, count: Count) -> u64 {
        let at = session.script_layout().map(|l| l.count(action, count));
        let memory = session.script_memory();
        let word = memory
            .zip(at)
            .and_then(|(memory, at)| memory.memory.load(memory.base + at));
        word.unwrap_or(0)
    }

    /// Records that an action has written and that were taken out.
    pub(super) fn taken(&self, action: usize) -> u64 {
        let formats = self.formats.get(action).into_iter().flatten();
        formats.filter_map(|format| self.taken.get(format)).sum()
    }

    /// Records that were begun and never finished.
    pub(super) fn given_up(&self) -> u64 {
        self.given_up
    }
}

/// Time, format and fields of the record at an offset; whatever it says, no more than a slot holds.
fn record(memory: &impl Memory, at: u64, stride: u32) -> (u64, u32, Vec<u8>) {
    let word = |offset: u64| memory.load(at + offset).unwrap_or(0);
    let head = word(0);
    let room = stride.saturating_sub(8 + RECORD_HEAD);
    let size = ((head >> 32) as u32).min(room);
    let mut bytes: Vec<u8> = (0..u64::from(size.div_ceil(8)))
        .flat_map(|n| word(u64::from(RECORD_HEAD) + 8 * n).to_ne_bytes())
        .collect();
    bytes.truncate(size as usize);
    (word(8), head as u32, bytes)
}

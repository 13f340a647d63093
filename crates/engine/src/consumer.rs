//! What happens at a hit, and how its results read.

use lancet_abi::{MapId, SlotId};
use lancet_jit::{Action, Key, Update, Value};

const BUCKETS: usize = lancet_abi::histogram::BUCKETS as usize;

/// A keyed map of a session; made by [`Session::map`](crate::Session::map).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapHandle(pub(crate) usize);

/// What a probe does at each hit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Consumer {
    /// Counts the probe's hits.
    Count,
    /// Adds up a value, as 64 bits that wrap.
    Sum(Value),
    /// Sorts a value into power-of-two buckets.
    Hist(Value),
    /// Updates the map's entry of a key; several probes may share the map.
    Keyed {
        /// The map. Its kind says how it is updated.
        map: MapHandle,
        /// Whether probes have keys of their own.
        by_function: bool,
        /// The key.
        key: Key,
    },
    /// Runs an action of the session's [script](crate::Session::load).
    Run {
        /// Its number in the program.
        action: u32,
        /// What the fact `probe` is.
        probe: u32,
        /// What the fact `func` is.
        func: u32,
    },
}

/// What is kept for each key of a map, or for a probe.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// Hits.
    Count,
    /// Sum of a value.
    Sum(Value),
    /// Histogram of a value.
    Hist(Value),
}

impl Kind {
    pub(crate) fn width(self) -> u32 {
        match self {
            Self::Hist(_) => BUCKETS as u32,
            Self::Count | Self::Sum(_) => 1,
        }
    }

    pub(crate) fn update(self) -> Update {
        match self {
            Self::Count => Update::Count,
            Self::Sum(value) => Update::Sum(value),
            Self::Hist(value) => Update::Hist(value),
        }
    }
}

impl Consumer {
    /// What it keeps when it has slots of its own.
    pub(crate) fn own(self) -> Option<Kind> {
        match self {
            Self::Count => Some(Kind::Count),
            Self::Sum(value) => Some(Kind::Sum(value)),
            Self::Hist(value) => Some(Kind::Hist(value)),
            Self::Keyed { .. } | Self::Run { .. } => None,
        }
    }
}

/// Counters of a probe or of one key, over all CPUs and processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Total {
    /// Hits.
    Count(u64),
    /// A sum.
    Sum(i64),
    /// Hits by bucket: negative, 0, 1, then powers of two.
    Hist(Box<[u64; BUCKETS]>),
}

impl Total {
    pub(crate) fn of(kind: Kind, slots: &[u64]) -> Self {
        match kind {
            Kind::Count => Self::Count(slots[0]),
            Kind::Sum(_) => Self::Sum(slots[0] as i64),
            Kind::Hist(_) => {
                let mut buckets = Box::new([0; BUCKETS]);
                buckets.copy_from_slice(&slots[..BUCKETS]);
                Self::Hist(buckets)
            }
        }
    }

    /// What came in since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        match (self, earlier) {
            (Self::Count(now), Self::Count(then)) => Self::Count(now.wrapping_sub(*then)),
            (Self::Sum(now), Self::Sum(then)) => Self::Sum(now.wrapping_sub(*then)),
            (Self::Hist(now), Self::Hist(then)) => {
                let mut buckets = now.clone();
                for (bucket, before) in buckets.iter_mut().zip(then.iter()) {
                    *bucket = bucket.wrapping_sub(*before);
                }
                Self::Hist(buckets)
            }
            _ => self.clone(),
        }
    }

    /// Whether nothing was counted.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        match self {
            Self::Count(n) => *n == 0,
            Self::Sum(n) => *n == 0,
            Self::Hist(buckets) => buckets.iter().all(|&n| n == 0),
        }
    }
}

/// One key of a map with its counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The probe, where probes have keys of their own.
    pub probe: Option<ProbeId>,
    /// The key. Thread ids are this process's namespace's.
    pub key: u64,
    /// Whether the key is a thread id as the thread's own pid namespace had it: it had ended
    /// before its id was [learned](crate::Session::learn_tids).
    pub foreign_tid: bool,
    /// The counters.
    pub total: Total,
}

/// A registered probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProbeId(pub(crate) usize);

impl ProbeId {
    /// Its number: probes are numbered from 0 in the order of registration.
    #[must_use]
    pub fn index(self) -> usize {
        self.0
    }
}

pub(crate) fn action(
    consumer: Consumer,
    probe: ProbeId,
    slot: Option<SlotId>,
    maps: &[(MapId, Kind)],
) -> Option<Action> {
    match consumer {
        Consumer::Keyed {
            map,
            by_function,
            key,
        } => {
            let (id, kind) = *maps.get(map.0)?;
            Some(Action::Keyed {
                map: id,
                function: by_function.then_some(probe.0 as u32),
                key,
                update: kind.update(),
            })
        }
        Consumer::Run {
            action,
            probe,
            func,
        } => Some(Action::Run {
            action,
            probe,
            func,
        }),
        _ => Some(Action::Plain {
            slot: slot?,
            update: consumer.own()?.update(),
        }),
    }
}

//! What a report shows: maps of rows.

use std::{borrow::Cow, fmt};

use crate::hist::BUCKETS;

/// One part of a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum KeyPart {
    /// A name, such as a function's or a thread's.
    Name(String),
    /// A signed number, such as a thread's id.
    Int(i64),
    /// An unsigned number, such as an argument's value.
    Uint(u64),
}

impl fmt::Display for KeyPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Int(number) => number.fmt(f),
            Self::Uint(number) => number.fmt(f),
        }
    }
}

/// A bucket of a histogram: what it counts, bounds included, and how often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// The least value; none: all below `max` too.
    pub min: Option<i128>,
    /// The greatest value; none: all above `min` too.
    pub max: Option<i128>,
    /// How many values.
    pub count: u64,
}

/// What a row holds. All rows of a map hold the same kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A number of hits.
    Count(u64),
    /// A sum of values.
    Sum(i64),
    /// A histogram by powers of two: bucket 0 counts values below zero, 1 zeros, 2 ones, and 2+k values in `[2^k, 2^(k+1))`.
    Hist(Box<[u64; BUCKETS]>),
    /// A histogram of any other shape.
    Buckets(Vec<Bucket>),
    /// An average of values.
    Average(i128),
    /// Number, average and sum of values.
    Stats {
        /// How many.
        count: u64,
        /// Their average.
        average: i128,
        /// Their sum.
        total: i128,
    },
    /// Anything else, such as a text or a tuple; ordered by key.
    Shown {
        /// For people.
        text: String,
        /// The same as JSON.
        json: String,
    },
}

/// One row of a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The parts of the key; none in a map without keys, which has one row.
    pub key: Vec<KeyPart>,
    /// The value.
    pub value: Value,
}

/// A map of a script.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Map {
    /// The name without the leading `@`; empty for the map `@` itself.
    pub name: String,
    /// The rows, in any order.
    pub rows: Vec<Row>,
}

impl Map {
    /// Keeps the rows that would be printed last, so many.
    pub fn keep_last(&mut self, rows: usize) {
        let sorted = crate::order::sorted(self);
        let skipped = sorted.len().saturating_sub(rows);
        self.rows = sorted.into_iter().skip(skipped).cloned().collect();
    }
}

impl Row {
    /// The key with `between` between its parts.
    pub(crate) fn joined_key(&self, between: &str) -> Cow<'_, str> {
        match self.key.as_slice() {
            [KeyPart::Name(name)] => Cow::Borrowed(name),
            parts => Cow::Owned(
                parts
                    .iter()
                    .map(ToString::to_string)
                    .collect::<Vec<_>>()
                    .join(between),
            ),
        }
    }
}

//! A script's maps: what blocks in the tracer stored, and what hits added in targets, as one.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use anyhow::Result;
use lancet_engine::{MapHandle, ProbeId, Session, Total};
use lancet_output::{BUCKETS, Map, Row, Value, bucket_of};
use lancet_script::ir::{self, Agg, FieldType, MapValue};

use super::show::{Names, word};

/// A key's bytes, as the program lays them out.
pub(super) type Key = Vec<u8>;

/// What an entry holds.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Cell {
    Bytes(Vec<u8>),
    Count(u64),
    Sum(i64),
    Least { value: i64, signed: bool },
    Greatest { value: i64, signed: bool },
    Hist(Box<[u64; BUCKETS]>),
}

/// Where hits count.
pub(super) enum Source {
    /// Counters of single probes; with a key each stands for a function.
    Probes {
        probes: Vec<(ProbeId, i64)>,
        keyed: bool,
    },
    /// A keyed map of the session.
    Map(MapHandle),
}

/// What a source calls an entry.
type Entry = (usize, Option<ProbeId>, u64, bool);

/// One map.
#[derive(Default)]
pub(super) struct State {
    pub(super) local: BTreeMap<Key, Cell>,
    pub(super) sources: Vec<Source>,
    /// What the sources hold, for as long as one block runs: what it prints is what it clears.
    seen: Option<Vec<(Entry, Key, Total)>>,
    /// Totals when the entry was last taken away or set to zero.
    since: HashMap<Entry, Total>,
    /// Keys that stay although nothing was counted since.
    zeroed: BTreeSet<Key>,
    /// Hits that found the session's map full.
    pub(super) lost: u64,
    /// Rows with thread ids of another namespace.
    pub(super) foreign: usize,
}

impl State {
    fn totals(&mut self, session: &Session) -> Result<Vec<(Entry, Key, Total)>> {
        if let Some(seen) = &self.seen {
            return Ok(seen.clone());
        }
        let mut totals = Vec::new();
        (self.lost, self.foreign) = (0, 0);
        for (at, source) in self.sources.iter().enumerate() {
            match source {
                Source::Probes { probes, keyed } => {
                    for &(probe, function) in probes {
                        let key = if *keyed {
                            function.to_ne_bytes().to_vec()
                        } else {
                            Key::new()
                        };
                        if let Some(total) = session.read(probe)? {
                            totals.push(((at, Some(probe), 0, false), key, total));
                        }
                    }
                }
                Source::Map(map) => {
                    let (rows, lost) = session.read_map(*map)?;
                    self.lost += lost;
                    for row in rows {
                        self.foreign += usize::from(row.foreign_tid);
                        let entry = (at, None, row.key, row.foreign_tid);
                        totals.push((entry, row.key.to_ne_bytes().to_vec(), row.total));
                    }
                }
            }
        }
        self.seen = Some(totals.clone());
        Ok(totals)
    }

    /// From now on the sources are read anew.
    pub(super) fn look_again(&mut self) {
        self.seen = None;
    }

    /// All entries as they are now.
    pub(super) fn cells(&mut self, session: &Session) -> Result<BTreeMap<Key, Cell>> {
        let mut cells = self.local.clone();
        for (entry, key, total) in self.totals(session)? {
            let new = self
                .since
                .get(&entry)
                .map_or_else(|| total.clone(), |before| total.since(before));
            let cell = cells.get_mut(&key);
            if new.is_zero() && cell.is_none() && !self.zeroed.contains(&key) {
                continue;
            }
            match cell {
                Some(cell) => cell.add(&new),
                None => {
                    cells.insert(key, Cell::of(new));
                }
            }
        }
        Ok(cells)
    }

    /// Takes an entry away, or all.
    pub(super) fn remove(&mut self, session: &Session, key: Option<&[u8]>) -> Result<()> {
        for (entry, of, total) in self.totals(session)? {
            if key.is_none_or(|key| key == of) {
                self.since.insert(entry, total);
            }
        }
        match key {
            Some(key) => {
                self.local.remove(key);
                self.zeroed.remove(key);
            }
            None => {
                self.local.clear();
                self.zeroed.clear();
            }
        }
        Ok(())
    }

    /// Sets all values to zero and keeps the keys.
    pub(super) fn zero(&mut self, session: &Session) -> Result<()> {
        let keys: BTreeSet<Key> = self.cells(session)?.into_keys().collect();
        let mut local = std::mem::take(&mut self.local);
        local.values_mut().for_each(Cell::zero);
        self.remove(session, None)?;
        (self.local, self.zeroed) = (local, keys);
        Ok(())
    }
}

impl Cell {
    fn of(total: Total) -> Self {
        match total {
            Total::Count(count) => Self::Count(count),
            Total::Sum(sum) => Self::Sum(sum),
            Total::Hist(buckets) => Self::Hist(buckets),
        }
    }

    fn add(&mut self, more: &Total) {
        match (self, more) {
            (Self::Count(count), Total::Count(more)) => *count = count.wrapping_add(*more),
            (Self::Sum(sum), Total::Sum(more)) => *sum = sum.wrapping_add(*more),
            (Self::Hist(buckets), Total::Hist(more)) => {
                for (bucket, more) in buckets.iter_mut().zip(more.iter()) {
                    *bucket = bucket.wrapping_add(*more);
                }
            }
            _ => {}
        }
    }

    fn zero(&mut self) {
        match self {
            Self::Bytes(bytes) => bytes.fill(0),
            Self::Count(count) => *count = 0,
            Self::Sum(value) | Self::Least { value, .. } | Self::Greatest { value, .. } => {
                *value = 0
            }
            Self::Hist(buckets) => buckets.fill(0),
        }
    }

    /// One step of an aggregation; `old` is the entry so far.
    pub(super) fn step(old: Option<Self>, agg: Agg, signed: bool, value: i64) -> Self {
        let order = |value: i64| {
            if signed {
                i128::from(value)
            } else {
                i128::from(value as u64)
            }
        };
        match (agg, old) {
            (Agg::Count, Some(Self::Count(count))) => Self::Count(count + 1),
            (Agg::Count, _) => Self::Count(1),
            (Agg::Hist { .. }, old) => {
                let mut buckets = match old {
                    Some(Self::Hist(buckets)) => buckets,
                    _ => Box::new([0; BUCKETS]),
                };
                buckets[bucket_of(value)] += 1;
                Self::Hist(buckets)
            }
            (Agg::Min, Some(Self::Least { value: old, .. })) if order(old) <= order(value) => {
                Self::Least { value: old, signed }
            }
            (Agg::Min, _) => Self::Least { value, signed },
            (Agg::Max, Some(Self::Greatest { value: old, .. })) if order(old) >= order(value) => {
                Self::Greatest { value: old, signed }
            }
            (Agg::Max, _) => Self::Greatest { value, signed },
            (_, Some(Self::Sum(sum))) => Self::Sum(sum.wrapping_add(value)),
            _ => Self::Sum(value),
        }
    }

    /// As one integer.
    pub(super) fn word(&self) -> i64 {
        match self {
            Self::Bytes(bytes) => word(bytes),
            Self::Count(count) => *count as i64,
            Self::Sum(value) | Self::Least { value, .. } | Self::Greatest { value, .. } => *value,
            Self::Hist(_) => 0,
        }
    }

    fn shown(&self, of: &MapValue, names: &Names<'_>) -> Value {
        let integer = |value: i64, signed: bool| match signed {
            true => Value::Sum(value),
            false => Value::Count(value as u64),
        };
        match (self, of) {
            (Self::Hist(buckets), _) => Value::Hist(buckets.clone()),
            (Self::Bytes(bytes), MapValue::Field(field)) => match field.ty {
                FieldType::Int { signed, .. } => integer(word(bytes), signed),
                _ => Value::Shown {
                    text: names.text(&field.ty, bytes),
                    json: names.json(&field.ty, bytes),
                },
            },
            (Self::Least { value, signed } | Self::Greatest { value, signed }, _) => {
                integer(*value, *signed)
            }
            (Self::Sum(value), MapValue::Agg { signed, .. }) => integer(*value, *signed),
            (cell, _) => integer(cell.word(), false),
        }
    }
}

fn divide(value: &mut Value, by: u32) {
    match value {
        Value::Count(count) => *count /= u64::from(by),
        Value::Sum(sum) => *sum /= i64::from(by),
        Value::Hist(buckets) => buckets.iter_mut().for_each(|count| *count /= u64::from(by)),
        Value::Shown { .. } => {}
    }
}

/// The map as a report takes it; at most `top` rows unless 0, values divided unless by 0.
pub(super) fn shown(
    map: &ir::Map,
    cells: &BTreeMap<Key, Cell>,
    names: &Names<'_>,
    top: u32,
    div: u32,
) -> Map {
    let rows = cells.iter().map(|(key, cell)| Row {
        key: names.key(&map.key, key),
        value: cell.shown(&map.value, names),
    });
    let mut shown = Map {
        name: map.name.trim_start_matches('@').to_owned(),
        rows: rows.collect(),
    };
    if top > 0 {
        shown.keep_last(top as usize);
    }
    for row in shown.rows.iter_mut().filter(|_| div > 1) {
        divide(&mut row.value, div);
    }
    shown
}

//! A script's maps: the tables that targets and tracer share, and what hits added to counters, as one.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use anyhow::Result;
use lancet_abi::memory::SharedMut;
use lancet_abi::table::Table;
use lancet_engine::{MapHandle, ProbeId, Session, Total};
use lancet_script::ir::{Agg, MapId, MapValue};

use super::cells;

/// A key's bytes, as the program lays them out.
pub(super) type Key = Vec<u8>;

/// Where hits count, besides the table.
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

/// Works on the table of a map. Its locks hold this process's id, in a range of its own.
pub(super) fn with_table<T>(
    session: &Session,
    map: MapId,
    work: impl FnOnce(&Table<'_, SharedMut<'_>>) -> T,
) -> Option<T> {
    let (memory, layout) = (session.script_memory()?, session.script_layout()?);
    let who = (1 << 33) | u64::from(std::process::id());
    let table = Table::new(&memory.memory, *layout.table(map), memory.base, who);
    Some(work(&table))
}

/// Words of these bytes, the last one padded with zeros.
pub(super) fn words(bytes: &[u8]) -> Vec<u64> {
    let word = |chunk: &[u8]| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_ne_bytes(word)
    };
    bytes.chunks(8).map(word).collect()
}

pub(super) fn bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
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

    /// All entries as they are now, as a table keeps their values.
    pub(super) fn cells(
        &mut self,
        session: &Session,
        map: MapId,
        whole: bool,
    ) -> Result<BTreeMap<Key, Vec<u64>>> {
        let mut all = table_cells(session, map, whole);
        for (entry, key, total) in self.totals(session)? {
            let new = self
                .since
                .get(&entry)
                .map_or_else(|| total.clone(), |before| total.since(before));
            if new.is_zero() && !all.contains_key(&key) && !self.zeroed.contains(&key) {
                continue;
            }
            cells::add(all.entry(key).or_default(), &new);
        }
        Ok(all)
    }

    /// One entry.
    pub(super) fn cell(
        &mut self,
        session: &Session,
        map: MapId,
        key: &[u8],
        whole: bool,
    ) -> Result<Option<Vec<u64>>> {
        if self.sources.is_empty() {
            return Ok(with_table(session, map, |table| one(table, &words(key), whole)).flatten());
        }
        Ok(self.cells(session, map, whole)?.remove(key))
    }

    /// Takes an entry away, or all.
    pub(super) fn remove(
        &mut self,
        session: &Session,
        map: MapId,
        key: Option<&[u8]>,
    ) -> Result<()> {
        for (entry, of, total) in self.totals(session)? {
            if key.is_none_or(|key| key == of) {
                self.since.insert(entry, total);
            }
        }
        with_table(session, map, |table| match key {
            Some(key) => {
                table.take(&words(key), &mut []);
            }
            None => table.clear(),
        });
        match key {
            Some(key) => {
                self.zeroed.remove(key);
            }
            None => self.zeroed.clear(),
        }
        Ok(())
    }

    /// Sets all values to zero and keeps the keys.
    pub(super) fn zero(&mut self, session: &Session, map: MapId) -> Result<()> {
        let mut of_sources = BTreeSet::new();
        for (entry, key, total) in self.totals(session)? {
            self.since.insert(entry, total);
            of_sources.insert(key);
        }
        with_table(session, map, |table| table.zero());
        self.zeroed = of_sources;
        Ok(())
    }
}

fn one(table: &Table<'_, SharedMut<'_>>, key: &[u64], whole: bool) -> Option<Vec<u64>> {
    let mut words = vec![0; table.layout().value_words as usize];
    let live = if whole {
        table.get_whole(key, &mut words)
    } else {
        table.get(key, &mut words)
    };
    live.then_some(words)
}

fn table_cells(session: &Session, map: MapId, whole: bool) -> BTreeMap<Key, Vec<u64>> {
    let all = with_table(session, map, |table| {
        let mut all = BTreeMap::new();
        let mut key = vec![0; table.layout().key_words as usize];
        let mut cursor = 0;
        while let Some(next) = table.next(cursor, &mut key) {
            cursor = next;
            if let Some(words) = one(table, &key, whole) {
                all.insert(bytes(&key), words);
            }
        }
        all
    });
    all.unwrap_or_default()
}

/// One step of an aggregation in the table; false where there is no room.
pub(super) fn aggregate(
    session: &Session,
    map: MapId,
    key: &[u8],
    (agg, of): (Agg, &MapValue),
    value: i64,
) -> bool {
    let signed = matches!(of, MapValue::Agg { signed: true, .. });
    let key = words(key);
    let done = with_table(session, map, |table| match agg {
        Agg::Count | Agg::Sum => table.add(&key, &[(0, value as u64)]),
        Agg::Avg | Agg::Stats => table.add(&key, &[(0, value as u64), (1, 1)]),
        Agg::Min | Agg::Max => {
            let encoded = cells::encode(agg, signed, value);
            table.update(&key, |old| old.max(encoded)).is_some()
        }
        Agg::Hist { bits } => table.add(&key, &[(cells::power_bucket(value, bits), 1)]),
        Agg::Lhist { min, max, step } => {
            table.add(&key, &[(cells::linear_bucket(value, (min, max, step)), 1)])
        }
    });
    done.unwrap_or(false)
}

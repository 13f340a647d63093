//! Reads a session's counters, over all CPUs, processes and domains.

use std::collections::HashMap;

use lancet_abi::Invariant;

use lancet_abi::Entry;
use lancet_jit::Key;

use crate::consumer::{Consumer, MapHandle, ProbeId, Row, Total};
use crate::error::EngineError;
use crate::session::Session;

impl Session {
    /// The counters of a probe that has its own, over all processes.
    pub fn read(&self, probe: ProbeId) -> Result<Option<Total>, EngineError> {
        let Some(of) = self.probes.get(probe.0) else {
            return Ok(None);
        };
        if let Some(frozen) = &of.frozen {
            return Ok(Some(frozen.clone()));
        }
        let (Some(kind), Some(slot)) = (of.consumer.own(), of.slot) else {
            return Ok(None);
        };
        let mut slots = vec![0u64; kind.width() as usize];
        for domain in self.domains.all() {
            let Some(region) = domain.region()? else {
                continue;
            };
            for (index, total) in slots.iter_mut().enumerate() {
                let value = region.slot_total(slot, index as u32).unwrap_or(0);
                *total = total.wrapping_add(value);
            }
        }
        Ok(Some(Total::of(kind, &slots)))
    }

    /// What hits of a session that [checks](Self::check) found broken so far, and how often, over
    /// all processes.
    pub fn broken(&self) -> Result<Vec<(Invariant, u64)>, EngineError> {
        let mut times = Invariant::ALL.map(|invariant| (invariant, 0u64));
        for domain in self.domains.all() {
            let Some(region) = domain.region()? else {
                continue;
            };
            for (invariant, times) in &mut times {
                *times = times.wrapping_add(region.broken(*invariant));
            }
        }
        Ok(times.into_iter().filter(|(_, times)| *times > 0).collect())
    }

    /// The rows of a map, over all processes, in no order; and the hits that found it full.
    pub fn read_map(&self, map: MapHandle) -> Result<(Vec<Row>, u64), EngineError> {
        let (id, kind) = *self
            .maps
            .get(map.0)
            .ok_or(EngineError::Usage("the map is of another session"))?;
        let by_tid = self.is_by_tid(map);
        let mut rows: HashMap<(Option<u32>, RowKey), Vec<u64>> = HashMap::new();
        let mut lost = 0u64;
        for domain in self.domains.all() {
            let Some(region) = domain.region()? else {
                continue;
            };
            lost += region.map_dropped(id).unwrap_or(0);
            let entries: Vec<Entry> = region.map_entries(id).collect();
            let namespace = Some(domain.key.pids).filter(|&n| by_tid && n != self.own_pids);
            if let Some(namespace) = namespace
                && entries.iter().any(|e| self.tids.is_new(namespace, e.key))
            {
                self.tids.learn_all(namespace);
            }
            for entry in entries {
                let key = match namespace {
                    None => (entry.key, false),
                    Some(namespace) => match self.tids.translate(namespace, entry.key) {
                        Some(tid) => (tid, false),
                        None => (entry.key, true),
                    },
                };
                let slots = rows
                    .entry((entry.function, key))
                    .or_insert_with(|| vec![0; kind.width() as usize]);
                for (index, total) in slots.iter_mut().enumerate() {
                    let value = region.map_value(id, entry.index, index as u32).unwrap_or(0);
                    *total = total.wrapping_add(value);
                }
            }
        }
        let rows = rows
            .into_iter()
            .map(|((function, (key, foreign_tid)), slots)| Row {
                probe: function.map(|f| ProbeId(f as usize)),
                key,
                foreign_tid,
                total: Total::of(kind, &slots),
            })
            .collect();
        Ok((rows, lost))
    }

    fn is_by_tid(&self, map: MapHandle) -> bool {
        self.probes.iter().any(|probe| {
            matches!(probe.consumer, Consumer::Keyed { map: its, key: Key::Tid, .. } if its == map)
        })
    }

    /// Learns thread ids of other pid namespaces while their threads live. Whether there are any
    /// to be learned: then it is worth while to call this now and then, since what a map's rows are
    /// keyed by can't be translated when the thread has ended.
    pub fn learn_tids(&self) -> bool {
        let by_tid = (0..self.maps.len()).any(|map| self.is_by_tid(MapHandle(map)));
        let mut some = false;
        for process in self.processes.iter().filter(|_| by_tid) {
            if process.domain.pids != self.own_pids {
                self.tids.learn(process.domain.pids, process.pid);
                some = true;
            }
        }
        some
    }
}

/// A key, and whether it is a thread id as another pid namespace has it.
type RowKey = (u64, bool);

//! Reads a session's counters, over all CPUs, processes and domains.

use std::collections::HashMap;

use lancet_abi::Invariant;

use crate::consumer::{MapHandle, ProbeId, Row, Total};
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
        for domain in &self.domains {
            let region = domain.region()?;
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
        for domain in &self.domains {
            let region = domain.region()?;
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
        let mut rows: HashMap<(Option<u32>, u64), Vec<u64>> = HashMap::new();
        let mut lost = 0u64;
        for domain in &self.domains {
            let region = domain.region()?;
            lost += region.map_dropped(id).unwrap_or(0);
            for entry in region.map_entries(id) {
                let slots = rows
                    .entry((entry.function, entry.key))
                    .or_insert_with(|| vec![0; kind.width() as usize]);
                for (index, total) in slots.iter_mut().enumerate() {
                    let value = region.map_value(id, entry.index, index as u32).unwrap_or(0);
                    *total = total.wrapping_add(value);
                }
            }
        }
        let rows = rows
            .into_iter()
            .map(|((function, key), slots)| Row {
                probe: function.map(|f| ProbeId(f as usize)),
                key,
                total: Total::of(kind, &slots),
            })
            .collect();
        Ok((rows, lost))
    }
}

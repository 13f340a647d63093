//! What the tracer reads from a region.
//!
//! Every byte may be hostile. Nothing here panics, loops without bound or
//! reads outside the memory, whatever it finds.

use crate::error::LayoutError;
use crate::invariant::Invariant;
use crate::layout::{Layout, MapId, SlotId};
use crate::map;
use crate::memory::Memory;

/// A region and its layout.
#[derive(Clone, Debug)]
pub struct Region<M> {
    memory: M,
    layout: Layout,
}

/// One key of a map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The function that the key belongs to, where the map is by function.
    pub function: Option<u32>,
    /// The key as the action saw it.
    pub key: u64,
    /// Which entry: names the values in [`Region::map_value`].
    pub index: u32,
}

impl<M: Memory> Region<M> {
    /// A region that somebody else laid out.
    ///
    /// # Errors
    /// Its header is not that of a region, or does not fit the memory.
    pub fn open(memory: M) -> Result<Self, LayoutError> {
        let layout = Layout::decode(&memory)?;
        Ok(Self { memory, layout })
    }

    /// A region whose layout the caller knows, so that the header, which the
    /// target can write, need not be asked.
    ///
    /// # Errors
    /// The memory is shorter than the layout.
    pub fn with_layout(memory: M, layout: Layout) -> Result<Self, LayoutError> {
        if memory.len() < layout.size() {
            return Err(LayoutError::Short {
                needed: layout.size(),
                found: memory.len(),
            });
        }
        Ok(Self { memory, layout })
    }

    /// The layout in use.
    pub const fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Whether hits still count.
    pub fn is_on(&self) -> bool {
        self.memory
            .load(self.layout.on())
            .is_some_and(|word| word != 0)
    }

    /// How often checking hits found this invariant broken.
    pub fn broken(&self, invariant: Invariant) -> u64 {
        let at = self.layout.broken(invariant);
        self.memory.load(at).unwrap_or_default()
    }

    /// The value of the slot `index` places after `slot`, over all CPUs and
    /// both halves; wraps as the counters do. `None` outside the slots.
    pub fn slot_total(&self, slot: SlotId, index: u32) -> Option<u64> {
        let slot = SlotId(slot.0.checked_add(index)?);
        if slot.0 >= self.layout.slots() {
            return None;
        }
        let mut total = 0u64;
        for cpu in 0..self.layout.ncpus() {
            let block = self.layout.block(cpu)?;
            let rseq = self.memory.load(block + self.layout.rseq_slot(slot))?;
            let lock = self.memory.load(block + self.layout.lock_slot(slot))?;
            total = total.wrapping_add(rseq).wrapping_add(lock);
        }
        Some(total)
    }

    /// The keys of a map, in no order. Entries with a meta word that no action
    /// writes are passed over. Empty for a map that is not in the layout.
    pub fn map_entries(&self, id: MapId) -> impl Iterator<Item = Entry> + '_ {
        let map = self.layout.map(id).copied();
        let (entries, capacity) = map.map_or((0, 0), |m| (m.entries, m.capacity));
        (0..capacity).filter_map(move |index| {
            let at = entries + 16 * u64::from(index);
            let function = map::function(self.memory.load(at)?)?;
            Some(Entry {
                function,
                key: self.memory.load(at + 8)?,
                index,
            })
        })
    }

    /// Value `slot` (0 for count and sum, a bucket for histograms) of an entry.
    /// `None` outside the map.
    pub fn map_value(&self, id: MapId, entry: u32, slot: u32) -> Option<u64> {
        let map = self.layout.map(id)?;
        if entry >= map.capacity || slot >= map.width {
            return None;
        }
        self.slot_total(map.values, entry * map.width + slot)
    }

    /// Hits that found the map full.
    pub fn map_dropped(&self, id: MapId) -> Option<u64> {
        self.slot_total(self.layout.map(id)?.dropped, 0)
    }
}

#[cfg(test)]
mod tests;

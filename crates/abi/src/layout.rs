//! Where everything lies in a region.
//!
//! All offsets follow from a few counts ([`Layout::decode`] computes them anew
//! instead of trusting stored ones):
//!
//! ```text
//! 0      magic, version, counts; descriptors of the maps
//! 1152   how often each invariant was broken
//! 2048   histogram table
//! 4136   `on`, then the CPU table for ids -2, -1, 0, 1, ...
//! ..     entries of each map, 16 bytes a key           (page aligned)
//! ..     block of CPU 0, block of CPU 1, ...           (page aligned each)
//! ..     what a script keeps                           (page aligned)
//! ```
//!
//! A block is the region's slots twice: a half that only rseq sections store
//! to, and from the next cache line on a half that only lock-prefixed
//! instructions touch. A slot's value is the sum of both over all CPUs.

use crate::error::LayoutError;
use crate::histogram;
use crate::invariant::Invariant;
use crate::memory::Memory;
use crate::units::FileOffset;

/// First word of a region: `lancet` and two bytes that no text has.
pub const MAGIC: u64 = u64::from_le_bytes(*b"lancet\x00\xfd");
/// Version of this layout.
pub const VERSION: u64 = 1;
/// Most CPUs that a CPU table can have entries for.
pub const MAX_CPUS: u32 = 8192;
/// Most keyed maps of one region.
pub const MAX_MAPS: usize = 64;
/// Most slots of one region.
pub const MAX_SLOTS: u32 = 1 << 26;
/// Most keys of one map.
pub const MAX_CAPACITY: u32 = 1 << 24;
/// Most bytes of one region: actions reach all of it by 32-bit displacements.
pub const MAX_REGION: u64 = 1 << 30;

const PAGE: u64 = 4096;
const LINE: u64 = 64;
const WORD_NCPUS: u64 = 16;
const WORD_SLOTS: u64 = 24;
const WORD_MAPS: u64 = 32;
const WORD_SIZE: u64 = 40;
const WORD_SCRIPT: u64 = 48;
const MAP_TABLE: u64 = 128;
const BROKEN: u64 = MAP_TABLE + 16 * MAX_MAPS as u64;
const HISTOGRAM: u64 = 2048;
// The words of the invariants end before the table behind them.
const _: () = assert!(BROKEN + 8 * Invariant::ALL.len() as u64 <= HISTOGRAM);
const ON: u64 = PAGE + LINE - 24;
const CPU_ZERO: u64 = PAGE + LINE;

/// The first of one or more consecutive slots.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SlotId(pub u32);

/// A keyed map.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct MapId(pub u32);

/// Where one keyed map lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapLayout {
    /// Offset of its entries in the region; entry `i` is 16 bytes at `i * 16`.
    pub entries: u64,
    /// How many entries; a power of two.
    pub capacity: u32,
    /// Slots of each key: 1, or [`histogram::BUCKETS`].
    pub width: u32,
    /// First slot of entry 0; entry `i` has its slots `i * width` further.
    pub values: SlotId,
    /// Hits that found no entry.
    pub dropped: SlotId,
}

const NO_MAP: MapLayout = MapLayout {
    entries: 0,
    capacity: 0,
    width: 0,
    values: SlotId(0),
    dropped: SlotId(0),
};

/// All offsets of a region. Plain data; made by [`LayoutBuilder`] or read from
/// a region's header by [`Layout::decode`], so it is always consistent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layout {
    ncpus: u32,
    slots: u32,
    map_count: usize,
    maps: [MapLayout; MAX_MAPS],
    first_block: u64,
    stride: u64,
    half: u64,
    script: u64,
    size: u64,
}

/// Hands out slots and maps; what was asked for is checked in [`Self::build`].
#[derive(Clone, Debug)]
pub struct LayoutBuilder {
    slots: u64,
    map_count: u64,
    maps: [MapLayout; MAX_MAPS],
    script: u64,
}

impl Default for LayoutBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl LayoutBuilder {
    /// A region without slots.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            slots: 0,
            map_count: 0,
            maps: [NO_MAP; MAX_MAPS],
            script: 0,
        }
    }

    /// So many bytes for what a script keeps, instead of those asked for before.
    pub fn script(&mut self, bytes: u64) {
        self.script = bytes;
    }

    /// `n` consecutive slots: 1 for a count or a sum, [`histogram::BUCKETS`]
    /// for a histogram.
    pub fn plain(&mut self, n: u32) -> SlotId {
        // Ids beyond the limit are wrong, but `build` then fails.
        let id = SlotId(self.slots.min(u64::from(MAX_SLOTS)) as u32);
        self.slots = self.slots.saturating_add(u64::from(n));
        id
    }

    /// A keyed map for at most `capacity` keys (a power of two) with `width`
    /// slots each: 1 for count and sum, [`histogram::BUCKETS`] for histograms.
    pub fn map(&mut self, capacity: u32, width: u32) -> MapId {
        let id = MapId(self.map_count.min(u64::from(u32::MAX)) as u32);
        let dropped = self.plain(1);
        let values = SlotId(self.slots.min(u64::from(MAX_SLOTS)) as u32);
        self.slots = self
            .slots
            .saturating_add(u64::from(capacity) * u64::from(width));
        if let Some(map) = self.maps.get_mut(id.0 as usize) {
            *map = MapLayout {
                entries: 0,
                capacity,
                width,
                values,
                dropped,
            };
        }
        self.map_count += 1;
        id
    }

    /// The layout for a machine where CPU ids run from 0 to `ncpus - 1`.
    /// Count the possible CPUs, not those online now: an id outside the table
    /// must never be seen by an action.
    ///
    /// # Errors
    /// What was asked for exceeds a limit of this module.
    pub fn build(self, ncpus: u32) -> Result<Layout, LayoutError> {
        if self.slots > u64::from(MAX_SLOTS) {
            return Err(LayoutError::Slots(self.slots));
        }
        if self.map_count > MAX_MAPS as u64 {
            return Err(LayoutError::Maps(self.map_count));
        }
        let counts = (self.slots as u32, self.map_count as usize);
        Layout::place(ncpus, counts, self.maps, self.script)
    }
}

const fn round_up(value: u64, to: u64) -> u64 {
    value.div_ceil(to) * to
}

impl Layout {
    /// Computes every offset. All factors are bounded first, so no sum wraps.
    fn place(
        ncpus: u32,
        (slots, map_count): (u32, usize),
        mut maps: [MapLayout; MAX_MAPS],
        script: u64,
    ) -> Result<Self, LayoutError> {
        if ncpus == 0 || ncpus > MAX_CPUS {
            return Err(LayoutError::Cpus(ncpus.into()));
        }
        let mut at = round_up(CPU_ZERO + 8 * u64::from(ncpus), PAGE);
        for (i, map) in maps.iter_mut().take(map_count).enumerate() {
            let id = i as u32;
            if !map.capacity.is_power_of_two() || !(2..=MAX_CAPACITY).contains(&map.capacity) {
                return Err(LayoutError::Capacity {
                    map: id,
                    capacity: map.capacity,
                });
            }
            if map.width == 0 || map.width > histogram::BUCKETS {
                return Err(LayoutError::Width {
                    map: id,
                    width: map.width,
                });
            }
            let end = u64::from(map.values.0) + u64::from(map.capacity) * u64::from(map.width);
            if end > u64::from(slots) || map.dropped.0 >= slots {
                return Err(LayoutError::MapSlots(id));
            }
            map.entries = at;
            at = round_up(at + 16 * u64::from(map.capacity), PAGE);
        }
        let half = round_up(8 * u64::from(slots).max(1), LINE);
        let stride = round_up(2 * half, PAGE);
        let script = script.min(MAX_REGION + 1);
        let size = at + stride * u64::from(ncpus) + round_up(script, PAGE);
        if size > MAX_REGION {
            return Err(LayoutError::TooLarge(size));
        }
        Ok(Self {
            ncpus,
            slots,
            map_count,
            maps,
            first_block: at,
            stride,
            half,
            script,
            size,
        })
    }

    /// Reads the layout from a region's header. Every byte may be hostile: the
    /// offsets are computed anew and the result fits into `memory`.
    ///
    /// # Errors
    /// The header is not one that [`Self::write_header`] writes.
    pub fn decode<M: Memory + ?Sized>(memory: &M) -> Result<Self, LayoutError> {
        let short = LayoutError::Short {
            needed: HISTOGRAM,
            found: memory.len(),
        };
        let word = |offset| memory.load(offset).ok_or(short);
        if word(0)? != MAGIC {
            return Err(LayoutError::Magic(word(0)?));
        }
        if word(8)? != VERSION {
            return Err(LayoutError::Version(word(8)?));
        }
        let (ncpus, slots, count) = (word(WORD_NCPUS)?, word(WORD_SLOTS)?, word(WORD_MAPS)?);
        let map_count = usize::try_from(count)
            .ok()
            .filter(|n| *n <= MAX_MAPS)
            .ok_or(LayoutError::Maps(count))?;
        let mut maps = [NO_MAP; MAX_MAPS];
        for (map, at) in maps
            .iter_mut()
            .take(map_count)
            .zip((MAP_TABLE..).step_by(16))
        {
            let (shape, place) = (word(at)?, word(at + 8)?);
            *map = MapLayout {
                entries: 0,
                capacity: shape as u32,
                width: (shape >> 32) as u32,
                values: SlotId(place as u32),
                dropped: SlotId((place >> 32) as u32),
            };
        }
        let layout = Self::place(
            u32::try_from(ncpus).map_err(|_| LayoutError::Cpus(ncpus))?,
            (
                u32::try_from(slots)
                    .ok()
                    .filter(|n| *n <= MAX_SLOTS)
                    .ok_or(LayoutError::Slots(slots))?,
                map_count,
            ),
            maps,
            word(WORD_SCRIPT)?,
        )?;
        let stated = word(WORD_SIZE)?;
        if stated != layout.size {
            return Err(LayoutError::Size {
                computed: layout.size,
                stated,
            });
        }
        if memory.len() < layout.size {
            return Err(LayoutError::Short {
                needed: layout.size,
                found: memory.len(),
            });
        }
        Ok(layout)
    }

    /// Writes the header, with the session on, to the start of a region whose
    /// other bytes are zero. `out` has at least [`Self::header_len`] bytes.
    ///
    /// # Errors
    /// `out` is too short; nothing is written then.
    pub fn write_header(&self, out: &mut [u8]) -> Result<(), LayoutError> {
        let needed = self.header_len();
        if (out.len() as u64) < needed {
            return Err(LayoutError::Short {
                needed,
                found: out.len() as u64,
            });
        }
        // All offsets below lie under `header_len`, which is under 2^17.
        let mut put = |offset: u64, word: u64| {
            out[offset as usize..][..8].copy_from_slice(&word.to_ne_bytes());
        };
        put(0, MAGIC);
        put(8, VERSION);
        put(WORD_NCPUS, self.ncpus.into());
        put(WORD_SLOTS, self.slots.into());
        put(WORD_MAPS, self.map_count as u64);
        put(WORD_SIZE, self.size);
        put(WORD_SCRIPT, self.script);
        for (map, at) in self.maps[..self.map_count]
            .iter()
            .zip((MAP_TABLE..).step_by(16))
        {
            put(at, u64::from(map.capacity) | u64::from(map.width) << 32);
            put(
                at + 8,
                u64::from(map.values.0) | u64::from(map.dropped.0) << 32,
            );
        }
        put(ON, 1);
        put(CPU_ZERO - 16, 0);
        put(CPU_ZERO - 8, 0);
        for cpu in 0..self.ncpus {
            put(
                CPU_ZERO + 8 * u64::from(cpu),
                self.first_block + self.stride * u64::from(cpu),
            );
        }
        out[HISTOGRAM as usize..][..histogram::TABLE_LEN].copy_from_slice(&histogram::table());
        Ok(())
    }

    /// Bytes of the whole region.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// Where what a script keeps lies, and how many bytes of it; all zero at first.
    #[must_use]
    pub const fn script(&self) -> (u64, u64) {
        (
            self.first_block + self.stride * self.ncpus as u64,
            self.script,
        )
    }

    /// Bytes that [`Self::write_header`] writes.
    #[must_use]
    pub const fn header_len(&self) -> u64 {
        CPU_ZERO + 8 * self.ncpus as u64
    }

    /// CPUs that the table has entries for.
    #[must_use]
    pub const fn ncpus(&self) -> u32 {
        self.ncpus
    }

    /// Slots of each half of each block.
    #[must_use]
    pub const fn slots(&self) -> u32 {
        self.slots
    }

    /// Offset of the `on` word: 1 while the session counts, 0 for good after.
    ///
    /// writer: tracer or guardian, by [`Self::off_switch`]; readers: the lock
    /// form of actions; ordering: none, a hit that read 1 may still count.
    #[must_use]
    pub const fn on(&self) -> u64 {
        ON
    }

    /// Offset of the CPU table's entry for id 0; -2 and -1 lie before it. An
    /// entry is the offset of the CPU's block in the region, or 0: use the
    /// lock form. Ids -1 and -2 are what the kernel shows to threads that are
    /// not registered, or failed to, and are 0 for good.
    #[must_use]
    pub const fn cpu_table(&self) -> u64 {
        CPU_ZERO
    }

    /// The off switch: write this many zeroes to the region's file at this
    /// offset. They cover `on` and the whole CPU table; actions that find a
    /// null entry look at `on`, which lies before the table.
    #[must_use]
    pub const fn off_switch(&self) -> (FileOffset, usize) {
        (
            FileOffset(ON),
            (CPU_ZERO - ON) as usize + 8 * self.ncpus as usize,
        )
    }

    /// Offset of the table of [`histogram::table`].
    #[must_use]
    pub const fn histogram(&self) -> u64 {
        HISTOGRAM
    }

    /// Offset of the word that counts how often an invariant was broken.
    #[must_use]
    pub const fn broken(&self, invariant: Invariant) -> u64 {
        BROKEN + 8 * (invariant.number() as u64 - 1)
    }

    /// Bytes from one CPU's block to the next one's.
    #[must_use]
    pub const fn stride(&self) -> u64 {
        self.stride
    }

    /// Bytes of each half of a block.
    #[must_use]
    pub const fn half(&self) -> u64 {
        self.half
    }

    /// Offset of a CPU's block; `None` for a CPU that is not in the table.
    #[must_use]
    pub const fn block(&self, cpu: u32) -> Option<u64> {
        if cpu < self.ncpus {
            Some(self.first_block + self.stride * cpu as u64)
        } else {
            None
        }
    }

    /// Offset within a block of a slot that only rseq sections store to.
    #[must_use]
    pub const fn rseq_slot(&self, slot: SlotId) -> u64 {
        8 * slot.0 as u64
    }

    /// Offset within a block of a slot that only lock-prefixed instructions
    /// touch.
    #[must_use]
    pub const fn lock_slot(&self, slot: SlotId) -> u64 {
        self.half + 8 * slot.0 as u64
    }

    /// Where a map lies; `None` for one that this layout does not have.
    #[must_use]
    pub fn map(&self, map: MapId) -> Option<&MapLayout> {
        self.maps[..self.map_count].get(map.0 as usize)
    }

    /// Keyed maps that there are: ids 0 to this, exclusive.
    #[must_use]
    pub const fn map_count(&self) -> u32 {
        self.map_count as u32
    }
}

#[cfg(test)]
mod tests;

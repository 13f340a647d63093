//! What a script keeps in the region: warnings, maps, rings.

use lancet_abi::ring::RingLayout;
use lancet_abi::table::TableLayout;
use lancet_script::ir::{Agg, Format, MapId, MapValue, Program, Warning};

/// Bytes of a record before its fields: the slot's turn is not part of it.
pub const RECORD_HEAD: u32 = 16;
/// Bytes of one CPU's ring, about: for lines of output, and for what else is asked for.
const RING: u32 = 1 << 20;
/// Bytes of all rings for lines together, about.
const ALL_RINGS: u32 = 1 << 26;
const CONTROL_RING: u32 = 1 << 14;
const LEAST_SLOTS: u32 = 64;
/// Words of each action: one for each kind of [`Count`].
const COUNTS: u64 = 8;
/// What the script begins with: one line, then the actions' counts.
const HEAD: u64 = 64;

/// What is counted of one action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// Hits that found all scratch slots of their process taken.
    Skipped,
    /// Records that found the ring full.
    Lost,
    /// A warning of the language.
    Warning(Warning),
}

impl Count {
    /// All kinds.
    pub const ALL: [Self; 6] = [
        Self::Skipped,
        Self::Lost,
        Self::Warning(Warning::Unreadable),
        Self::Warning(Warning::DivisionByZero),
        Self::Warning(Warning::MapFull),
        Self::Warning(Warning::Fuel),
    ];

    fn index(self) -> u64 {
        Self::ALL.iter().position(|one| *one == self).unwrap_or(0) as u64
    }
}

/// The words of the head, which tell hits the time.
///
/// writer: the tracer; readers: actions. An even `Version` that is the same before and after says
/// that the others belong together; 0: there are none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Clock {
    /// The boot time in nanoseconds at which the program began.
    Start,
    /// How often the others were written, twice.
    Version,
    /// A value of the time stamp counter.
    Ticks,
    /// The boot time there.
    Boot,
    /// Nanoseconds a tick, times 2^32.
    Slope,
    /// The monotonic clock less the boot clock.
    Monotonic,
    /// International atomic time less the boot clock.
    Tai,
}

impl Clock {
    /// Where it lies in the region's part for scripts.
    #[must_use]
    pub const fn offset(self) -> u64 {
        8 * self as u64
    }
}

/// Where everything of a script lies, from the begin of the region's part for scripts on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shared {
    tables: Vec<TableLayout>,
    events: Vec<RingLayout>,
    controls: Vec<RingLayout>,
    size: u64,
}

impl Shared {
    /// The layout of a program's data, with a ring for each of so many CPUs; `None` where it has no
    /// place in any region. `used` says which maps anybody keeps anything in, `compiled` which
    /// actions run in targets.
    #[must_use]
    pub fn new(
        program: &Program,
        used: impl Fn(MapId) -> bool,
        compiled: impl Fn(usize) -> bool,
        cpus: u32,
    ) -> Option<Self> {
        let in_target = || {
            let numbered = program.actions.iter().enumerate();
            numbered
                .filter(|(number, _)| compiled(*number))
                .map(|(_, action)| action)
        };
        let mut end = HEAD + 8 * COUNTS * program.actions.len() as u64;
        let mut tables = Vec::new();
        for (map, id) in program.maps.iter().zip(0..) {
            end = end.next_multiple_of(64);
            let deletes = in_target().any(|action| action.deletes_from(MapId(id)));
            let words = value_words(&map.value)?;
            let key = map.key_size.div_ceil(8);
            let capacity = if used(MapId(id)) { map.capacity } else { 1 };
            let table = TableLayout::new(end, key, words, capacity, deletes)?;
            end = end.checked_add(table.size())?;
            tables.push(table);
        }
        let mut rings = |control: bool, bytes: u32| {
            let formats = in_target().flat_map(|action| action.formats());
            let sizes = formats
                .map(|format| &program.formats[format.index()])
                .filter(|format| is_control(format) == control)
                .map(Format::size);
            let Some(largest) = sizes.max() else {
                return Some(Vec::new());
            };
            let stride = 8 + RECORD_HEAD + largest.next_multiple_of(8);
            let mut rings = Vec::new();
            for _ in 0..cpus {
                let ring = RingLayout {
                    at: end.next_multiple_of(64),
                    slots: (bytes / stride).next_power_of_two().max(LEAST_SLOTS),
                    stride,
                };
                end = ring.at.checked_add(ring.size())?;
                rings.push(ring);
            }
            Some(rings)
        };
        let events = rings(false, (ALL_RINGS / cpus.max(1)).min(RING))?;
        let controls = rings(true, CONTROL_RING)?;
        Some(Self {
            tables,
            events,
            controls,
            size: end.next_multiple_of(64),
        })
    }

    /// Bytes of it all.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Offset of one of an action's counts.
    #[must_use]
    pub fn count(&self, action: usize, count: Count) -> u64 {
        HEAD + 8 * (COUNTS * action as u64 + count.index())
    }

    /// A map's table.
    #[must_use]
    pub fn table(&self, map: MapId) -> &TableLayout {
        &self.tables[map.index()]
    }

    /// The rings for records of a format, by CPU.
    #[must_use]
    pub fn rings_of(&self, format: &Format) -> &[RingLayout] {
        if is_control(format) {
            &self.controls
        } else {
            &self.events
        }
    }

    /// All rings; none where no action in a target writes records.
    pub fn rings(&self) -> impl Iterator<Item = &RingLayout> {
        self.events.iter().chain(&self.controls)
    }
}

/// Whether records of the format ask for something else than a line of output. They have rings of
/// their own: a flood of lines must not keep a script from ending.
fn is_control(format: &Format) -> bool {
    matches!(
        format,
        Format::Exit { .. } | Format::Clear { .. } | Format::Zero { .. } | Format::PrintMap { .. }
    )
}

/// Words of a map's value.
fn value_words(value: &MapValue) -> Option<u32> {
    Some(match value {
        MapValue::Field(field) => field.size.div_ceil(8).max(1),
        MapValue::Agg { agg, .. } => match agg {
            Agg::Count | Agg::Sum | Agg::Min | Agg::Max => 1,
            Agg::Avg | Agg::Stats => 2,
            Agg::Hist { bits } => hist_buckets(*bits),
            Agg::Lhist { min, max, step } => {
                let buckets = max.checked_sub(*min)?.checked_div(*step)?.checked_add(2)?;
                u32::try_from(buckets).ok()?
            }
        },
    })
}

/// Buckets of a histogram of powers of two, each cut into `2^bits`: negative values, then one for
/// each value up to `2^(bits+1)`, then the parts of each further power.
#[must_use]
pub fn hist_buckets(bits: u8) -> u32 {
    let parts = 1u32 << bits;
    // Values below `parts` stand for themselves; each power from `bits` to 62 has `parts` parts.
    1 + parts + (63 - u32::from(bits)) * parts
}

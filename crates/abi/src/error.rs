//! Why a layout can't be made, or a region can't be trusted.

use core::fmt;

/// Why a layout was refused, or the bytes of a region do not describe one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LayoutError {
    /// The number of CPUs is zero or above [`crate::layout::MAX_CPUS`].
    Cpus(u64),
    /// More slots than [`crate::layout::MAX_SLOTS`].
    Slots(u64),
    /// More maps than [`crate::layout::MAX_MAPS`].
    Maps(u64),
    /// The capacity of this map is not a power of two from 2 to 2^24.
    Capacity {
        /// Which map.
        map: u32,
        /// What was asked for, or read.
        capacity: u32,
    },
    /// The width of this map is zero or above 66.
    Width {
        /// Which map.
        map: u32,
        /// What was asked for, or read.
        width: u32,
    },
    /// The value slots of this map lie outside the slots of the region.
    MapSlots(u32),
    /// The region would be larger than [`crate::layout::MAX_REGION`].
    TooLarge(u64),
    /// The memory is shorter than the layout says.
    Short {
        /// Bytes that the layout needs.
        needed: u64,
        /// Bytes that there are.
        found: u64,
    },
    /// The first word is not the region's magic number.
    Magic(u64),
    /// Written by another version of the layout.
    Version(u64),
    /// The size that the header states is not the size of what it describes.
    Size {
        /// What follows from the header's counts.
        computed: u64,
        /// What the header states.
        stated: u64,
    },
}

impl fmt::Display for LayoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Cpus(n) => write!(
                f,
                "the region is laid out for {n} CPUs, allowed are 1 to {}",
                crate::layout::MAX_CPUS
            ),
            Self::Slots(n) => write!(
                f,
                "{n} counter slots are too many (at most {}): use fewer probes or smaller maps",
                crate::layout::MAX_SLOTS
            ),
            Self::Maps(n) => write!(
                f,
                "{n} keyed maps are too many (at most {}): use fewer maps",
                crate::layout::MAX_MAPS
            ),
            Self::Capacity { map, capacity } => write!(
                f,
                "map {map} has a capacity of {capacity} keys: choose a power of two from 2 to {}",
                crate::layout::MAX_CAPACITY
            ),
            Self::Width { map, width } => {
                write!(f, "map {map} has {width} slots a key, allowed are 1 to 66")
            }
            Self::MapSlots(map) => {
                write!(f, "the values of map {map} lie outside the region's slots")
            }
            Self::TooLarge(bytes) => write!(
                f,
                "the region would take {bytes} bytes (at most {}): lower the key limit of the maps",
                crate::layout::MAX_REGION
            ),
            Self::Short { needed, found } => {
                write!(
                    f,
                    "the region has {found} bytes where its layout needs {needed}"
                )
            }
            Self::Magic(word) => write!(f, "not a lancet region: it begins with {word:#x}"),
            Self::Version(version) => write!(
                f,
                "the region has layout version {version}, this lancet reads version {}: use the lancet that made it",
                crate::layout::VERSION
            ),
            Self::Size { computed, stated } => write!(
                f,
                "the region's header states {stated} bytes but describes {computed}"
            ),
        }
    }
}

impl core::error::Error for LayoutError {}

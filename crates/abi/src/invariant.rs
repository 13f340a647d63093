//! What a checking hit asserts, and where it counts what does not hold.
//!
//! A session that checks compiles actions which look, at each hit, whether what they rely on is
//! so. A broken invariant adds one to its word in the region's header and changes nothing else.
//!
//! - writers: actions of a checking session, in every process of the trust domain, by
//!   lock-prefixed additions.
//! - readers: the tracer, at each report and at the end.
//! - ordering: none; each word stands for itself.

/// One invariant. Its number is what it is reported by.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u32)]
pub enum Invariant {
    /// Nobody sets more than the two bytes of [`crate::private`], each to 1.
    Mode = 1,
    /// [`crate::Layout::on`] is 0 or 1.
    On,
    /// A CPU's block is the one that the layout gives it.
    Block,
    /// While a section runs, its thread is registered with the area that the section reads.
    Cpu,
    /// While a section runs, the kernel is told of it.
    Descriptor,
    /// An rseq section stores to the half of its block that no locked addition touches.
    RseqHalf,
    /// A locked addition goes to the half that no section stores to.
    LockHalf,
    /// A search ends at an entry of its map.
    MapIndex,
    /// A search ends at the entry of what was searched for.
    MapEntry,
    /// The word under the saved registers is as it was pushed.
    Canary,
    /// The stack pointer behind the actions is the site's.
    StackPointer,
    /// So are all other general registers.
    Registers,
    /// So are the flags that a program can set.
    Flags,
}

impl Invariant {
    /// All of them, by number, from 1 on.
    pub const ALL: [Self; 13] = [
        Self::Mode,
        Self::On,
        Self::Block,
        Self::Cpu,
        Self::Descriptor,
        Self::RseqHalf,
        Self::LockHalf,
        Self::MapIndex,
        Self::MapEntry,
        Self::Canary,
        Self::StackPointer,
        Self::Registers,
        Self::Flags,
    ];

    /// What it is reported by, from 1 on.
    #[must_use]
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// The invariant as a sentence.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Mode => "the mode word has only known bits",
            Self::On => "the session's on word is 0 or 1",
            Self::Block => "the block that the CPU table names is that CPU's",
            Self::Cpu => "a per-CPU store runs on the CPU that the rseq area names",
            Self::Descriptor => "a per-CPU store runs under its own rseq descriptor",
            Self::RseqHalf => "a per-CPU store goes to the block's rseq half",
            Self::LockHalf => "a locked addition goes to the block's lock half",
            Self::MapIndex => "a map's entry lies in the map",
            Self::MapEntry => "a map's entry is of the key that was searched for",
            Self::Canary => "the word under the saved registers is as pushed",
            Self::StackPointer => "the stack pointer behind an action is the site's",
            Self::Registers => "the registers behind an action are the site's",
            Self::Flags => "the flags behind an action are the site's",
        }
    }
}

impl core::fmt::Display for Invariant {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_the_places_in_the_list() {
        for (place, invariant) in Invariant::ALL.iter().enumerate() {
            assert_eq!(invariant.number() as usize, place + 1);
        }
    }
}

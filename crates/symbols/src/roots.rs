//! What a scan of a module's branches has to start from.

use std::ops::Range;

use lancet_abi::units::LinkAddr;

/// Where code certainly starts, where it may be entered, and where probes must not go.
#[derive(Clone, Debug, Default)]
pub struct Roots<'a> {
    /// Starts of functions: symbols and unwind entries; sorted, each once.
    pub starts: Vec<LinkAddr>,
    /// Addresses that are reached without a direct branch: landing pads, relocated
    /// code pointers, the entry point, initialisers; sorted, each once.
    pub entries: Vec<LinkAddr>,
    /// Read-only data that may hold jump tables.
    pub data: Vec<(LinkAddr, &'a [u8])>,
    /// Restartable sequences with their preparation and abort signatures; sorted.
    pub forbidden: Vec<Range<LinkAddr>>,
}

//! The private page: facts that hold for one process only.
//!
//! It is anonymous and MADV_WIPEONFORK, so a forked child begins with zeroes:
//! on, and sure of its rseq state again.
//!
//! The `mode` word lies at the page's start.
//! - writer: the sentinel action of this process sets [`UNCERTAIN_BYTE`], the
//!   tracer sets [`OFF_BYTE`]; nobody clears either.
//! - readers: every action, once a hit, before it counts.
//! - ordering: none is needed with other words. The sentinel runs on the thread
//!   that then creates the child that must see it.

/// Offset of the `mode` word in the private page.
pub const MODE: u64 = 0;
/// Byte of `mode` that is non-zero once a thread may run with a foreign or
/// stale rseq area (vfork and its like): every hit then takes the lock form.
pub const UNCERTAIN_BYTE: u64 = 0;
/// Byte of `mode` that is non-zero when hits in this process don't count.
pub const OFF_BYTE: u64 = 1;
/// Offset of the process's id as the process itself sees it; 0: not asked for yet.
///
/// writers: actions, all the same value; readers: actions; ordering: none.
pub const OWN_PID: u64 = 8;
/// Offset of the process's id as the tracer sees it; 0: as [`OWN_PID`].
///
/// writer: the tracer, before the first probe; readers: actions; ordering: none.
pub const SHOWN_PID: u64 = 16;

//! The only crate that stops, reads or writes another process.
//!
//! It knows how, and leaves whether and when to its caller: [`Stopped`] stops an address space
//! within a budget, [`Borrowed`] runs system calls in one of its threads, [`Memory`] reads and
//! writes, [`arena`] lays out what is added, [`journal`] is what somebody else needs to undo it
//! all. Every act is preceded by the note that undoes it.
//!
//! Not for: deciding what to patch, or parsing files.

pub mod arena;
mod bytes;
mod error;
pub mod frames;
mod inject;
pub mod journal;
mod memory;
mod region;
pub mod rseq;
pub mod slack;
mod stop;
mod stub;
pub mod sys;
mod trailer;
mod watchdog;

pub use error::RemoteError;
pub use inject::{AWAY_MASK, Borrowed, checked};
pub use memory::Memory;
pub use region::{RegionFile, file_name, open_as_seen, remove_orphans};
pub use stop::{StopBudget, Stopped, Thread};
pub use stub::{Argument, Call, LOOK_BACK, MOST_CALLS, has_calls_ahead, trial};
pub use trailer::Trailer;

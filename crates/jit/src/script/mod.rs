//! Actions of scripts: from the IR to a function that every process of a session runs.
//!
//! [`Scripts::compile`] makes each action once, as code that lies anywhere: it finds the region, the
//! site's registers and its own memory through the scratch slot that the entry hands to it. The
//! entry is made for each site by [`crate::emit`].

mod compile;
mod entry;
mod facts;
mod frame;
mod function;
mod loops;
mod maps;
mod records;
mod shared;
mod tables;
mod texts;
mod verify;

pub use compile::{Compiled, Scripts};
pub(crate) use entry::Run;
pub use frame::SLOTS;
pub use shared::{Clock, Count, RECORD_HEAD, Shared, hist_buckets};

/// Where a scratch slot keeps the register with this number.
pub(crate) fn register_offset(number: usize) -> u64 {
    frame::register(number) as u64
}

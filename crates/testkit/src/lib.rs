//! Target programs for tests, and what tests ask about a process.
//!
//! A behaviour is tested on a tiny program in `tests/targets/` that checks its own results: it
//! knows the truth, whatever a tracer does to it. [`Running`] starts one and speaks lines with
//! it; the functions of [`process`] say whether a probe left anything behind; [`oracle`] counts
//! the same calls by other means.
//!
//! Helpers of this crate panic where a test can only fail, and return an error where the caller
//! may want to skip. Everything started here is ended when its value drops.

pub mod error;
pub mod harness;
pub mod machine;
pub mod oracle;
pub mod process;
pub mod running;
mod sys;
pub mod target;

pub use error::Error;
pub use machine::{have, is_root};
pub use oracle::{Bpftrace, bpftrace_count};
pub use process::{SmapsSummary, fd_count, smaps_summary, text_equals_file, thread_count};
pub use running::Running;
pub use target::{target, try_target};

//! What a hit and what attaching cost: the trigger program, the engines beside each other, tables.
//!
//! The parts follow the way of one measurement:
//!
//! - [`trigger`]: a child process of this same binary that calls tiny functions as fast as it can
//!   and reports calls and thread CPU time;
//! - [`engine`]: whoever puts probes on those functions ([`Bare`] is nobody, [`Kernel`] the
//!   kernel's uprobes; lancet's own engine is implemented by the command line);
//! - [`hit`]: all engines in interleaved rounds, and the table of the results;
//! - [`attach`]: what attaching and detaching take, to many processes, of many probes, with many
//!   threads;
//! - [`fork`]: what fork() takes on the host while probes come and go;
//! - [`list`]: what a list of all processes costs;
//! - [`stats`]: medians and spreads.
//!
//! The binary that calls [`hit::run`] must start with a look at its first argument: when it is
//! [`trigger::TRIGGER_ARGUMENT`], the process is the child and belongs to [`run_trigger`].
//!
//! This crate only measures: it never looks for processes and touches none but its own children.

pub mod attach;
pub mod engine;
pub mod error;
pub mod fork;
pub mod hit;
pub mod kernel;
pub mod list;
pub mod script;
pub mod stats;
mod table;
pub mod trigger;

pub use engine::{Attachment, Bare, Engine};
pub use error::Error;
pub use kernel::{Kernel, Method};
pub use trigger::{ForkSample, ThreadSample, Trigger, run_trigger};

//! Lists of processes, as ps prints them.
//!
//! [`parse`] reads the words behind `lancet ps`, in all of ps's three styles; [`Request::wanted`] says what has to be read
//! of each process, and [`render`] makes the text of a [`Table`](lancet_procs::Table) that was read by
//! [`lancet_procs::table`] or taken from the index.
//!
//! The columns that procps has too look as there, to the byte; so does the order of rows. Differences: a row whose
//! arguments can't be read in time shows `[name] <busy>` where ps would wait, and there are the column `container`, JSON and
//! a few more ways to choose. Columns of systemd, SELinux and memory maps are not there.
//!
//! This crate reads no process; it looks at the machine's clocks, users and terminals.

mod cell;
mod choice;
mod error;
mod forest;
mod format;
mod json;
mod layout;
mod machine;
mod names;
mod options;
mod render;
mod request;
mod sort;
mod spec;
mod sys;
mod terminal;
mod texts;
mod time;

pub use choice::{Asker, Choice, List, Listed, Simple};
pub use error::PsError;
pub use format::{Column, Format};
pub use machine::Machine;
pub use names::Names;
pub use options::parse;
pub use render::{Rendered, render};
pub use request::{Forest, Request};
pub use sort::SortKey;
pub use spec::{Align, Id, SPECS, Signals, Spec, What};
pub use sys::Pattern;

pub(crate) use time::Local;

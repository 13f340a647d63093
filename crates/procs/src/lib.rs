//! Processes and where they map files.
//!
//! This crate answers three questions from `/proc`: which processes are there ([`pids`], [`identity`]), where does each map
//! a file ([`file_mappings`], [`who_maps`]), and in what state is a process or thread ([`status`], [`thread_status`]).
//! It only reads; it never stops, signals or writes to a process.
//!
//! # What the caller must know
//!
//! - A process can end between any two calls. [`ProcError::Gone`] covers both spellings of that (`ENOENT` and `ESRCH`) and
//!   is an answer, not a failure. A process in the middle of `exec` or of its exit is [`ProcError::Unknown`]: ask again
//!   after its next event. It is never reported as "does not map the file".
//! - A pid alone names nobody for long. Keep the [`Identity`], and compare with [`same`] (better: hold a pidfd) before acting.
//! - A file is known by the device and inode *that mappings show*. On overlayfs and btrfs they differ from what `stat`
//!   says; [`shown_id`] gives the pair for an open file.
//!
//! # Which files are read, and what they may wait for
//!
//! | file | may wait for | right needed |
//! |---|---|---|
//! | `/proc` (listing), `stat`, `status`, `task` (listing) | nothing | none |
//! | `ns/*`, `exe` | nothing | ptrace read access |
//! | `maps`, text or `PROCMAP_QUERY` | the process's mmap lock on kernels before 6.17 (text), 6.18 (query) | ptrace read access |
//!
//! `cmdline`, `environ` and `map_files` wait behind a busy mmap lock on every kernel and are not used. [`who_maps`] bounds
//! the wait for each process, so one stuck process never delays the others.

mod error;
mod identity;
mod links;
mod list;
mod maps;
mod scan;
mod stat;
mod status;
mod sys;

pub use error::{ProcError, Unsettled};
pub use identity::{Identity, identity, same};
pub use links::{FileId, Namespaces, exe, namespaces, root};
pub use list::{ancestors, children, pids, tids};
pub use maps::{Mapping, file_mappings, file_mappings_text, mapping_at, mappings, parse, shown_id};
pub use scan::{Mapper, Scan, who_maps};
pub use status::{Status, status, thread_status};

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
//! | `/proc` (listing), `PID` (owner), `task` (listing) | nothing | none |
//! | `stat`, `status`, `cgroup`, `wchan`: [`Calm`] | nothing | none (`wchan` says `0` without ptrace read access) |
//! | `ns/*`, `exe` | nothing | ptrace read access |
//! | `task/TID/children` | nothing | none |
//! | `cmdline`, `environ`: [`Bound`] | the process's mmap lock, on every kernel | none; `environ`: ptrace read access |
//! | `maps`, text or `PROCMAP_QUERY` | the process's mmap lock on kernels before 6.17 (text), 6.18 (query) | ptrace read access |
//!
//! [`Bound`] files are only read on helper threads, which [`Proc::read_bound`] may leave behind; [`who_maps`] does the same
//! with maps: one stuck process never delays the others. `map_files` is not used.

mod code_events;
mod error;
mod events;
mod files;
mod identity;
mod index;
mod links;
mod list;
mod maps;
mod patient;
mod ring;
mod root;
mod scan;
pub mod served;
mod snapshot;
mod stat;
mod status;
mod sys;
mod table;
mod wire;

pub use code_events::{CodeChanges, CodeEvent, CodeEvents};
pub use error::{ProcError, Unsettled};
pub use events::{Changes, Events};
pub use files::{Bound, Calm};
pub use identity::{Identity, identity, same};
pub use index::{Entry, Index, Updated};
pub use links::{FileId, Namespaces, exe, face, namespaces, root};
pub use list::{ancestors, children, pids, tids};
pub use maps::{
    Mapping, code_files, file_mappings, file_mappings_text, mapping_at, mappings, parse, shown_id,
};
pub use patient::ask_each;
pub use root::{BoundReads, Owner, PATIENCE, Proc, Reading};
pub use scan::{Mapper, Scan, who_maps};
pub use snapshot::{Missed, Slots};
pub use stat::{Name, Stat};
pub use status::{Status, status, thread_status};
pub use table::{Row, Table, Wanted, of_pids, table};

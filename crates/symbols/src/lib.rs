//! ELF files, functions, patterns and probe sites.
//!
//! A [`Module`] is one opened executable or shared object. It answers what a
//! prober asks before it touches a process: which functions there are
//! ([`Module::functions`]), where a pattern puts its probes ([`select`]), how a
//! link address becomes a file offset, what the branch scan has to start from
//! ([`Module::roots`]), and how the C library lays out a thread ([`libc_facts`]).
//!
//! The caller names files as a user would; [`locate`] turns such a name into a
//! path. Files are hostile: every number that was read from one is checked, a
//! wrong one refuses the file or drops the one table it belongs to, and memory is
//! bounded by a small multiple of the file's size.
//!
//! Not for: controlling processes, types and lines of DWARF, other machines than
//! x86-64.
//!
//! Speed: a file under 64 MiB is read once; nothing is parsed before it is asked
//! for, and what was parsed is kept. Demangling happens only when a name is shown
//! or when a pattern could match it.

mod boundary;
mod bytes;
mod debuginfo;
mod dynamic;
mod elf;
mod error;
mod facts;
mod frames;
mod function;
mod gopclntab;
mod layout;
mod ldcache;
mod locate;
mod lsda;
mod module;
mod names;
mod near;
mod notes;
mod open;
mod pattern;
mod relocs;
mod roots;
mod rseq;
mod select;
mod spec;
mod symtab;
mod table;

pub use error::SymbolError;
pub use function::Function;
pub use layout::{Libc, libc_facts};
pub use locate::{Located, locate, locate_for};
pub use module::{FileId, Kind, Module, Runtime, Segment};
pub use pattern::Pattern;
pub use roots::Roots;
pub use select::{Site, select};
pub use spec::{ProbeSpec, Target};

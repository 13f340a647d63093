//! What was asked for, whatever the style it was asked in.

use crate::{Choice, Format, SortKey};

/// One list that is to be made.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Which processes.
    pub choice: Choice,
    /// Which columns.
    pub format: Format,
    /// In which order; empty for that of /proc.
    pub sort: Vec<SortKey>,
    /// Children below their parents, with lines (`--forest`) or only indented (`-H`).
    pub forest: Option<Forest>,
    /// A row for each thread.
    pub threads: bool,
    /// No header.
    pub no_header: bool,
    /// How often `w` was given.
    pub wide: u32,
    /// A width that was given.
    pub width: Option<usize>,
    /// Ids instead of names.
    pub numeric: bool,
    /// Times with those of children that have ended.
    pub with_children: bool,
    /// Names instead of arguments.
    pub names_only: bool,
    /// JSON, one object a line.
    pub json: bool,
    /// Again every so many seconds.
    pub watch: Option<f64>,
    /// Only processes that map this file as code.
    pub maps: Option<String>,
    /// Only processes that lancet has something in.
    pub probed: bool,
    /// How old the index's snapshot may be, in milliseconds.
    pub max_age: Option<u64>,
    /// Never ask the index.
    pub alone: bool,
    /// What help is wanted.
    pub help: Option<String>,
}

/// How children are shown below their parents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forest {
    /// With lines.
    Lines,
    /// Indented.
    Indented,
}

//! What can go wrong when a process is looked at.

use std::{fmt, io};

use lancet_abi::units::Pid;

/// Why a look at a process gave no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProcError {
    /// The process has ended, or never was. Nothing has to be undone in it.
    #[error("process {pid} is gone")]
    Gone {
        /// The process that was asked for.
        pid: Pid,
    },
    /// The process lives, but this user may not look.
    #[error(
        "process {pid}: no permission to read its {what}; run as root or as the user who owns the process"
    )]
    Denied {
        /// The process that was asked for.
        pid: Pid,
        /// The file below `/proc/PID`.
        what: &'static str,
    },
    /// The process is between two states; an answer now would be a guess.
    #[error("process {pid}: {why}; look again after its next event")]
    Unknown {
        /// The process that was asked for.
        pid: Pid,
        /// What it is in the middle of.
        why: Unsettled,
    },
    /// A file below `/proc/PID` could not be read for another reason.
    #[error("process {pid}: reading its {what} failed: {source}")]
    Io {
        /// The process that was asked for.
        pid: Pid,
        /// The file below `/proc/PID`.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// `/proc` itself could not be listed.
    #[error("/proc can't be listed: {source}; is procfs mounted there?")]
    List {
        /// What the system said.
        source: io::Error,
    },
    /// A file could not be mapped to learn which identity its mappings show.
    #[error(
        "the file can't be mapped to learn its identity: {source}; is it an ordinary, readable, non-empty file?"
    )]
    Unmappable {
        /// What the system said.
        source: io::Error,
    },
}

/// What a process is in the middle of when its mappings say nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unsettled {
    /// It has given up its memory and is about to end.
    Exiting,
    /// It is in `exec`: the new memory is there, but not yet filled.
    Loading,
    /// Its memory was replaced at each of several looks.
    Changing,
    /// Its maps were not readable within the time that one process may take.
    Busy,
}

impl fmt::Display for Unsettled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exiting => "it is exiting and has no memory any more",
            Self::Loading => "it is in exec and its memory is not yet complete",
            Self::Changing => "its memory was replaced during each look",
            Self::Busy => "its memory map is locked for too long",
        })
    }
}

impl ProcError {
    /// Sorts an error of a file `what` below `/proc/PID`. `ENOENT` and `ESRCH` both mean that the process ended: which one
    /// appears depends only on whether it ended before or after the file was opened.
    pub(crate) fn of(pid: Pid, what: &'static str, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::ENOENT | libc::ESRCH) => Self::Gone { pid },
            Some(libc::EACCES | libc::EPERM) => Self::Denied { pid, what },
            _ => Self::Io { pid, what, source },
        }
    }

    /// True when the process has ended.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Gone { .. })
    }
}

//! Who has mapped one of some files as code since the last look, and who was forked.
//!
//! For probes in every process: these events tell of each process that comes to have the files. They are
//! in the order of their times, over all CPUs.

use std::{io, time::Duration};

use lancet_abi::units::Pid;
use rustix::fd::BorrowedFd;

use crate::{
    FileId,
    ring::{self, FORK, MMAP2, Record},
    sys::{self, Stream},
};

/// Pages of a CPU's ring: a mebibyte.
const PAGES: usize = 256;

/// The kernel's events of all CPUs. Needs root, or a machine whose `perf_event_paranoid` allows it.
pub struct CodeEvents {
    rings: Vec<sys::Ring>,
    files: Vec<Named>,
}

/// How the events name a file.
struct Named {
    id: FileId,
    /// The device that mappings show is not the one that events show: overlayfs has one of its own.
    by_inode: bool,
}

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeEvent {
    /// A process has mapped one of the files as code.
    Mapped(Pid),
    /// A process was forked; threads are not told of.
    Forked {
        /// By this one.
        parent: Pid,
        /// The new one.
        child: Pid,
    },
}

/// What happened.
#[derive(Clone, Debug, Default)]
pub struct CodeChanges {
    /// With their times on the monotonic clock, ascending.
    pub events: Vec<(Duration, CodeEvent)>,
    /// How many records found no room: then any process may have mapped a file.
    pub lost: u64,
}

impl CodeEvents {
    /// Opens the rings. The files are named as mappings show them, each with whether it lies on a
    /// filesystem whose mappings show another device than events do.
    ///
    /// # Errors
    /// When this user may not.
    pub fn open(files: &[(FileId, bool)]) -> io::Result<Self> {
        let rings = sys::Ring::open_all(Stream::Code, PAGES)?;
        let named = |&(id, by_inode): &(FileId, bool)| Named { id, by_inode };
        Ok(Self {
            rings,
            files: files.iter().map(named).collect(),
        })
    }

    /// What gets readable when there is something to take.
    pub fn wakers(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.rings.iter().map(sys::Ring::fd)
    }

    /// Takes what has happened out of the rings.
    #[must_use]
    pub fn take(&self) -> CodeChanges {
        let mut changes = CodeChanges::default();
        for ring in &self.rings {
            let understood = ring::drain(&ring.memory(), |record| {
                changes.lost += record.lost().unwrap_or(0);
                if let Some(event) = self.event(record) {
                    let at = Duration::from_nanos(record.last());
                    changes.events.push((at, event));
                }
            });
            changes.lost += u64::from(!understood);
        }
        changes.events.sort_by_key(|&(at, _)| at);
        changes
    }

    fn event(&self, record: &Record<'_>) -> Option<CodeEvent> {
        // Processes of other pid namespaces have no number here.
        let pid = |word: u64| Some(Pid(word as u32 as i32)).filter(|pid| pid.0 > 0);
        match record.kind {
            MMAP2 => {
                let device = record.word(4);
                let dev = libc::makedev(device as u32, (device >> 32) as u32);
                let is_it = |file: &Named| {
                    file.id.inode == record.word(5) && (file.by_inode || file.id.dev == dev)
                };
                let pid = pid(record.word(0))?;
                self.files
                    .iter()
                    .any(is_it)
                    .then_some(CodeEvent::Mapped(pid))
            }
            FORK => {
                let ids = record.word(0);
                let (child, parent) = (pid(ids)?, pid(ids >> 32)?);
                (child != parent).then_some(CodeEvent::Forked { parent, child })
            }
            _ => None,
        }
    }
}

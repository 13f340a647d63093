//! What processes did since the last look: forks, execs, ends, and files mapped as code.
//!
//! The kernel writes records into a ring a CPU; a ring that is full drops them and says so in the next that fits. So
//! nothing is missed unnoticed: [`Changes::lost`] means that anything may have happened.

use std::{collections::HashSet, io, time::Duration};

use lancet_abi::units::Pid;
use rustix::{
    event::{PollFd, PollFlags, poll},
    time::Timespec,
};

use crate::{
    ring::{self, COMM, EXIT, FORK, MMAP2},
    sys::{self, Stream},
};

/// Pages of a CPU's ring: a mebibyte.
const PAGES: usize = 256;

/// The kernel's events of all CPUs. Needs root, or a machine whose `perf_event_paranoid` allows it.
pub struct Events {
    rings: Vec<sys::Ring>,
}

/// What happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Processes that began, ended, became another program or mapped code.
    pub pids: HashSet<Pid>,
    /// How many records found no room: then any other process may have changed too.
    pub lost: u64,
}

impl Events {
    /// Opens the rings.
    ///
    /// # Errors
    /// When this user may not.
    pub fn open() -> io::Result<Self> {
        Self::with_pages(PAGES)
    }

    /// As [`open`](Self::open), with rings of so many pages, a power of two.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn with_pages(pages: usize) -> io::Result<Self> {
        let rings = sys::Ring::open_all(Stream::Tasks, pages)?;
        Ok(Self { rings })
    }

    /// Waits until something happens; false when nothing did within `limit`. Costs nothing meanwhile.
    ///
    /// # Errors
    /// When it can't wait.
    pub fn wait(&self, limit: Duration) -> io::Result<bool> {
        let rings = self.rings.iter();
        let mut fds: Vec<_> = rings
            .map(|ring| PollFd::from_borrowed_fd(ring.fd(), PollFlags::IN))
            .collect();
        let limit = Timespec {
            tv_sec: limit.as_secs().min(1 << 30) as i64,
            tv_nsec: limit.subsec_nanos().into(),
        };
        match poll(&mut fds, Some(&limit)) {
            Ok(ready) => Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes what has happened out of the rings.
    #[must_use]
    pub fn take(&self) -> Changes {
        let mut changes = Changes::default();
        for ring in &self.rings {
            let understood = ring::drain(&ring.memory(), |of| match of.lost() {
                Some(lost) => changes.lost += lost,
                None => record(of.kind, of.misc, of.word(0), of.word(1), &mut changes),
            });
            changes.lost += u64::from(!understood);
        }
        changes
    }
}

fn record(kind: u32, misc: u16, first: u64, second: u64, changes: &mut Changes) {
    const BY_EXEC: u16 = 1 << 13;
    let pid = Pid(first as u32 as i32);
    let change = match kind {
        // Of threads that come and go only the process is known, and it does not change.
        FORK | EXIT => second as u32 == first as u32,
        COMM => misc & BY_EXEC != 0,
        MMAP2 => true,
        _ => false,
    };
    // Processes of other pid namespaces have no number here.
    if change && pid.0 > 0 {
        changes.pids.insert(pid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_told_apart() {
        let mut changes = Changes::default();
        let ids = |pid: u64, other: u64| pid | other << 32;
        record(FORK, 0, ids(10, 1), ids(10, 1), &mut changes);
        record(FORK, 0, ids(11, 1), ids(99, 1), &mut changes);
        record(COMM, 0, ids(12, 12), 0, &mut changes);
        record(COMM, 1 << 13, ids(13, 13), 0, &mut changes);
        record(MMAP2, 0, ids(14, 15), 0, &mut changes);
        record(EXIT, 0, ids(0, 0), ids(0, 0), &mut changes);
        assert_eq!(changes.pids, HashSet::from([10, 13, 14].map(Pid)));
        assert_eq!(changes.lost, 0);
    }
}

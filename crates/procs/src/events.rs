//! What processes did since the last look: forks, execs, ends, and files mapped as code.
//!
//! The kernel writes records into a ring a CPU; a ring that is full drops them and says so in the next that fits. So
//! nothing is missed unnoticed: [`Changes::lost`] means that anything may have happened.

use std::{collections::HashSet, io, time::Duration};

use lancet_abi::{
    memory::{Memory, RingMemory, SharedMut},
    units::Pid,
};
use rustix::{
    event::{PollFd, PollFlags, poll},
    time::Timespec,
};

use crate::sys;

/// Pages of a CPU's ring: a mebibyte.
const PAGES: usize = 256;

// Offsets in the page before the ring, of `perf_event_mmap_page`.
const HEAD: u64 = 1024;
const TAIL: u64 = 1032;

const LOST: u32 = 2;
const COMM: u32 = 3;
const EXIT: u32 = 4;
const FORK: u32 = 7;
const MMAP2: u32 = 10;
const LOST_SAMPLES: u32 = 13;

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
        let online = std::fs::read_to_string("/sys/devices/system/cpu/online")?;
        let rings = cpus(&online).map(|cpu| sys::Ring::open(cpu, pages));
        let rings: Vec<_> = rings.collect::<io::Result<_>>()?;
        match rings.is_empty() {
            true => Err(io::ErrorKind::InvalidData.into()),
            false => Ok(Self { rings }),
        }
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
            drain(
                &ring.memory(),
                rustix::param::page_size() as u64,
                &mut changes,
            );
        }
        changes
    }
}

/// Reads a ring to its head and gives the room back.
fn drain(memory: &SharedMut<'_>, page: u64, changes: &mut Changes) {
    let size = memory.len() - page;
    let word = |at: u64| memory.load(page + (at & (size - 1) & !7)).unwrap_or(0);
    let (Some(head), Some(mut tail)) = (memory.load(HEAD), memory.load(TAIL)) else {
        return;
    };
    while head.wrapping_sub(tail) >= 8 {
        let first = word(tail);
        let (kind, misc, length) = (first as u32, (first >> 32) as u16, first >> 48);
        if length < 8 || length > head.wrapping_sub(tail) {
            // Not how the kernel writes: nothing behind it can be understood.
            changes.lost += 1;
            tail = head;
            break;
        }
        record(kind, misc, word(tail + 8), word(tail + 16), changes);
        tail = tail.wrapping_add(length);
    }
    memory.store(TAIL, tail);
}

fn record(kind: u32, misc: u16, first: u64, second: u64, changes: &mut Changes) {
    const BY_EXEC: u16 = 1 << 13;
    let pid = Pid(first as u32 as i32);
    let change = match kind {
        LOST => {
            changes.lost += second.max(1);
            return;
        }
        LOST_SAMPLES => {
            changes.lost += first.max(1);
            return;
        }
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

/// A list such as `0-3,8`.
fn cpus(list: &str) -> impl Iterator<Item = u32> {
    list.trim().split(',').flat_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        match (first.parse::<u32>(), last.parse::<u32>()) {
            (Ok(first), Ok(last)) => first..last.saturating_add(1),
            _ => 0..0,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus() {
        assert_eq!(cpus("0-3,8\n").collect::<Vec<_>>(), [0, 1, 2, 3, 8]);
        assert_eq!(cpus("0\n").collect::<Vec<_>>(), [0]);
        assert_eq!(cpus("").count(), 0);
    }

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
        record(LOST, 0, 7, 5, &mut changes);
        assert_eq!(changes.lost, 5);
    }
}

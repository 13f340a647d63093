//! The kernel's stream of what tasks do, one ring a CPU: perf software events without a counter.

use std::io;

use lancet_abi::memory::SharedMut;
use memmap2::{MmapMut, MmapOptions};
use rustix::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

const SOFTWARE: u32 = 1;
const CLOSE_ON_EXEC: libc::c_ulong = 8;
const DUMMY: u64 = 9;
const MMAP: u64 = 1 << 8;
const COMM: u64 = 1 << 9;
const TASK: u64 = 1 << 13;
const WATERMARK: u64 = 1 << 14;
const SAMPLE_ID_ALL: u64 = 1 << 18;
const MMAP2: u64 = 1 << 23;
const COMM_EXEC: u64 = 1 << 24;
const USE_CLOCKID: u64 = 1 << 25;
const SAMPLE_TIME: u64 = 1 << 2;

/// What a ring tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    /// Forks, ends, execs, and mappings of code.
    Tasks,
    /// Forks, ends, and mappings of code; each record ends with its time on the monotonic clock.
    Code,
}

impl Stream {
    fn flags(self) -> u64 {
        // Mappings are told of where `mmap` is set; `mmap2` is the form of the records.
        let both = TASK | WATERMARK | MMAP | MMAP2;
        match self {
            Self::Tasks => both | COMM | COMM_EXEC,
            Self::Code => both | SAMPLE_ID_ALL | USE_CLOCKID,
        }
    }

    fn sample_type(self) -> u64 {
        match self {
            Self::Tasks => 0,
            Self::Code => SAMPLE_TIME,
        }
    }
}

/// `perf_event_attr` as of the first version that has `comm_exec`; what follows in later ones is zero.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_watermark: u32,
    bp_type: u32,
    /// The first two are of breakpoints, the others of samples.
    others: [u64; 4],
    stack: u32,
    clock: i32,
    rest: [u64; 2],
}

/// The events of one CPU.
pub(crate) struct Ring {
    fd: OwnedFd,
    map: MmapMut,
}

impl Ring {
    /// One for each CPU that is online.
    pub(crate) fn open_all(stream: Stream, pages: usize) -> io::Result<Vec<Self>> {
        let online = std::fs::read_to_string("/sys/devices/system/cpu/online")?;
        let rings = cpus(&online).map(|cpu| Self::open(stream, cpu, pages));
        let rings: Vec<_> = rings.collect::<io::Result<_>>()?;
        match rings.is_empty() {
            true => Err(io::ErrorKind::InvalidData.into()),
            false => Ok(rings),
        }
    }

    /// A ring of so many pages, a power of two.
    fn open(stream: Stream, cpu: u32, pages: usize) -> io::Result<Self> {
        let attributes = Attributes {
            kind: SOFTWARE,
            size: size_of::<Attributes>() as u32,
            config: DUMMY,
            flags: stream.flags(),
            sample_type: stream.sample_type(),
            clock: libc::CLOCK_MONOTONIC,
            // Whoever waits is woken by the first byte.
            wakeup_watermark: 1,
            ..Attributes::default()
        };
        let every_process: libc::pid_t = -1;
        // SAFETY: the structure is live and tells its own size; the call makes a descriptor or fails.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                &raw const attributes,
                every_process,
                cpu,
                -1,
                CLOSE_ON_EXEC,
            )
        };
        let fd = i32::try_from(fd).ok().filter(|&fd| fd >= 0);
        let fd = fd.ok_or_else(io::Error::last_os_error)?;
        // SAFETY: just made, and nobody else's.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let size = (1 + pages) * rustix::param::page_size();
        // SAFETY: memory of the kernel that stays as long as it is mapped; all access is through atomics.
        let map = unsafe { MmapOptions::new().len(size).map_mut(&fd)? };
        Ok(Self { fd, map })
    }

    /// First a page for both sides, then the ring.
    pub(crate) fn memory(&self) -> SharedMut<'_> {
        // SAFETY: mapped readable and writable as long as `self`, page-aligned, backed by the kernel.
        unsafe { SharedMut::new(self.map.as_ptr(), self.map.len()) }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
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
}

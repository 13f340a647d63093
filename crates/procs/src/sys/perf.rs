//! The kernel's stream of what tasks do, one ring a CPU: perf software events without a counter.

use std::io;

use lancet_abi::memory::SharedMut;
use memmap2::{MmapMut, MmapOptions};
use rustix::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

const SOFTWARE: u32 = 1;
const CLOSE_ON_EXEC: libc::c_ulong = 8;
const DUMMY: u64 = 9;
/// task (fork and exit), watermark, mmap2 (code only, without mmap_data), comm and comm_exec.
const FLAGS: u64 = 1 << 9 | 1 << 13 | 1 << 14 | 1 << 23 | 1 << 24;

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
    rest: [u64; 7],
}

/// The events of one CPU.
pub(crate) struct Ring {
    fd: OwnedFd,
    map: MmapMut,
}

impl Ring {
    /// A ring of so many pages, a power of two.
    pub(crate) fn open(cpu: u32, pages: usize) -> io::Result<Self> {
        let attributes = Attributes {
            kind: SOFTWARE,
            size: size_of::<Attributes>() as u32,
            config: DUMMY,
            flags: FLAGS,
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

//! Whether a process has called exec, told by the kernel without a stop.
//!
//! A perf event that counts nothing, but notes each new name of a thread and marks those that
//! came by exec, with the layouts of `linux/perf_event.h`. It needs the right to trace the thread
//! and no other.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;

use lancet_abi::units::Tid;

const PAGE: usize = 4096;
/// The first published size of `perf_event_attr`.
const ATTRIBUTES: usize = 64;
const TYPE_SOFTWARE: u32 = 1;
const COUNT_NOTHING: u64 = 9;
/// Bits of `perf_event_attr` behind `read_format`: exclude_kernel, exclude_hv, comm, comm_exec.
const FLAGS: u64 = 1 << 5 | 1 << 6 | 1 << 9 | 1 << 24;
/// Offset of `data_head` in `perf_event_mmap_page`.
const HEAD: usize = 1024;
const RECORD_COMM: u32 = 3;
const BY_EXEC: u16 = 1 << 13;

/// A watched thread. What it notes lies in one page: after some two hundred renamings it notes no
/// more.
pub(crate) struct ExecWatch {
    pages: NonNull<u8>,
    /// Keeps the event; closed after the pages are gone.
    _event: OwnedFd,
}

impl ExecWatch {
    /// Watches a thread from now on.
    pub(crate) fn open(tid: Tid) -> io::Result<Self> {
        let mut attributes = [0u8; ATTRIBUTES];
        attributes[..4].copy_from_slice(&TYPE_SOFTWARE.to_le_bytes());
        attributes[4..8].copy_from_slice(&(ATTRIBUTES as u32).to_le_bytes());
        attributes[8..16].copy_from_slice(&COUNT_NOTHING.to_le_bytes());
        attributes[40..48].copy_from_slice(&FLAGS.to_le_bytes());
        const CLOSE_ON_EXEC: libc::c_ulong = 8;
        // SAFETY: the attributes have the size that they state; a new descriptor is nobody else's.
        let event = unsafe {
            let fd = libc::syscall(
                libc::SYS_perf_event_open,
                attributes.as_mut_ptr(),
                tid.0,
                -1,
                -1,
                CLOSE_ON_EXEC,
            );
            let fd = RawFd::try_from(fd).unwrap_or(-1);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        // SAFETY: a fresh mapping of two pages, which is unmapped on drop. Writable, so that the
        // kernel keeps the first notes when there is no room for more.
        let pages = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                2 * PAGE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                std::os::fd::AsRawFd::as_raw_fd(&event),
                0,
            )
        };
        match NonNull::new(pages.cast::<u8>()) {
            Some(pages) if pages.as_ptr().cast() != libc::MAP_FAILED => Ok(Self {
                pages,
                _event: event,
            }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Whether it has become another program since.
    pub(crate) fn has_called_exec(&self) -> bool {
        let mut notes = [0u8; PAGE];
        // SAFETY: both pages are mapped as long as self lives. The kernel writes notes before it
        // moves the head over them, and never changes those below it.
        let used = unsafe {
            let head = self.pages.as_ptr().add(HEAD).cast::<u64>();
            let head = std::sync::atomic::AtomicU64::from_ptr(head)
                .load(std::sync::atomic::Ordering::Acquire);
            let used = usize::try_from(head).unwrap_or(PAGE).min(PAGE);
            self.pages
                .as_ptr()
                .add(PAGE)
                .copy_to_nonoverlapping(notes.as_mut_ptr(), used);
            used
        };
        let mut rest = &notes[..used];
        while let [a, b, c, d, e, f, g, h, ..] = *rest {
            let length = usize::from(u16::from_le_bytes([g, h]));
            let flags = u16::from_le_bytes([e, f]);
            if u32::from_le_bytes([a, b, c, d]) == RECORD_COMM && flags & BY_EXEC != 0 {
                return true;
            }
            match rest.get(length..) {
                Some(after) if length >= 8 => rest = after,
                _ => break,
            }
        }
        false
    }
}

impl Drop for ExecWatch {
    fn drop(&mut self) {
        // SAFETY: the pages were mapped by `open` and nothing refers to them any more.
        unsafe {
            libc::munmap(self.pages.as_ptr().cast(), 2 * PAGE);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use super::*;

    fn shell_that(does: &str) -> bool {
        let mut child = Command::new("sh")
            .args(["-c", &format!("read line; {does}")])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("sh starts");
        let watch = ExecWatch::open(Tid(child.id().cast_signed())).expect("a watch");
        let mut input = child.stdin.take().expect("a pipe");
        input.write_all(b"\n").expect("sh reads");
        drop(input);
        child.wait().expect("sh ends");
        watch.has_called_exec()
    }

    #[test]
    fn exec_is_told_from_a_new_name_and_from_a_childs_exec() {
        assert!(shell_that("exec cat"));
        assert!(!shell_that("echo other > /proc/self/comm; cat; true"));
    }
}

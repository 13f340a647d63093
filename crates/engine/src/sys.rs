//! One function a system call, for what the standard library does not offer.

pub(crate) mod exec_watch;

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use lancet_abi::units::Pid;

const FORWARDED: [i32; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

fn forwarded() -> libc::sigset_t {
    // SAFETY: sigemptyset makes the set valid before it is used.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in FORWARDED {
            libc::sigaddset(&raw mut set, signal);
        }
        set
    }
}

/// A signal mask.
#[derive(Clone, Copy)]
pub(crate) struct Mask(libc::sigset_t);

/// Blocks SIGINT, SIGTERM, SIGHUP and SIGQUIT for this thread and those it starts; they are read from the
/// descriptor instead. Also returns the mask from before.
pub(crate) fn block_signals() -> io::Result<(OwnedFd, Mask)> {
    let set = forwarded();
    // SAFETY: the sets are valid; a new descriptor belongs to nobody else.
    unsafe {
        let mut before = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, &raw mut before);
        let fd = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok((OwnedFd::from_raw_fd(fd), Mask(before)))
    }
}

/// The next pending signal of this process.
pub(crate) fn next_signal(fd: BorrowedFd<'_>) -> Option<i32> {
    // SAFETY: all-zero is a valid signalfd_siginfo; the buffer is as long as stated.
    unsafe {
        let mut info: libc::signalfd_siginfo = std::mem::zeroed();
        let size = size_of::<libc::signalfd_siginfo>();
        let got = libc::read(fd.as_raw_fd(), (&raw mut info).cast(), size);
        (got == size as isize).then_some(info.ssi_signo as i32)
    }
}

/// pidfd_send_signal(2).
pub(crate) fn send(pidfd: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    // SAFETY: takes integers and a null pointer only.
    let result = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_raw_fd(),
            signal,
            std::ptr::null::<libc::siginfo_t>(),
            0,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// The monotonic clock, as the kernel's events have it.
pub(crate) fn monotonic() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(now.tv_sec.cast_unsigned(), now.tv_nsec as u32)
}

/// A poll entry for reading.
pub(crate) fn readable(fd: i32) -> libc::pollfd {
    libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    }
}

/// poll(2), rounded up to milliseconds.
pub(crate) fn poll(entries: &mut [libc::pollfd], timeout: Option<Duration>) {
    let milliseconds = timeout.map_or(-1, |t| {
        i32::try_from(t.as_micros().div_ceil(1000)).unwrap_or(i32::MAX)
    });
    // SAFETY: pointer and length belong to one slice.
    unsafe {
        libc::poll(
            entries.as_mut_ptr(),
            entries.len() as libc::nfds_t,
            milliseconds,
        );
    }
}

/// waitpid(2) without blocking, for an exited child: its raw status.
pub(crate) fn reap(pid: Pid) -> Option<i32> {
    let mut status = 0;
    // SAFETY: `status` outlives the call.
    let got = unsafe { libc::waitpid(pid.0, &raw mut status, libc::WNOHANG) };
    (got == pid.0 && (libc::WIFEXITED(status) || libc::WIFSIGNALED(status))).then_some(status)
}

/// Lets this process have as many descriptors as it may: two for each process that it holds.
pub(crate) fn allow_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    let limit = Rlimit {
        current: maximum,
        maximum,
    };
    // Where that is refused, it is the last processes that can't be opened, which is told.
    let _ = setrlimit(Resource::Nofile, limit);
}

/// clone(2) with CLONE_FILES. `None` in the child.
pub(crate) fn clone_sharing_files() -> io::Result<Option<Pid>> {
    // SAFETY: like fork: the child has a copy of this memory and goes on here. The caller sees to
    // it that there is only one thread.
    let pid = unsafe {
        libc::syscall(
            libc::SYS_clone,
            libc::CLONE_FILES | libc::SIGCHLD,
            0,
            0,
            0,
            0,
        )
    };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(None),
        pid => Ok(Some(Pid(pid as i32))),
    }
}

/// Forks a child that lets itself be traced by anybody who is allowed to, reads one byte from
/// `wait` and then becomes the program with this signal mask. End of file instead of a byte (all
/// who hold `start`, the other end, have died or closed it): it ends.
pub(crate) fn fork_waiting(
    path: &CStr,
    words: &[CString],
    mask: Mask,
    wait: BorrowedFd<'_>,
    start: BorrowedFd<'_>,
) -> io::Result<Pid> {
    let mut pointers: Vec<*const libc::c_char> = words.iter().map(|w| w.as_ptr()).collect();
    pointers.push(std::ptr::null());
    // SAFETY: between fork and exec the child makes async-signal-safe calls only, on memory that
    // was prepared before.
    unsafe {
        match libc::fork() {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                const ANY: libc::c_ulong = libc::c_ulong::MAX;
                libc::prctl(libc::PR_SET_PTRACER, ANY, 0, 0, 0);
                libc::close(start.as_raw_fd());
                let mut byte = 0u8;
                let got = loop {
                    let got = libc::read(wait.as_raw_fd(), (&raw mut byte).cast(), 1);
                    if got >= 0 || *libc::__errno_location() != libc::EINTR {
                        break got;
                    }
                };
                if got != 1 {
                    libc::_exit(126);
                }
                libc::pthread_sigmask(libc::SIG_SETMASK, &raw const mask.0, std::ptr::null_mut());
                libc::signal(libc::SIGPIPE, libc::SIG_DFL);
                libc::execv(path.as_ptr(), pointers.as_ptr());
                libc::_exit(127);
            }
            pid => Ok(Pid(pid)),
        }
    }
}

/// Whether a descriptor number is open.
pub(crate) fn is_open(fd: i32) -> bool {
    // SAFETY: takes integers only.
    unsafe { libc::fcntl(fd, libc::F_GETFD) >= 0 }
}

/// A zeroed value in memory that stays shared with cloned processes, for good.
pub(crate) fn shared_page<T>() -> io::Result<&'static T> {
    assert!(size_of::<T>() <= 4096);
    // SAFETY: a fresh zeroed page that is never unmapped; callers use it for atomics only.
    unsafe {
        let page = libc::mmap(
            std::ptr::null_mut(),
            4096,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(&*page.cast::<T>())
    }
}

/// Where this program's libc keeps each thread's rseq area, from the thread pointer.
pub(crate) fn own_rseq_offset() -> Option<i32> {
    // SAFETY: looks a name up among the loaded libraries. glibc documents the variable as a
    // ptrdiff_t that never changes after start.
    let offset = unsafe {
        let symbol = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr());
        if symbol.is_null() {
            return None;
        }
        symbol.cast::<isize>().read()
    };
    i32::try_from(offset).ok().filter(|&o| o != 0)
}

/// Lets short sleeps of this thread, and of those that it makes, be short.
pub(crate) fn sleep_exactly() {
    // SAFETY: takes integers only, and affects the calling thread alone.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1000) };
}

/// Lets the signals that [`block_signals`] blocked reach this thread again.
pub(crate) fn unblock_signals() {
    let set = forwarded();
    // SAFETY: the set is valid; affects the calling thread alone.
    unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut()) };
}

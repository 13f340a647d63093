//! The signals that ask a service to end, as a descriptor.

use std::io;

use rustix::fd::{FromRawFd, OwnedFd};

/// Blocks SIGTERM and SIGINT in this thread and those that it starts; the descriptor is readable when one has come.
pub(crate) fn ending() -> io::Result<OwnedFd> {
    // SAFETY: all zero is a valid set to be emptied; the calls write only it.
    let fd = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGTERM);
        libc::sigaddset(&mut set, libc::SIGINT);
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just made, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

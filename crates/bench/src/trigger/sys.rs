//! The system calls that make and end processes, and that keep a memory map busy.

use std::io;

use lancet_abi::units::Pid;

/// Splits the process. `None` in the child, which must end by [`end`].
///
/// Only for a process with one thread: locks that others held would stay locked in the child.
pub(super) fn fork() -> io::Result<Option<Pid>> {
    // SAFETY: the caller has one thread, so the child may go on as it likes.
    match unsafe { libc::fork() } {
        0 => Ok(None),
        pid if pid > 0 => Ok(Some(Pid(pid))),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Has the kernel kill this process when its parent ends.
pub(super) fn end_with_parent() {
    // SAFETY: this option takes a signal's number and no pointer.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
}

/// Whether something can be read from standard input, its end included.
pub(super) fn input_is_there() -> bool {
    let mut input = libc::pollfd {
        fd: 0,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one pollfd, which outlives the call.
    unsafe { libc::poll(&raw mut input, 1, 0) != 0 }
}

/// Maps so many bytes, all pages at once, and unmaps them.
pub(super) fn populate(length: usize) -> io::Result<()> {
    // SAFETY: a fresh mapping at an address of the kernel's choice, which nobody else knows of when
    // it is unmapped.
    unsafe {
        let memory = libc::mmap(
            std::ptr::null_mut(),
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_POPULATE,
            -1,
            0,
        );
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        libc::munmap(memory, length);
    }
    Ok(())
}

/// Ends the process without running what belongs to its parent.
pub(super) fn end() -> ! {
    // SAFETY: this call does not return and touches no memory.
    unsafe { libc::_exit(0) }
}

/// Waits until a child has ended.
pub(super) fn reap(child: Pid) {
    // SAFETY: no status is asked for.
    while unsafe { libc::waitpid(child.0, std::ptr::null_mut(), 0) } < 0
        && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
    {}
}

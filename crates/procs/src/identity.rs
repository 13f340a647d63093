//! Which process a pid meant at the time of a look.

use lancet_abi::units::Pid;

use crate::{ProcError, stat, sys};

/// One process for its whole life, across reuse of its pid. An `exec` does not change it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The number that others may get later.
    pub pid: Pid,
    /// Inode of `/proc/PID`, as the listing of `/proc` shows it. Equal means the same process; different means little, as
    /// the kernel may number the folder anew when it was short of memory.
    pub folder: u64,
    /// Start time in clock ticks since boot.
    pub start_time: u64,
}

/// The identity of the process that has this pid now.
///
/// # Errors
/// [`ProcError::Gone`] when there is none.
pub fn identity(pid: Pid) -> Result<Identity, ProcError> {
    // Between two reads the pid may pass to another process; the folder on both sides of the read shows it.
    let mut folder = folder(pid)?;
    loop {
        let start_time = stat::read(pid)?.start_time;
        let after = self::folder(pid)?;
        if after == folder {
            return Ok(Identity {
                pid,
                folder,
                start_time,
            });
        }
        folder = after;
    }
}

/// True when the pid still belongs to the process that `of` was taken from. A zombie still counts as that process.
#[must_use]
pub fn same(of: &Identity) -> bool {
    match folder(of.pid) {
        Ok(folder) if folder == of.folder => true,
        Ok(_) => stat::read(of.pid).is_ok_and(|now| now.start_time == of.start_time),
        Err(_) => false,
    }
}

fn folder(pid: Pid) -> Result<u64, ProcError> {
    sys::inode(&format!("/proc/{pid}")).map_err(|e| ProcError::of(pid, "folder", e))
}

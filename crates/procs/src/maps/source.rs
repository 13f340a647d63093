//! Opens the maps of a process, and tells an empty answer that is true from one that only came too early or too late.

use std::{fs::File, io};

use lancet_abi::units::Pid;

use super::Mapping;
use crate::{ProcError, Unsettled, list, stat};

/// In `exec` at most the program and its interpreter are mapped as code.
pub(super) const CODE_IN_EXEC: usize = 2;

/// How often a process whose memory is replaced during a look is looked at again.
const TRIES: usize = 3;

/// The answer of one look.
pub(super) struct Seen {
    pub(super) mappings: Vec<Mapping>,
    /// False when so little was there that the process may be in `exec`; then that is looked up too.
    pub(super) complete: bool,
}

/// Runs a look on the open maps of a process.
pub(super) fn with_maps(
    pid: Pid,
    look: impl Fn(&File) -> io::Result<Seen>,
) -> Result<Vec<Mapping>, ProcError> {
    let mut loaded_before = None;
    for _ in 0..TRIES {
        let seen = match File::open(format!("/proc/{pid}/maps")).and_then(|file| look(&file)) {
            Ok(seen) if seen.complete => return Ok(seen.mappings),
            Ok(seen) => Some(seen.mappings),
            // No memory (now), or no process.
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => None,
            Err(e) => return Err(ProcError::of(pid, "maps", e)),
        };
        let loaded = match settle(pid)? {
            Settled::NoMemory => return Ok(Vec::new()),
            Settled::LeaderEnded => return through_thread(pid, &look),
            Settled::Loaded { start_code } => Some(start_code),
        };
        // The little that was seen is true if the same program was loaded before and after the look.
        match seen {
            Some(mappings) if loaded == loaded_before => return Ok(mappings),
            _ => loaded_before = loaded,
        }
    }
    Err(ProcError::Unknown {
        pid,
        why: Unsettled::Changing,
    })
}

enum Settled {
    /// A program is loaded, with its text from here on.
    Loaded { start_code: u64 },
    /// A kernel thread.
    NoMemory,
    /// The leading thread has ended, but others may go on with the memory.
    LeaderEnded,
}

fn settle(pid: Pid) -> Result<Settled, ProcError> {
    let stat = stat::read(pid)?;
    if stat.is_kernel_thread() {
        return Ok(Settled::NoMemory);
    }
    if stat.is_dead() {
        return Ok(Settled::LeaderEnded);
    }
    if stat.is_exiting() {
        return Err(ProcError::Unknown {
            pid,
            why: Unsettled::Exiting,
        });
    }
    // Set as the last step of loading a program; a forked child has its parent's from the start.
    if stat.start_code == 0 {
        return Err(ProcError::Unknown {
            pid,
            why: Unsettled::Loading,
        });
    }
    Ok(Settled::Loaded {
        start_code: stat.start_code,
    })
}

/// A leader that called `pthread_exit` is a zombie without memory; each other thread still shows it.
fn through_thread(
    pid: Pid,
    look: &impl Fn(&File) -> io::Result<Seen>,
) -> Result<Vec<Mapping>, ProcError> {
    for tid in list::tids(pid)? {
        if stat::read_path(pid, &format!("/proc/{pid}/task/{tid}/stat"))
            .is_ok_and(|s| s.is_exiting())
        {
            continue;
        }
        match File::open(format!("/proc/{pid}/task/{tid}/maps")).and_then(|file| look(&file)) {
            Ok(seen) => return Ok(seen.mappings),
            Err(e) if matches!(e.raw_os_error(), Some(libc::ESRCH | libc::ENOENT)) => {}
            Err(e) => return Err(ProcError::of(pid, "maps", e)),
        }
    }
    // Nobody is left who has the memory: a zombie.
    Err(ProcError::Gone { pid })
}

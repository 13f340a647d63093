//! Lists of processes and threads, and who is whose parent.

use std::collections::HashSet;

use lancet_abi::units::{Pid, Tid};

use crate::{ProcError, stat, sys};

/// All processes, in the order of `/proc` (ascending). Kernel threads and zombies are among them.
///
/// # Errors
/// [`ProcError::List`] when `/proc` can't be listed.
pub fn pids() -> Result<Vec<Pid>, ProcError> {
    Ok(numbered()?.into_iter().map(|(pid, _)| pid).collect())
}

/// All processes with the inode of each one's folder, which the listing gives for free.
pub(crate) fn numbered() -> Result<Vec<(Pid, u64)>, ProcError> {
    let entries = sys::numbers("/proc").map_err(|source| ProcError::List { source })?;
    Ok(entries
        .into_iter()
        .map(|(number, inode)| (Pid(number), inode))
        .collect())
}

/// The threads of a process, the oldest first. A leader that has ended while others go on is among them.
///
/// # Errors
/// [`ProcError::Gone`] when the process has ended.
pub fn tids(pid: Pid) -> Result<Vec<Tid>, ProcError> {
    let entries =
        sys::numbers(&format!("/proc/{pid}/task")).map_err(|e| ProcError::of(pid, "task", e))?;
    if entries.is_empty() {
        return Err(ProcError::Gone { pid });
    }
    Ok(entries.into_iter().map(|(number, _)| Tid(number)).collect())
}

/// The children of a process, of whichever thread. Zombies that it has not yet reaped are among them.
///
/// # Errors
/// [`ProcError::Gone`] when the process has ended.
pub fn children(pid: Pid) -> Result<Vec<Pid>, ProcError> {
    let mut found = Vec::new();
    for tid in tids(pid)? {
        match sys::read(&format!("/proc/{pid}/task/{tid}/children")) {
            Ok(bytes) => {
                let text = String::from_utf8_lossy(&bytes);
                found.extend(
                    text.split_ascii_whitespace()
                        .filter_map(|word| word.parse().ok())
                        .map(Pid),
                );
            }
            // Missing for the thread that ended meanwhile, and for every thread where the kernel was built without it.
            Err(_) => return children_by_scan(pid),
        }
    }
    found.sort_unstable();
    Ok(found)
}

fn children_by_scan(pid: Pid) -> Result<Vec<Pid>, ProcError> {
    let all = pids()?;
    if !all.contains(&pid) {
        return Err(ProcError::Gone { pid });
    }
    Ok(all
        .into_iter()
        .filter(|&one| stat::read(one).is_ok_and(|s| s.parent == pid))
        .collect())
}

/// Parent, grandparent and so on, up to the first process of this pid namespace. Ends early where an ancestor ends during
/// the walk.
///
/// # Errors
/// [`ProcError::Gone`] when the process itself has ended.
pub fn ancestors(pid: Pid) -> Result<Vec<Pid>, ProcError> {
    let mut line = Vec::new();
    let mut seen = HashSet::from([pid]);
    let mut parent = stat::read(pid)?.parent;
    // Pids that are reused during the walk could otherwise lead round in a circle.
    while parent.0 > 0 && seen.insert(parent) {
        line.push(parent);
        match stat::read(parent) {
            Ok(stat) => parent = stat.parent,
            Err(_) => break,
        }
    }
    Ok(line)
}

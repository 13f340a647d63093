//! What the links of `/proc/PID` point at: namespaces and the executable.

use lancet_abi::units::Pid;

use crate::{ProcError, list, sys};

/// Device and inode of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId {
    /// Device, major and minor combined as `makedev` does.
    pub dev: u64,
    /// Inode number.
    pub inode: u64,
}

/// The namespaces of a process that decide which files and ids it sees, each by its inode number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Namespaces {
    /// Mount namespace.
    pub mount: u64,
    /// User namespace.
    pub user: u64,
    /// Pid namespace of the process itself (its children may be in another).
    pub pid: u64,
}

/// The id under which `/proc` shows what the threads of a process share: memory, files, namespaces. Its own, as a rule; while
/// its first thread has ended and others go on, that of one of those.
#[must_use]
pub fn face(pid: Pid) -> Pid {
    let is_gone =
        |path: String| sys::file_id(&path).is_err_and(|e| e.raw_os_error() == Some(libc::ENOENT));
    if !is_gone(format!("/proc/{pid}/root")) {
        return pid;
    }
    let others = list::tids(pid).unwrap_or_default().into_iter();
    let mut alive = others.filter(|tid| !is_gone(format!("/proc/{pid}/task/{tid}/root")));
    alive.next().map_or(pid, |tid| Pid(tid.0))
}

/// Looks at a process, and at another of its threads where its first one has ended.
fn of_any_thread<T>(pid: Pid, look: impl Fn(Pid) -> Result<T, ProcError>) -> Result<T, ProcError> {
    match look(pid) {
        Err(ProcError::Gone { .. }) => match face(pid) {
            other if other != pid => look(other),
            _ => Err(ProcError::Gone { pid }),
        },
        other => other,
    }
}

/// The namespaces of a process.
///
/// # Errors
/// [`ProcError::Gone`] also for a zombie, which is in no mount namespace any more.
pub fn namespaces(pid: Pid) -> Result<Namespaces, ProcError> {
    of_any_thread(pid, namespaces_of)
}

fn namespaces_of(pid: Pid) -> Result<Namespaces, ProcError> {
    let one = |what, name| {
        sys::inode(&format!("/proc/{pid}/ns/{name}")).map_err(|e| ProcError::of(pid, what, e))
    };
    Ok(Namespaces {
        mount: one("ns/mnt", "mnt")?,
        user: one("ns/user", "user")?,
        pid: one("ns/pid", "pid")?,
    })
}

/// Device and inode of the running executable, as `stat` gives them. They change when the process calls `exec`, which
/// neither pid nor start time do.
///
/// # Errors
/// [`ProcError::Gone`] also for a zombie and a kernel thread, which have no executable.
pub fn exe(pid: Pid) -> Result<FileId, ProcError> {
    let of = |pid: Pid| {
        sys::file_id(&format!("/proc/{pid}/exe")).map_err(|e| ProcError::of(pid, "exe", e))
    };
    of_any_thread(pid, of)
}

/// Device and inode of a process's root folder: two processes of one mount namespace may have different ones.
///
/// # Errors
/// [`ProcError::Gone`] also for a zombie.
pub fn root(pid: Pid) -> Result<FileId, ProcError> {
    let of = |pid: Pid| {
        sys::file_id(&format!("/proc/{pid}/root")).map_err(|e| ProcError::of(pid, "root", e))
    };
    of_any_thread(pid, of)
}

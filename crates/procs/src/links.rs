//! What the links of `/proc/PID` point at: namespaces and the executable.

use lancet_abi::units::Pid;

use crate::{ProcError, sys};

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

/// The namespaces of a process.
///
/// # Errors
/// [`ProcError::Gone`] also for a zombie, which is in no mount namespace any more.
pub fn namespaces(pid: Pid) -> Result<Namespaces, ProcError> {
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
    sys::file_id(&format!("/proc/{pid}/exe")).map_err(|e| ProcError::of(pid, "exe", e))
}

/// Device and inode of a process's root folder: two processes of one mount namespace may have different ones.
///
/// # Errors
/// [`ProcError::Gone`] also for a zombie.
pub fn root(pid: Pid) -> Result<FileId, ProcError> {
    sys::file_id(&format!("/proc/{pid}/root")).map_err(|e| ProcError::of(pid, "root", e))
}

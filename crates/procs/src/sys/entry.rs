//! Files below an open `/proc`, reached from its descriptor: no path is walked from the root, nothing is allocated.

use std::{ffi::CStr, io::Write};

use lancet_abi::units::{Pid, Tid};
use rustix::{
    fd::{AsFd, BorrowedFd, OwnedFd},
    fs::{AtFlags, Mode, OFlags, Stat},
    io::Errno,
};

const READ: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC);

/// `PID`, `PID/NAME`, `PID/task/TID/NAME`, closed by a zero byte.
pub(crate) struct Path {
    bytes: [u8; 64],
}

impl Path {
    pub(crate) fn of(pid: Pid, tid: Option<Tid>, name: &str) -> Self {
        let mut bytes = [0; 64];
        let mut rest = &mut bytes[..63];
        // Two numbers and the names of this crate fit; what did not fit would name no file.
        let _ = match (tid, name) {
            (None, "") => write!(rest, "{}", pid.0),
            (None, name) => write!(rest, "{}/{name}", pid.0),
            (Some(tid), "") => write!(rest, "{}/task/{}", pid.0, tid.0),
            (Some(tid), name) => write!(rest, "{}/task/{}/{name}", pid.0, tid.0),
        };
        Self { bytes }
    }

    /// The open folder itself.
    pub(crate) fn here() -> Self {
        let mut bytes = [0; 64];
        bytes[0] = b'.';
        Self { bytes }
    }

    fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or(c"")
    }
}

pub(crate) fn open_folder(path: &str) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, READ | OFlags::DIRECTORY, Mode::empty())
}

pub(crate) fn open_folder_at(root: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(
        root,
        path.as_c_str(),
        READ | OFlags::DIRECTORY,
        Mode::empty(),
    )
}

pub(crate) fn open_at(root: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(root, path.as_c_str(), READ, Mode::empty())
}

pub(crate) fn stat_at(root: BorrowedFd<'_>, path: &Path) -> Result<Stat, Errno> {
    rustix::fs::statat(root, path.as_c_str(), AtFlags::empty())
}

pub(crate) fn read_link_at(root: BorrowedFd<'_>, path: &Path) -> Result<Vec<u8>, Errno> {
    rustix::fs::readlinkat(root, path.as_c_str(), Vec::new()).map(std::ffi::CString::into_bytes)
}

/// A whole file. `expected` is a length that most of its kind stay below: then one read is enough, as a read of a
/// /proc file that returns less than there is room for has reached the end.
pub(crate) fn read_all(file: impl AsFd, expected: usize, bytes: &mut Vec<u8>) -> Result<(), Errno> {
    if bytes.len() < expected {
        bytes.resize(expected, 0);
    }
    let mut length = 0;
    loop {
        // By position, so that a file that stays open can be read again.
        match rustix::io::pread(&file, &mut bytes[length..], length as u64) {
            Ok(0) => break,
            Ok(more) => {
                length += more;
                if length < expected {
                    break;
                }
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        if length == bytes.len() {
            bytes.resize(length * 2, 0);
        }
    }
    bytes.truncate(length);
    Ok(())
}

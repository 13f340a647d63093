//! The file behind a region: on a tmpfs that the target sees, owned by the target's user.
//!
//! It is made through `openat2(RESOLVE_IN_ROOT)`, since a plain path through `/proc/PID/root`
//! would follow the target's own symbolic links out to the host, and under the target's file
//! system user, since a tmpfs of a user namespace refuses files of users that it does not know.
//! Every block is allocated at once: a write that finds no memory later would kill the target.
//!
//! The session holds a shared lock on the file as long as tracer or guardian lives, so whoever can
//! lock it alone knows that it belongs to nobody any more.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;

use lancet_abi::units::Pid;
use rustix::fs::{
    AtFlags, Dir, FallocateFlags, FlockOperation, Mode, OFlags, ResolveFlags, fallocate, flock,
    fstat, fstatfs, open, openat, openat2, unlinkat,
};

use crate::error::RemoteError;
use crate::sys;

const TMPFS: i64 = 0x0102_1994;
/// Folders of a target that are tried for the file, from its root.
const REGION_PLACES: [&str; 4] = ["dev/shm", "run/shm", "run", "tmp"];

const PREFIX: &str = ".lancet-";

/// A region's file, mapped into this process.
pub struct RegionFile {
    file: File,
    folder: OwnedFd,
    name: u64,
    path: String,
    length: u64,
    memory: NonNull<u8>,
    unlinked: bool,
}

// SAFETY: the mapping is plain shared memory that is accessed through volatile or atomic reads.
unsafe impl Send for RegionFile {}
// SAFETY: as above.
unsafe impl Sync for RegionFile {}

/// The file name of a region with this number.
#[must_use]
pub fn file_name(name: u64) -> String {
    format!("{PREFIX}{name:016x}")
}

fn in_root(root: &OwnedFd, path: &str, flags: OFlags, mode: Mode) -> rustix::io::Result<OwnedFd> {
    openat2(
        root,
        path,
        flags | OFlags::CLOEXEC,
        mode,
        ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
    )
}

/// Opens a file as the process `pid` sees it, for reading. Symbolic links are followed inside
/// the process's root and never out of it; a FIFO or device is not waited for.
pub fn open_as_seen(pid: Pid, path: &std::path::Path) -> io::Result<File> {
    let root = open(
        format!("/proc/{pid}/root"),
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let path = path.strip_prefix("/").unwrap_or(path);
    let file = openat2(
        &root,
        path,
        OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC,
        Mode::empty(),
        ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
    )?;
    Ok(file.into())
}

/// Removes region files that no session holds, from all places where the process `pid` sees
/// them, as far as this user may; how many there were.
#[must_use]
pub fn remove_orphans(pid: Pid) -> usize {
    let root = open(
        format!("/proc/{pid}/root"),
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    );
    let Ok(root) = root else { return 0 };
    REGION_PLACES
        .iter()
        .filter_map(|place| {
            let flags = OFlags::DIRECTORY | OFlags::RDONLY;
            in_root(&root, place, flags, Mode::empty()).ok()
        })
        .filter(|folder| fstatfs(folder).is_ok_and(|fs| fs.f_type == TMPFS))
        .map(|folder| remove_orphans_in(&folder))
        .sum()
}

fn remove_orphans_in(folder: &OwnedFd) -> usize {
    let Ok(entries) = Dir::read_from(folder) else {
        return 0;
    };
    let is_orphan = |name: &std::ffi::CStr| {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        name.to_bytes().starts_with(PREFIX.as_bytes())
            && openat(folder, name, flags, Mode::empty())
                .is_ok_and(|file| flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok())
    };
    entries
        .flatten()
        .filter(|entry| is_orphan(entry.file_name()))
        .filter(|entry| unlinkat(folder, entry.file_name(), AtFlags::empty()).is_ok())
        .count()
}

fn make_in(
    root: &OwnedFd,
    place: &str,
    name: &str,
    owner: (u32, u32),
) -> io::Result<(OwnedFd, OwnedFd)> {
    sys::as_owner(owner.0, owner.1, || {
        let folder = in_root(
            root,
            place,
            OFlags::DIRECTORY | OFlags::RDONLY,
            Mode::empty(),
        )?;
        if fstatfs(&folder)?.f_type as i64 != TMPFS {
            return Err(io::Error::from(io::ErrorKind::Unsupported));
        }
        let file = openat(
            &folder,
            name,
            OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::RUSR | Mode::WUSR,
        )?;
        // Fails, or comes too late, where somebody took the file for an orphan just now.
        flock(&file, FlockOperation::NonBlockingLockShared)?;
        if fstat(&file)?.st_nlink == 0 {
            return Err(io::Error::from(io::ErrorKind::ResourceBusy));
        }
        Ok((folder, file))
    })
}

impl RegionFile {
    /// Makes the region's file where the process `pid`, with this user and group, can open it.
    pub fn create(
        pid: Pid,
        owner: (u32, u32),
        name: u64,
        length: u64,
    ) -> Result<Self, RemoteError> {
        let root = open(
            format!("/proc/{pid}/root"),
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .map_err(|e| RemoteError::Denied {
            pid,
            source: e.into(),
        })?;
        let shown = file_name(name);
        let mut last = (
            "a tmpfs".to_owned(),
            io::Error::from(io::ErrorKind::Unsupported),
        );
        for place in REGION_PLACES {
            match make_in(&root, place, &shown, owner) {
                Ok((folder, file)) => {
                    return Self::map(file, folder, name, format!("/{place}/{shown}"), length);
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => last = (format!("/{place} of process {pid}"), error),
            }
        }
        Err(RemoteError::Region {
            place: last.0,
            source: last.1,
        })
    }

    fn map(
        file: OwnedFd,
        folder: OwnedFd,
        name: u64,
        path: String,
        length: u64,
    ) -> Result<Self, RemoteError> {
        let failed = |folder: &OwnedFd, source: io::Error| {
            let _ = unlinkat(folder, file_name(name), AtFlags::empty());
            RemoteError::Region {
                place: path.clone(),
                source,
            }
        };
        if let Err(error) = fallocate(&file, FallocateFlags::empty(), 0, length) {
            return Err(failed(&folder, error.into()));
        }
        // SAFETY: a fresh shared mapping of a file of at least this length, at an address of the
        // kernel's choice.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                file.as_raw_fd(),
                0,
            )
        };
        let Some(memory) =
            NonNull::new(memory.cast::<u8>()).filter(|m| m.as_ptr().cast() != libc::MAP_FAILED)
        else {
            return Err(failed(&folder, io::Error::last_os_error()));
        };
        Ok(Self {
            file: file.into(),
            folder,
            name,
            path,
            length,
            memory,
            unlinked: false,
        })
    }

    /// The path by which processes of the domain open it.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The number in its name.
    #[must_use]
    pub fn name(&self) -> u64 {
        self.name
    }

    /// Its length in bytes.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Its memory in this process.
    #[must_use]
    pub fn memory(&self) -> NonNull<u8> {
        self.memory
    }

    /// Descriptors of the file and of its folder, for the journal.
    #[must_use]
    pub fn descriptors(&self) -> (i32, i32) {
        (self.file.as_raw_fd(), self.folder.as_fd().as_raw_fd())
    }

    /// Writes into the file.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    /// Takes the name away; mappings stay.
    pub fn unlink(&mut self) {
        if !self.unlinked {
            self.unlinked = true;
            let _ = unlinkat(&self.folder, file_name(self.name), AtFlags::empty());
        }
    }
}

impl Drop for RegionFile {
    fn drop(&mut self) {
        self.unlink();
        // SAFETY: made by mmap with this length; nothing refers to it any more.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.length as usize) };
    }
}

//! The file behind a region: on a tmpfs that the target sees, owned by the target's user; where it
//! sees none, a memfd that the target makes itself ([`RegionFile::of_target`]).
//!
//! A named file is made through `openat2(RESOLVE_IN_ROOT)`, since a plain path through `/proc/PID/root`
//! would follow the target's own symbolic links out to the host, and under the target's file
//! system user, since a tmpfs of a user namespace refuses files of users that it does not know.
//! Every block is allocated at once: a write that finds no memory later would kill the target.
//!
//! The session holds a shared lock on the file as long as tracer or guardian lives, so whoever can
//! lock it alone knows that it belongs to nobody any more.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use lancet_abi::units::Pid;
use lancet_procs::face;
use rustix::fs::{
    AtFlags, Dir, FallocateFlags, FlockOperation, Mode, OFlags, ResolveFlags, fallocate, flock,
    fstat, fstatfs, open, openat, openat2, unlinkat,
};

use crate::error::RemoteError;
use crate::journal::RegionRecord;
use crate::sys;

const TMPFS: i64 = 0x0102_1994;
/// Folders of a target that are tried for the file, from its root.
const REGION_PLACES: [&str; 4] = ["dev/shm", "run/shm", "run", "tmp"];

const PREFIX: &str = ".lancet-";

/// A region's file, mapped into this process.
pub struct RegionFile {
    length: u64,
    /// The name by which processes of the domain open it; none for a memfd.
    named: Option<Named>,
    /// None until the target has made its memfd. The last one counts: where mapping a memfd failed,
    /// the next attempt makes another. The earlier ones stay mapped, since they were handed out.
    backings: Mutex<Vec<Backing>>,
}

struct Named {
    folder: OwnedFd,
    name: u64,
    path: String,
    unlinked: AtomicBool,
}

struct Backing {
    file: File,
    memory: NonNull<u8>,
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
        format!("/proc/{}/root", face(pid)),
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
        format!("/proc/{}/root", face(pid)),
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
    name: u64,
    owner: (u32, u32),
    record: &RegionRecord,
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
        record.may_be_in(folder.as_raw_fd(), name);
        let file = openat(
            &folder,
            file_name(name),
            OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::RUSR | Mode::WUSR,
        )?;
        record.is_open(file.as_raw_fd());
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
    /// Where it is to be unlinked is in the record before there is a file.
    pub fn create(
        pid: Pid,
        owner: (u32, u32),
        name: u64,
        length: u64,
        record: &RegionRecord,
    ) -> Result<Self, RemoteError> {
        let root = open(
            format!("/proc/{}/root", face(pid)),
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
            match make_in(&root, place, name, owner, record) {
                Ok((folder, file)) => {
                    return Self::map(file, folder, name, format!("/{place}/{shown}"), length)
                        .inspect_err(|_| record.forget());
                }
                Err(error) => {
                    record.forget();
                    if error.kind() != io::ErrorKind::NotFound {
                        last = (format!("/{place} of process {pid}"), error);
                    }
                }
            }
        }
        Err(RemoteError::Region {
            place: last.0,
            source: last.1,
        })
    }

    /// A region for a target that sees no tmpfs. It has no memory until the target has made a
    /// memfd and [`adopt`](Self::adopt) was told of it.
    #[must_use]
    pub fn of_target(length: u64) -> Self {
        Self {
            length,
            named: None,
            backings: Mutex::default(),
        }
    }

    /// Takes the memfd that a stopped target has just made as its descriptor `number`.
    pub fn adopt(&self, pid: Pid, number: i32) -> Result<(), RemoteError> {
        let place = format!("descriptor {number} of process {pid}");
        let failed = |source: io::Error| RemoteError::Region {
            place: place.clone(),
            source,
        };
        let path = format!("/proc/{}/fd/{number}", face(pid));
        let file = open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
            .map_err(|e| failed(e.into()))?;
        if fstatfs(&file).map_err(|e| failed(e.into()))?.f_type != TMPFS {
            return Err(failed(io::ErrorKind::Unsupported.into()));
        }
        let backing = Backing::of(file, self.length).map_err(failed)?;
        self.backings().push(backing);
        Ok(())
    }

    fn map(
        file: OwnedFd,
        folder: OwnedFd,
        name: u64,
        path: String,
        length: u64,
    ) -> Result<Self, RemoteError> {
        match Backing::of(file, length) {
            Ok(backing) => Ok(Self {
                length,
                named: Some(Named {
                    folder,
                    name,
                    path,
                    unlinked: AtomicBool::new(false),
                }),
                backings: Mutex::new(vec![backing]),
            }),
            Err(source) => {
                let _ = unlinkat(&folder, file_name(name), AtFlags::empty());
                Err(RemoteError::Region {
                    place: path,
                    source,
                })
            }
        }
    }

    fn backings(&self) -> MutexGuard<'_, Vec<Backing>> {
        // A panic elsewhere leaves no half-made list.
        self.backings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The path by which processes of the domain open it.
    #[must_use]
    pub fn path(&self) -> Option<&str> {
        self.named.as_ref().map(|named| named.path.as_str())
    }

    /// The number in its name; 0 for a memfd.
    #[must_use]
    pub fn name(&self) -> u64 {
        self.named.as_ref().map_or(0, |named| named.name)
    }

    /// Its length in bytes.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Its memory in this process.
    #[must_use]
    pub fn memory(&self) -> Option<NonNull<u8>> {
        self.backings().last().map(|backing| backing.memory)
    }

    /// Descriptor of the file, for the journal.
    #[must_use]
    pub fn descriptor(&self) -> Option<i32> {
        Some(self.backings().last()?.file.as_raw_fd())
    }

    /// Writes into the file, if there is one yet.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        match self.backings().last() {
            Some(backing) => backing.file.write_all_at(bytes, offset),
            None => Ok(()),
        }
    }

    /// Takes the name away; mappings stay.
    pub fn unlink(&self) {
        if let Some(named) = &self.named
            && !named.unlinked.swap(true, Ordering::Relaxed)
        {
            let _ = unlinkat(&named.folder, file_name(named.name), AtFlags::empty());
        }
    }
}

impl Backing {
    /// Gives the file its length, all blocks at once, and maps it.
    fn of(file: OwnedFd, length: u64) -> io::Result<Self> {
        fallocate(&file, FallocateFlags::empty(), 0, length)?;
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
        NonNull::new(memory.cast::<u8>())
            .filter(|m| m.as_ptr().cast() != libc::MAP_FAILED)
            .map(|memory| Self {
                file: file.into(),
                memory,
            })
            .ok_or_else(io::Error::last_os_error)
    }
}

impl Drop for RegionFile {
    fn drop(&mut self) {
        self.unlink();
        for backing in self.backings().iter() {
            // SAFETY: made by mmap with this length; nothing refers to it any more.
            unsafe { libc::munmap(backing.memory.as_ptr().cast(), self.length as usize) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memfd() -> OwnedFd {
        rustix::fs::memfd_create("region", rustix::fs::MemfdFlags::CLOEXEC).expect("a memfd")
    }

    /// Where mapping the first memfd failed, the target maps the second.
    #[test]
    fn the_last_memfd_that_was_made_is_the_region() {
        let region = RegionFile::of_target(4096);
        assert!(region.memory().is_none() && region.write_at(0, b"lost").is_ok());
        let own = Pid(std::process::id() as i32);
        let files = [memfd(), memfd()];
        for file in &files {
            region.adopt(own, file.as_raw_fd()).expect("it is ours");
        }
        region.write_at(0, b"kept").expect("there is room");
        let first = |file: &OwnedFd| {
            let mut bytes = [0; 4];
            rustix::io::pread(file, &mut bytes, 0).expect("it was given its length");
            bytes
        };
        assert_eq!([first(&files[0]), first(&files[1])], [[0; 4], *b"kept"]);
        let memory = region.memory().expect("there is one");
        // SAFETY: mapped as long as `region` lives; nobody writes now.
        assert_eq!(unsafe { *memory.as_ptr() }, b'k');
    }
}

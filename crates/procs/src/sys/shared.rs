//! Memory that an index shares with its readers: a file without a name, of a size that can't change.

use std::io;

use lancet_abi::memory::{Shared, SharedMut};
use memmap2::{Mmap, MmapMut, MmapOptions};
use rustix::{
    fd::{AsFd, OwnedFd},
    fs::{MemfdFlags, Mode, OFlags, SealFlags},
};

/// The writer's side.
pub(crate) struct Written {
    map: MmapMut,
    /// For readers: opened for reading only.
    pub(crate) file: OwnedFd,
}

/// A reader's side.
pub(crate) struct Readable {
    map: Mmap,
}

impl Written {
    pub(crate) fn new(size: u64) -> io::Result<Self> {
        let file = rustix::fs::memfd_create(
            "lancet-index",
            MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
        )?;
        rustix::fs::ftruncate(&file, size)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        // SAFETY: the file can't shrink, so every byte stays backed; all access is through atomics.
        let map = unsafe { MmapOptions::new().map_mut(&file)? };
        let own = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        let file = rustix::fs::open(own, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { map, file })
    }

    pub(crate) fn memory(&self) -> SharedMut<'_> {
        // SAFETY: mapped readable and writable as long as `self`, page-aligned, backed since the file can't shrink.
        unsafe { SharedMut::new(self.map.as_ptr(), self.map.len()) }
    }
}

impl Readable {
    pub(crate) fn new(file: impl AsFd) -> io::Result<Self> {
        if !rustix::fs::fcntl_get_seals(&file)?.contains(SealFlags::SHRINK) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        // SAFETY: the file can't shrink, so every byte stays backed; all access is through atomics.
        let map = unsafe { MmapOptions::new().map(&file.as_fd())? };
        Ok(Self { map })
    }

    pub(crate) fn memory(&self) -> Shared<'_> {
        // SAFETY: mapped readable as long as `self`, page-aligned, backed since the file can't shrink.
        unsafe { Shared::new(self.map.as_ptr(), self.map.len()) }
    }
}

//! The memory map of a process.

mod query;
mod source;
mod text;

use std::{fs::File, os::fd::AsFd};

use lancet_abi::units::{FileOffset, Pid, RuntimeAddr};

use crate::{FileId, ProcError, sys};
pub use text::parse;

/// One mapping of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: RuntimeAddr,
    /// First address behind it.
    pub end: RuntimeAddr,
    /// Where in the file the mapping begins; 0 without a file.
    pub offset: FileOffset,
    /// May be read.
    pub read: bool,
    /// May be written.
    pub write: bool,
    /// May be executed.
    pub execute: bool,
    /// Writes reach the file and its other shared mappings.
    pub shared: bool,
    /// Device of the file as mappings show it, major and minor combined as `makedev` does; 0 without a file.
    pub dev: u64,
    /// Inode of the file as mappings show it; 0 without a file.
    pub inode: u64,
    /// Name as the kernel shows it, without escapes: a path in the process's mount namespace when it was mapped, perhaps
    /// with ` (deleted)` behind it, or a name in brackets, or nothing. For people to read; the file is known by device and
    /// inode.
    pub path: Vec<u8>,
}

impl Mapping {
    /// Bytes it covers.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.end.offset_from(self.start)
    }

    /// True when it covers nothing, which the kernel never shows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// True when the address lies inside.
    #[must_use]
    pub fn contains(&self, address: RuntimeAddr) -> bool {
        self.start <= address && address < self.end
    }

    /// Where a position of the file is in memory, if this mapping shows it.
    #[must_use]
    pub fn address_of(&self, position: FileOffset) -> Option<RuntimeAddr> {
        let inside = position.0.checked_sub(self.offset.0)?;
        (self.has_file() && inside < self.len()).then(|| self.start.plus(inside))
    }

    /// Which position of the file an address shows, if this mapping covers it and has a file.
    #[must_use]
    pub fn position_of(&self, address: RuntimeAddr) -> Option<FileOffset> {
        (self.has_file() && self.contains(address))
            .then(|| self.offset.plus(address.offset_from(self.start)))
    }

    /// True for a mapping of a file. Memory that is shared without a file has an inode too, of a hidden file.
    #[must_use]
    pub fn has_file(&self) -> bool {
        self.inode != 0
    }

    fn shows(&self, file: FileId) -> bool {
        self.inode == file.inode && self.dev == file.dev
    }
}

/// All mappings, ascending. Empty for a kernel thread, which has none.
///
/// # Errors
/// [`ProcError::Unknown`] while the process exits or is in `exec`.
pub fn mappings(pid: Pid) -> Result<Vec<Mapping>, ProcError> {
    source::with_maps(pid, text::read)
}

/// The mappings of one file, ascending, asked of the kernel one by one where it can answer so (Linux 6.11 and later), else
/// from the text. `dev` and `inode` are those that mappings show.
///
/// # Errors
/// [`ProcError::Unknown`] while the process exits or is in `exec`; an empty list is always a certain no.
pub fn file_mappings(
    pid: Pid,
    dev: u64,
    inode: u64,
    executable_only: bool,
) -> Result<Vec<Mapping>, ProcError> {
    source::with_maps(pid, |file| {
        query::of_file(file, FileId { dev, inode }, executable_only)
    })
}

/// As [`file_mappings`], always from the text. Slower; here for kernels before 6.11 and as a check.
///
/// # Errors
/// As [`file_mappings`].
pub fn file_mappings_text(
    pid: Pid,
    dev: u64,
    inode: u64,
    executable_only: bool,
) -> Result<Vec<Mapping>, ProcError> {
    source::with_maps(pid, |file| {
        text::of_file(file, FileId { dev, inode }, executable_only)
    })
}

/// The files that a process maps as code, each once, ascending. Empty for a kernel thread.
///
/// # Errors
/// [`ProcError::Unknown`] while the process exits or is in `exec`; [`ProcError::Gone`] also for a zombie.
pub fn code_files(pid: Pid) -> Result<Vec<FileId>, ProcError> {
    let found = source::with_maps(pid, query::code)?;
    let id = |m: &Mapping| FileId {
        dev: m.dev,
        inode: m.inode,
    };
    let mut files: Vec<FileId> = found.iter().map(id).collect();
    files.sort_unstable();
    files.dedup();
    Ok(files)
}

/// The mapping that covers an address, if any.
///
/// # Errors
/// [`ProcError::Unknown`] while the process exits or is in `exec`.
pub fn mapping_at(pid: Pid, address: RuntimeAddr) -> Result<Option<Mapping>, ProcError> {
    let found = source::with_maps(pid, |file| query::at(file, address))?;
    Ok(found.into_iter().next())
}

/// The device and inode that mappings of an open file show. They differ from those of `stat` on overlayfs and btrfs, so a
/// page of the file is mapped here for a moment and looked up.
///
/// # Errors
/// [`ProcError::Unmappable`] for what is not an ordinary, readable file.
pub fn shown_id(file: &File) -> Result<FileId, ProcError> {
    let page = sys::map_page(file.as_fd()).map_err(|source| ProcError::Unmappable { source })?;
    let own = Pid(std::process::id().cast_signed());
    match mapping_at(own, page.address())? {
        Some(mapping) => Ok(FileId {
            dev: mapping.dev,
            inode: mapping.inode,
        }),
        None => Err(ProcError::Unmappable {
            source: std::io::ErrorKind::NotFound.into(),
        }),
    }
}

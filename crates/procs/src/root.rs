//! An open `/proc`: lists, and the files of [`files`](crate::files), with few system calls and no allocation a process.

use std::{sync::Arc, time::Duration};

use lancet_abi::units::{Pid, Tid};
use rustix::{
    fd::{AsFd, OwnedFd},
    fs::RawDir,
};

use crate::{
    Bound, Calm, ProcError,
    patient::{self, Pending},
    sys::entry::{self, Path},
};

/// Room that the line or lines of one process usually need; more is read in a second call.
pub(crate) const USUAL: usize = 4096;

/// Room for a piece of a listing: about a thousand entries.
const LISTING: usize = 32 * 1024;

/// How long a file that waits for a process's memory lock may take: a read takes microseconds.
pub const PATIENCE: Duration = Duration::from_millis(50);

std::thread_local! {
    /// Where a helper reads into before it knows the length.
    static READ_INTO: std::cell::RefCell<Vec<u8>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// Who owns a process, as its folder shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// Effective user id.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
    /// Inode of the folder.
    pub folder: u64,
}

/// An open `/proc`. Clones share the descriptor.
#[derive(Clone, Debug)]
pub struct Proc {
    folder: Arc<OwnedFd>,
}

/// Where a [`Bound`] file is read.
pub(crate) enum Source {
    /// Of this process or thread.
    Of(Pid, Option<Tid>),
    /// It is open. Only helper threads read it.
    Open(Arc<OwnedFd>),
}

/// Reads of one [`Bound`] file of many processes, under way on a helper thread.
pub struct BoundReads(Pending<Contents, Look>);

/// `None` when the file could not be read.
type Contents = Option<Box<[u8]>>;
type Look = Box<dyn Fn(usize) -> Contents + Send + Sync>;

/// What became of the read of a [`Bound`] file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reading {
    /// The file's contents; empty for what has no memory.
    Read(Box<[u8]>),
    /// The process has ended, or this user may not read it.
    Nothing,
    /// It was not to be had in time: the process's memory map is locked.
    Late,
}

impl Proc {
    /// Opens `/proc`.
    ///
    /// # Errors
    /// [`ProcError::List`] when it is not there.
    pub fn open() -> Result<Self, ProcError> {
        Self::open_at("/proc")
    }

    /// Opens a procfs that is mounted elsewhere, as that of another pid namespace.
    ///
    /// # Errors
    /// [`ProcError::List`] when it is not there.
    pub fn open_at(path: &str) -> Result<Self, ProcError> {
        let folder = entry::open_folder(path).map_err(|e| ProcError::List { source: e.into() })?;
        Ok(Self {
            folder: Arc::new(folder),
        })
    }

    /// Every process with the inode of its folder, ascending.
    ///
    /// # Errors
    /// [`ProcError::List`].
    pub fn list(&self) -> Result<Vec<(Pid, u64)>, ProcError> {
        let failed = |e: rustix::io::Errno| ProcError::List { source: e.into() };
        // A descriptor of its own: the position in a listing belongs to the open file.
        let folder = entry::open_folder_at(self.folder.as_fd(), &Path::here()).map_err(failed)?;
        let mut found = Vec::with_capacity(512);
        numbers(&folder, |number, inode| found.push((Pid(number), inode))).map_err(failed)?;
        Ok(found)
    }

    /// The threads of a process, the oldest first.
    ///
    /// # Errors
    /// [`ProcError::Gone`] when it has ended.
    pub fn tids(&self, pid: Pid) -> Result<Vec<Tid>, ProcError> {
        let failed = |e: rustix::io::Errno| ProcError::of(pid, "task", e.into());
        let folder = entry::open_folder_at(self.folder.as_fd(), &Path::of(pid, None, "task"))
            .map_err(failed)?;
        let mut found = Vec::new();
        numbers(&folder, |number, _| found.push(Tid(number))).map_err(failed)?;
        if found.is_empty() {
            return Err(ProcError::Gone { pid });
        }
        Ok(found)
    }

    /// Reads a whole file of a process, or of one of its threads, into `bytes`.
    ///
    /// # Errors
    /// [`ProcError::Gone`] when it has ended, also for the empty file that one shows that is just ending.
    pub fn read(
        &self,
        pid: Pid,
        tid: Option<Tid>,
        file: Calm,
        bytes: &mut Vec<u8>,
    ) -> Result<(), ProcError> {
        let failed = |e: rustix::io::Errno| ProcError::of(pid, file.name(), e.into());
        let open = self.open_file(pid, tid, file).map_err(failed)?;
        entry::read_all(&open, USUAL, bytes).map_err(failed)?;
        if bytes.is_empty() && file != Calm::Wchan {
            return Err(ProcError::Gone { pid });
        }
        Ok(())
    }

    pub(crate) fn open_file(
        &self,
        pid: Pid,
        tid: Option<Tid>,
        file: Calm,
    ) -> Result<OwnedFd, rustix::io::Errno> {
        entry::open_at(self.folder.as_fd(), &Path::of(pid, tid, file.name()))
    }

    /// Who owns the process.
    ///
    /// The folder shows the effective ids whatever the process has done to hide the rest of its files.
    ///
    /// # Errors
    /// [`ProcError::Gone`] when it has ended.
    pub fn owner(&self, pid: Pid) -> Result<Owner, ProcError> {
        let stat = entry::stat_at(self.folder.as_fd(), &Path::of(pid, None, ""))
            .map_err(|e| ProcError::of(pid, "folder", e.into()))?;
        Ok(Owner {
            uid: stat.st_uid,
            gid: stat.st_gid,
            folder: stat.st_ino,
        })
    }

    /// The path of the running executable, as the kernel shows it. Waits for nothing; needs ptrace read access.
    ///
    /// # Errors
    /// [`ProcError::Gone`] also for what has no executable, [`ProcError::Denied`].
    pub fn exe_path(&self, pid: Pid) -> Result<Vec<u8>, ProcError> {
        entry::read_link_at(self.folder.as_fd(), &Path::of(pid, None, "exe"))
            .map_err(|e| ProcError::of(pid, "exe", e.into()))
    }

    /// Starts to read a [`Bound`] file of each of these processes or threads on a helper thread. One that is stuck delays the others
    /// by at most [`PATIENCE`].
    #[must_use]
    pub fn read_bound(&self, file: Bound, of: Vec<(Pid, Option<Tid>)>) -> BoundReads {
        self.read_sources(
            file,
            of.into_iter()
                .map(|(pid, tid)| Source::Of(pid, tid))
                .collect(),
        )
    }

    /// As [`read_bound`](Self::read_bound), of files that may be open already.
    pub(crate) fn read_sources(&self, file: Bound, of: Vec<Source>) -> BoundReads {
        let root = self.clone();
        let count = of.len();
        let look: Look = Box::new(move |at| {
            let opened;
            let open = match &of[at] {
                Source::Open(open) => &**open,
                &Source::Of(pid, tid) => {
                    opened = root.open_bound(pid, tid, file).ok()?;
                    &opened
                }
            };
            READ_INTO.with_borrow_mut(|bytes| {
                entry::read_all(open, USUAL, bytes).ok()?;
                // Exactly as long as it needs to be: there may be many.
                Some(bytes.as_slice().into())
            })
        });
        BoundReads(patient::each(count, PATIENCE, look))
    }

    /// Opening never waits; only reads do.
    pub(crate) fn open_bound(
        &self,
        pid: Pid,
        tid: Option<Tid>,
        file: Bound,
    ) -> Result<OwnedFd, rustix::io::Errno> {
        entry::open_at(self.folder.as_fd(), &Path::of(pid, tid, file.name()))
    }
}

impl BoundReads {
    /// Waits for the reads, in the order of the processes.
    #[must_use]
    pub fn finish(self) -> Vec<Reading> {
        let sort = |answer| match answer {
            Some(Some(bytes)) => Reading::Read(bytes),
            Some(None) => Reading::Nothing,
            None => Reading::Late,
        };
        self.0.finish().into_iter().map(sort).collect()
    }
}

/// The entries of a folder whose names are numbers, with the inode of each as the listing has it.
fn numbers(folder: &OwnedFd, mut found: impl FnMut(i32, u64)) -> Result<(), rustix::io::Errno> {
    let mut buffer = Vec::with_capacity(LISTING);
    let mut listing = RawDir::new(folder, buffer.spare_capacity_mut());
    while let Some(entry) = listing.next() {
        let entry = entry?;
        if let Some(number) = number(entry.file_name().to_bytes()) {
            found(number, entry.ino());
        }
    }
    Ok(())
}

fn number(name: &[u8]) -> Option<i32> {
    if !name.first()?.is_ascii_digit() {
        return None;
    }
    std::str::from_utf8(name).ok()?.parse().ok()
}

//! A trust domain's region: one user in one mount namespace shares one set of counters.

use lancet_abi::memory::Shared;
use lancet_abi::units::Pid;
use lancet_abi::{Layout, Region};
use lancet_procs as procs;
use lancet_remote::RegionFile;
use lancet_remote::journal::Journal;

use crate::error::EngineError;

/// Who shares a region: user, group, mount namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DomainKey {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    mount: u64,
}

impl DomainKey {
    /// The domain of a process.
    pub(crate) fn of(pid: Pid, status: &procs::Status) -> Result<Self, EngineError> {
        Ok(Self {
            uid: status.uids[3],
            gid: status.gids[3],
            mount: procs::namespaces(pid)?.mount,
        })
    }
}

/// One region and its file.
pub(crate) struct Domain {
    pub(crate) key: DomainKey,
    pub(crate) file: RegionFile,
    layout: Layout,
}

impl Domain {
    /// Makes the region where `pid` can open it, and notes it in the journal.
    pub(crate) fn create(
        key: DomainKey,
        pid: Pid,
        layout: &Layout,
        journal: &Journal,
    ) -> Result<Self, EngineError> {
        let name = random().map_err(|source| EngineError::System {
            what: "no random numbers",
            source,
        })?;
        let length = layout.size().next_multiple_of(4096);
        let file = RegionFile::create(pid, (key.uid, key.gid), name, length)?;
        let (descriptor, folder) = file.descriptors();
        journal
            .region(descriptor, Some(folder), name)
            .ok_or(EngineError::Usage("too many trust domains in one session"))?;
        let mut header = vec![0; layout.header_len() as usize];
        layout.write_header(&mut header)?;
        file.write_at(0, &header)
            .map_err(|source| EngineError::System {
                what: "cannot write the region's header",
                source,
            })?;
        Ok(Self {
            key,
            file,
            layout: layout.clone(),
        })
    }

    /// The counters, read with the session's own layout: the header could be forged.
    pub(crate) fn region(&self) -> Result<Region<Shared<'_>>, EngineError> {
        // SAFETY: the file is mapped for its whole length as long as `self` lives.
        let memory =
            unsafe { Shared::new(self.file.memory().as_ptr(), self.file.length() as usize) };
        Ok(Region::with_layout(memory, self.layout.clone())?)
    }

    /// Stops all counting in the domain, in every process and child at once.
    pub(crate) fn switch_off(&self) {
        let (at, length) = self.layout.off_switch();
        // Writing into allocated blocks of a tmpfs file does not fail.
        let _ = self.file.write_at(at.0, &vec![0; length]);
    }
}

/// A random number that is not 0.
pub(crate) fn random() -> std::io::Result<u64> {
    let mut bytes = [0u8; 8];
    // SAFETY: the buffer is as long as stated.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), 8, 0) };
    if got != 8 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(u64::from_ne_bytes(bytes) | 1)
}

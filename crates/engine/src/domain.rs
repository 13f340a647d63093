//! A trust domain's region: one user in one mount and one pid namespace shares one set of counters.
//!
//! A process that sees no tmpfs has a region of its own: a memfd cannot be opened by others.

use std::sync::{Arc, Mutex};

use lancet_abi::memory::{Shared, SharedMut};
use lancet_abi::units::Pid;
use lancet_abi::{Layout, Region};
use lancet_procs as procs;
use lancet_remote::RegionFile;
use lancet_remote::journal::Journal;

use crate::error::EngineError;
use crate::script::{Initial, Script, ScriptMemory};

/// Who shares a region: user, group, namespaces. Thread ids, which maps may be keyed by, mean
/// something in one pid namespace only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DomainKey {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    mount: u64,
    pub(crate) pids: u64,
    /// The only process, where it can't be shared.
    only: Option<Pid>,
}

impl DomainKey {
    /// The domain of a process.
    pub(crate) fn of(pid: Pid, status: &procs::Status) -> Result<Self, EngineError> {
        let namespaces = procs::namespaces(pid)?;
        Ok(Self {
            uid: status.uids[3],
            gid: status.gids[3],
            mount: namespaces.mount,
            pids: namespaces.pid,
            only: None,
        })
    }
}

/// One region and its file.
pub(crate) struct Domain {
    pub(crate) key: DomainKey,
    pub(crate) file: RegionFile,
    layout: Layout,
    journal: Arc<Journal>,
    record: usize,
    /// What the region's part for scripts begins with.
    initial: Option<Arc<Initial>>,
}

/// The domains of a session: made by whichever thread first attaches to a process of theirs.
#[derive(Default)]
pub(crate) struct Domains(Mutex<Vec<Arc<Domain>>>);

impl Domains {
    /// The domain that `pid` belongs to.
    pub(crate) fn of(
        &self,
        key: DomainKey,
        pid: Pid,
        layout: &Layout,
        journal: &Arc<Journal>,
        script: Option<&Script>,
    ) -> Result<Arc<Domain>, EngineError> {
        let mut all = self.0.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(domain) = all.iter().find(|d| d.serves(key, pid)) {
            return Ok(Arc::clone(domain));
        }
        if !all.is_empty() && script.is_some_and(Script::shares) {
            return Err(EngineError::SecondDomain { pid });
        }
        let initial = script.map(Script::initial);
        let domain = Arc::new(Domain::create(key, pid, layout, journal, initial)?);
        all.push(Arc::clone(&domain));
        Ok(domain)
    }

    /// Forgets the domain that a process has for itself.
    pub(crate) fn forget_own(&self, pid: Pid) {
        let mut all = self.0.lock().unwrap_or_else(|e| e.into_inner());
        all.retain(|d| !d.is_of(pid));
    }

    /// The first, which is the only one where a script shares its memory.
    pub(crate) fn first(&self) -> Option<Arc<Domain>> {
        self.all().first().cloned()
    }

    /// All that there are.
    pub(crate) fn all(&self) -> Vec<Arc<Domain>> {
        self.0.lock().unwrap_or_else(|e| e.into_inner()).clone()
    }
}

impl Domain {
    /// Makes the region where `pid` can open it, or leaves that to the process where it sees no
    /// place for it.
    pub(crate) fn create(
        key: DomainKey,
        pid: Pid,
        layout: &Layout,
        journal: &Arc<Journal>,
        initial: Option<Arc<Initial>>,
    ) -> Result<Self, EngineError> {
        let name = random().map_err(|source| EngineError::System {
            what: "no random numbers",
            source,
        })?;
        let length = layout.size().next_multiple_of(4096);
        let record = journal
            .region()
            .ok_or(EngineError::Usage("too many trust domains in one session"))?;
        let entry = journal.region_entry(record);
        let named = RegionFile::create(pid, (key.uid, key.gid), name, length, entry);
        let only = named.is_err().then_some(pid);
        let domain = Self {
            key: DomainKey { only, ..key },
            file: named.unwrap_or_else(|_| RegionFile::of_target(length)),
            layout: layout.clone(),
            journal: Arc::clone(journal),
            record,
            initial,
        };
        if domain.file.path().is_some() {
            domain.begin()?;
        }
        Ok(domain)
    }

    /// Whether a process with this key shares the region.
    pub(crate) fn serves(&self, key: DomainKey, pid: Pid) -> bool {
        self.key == key
            || self.key
                == DomainKey {
                    only: Some(pid),
                    ..key
                }
    }

    /// Takes the memfd that the stopped process has made.
    pub(crate) fn adopt(&self, pid: Pid, descriptor: i32) -> Result<(), EngineError> {
        self.file.adopt(pid, descriptor)?;
        self.begin()
    }

    /// Notes the file in the journal and writes the region's header.
    fn begin(&self) -> Result<(), EngineError> {
        let Some(descriptor) = self.file.descriptor() else {
            return Ok(());
        };
        self.journal.region_entry(self.record).is_open(descriptor);
        let mut header = vec![0; self.layout.header_len() as usize];
        self.layout.write_header(&mut header)?;
        let written = self.file.write_at(0, &header).and_then(|()| {
            let (at, _) = self.layout.script();
            let initial = self.initial.as_ref();
            initial.map_or(Ok(()), |initial| initial.copy_to(&self.file, at))
        });
        written.map_err(|source| EngineError::System {
            what: "cannot write the region's header",
            source,
        })
    }

    /// Whether its memory is made by the first process that is attached.
    pub(crate) fn is_made_by_target(&self) -> bool {
        self.file.path().is_none()
    }

    /// The part for scripts, where there is memory.
    pub(crate) fn script_memory(&self) -> Option<ScriptMemory<'_>> {
        let memory = self.file.memory()?;
        // SAFETY: the file is mapped for its whole length as long as `self` lives.
        let memory = unsafe { SharedMut::new(memory.as_ptr(), self.file.length() as usize) };
        let (base, _) = self.layout.script();
        Some(ScriptMemory { memory, base })
    }

    /// The counters, read with the session's own layout: the header could be forged. None before
    /// there is memory.
    pub(crate) fn region(&self) -> Result<Option<Region<Shared<'_>>>, EngineError> {
        let Some(memory) = self.file.memory() else {
            return Ok(None);
        };
        // SAFETY: the file is mapped for its whole length as long as `self` lives.
        let memory = unsafe { Shared::new(memory.as_ptr(), self.file.length() as usize) };
        Ok(Some(Region::with_layout(memory, self.layout.clone())?))
    }

    /// Whether it was made by one process for itself.
    pub(crate) fn is_of(&self, pid: Pid) -> bool {
        self.key.only == Some(pid)
    }

    /// Stops all counting in the domain, in every process and child at once.
    pub(crate) fn switch_off(&self) {
        let (at, length) = self.layout.off_switch();
        // Writing into allocated blocks of a tmpfs file does not fail.
        let _ = self.file.write_at(at.0, &vec![0; length]);
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // The name goes before the record of it does; the numbers will be other files'.
        self.file.unlink();
        self.journal.region_entry(self.record).forget();
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

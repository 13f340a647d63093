//! Which processes there are and which files each maps as code, kept up to date.

use std::collections::HashMap;

use lancet_abi::units::Pid;

use crate::{
    Calm, Events, FileId, Identity, PATIENCE, Proc, ProcError, code_files, links, patient, stat,
};

/// One process of the index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Which process it is.
    pub identity: Identity,
    /// Its executable; `None` for a kernel thread, a zombie, or one that this user may not look into. It changes at an
    /// exec, which neither pid nor start time do.
    pub exe: Option<FileId>,
    /// The files that it maps as code, as mappings show them, each once, ascending; `None` where that is not known:
    /// it was in exec or exiting, its memory was locked, or this user may not look.
    pub files: Option<Vec<FileId>>,
}

/// What an update did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Updated {
    /// Processes that were looked into.
    pub looks: usize,
    /// Events that were lost, so that all processes were looked into.
    pub lost: u64,
}

/// The index. It does nothing by itself: [`update`](Self::update) takes in what has happened.
///
/// With the kernel's events an update costs what has changed. Without them (an ordinary user) each update lists `/proc`
/// and looks into every process.
pub struct Index {
    root: Proc,
    events: Option<Events>,
    entries: HashMap<Pid, Entry>,
    /// Whether the first scan was made.
    scanned: bool,
}

impl Index {
    /// An index that uses the kernel's events where this user may have them. Empty until the first update.
    ///
    /// # Errors
    /// [`ProcError::List`].
    pub fn new() -> Result<Self, ProcError> {
        Self::with_events(Events::open().ok())
    }

    /// As [`new`](Self::new), with these events or none.
    ///
    /// # Errors
    /// [`ProcError::List`].
    pub fn with_events(events: Option<Events>) -> Result<Self, ProcError> {
        Ok(Self {
            root: Proc::open()?,
            events,
            entries: HashMap::new(),
            scanned: false,
        })
    }

    /// The kernel's events, to wait for; `None` where it has to be asked again and again.
    #[must_use]
    pub fn events(&self) -> Option<&Events> {
        self.events.as_ref()
    }

    /// Every process, in no order.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values()
    }

    /// One process.
    #[must_use]
    pub fn get(&self, pid: Pid) -> Option<&Entry> {
        self.entries.get(&pid)
    }

    /// The processes that map this file as code, ascending; and those that could not say.
    #[must_use]
    pub fn who_maps(&self, file: FileId) -> (Vec<Identity>, Vec<Identity>) {
        let (mut maps, mut unknown) = (Vec::new(), Vec::new());
        for entry in self.entries.values() {
            match &entry.files {
                Some(files) if files.binary_search(&file).is_ok() => maps.push(entry.identity),
                Some(_) => {}
                None => unknown.push(entry.identity),
            }
        }
        maps.sort_unstable_by_key(|identity| identity.pid);
        unknown.sort_unstable_by_key(|identity| identity.pid);
        (maps, unknown)
    }

    /// Takes in what has happened since the last time. After a loss of events every process is looked into again, as an
    /// exec changes neither its folder nor its start time.
    ///
    /// # Errors
    /// [`ProcError::List`]; then the index is as before, and what happened is not forgotten.
    pub fn update(&mut self) -> Result<Updated, ProcError> {
        // The events first: what happens during the look is in the next ones.
        let changes = self.events.as_ref().map(Events::take).unwrap_or_default();
        let everything = self.events.is_none() || changes.lost > 0 || !self.scanned;
        let changed: Vec<(Pid, Option<u64>)> = if everything {
            self.scanned = false;
            let all = self.root.list()?;
            let here: HashMap<Pid, u64> = all.iter().copied().collect();
            self.entries
                .retain(|pid, entry| here.get(pid) == Some(&entry.identity.folder));
            self.scanned = true;
            all.into_iter()
                .map(|(pid, folder)| (pid, Some(folder)))
                .collect()
        } else {
            // What could not say is asked again.
            let unknown = self.entries.values().filter(|entry| entry.files.is_none());
            let unknown = unknown.map(|entry| entry.identity.pid);
            let mut pids: Vec<Pid> = changes.pids.into_iter().chain(unknown).collect();
            pids.sort_unstable();
            pids.dedup();
            pids.into_iter().map(|pid| (pid, None)).collect()
        };
        let looks = changed.len();
        self.look(changed);
        Ok(Updated {
            looks,
            lost: changes.lost,
        })
    }

    /// Looks into these processes on a helper thread, as their memory may be locked.
    fn look(&mut self, changed: Vec<(Pid, Option<u64>)>) {
        let root = self.root.clone();
        let pids: Vec<Pid> = changed.iter().map(|&(pid, _)| pid).collect();
        let looks = patient::each(changed.len(), PATIENCE, move |at| {
            let (pid, folder) = changed[at];
            entry(&root, pid, folder)
        });
        for (pid, answer) in pids.into_iter().zip(looks.finish()) {
            match answer {
                Some(Ok(entry)) => {
                    self.entries.insert(pid, entry);
                }
                Some(Err(error)) if error.is_gone() => {
                    self.entries.remove(&pid);
                }
                // Locked for long, or not to be read: the process stays, what it maps is not known.
                Some(Err(_)) | None => {
                    if let Some(entry) = self.entries.get_mut(&pid) {
                        entry.files = None;
                    }
                }
            }
        }
    }
}

/// Looks into one process. Two looks at its folder enclose the others, so that all are of one process.
fn entry(root: &Proc, pid: Pid, folder: Option<u64>) -> Result<Entry, ProcError> {
    let mut folder = match folder {
        Some(folder) => folder,
        None => root.owner(pid)?.folder,
    };
    let mut bytes = Vec::new();
    loop {
        root.read(pid, None, Calm::Stat, &mut bytes)?;
        let start_time = stat::of(pid, &bytes)?.start_time;
        let files = match code_files(pid) {
            Ok(files) => Some(files),
            // A zombie, if the process is still there below.
            Err(ProcError::Gone { .. }) => Some(Vec::new()),
            Err(_) => None,
        };
        let exe = links::exe(pid).ok();
        let after = root.owner(pid)?.folder;
        if after == folder {
            return Ok(Entry {
                identity: Identity {
                    pid,
                    folder,
                    start_time,
                },
                exe,
                files,
            });
        }
        folder = after;
    }
}

//! One process that a session holds.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use lancet_abi::units::{Pid, RuntimeAddr};
use lancet_jit::Action;
use lancet_procs::{self as procs, Identity, Status};
use lancet_remote::arena::{self, SiteRecord};
use lancet_remote::journal::{Journal, ProcessRecord, Program};
use lancet_remote::{Memory, RemoteError, sys};

use crate::catalog::Instance;
use crate::domain::DomainKey;
use crate::error::EngineError;
use crate::patience::Patience;
use crate::undo;

/// A process after the checks, with the descriptors that stay open.
pub(crate) struct Process {
    pub(crate) pid: Pid,
    pub(crate) name: String,
    pub(crate) memory: Arc<Memory>,
    pub(crate) domain: DomainKey,
    pub(crate) shadow_stack: bool,
    /// The target's pid as its innermost namespace has it differs from ours.
    pub(crate) nested_pids: bool,
    /// Whether handlers of signals exist, so that addresses may wait in their frames.
    pub(crate) handlers: bool,
    pub(crate) arenas: Vec<Arena>,
    pub(crate) facts: Option<Facts>,
    /// What already has a jump.
    pub(crate) patched: std::collections::BTreeMap<RuntimeAddr, Patched>,
    /// Set where it has just come to map a file: its loader may still be at work.
    pub(crate) early: Option<Early>,
    /// Whether its first stop is tried once only, by whom it comes back to: the crew.
    pub(crate) once: bool,
    /// writer: the session, when it ends / reader: whoever works on the process / Relaxed: it only
    /// shortens what would end anyway
    pub(crate) abandoned: Arc<AtomicBool>,
    pub(crate) identity: Identity,
    pidfd: OwnedFd,
    journal: Arc<Journal>,
    record: usize,
}

/// One arena of the process, with what is used of it.
pub(crate) struct Arena {
    pub(crate) start: RuntimeAddr,
    pub(crate) code_length: u64,
    pub(crate) region: RuntimeAddr,
    pub(crate) mode: RuntimeAddr,
    pub(crate) capacity: u32,
    pub(crate) sites: u32,
    pub(crate) next_pad: u64,
    pub(crate) reach: std::ops::Range<RuntimeAddr>,
}

/// A site with a jump of ours.
#[derive(Clone)]
pub(crate) struct Patched {
    /// What its pad does.
    pub(crate) actions: Vec<Action>,
    /// What the registry says of it.
    pub(crate) record: SiteRecord,
    /// Which registry, and which of its records.
    pub(crate) arena: usize,
    pub(crate) index: u32,
}

/// What is known of a process whose loader may be at work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Early {
    /// Where its threads will have their rseq area.
    pub(crate) rseq: Option<i32>,
}

/// What was found out about the process's threads while they stood still.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    /// Where the rseq area of every thread lies from its thread pointer; `None`: lock form.
    pub(crate) rseq: Option<i32>,
    /// Where every thread's id lies from its thread pointer.
    pub(crate) tid: Option<i32>,
}

fn unsupported(pid: Pid, status: &Status, why: &str) -> EngineError {
    EngineError::Unsupported {
        pid,
        name: status.name.clone(),
        why: why.to_owned(),
    }
}

fn check_kind(pid: Pid, status: &Status) -> Result<(), EngineError> {
    let face = procs::face(pid);
    if matches!(status.state, 'Z' | 'X') && face == pid {
        return Err(unsupported(
            pid,
            status,
            "it is a zombie: it has ended and waits for its parent",
        ));
    }
    if status.tracer_pid != 0 {
        return Err(RemoteError::Traced {
            pid,
            tracer: Pid(status.tracer_pid),
        }
        .into());
    }
    for tid in procs::tids(pid)? {
        let Ok(thread) = procs::thread_status(pid, tid) else {
            continue;
        };
        if thread.seccomp != 0 {
            return Err(unsupported(
                pid,
                status,
                "it runs under seccomp, whose filter might kill it for the calls that map the probes; processes with seccomp are not supported yet",
            ));
        }
    }
    let mut header = [0u8; 5];
    let open_exe = || std::fs::File::open(format!("/proc/{face}/exe"));
    let mut exe = open_exe();
    // One that is just becoming another program has none for a moment.
    for _ in 0..10 {
        match &exe {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            _ => break,
        }
        std::thread::sleep(Duration::from_millis(2));
        exe = open_exe();
    }
    match exe.and_then(|f| std::os::unix::fs::FileExt::read_exact_at(&f, &mut header, 0)) {
        Ok(()) if header[4] != 2 => Err(unsupported(
            pid,
            status,
            "it is a 32-bit program; only 64-bit x86 is supported",
        )),
        Ok(()) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            if std::path::Path::new(&format!("/proc/{pid}")).exists() {
                Err(unsupported(
                    pid,
                    status,
                    "it has no program: it is a kernel thread, or ending",
                ))
            } else {
                Err(RemoteError::Gone { pid }.into())
            }
        }
        Err(source) => Err(RemoteError::Denied { pid, source }.into()),
    }
}

impl Process {
    /// Opens a process and checks that it is of a kind that can be probed. Nothing in it changes.
    pub(crate) fn open(pid: Pid, journal: &Arc<Journal>) -> Result<Self, EngineError> {
        Self::open_unless(pid, journal, true)
    }

    /// As [`open`](Self::open), for a process that this thread has stopped itself.
    pub(crate) fn open_started(pid: Pid, journal: &Arc<Journal>) -> Result<Self, EngineError> {
        Self::open_unless(pid, journal, false)
    }

    fn open_unless(pid: Pid, journal: &Arc<Journal>, strangers: bool) -> Result<Self, EngineError> {
        let pidfd = sys::pidfd(pid).map_err(|_| RemoteError::Gone { pid })?;
        let identity = procs::identity(pid)?;
        let mut status = procs::status(pid)?;
        // Another lancet that looks for leftovers holds a process for a few milliseconds.
        for _ in 0..10 {
            if !strangers || status.tracer_pid == 0 {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
            status = procs::status(pid)?;
        }
        if !strangers {
            status.tracer_pid = 0;
        }
        check_kind(pid, &status)?;
        let ours = procs::namespaces(Pid(std::process::id() as i32))?;
        if procs::namespaces(pid).map_err(EngineError::from)?.user != ours.user {
            return Err(unsupported(
                pid,
                &status,
                "it lives in another user namespace; run lancet inside that namespace",
            ));
        }
        let memory = Memory::open(pid)?;
        let domain = DomainKey::of(pid, &status)?;
        let executable = procs::exe(pid)?;
        let program = Program {
            device: executable.dev,
            inode: executable.inode,
        };
        let record = journal
            .process(pid, pidfd.as_raw_fd(), memory.raw_fd(), program)
            .ok_or(EngineError::Usage("too many processes in one session"))?;
        Ok(Self {
            pid,
            name: status.name.clone(),
            memory: Arc::new(memory),
            domain,
            shadow_stack: status.shadow_stack,
            nested_pids: status.nspid.len() > 1,
            handlers: status.sig_caught != 0,
            arenas: Vec::new(),
            facts: None,
            patched: std::collections::BTreeMap::new(),
            early: None,
            once: false,
            abandoned: Arc::default(),
            identity,
            pidfd,
            journal: Arc::clone(journal),
            record,
        })
    }

    /// Whether an arena of this process belongs to a session of this tracer that goes on.
    pub(crate) fn is_arena_used(&self, start: RuntimeAddr) -> bool {
        let is_its = |record: &ProcessRecord| {
            record.process().is_some_and(|(pid, ..)| pid == self.pid)
                && record.arenas().iter().any(|arena| arena.0 == start)
        };
        self.journal.processes().any(is_its)
    }

    /// Sites with a jump that it was forked with: they count like its parent's. `None`: it was
    /// forked with nothing of the session. One that was forked in the midst of its parent's attach
    /// has records of jumps that it lacks.
    pub(crate) fn inherited(&self, mappings: &[procs::Mapping]) -> Option<Vec<RuntimeAddr>> {
        let found = arena::find(&self.memory, mappings).into_iter();
        let strange = found
            .filter(|(start, header)| {
                header.session == self.session() && self.arenas.iter().all(|a| a.start != *start)
            })
            .map(|(start, _)| start)
            .collect::<Vec<_>>();
        if strange.is_empty() {
            return None;
        }
        let arenas = undo::read_arenas(&self.memory, &strange, Some(self.session()));
        let has_jump = |record: &&SiteRecord| {
            let mut now = [0; arena::PATCH];
            let read = self.memory.read(record.site, &mut now);
            record.live && read.is_ok() && now == record.new
        };
        let sites = arenas.iter().flat_map(|found| &found.sites);
        Some(sites.filter(has_jump).map(|s| s.site).collect())
    }

    /// Its entry in the journal.
    pub(crate) fn record(&self) -> &ProcessRecord {
        self.journal.entry(self.record)
    }

    /// The session that holds it.
    pub(crate) fn session(&self) -> [u64; 2] {
        self.journal.session()
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&self) -> bool {
        sys::has_ended(self.pidfd.as_fd())
    }

    /// Whether it has other memory than when it was opened: it has become another program meanwhile,
    /// and what was done to the old one is gone.
    pub(crate) fn has_new_memory(&self) -> bool {
        let Ok(mappings) = procs::mappings(self.pid) else {
            return false;
        };
        let code = mappings
            .iter()
            .find(|m| m.execute && m.read && m.has_file());
        code.is_some_and(|m| self.memory.read_some(m.start, &mut [0]) == 0) && !self.has_ended()
    }

    /// Whether it is still itself, and runs some program.
    fn has_program(&self) -> bool {
        procs::exe(self.pid).is_ok() && procs::same(&self.identity)
    }

    /// As [`is_replaced`](Self::is_replaced), for who must not wait: one whose memory map is locked
    /// is not becoming another program.
    pub(crate) fn is_replaced_now(&self) -> bool {
        const SOON: Duration = Duration::from_millis(20);
        let Some(start) = self.arenas.first().map(|arena| arena.start) else {
            return false;
        };
        let memory = Arc::clone(&self.memory);
        let look = move |_| memory.read_some(start, &mut [0]) == 0;
        let is_gone = procs::ask_each(&[self.pid], SOON, look);
        matches!(is_gone[..], [(_, Some(true))]) && self.has_program()
    }

    /// Whether it has become another program: the memory that it was opened with is gone, and it
    /// has other memory.
    pub(crate) fn is_replaced(&self) -> bool {
        let is_gone = |a: &Arena| self.memory.read_some(a.start, &mut [0]) == 0;
        self.arenas.first().is_some_and(is_gone) && self.has_program()
    }

    /// The pidfd, for waiting.
    pub(crate) fn pidfd(&self) -> &OwnedFd {
        &self.pidfd
    }

    /// Fails when the pid names another process by now.
    pub(crate) fn check_identity(&self) -> Result<(), EngineError> {
        if self.has_ended() || !procs::same(&self.identity) {
            return Err(RemoteError::Gone { pid: self.pid }.into());
        }
        Ok(())
    }

    /// The probe whose window has bytes in common with a window of `length` at `site`.
    pub(crate) fn overlapping(&self, site: RuntimeAddr, length: u8) -> Option<RuntimeAddr> {
        let end = site.plus(length.into());
        let last = self.patched.range(..end).next_back();
        last.filter(|(at, its)| at.plus(its.record.window.into()) > site)
            .map(|(&at, _)| at)
    }

    /// The arena that reaches this instance's text.
    pub(crate) fn arena_for(&self, instance: &Instance) -> Option<usize> {
        self.arenas
            .iter()
            .position(|a| a.reach.start <= instance.span.start && instance.span.end <= a.reach.end)
    }

    /// Where its arenas lie, with the lengths of their code.
    pub(crate) fn places(&self) -> Vec<(RuntimeAddr, u64)> {
        self.arenas
            .iter()
            .map(|a| (a.start, a.code_length))
            .collect()
    }

    /// Repeats something while not all threads stop in time, or somebody else (another lancet that
    /// looks for leftovers) holds one, with growing pauses.
    pub(crate) fn patiently<T>(
        &self,
        mut f: impl FnMut() -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        let mut patience = Patience::unless(&self.abandoned);
        loop {
            match f() {
                Err(EngineError::Remote(RemoteError::Busy { .. } | RemoteError::Traced { .. }))
                    if patience.again() =>
                {
                    self.check_identity()?;
                }
                other => return other,
            }
        }
    }
}

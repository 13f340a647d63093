//! Takes probes out again: one of a session, or all at its end.

use std::sync::Arc;

use lancet_abi::units::{LinkAddr, Pid, RuntimeAddr};
use lancet_procs as procs;
use lancet_remote::RemoteError;

use crate::catalog::Binary;
use crate::children;
use crate::consumer::ProbeId;
use crate::error::EngineError;
use crate::many::{self, STUCK};
use crate::process::Process;
use crate::session::Session;
use crate::undo::{self, Restored};

/// What the end of a session found.
#[derive(Clone, Debug, Default)]
pub struct Detached {
    /// Processes whose text is as the file again, children included.
    pub processes: usize,
    /// Processes that had ended before.
    pub gone: usize,
    /// Processes that have become another program by exec: it was not followed.
    pub replaced: Vec<Pid>,
    /// Children that were forked meanwhile, among `processes`.
    pub children: usize,
    /// Sites restored.
    pub sites: usize,
    /// Sites left alone because somebody else had written there.
    pub foreign: Vec<(Pid, RuntimeAddr)>,
    /// Threads that did not leave their action in time.
    pub skipped: Vec<(Pid, i32)>,
    /// Processes that could not be restored, and why.
    pub failed: Vec<(Pid, String)>,
    /// The longest that a process was stopped.
    pub longest_stop: std::time::Duration,
    /// Bytes that stay mapped, inert, in the largest process.
    pub kept: u64,
    /// Files of killed sessions that were removed.
    pub files: usize,
    /// Processes that could not be looked into for leftovers, since their memory maps are locked.
    pub locked: Vec<Pid>,
}

impl Detached {
    /// Adds what another part of the work has found.
    pub(crate) fn add(&mut self, other: Self) {
        let Self {
            processes,
            gone,
            replaced,
            children,
            sites,
            foreign,
            skipped,
            failed,
            longest_stop,
            kept,
            files,
            locked,
        } = other;
        self.processes += processes;
        self.gone += gone;
        for pid in replaced {
            if !self.replaced.contains(&pid) {
                self.replaced.push(pid);
            }
        }
        self.children += children;
        self.sites += sites;
        self.foreign.extend(foreign);
        self.skipped.extend(skipped);
        self.failed.extend(failed);
        self.longest_stop = self.longest_stop.max(longest_stop);
        self.kept = self.kept.max(kept);
        self.files += files;
        self.locked.extend(locked);
    }

    /// A process at which the work got stuck.
    pub(crate) fn stuck(pid: Pid) -> Self {
        let why = "its memory map is locked, as by a page fault or a mapping that does not end";
        Self {
            failed: vec![(pid, why.to_owned())],
            ..Self::default()
        }
    }
}

/// Takes the session's probes out of one process, which is over for the session then.
fn restore(process: Process, session: [u64; 2]) -> Detached {
    let mut report = Detached::default();
    if process.has_ended() {
        report.gone += 1;
    } else if process.is_replaced() {
        report.gone += 1;
        report.replaced.push(process.pid);
    } else {
        let places = process.places();
        let stub = &process.record().stub;
        let restored = process.patiently(|| {
            undo::restore(
                process.pid,
                &process.memory,
                &places,
                Some(session),
                Some(stub),
            )
            .map_err(EngineError::from)
        });
        let memory = &process.memory;
        note(&mut report, process.pid, memory, &places, session, restored);
    }
    if report.failed.is_empty() {
        process.record().finish();
    } else {
        // The guardian tries again; the journal names descriptors that must stay what they are.
        std::mem::forget(process);
    }
    report
}

/// Takes a site's probes out of one process.
fn restore_site_in(
    process: &mut Process,
    binary: &Arc<Binary>,
    link: LinkAddr,
) -> Result<(), EngineError> {
    let mappings = procs::mappings(process.pid)?;
    let sites: Vec<RuntimeAddr> = binary
        .instances(&mappings)
        .iter()
        .map(|i| RuntimeAddr(link.0.wrapping_add(i.bias)))
        .filter(|s| process.patched.contains_key(s))
        .collect();
    let places = process.places();
    process.patiently(|| {
        undo::restore_only(process.pid, &process.memory, &places, &sites).map_err(EngineError::from)
    })?;
    undo::quiesce(process.pid, &process.memory, &places, None)?;
    for site in sites {
        process.patched.remove(&site);
    }
    Ok(())
}

impl Session {
    /// Takes one probe out of all processes. Its counters stay readable.
    ///
    /// A site that other probes of the session use stays patched for them.
    pub fn unregister(&mut self, probe: ProbeId) -> Result<(), EngineError> {
        let Some(of) = self.probes.get(probe.0).filter(|p| p.active) else {
            return Ok(());
        };
        let (binary, link) = (of.binary, of.site.link);
        let shared =
            self.probes.iter().enumerate().any(|(i, p)| {
                i != probe.0 && p.active && p.binary == binary && p.site.link == link
            });
        if !shared {
            self.restore_site(binary, link)?;
        }
        let total = self.read(probe)?;
        let of = &mut self.probes[probe.0];
        of.frozen = total;
        of.active = false;
        self.forget_recipe();
        Ok(())
    }

    /// Goes through all processes whatever happens in one; the first failure is told.
    fn restore_site(&mut self, binary: usize, link: LinkAddr) -> Result<(), EngineError> {
        let binary = Arc::clone(&self.binaries[binary]);
        let mut failed = None;
        for process in self.processes.iter_mut().filter(|p| !p.has_ended()) {
            match restore_site_in(process, &binary, link) {
                // It ended under our hands, and its text with it.
                Err(_) if process.has_ended() => {}
                Err(error) if failed.is_none() => failed = Some(error),
                _ => {}
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Takes all probes out of all processes, children included, and waits until nothing counts.
    /// Counters stay readable.
    pub fn detach(&mut self) -> Detached {
        let follows = self.follow.take().is_some();
        self.dismiss_crew();
        let session = self.tracer.journal().session();
        let mut report = Detached {
            gone: self.ended,
            ..Detached::default()
        };
        if let (Some(watch), Some(command)) = (&self.command_exec, self.tracer.command_pid())
            && watch.has_called_exec()
        {
            report.replaced.push(command);
        }
        self.command_exec = None;
        let processes = std::mem::take(&mut self.processes);
        let arenas = processes.iter().flat_map(|process| &process.arenas);
        let mut places: Vec<RuntimeAddr> = arenas.map(|arena| arena.start).collect();
        let pids: Vec<Pid> = processes.iter().map(|process| process.pid).collect();
        let alone = processes.iter().filter(|p| !p.record().has_inherited());
        let known = alone.map(|p| (p.pid, p.identity.start_time)).collect();
        let restored = many::each(processes, STUCK, move |process| restore(process, session));
        for (pid, restored) in pids.into_iter().zip(restored) {
            report.add(restored.unwrap_or_else(|| Detached::stuck(pid)));
        }
        places.sort_unstable();
        places.dedup();
        children::restore_all(self.tracer.journal(), &places, &known, &mut report);
        if follows {
            // Whatever they became was followed.
            report.replaced.clear();
        }
        for domain in self.domains.all() {
            domain.switch_off();
            domain.file.unlink();
        }
        report
    }
}

/// Adds what became of one process to the report.
pub(crate) fn note(
    report: &mut Detached,
    pid: Pid,
    memory: &lancet_remote::Memory,
    places: &[(RuntimeAddr, u64)],
    session: [u64; 2],
    restored: Result<Restored, EngineError>,
) {
    match restored {
        Ok(restored) => {
            report.processes += 1;
            report.sites += restored.sites;
            report.kept = report.kept.max(restored.kept);
            report.longest_stop = report.longest_stop.max(restored.held);
            report
                .foreign
                .extend(restored.foreign.iter().map(|&s| (pid, s)));
            if !restored.inside.is_empty() {
                let left = undo::quiesce(pid, memory, places, Some(session)).unwrap_or_default();
                report.skipped.extend(left.into_iter().map(|t| (pid, t.0)));
            }
        }
        Err(
            EngineError::Remote(
                RemoteError::Gone { .. } | RemoteError::Process(procs::ProcError::Gone { .. }),
            )
            | EngineError::Procs(procs::ProcError::Gone { .. }),
        ) => {
            report.gone += 1;
        }
        // The held descriptor reads nothing once the memory with the probes is no more: the process
        // is ending, or has become another program.
        Err(_)
            if places
                .iter()
                .all(|&(start, _)| memory.read_some(start, &mut [0]) == 0) =>
        {
            report.gone += 1;
        }
        Err(error) => report.failed.push((pid, error.to_string())),
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.processes.is_empty() || self.crew.is_some() {
            self.detach();
        }
    }
}

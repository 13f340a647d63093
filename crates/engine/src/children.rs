//! Children that were forked from processes with probes.
//!
//! Fork copies text and registry, so a child counts like its parent from its first instruction
//! on, and is found by the registry at the same address. Scans are repeated until one finds no
//! child that still has a probe: children fork too, even while their parent is being cleaned.
//!
//! Only processes that may be children are looked into: those that run the same executable and are
//! not older than the session. A look into another process's memory waits for as long as somebody else there
//! holds its memory map, and nobody on this machine may hold us up but our own targets.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use lancet_abi::units::{Pid, RuntimeAddr};
use lancet_procs::{self as procs, ProcError};
use lancet_remote::journal::{Journal, Program};
use lancet_remote::{Memory, RemoteError, arena};

use crate::detach::{Detached, note};
use crate::error::EngineError;
use crate::many::{self, STUCK};
use crate::patience::Patience;
use crate::undo;

/// How long one process may take to be looked into: what takes longer waits for the process's memory
/// map, which may be locked for ever.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);

/// So many places are looked at in each process; where there are more, as in a session with
/// thousands of processes, its own mappings tell sooner.
const FEW: usize = 32;

/// Arenas of the session that a process has at these places, if one of their sites is live.
fn live_arenas(
    memory: &Memory,
    places: &[RuntimeAddr],
    session: [u64; 2],
) -> Vec<(RuntimeAddr, u64)> {
    let found = undo::read_arenas(memory, places, Some(session));
    if found.iter().all(|a| a.sites.iter().all(|s| !s.live)) {
        return Vec::new();
    }
    found
        .iter()
        .map(|a| (a.start, a.header.code_length))
        .collect()
}

/// Where children may have the session's arenas.
#[derive(Clone)]
enum Places {
    Known(Arc<[RuntimeAddr]>),
    /// Their own mappings tell.
    Any,
}

/// A process that still has probes.
struct Child {
    pid: Pid,
    memory: Memory,
    arenas: Vec<(RuntimeAddr, u64)>,
}

impl Child {
    /// Looks whether a process has the session's arena at one of these places, with a live site.
    fn find(pid: Pid, places: &Places, session: [u64; 2]) -> Result<Option<Self>, RemoteError> {
        let memory = Memory::open(pid)?;
        let is_ours = |&start: &RuntimeAddr| {
            arena::read_header(&memory, start).is_some_and(|header| header.session == session)
        };
        let own: Vec<RuntimeAddr> = match places {
            Places::Known(places) => places.iter().copied().filter(is_ours).collect(),
            Places::Any => {
                let found = arena::find(&memory, &procs::mappings(pid)?).into_iter();
                found.map(|(start, _)| start).filter(is_ours).collect()
            }
        };
        let arenas = live_arenas(&memory, &own, session);
        Ok((!arenas.is_empty()).then_some(Self {
            pid,
            memory,
            arenas,
        }))
    }

    fn restore(self, session: [u64; 2]) -> Detached {
        let Self {
            pid,
            memory,
            arenas,
        } = self;
        let restored = patiently(|| undo::restore(pid, &memory, &arenas, Some(session), None));
        let mut report = Detached::default();
        let restored = restored.map_err(EngineError::from);
        note(&mut report, pid, &memory, &arenas, session, restored);
        report
    }
}

/// What is known of a process without a look into its memory.
enum Kinship {
    /// With its start time.
    Possible(u64),
    None,
    /// It has ended, perhaps just now.
    Ended,
}

/// `began`: start time of this process, the tracer or its guardian.
fn kinship(pid: Pid, programs: Option<&[Program]>, began: u64) -> Kinship {
    let program = match procs::exe(pid) {
        Ok(id) => Program {
            device: id.dev,
            inode: id.inode,
        },
        Err(ProcError::Gone { .. }) => return Kinship::Ended,
        Err(_) => return Kinship::None,
    };
    if programs.is_some_and(|programs| !programs.contains(&program)) {
        return Kinship::None;
    }
    match procs::identity(pid) {
        Ok(identity) if identity.start_time >= began => Kinship::Possible(identity.start_time),
        Ok(_) => Kinship::None,
        Err(_) => Kinship::Ended,
    }
}

/// Takes the probes out of all children; `known` processes, by pid and start time, are done already.
pub(crate) fn restore_all(
    journal: &Journal,
    places: &[RuntimeAddr],
    known: &HashSet<(Pid, u64)>,
    report: &mut Detached,
) {
    if places.is_empty() && !journal.has_buried() {
        return;
    }
    let session = journal.session();
    let programs = journal.programs();
    let places = match places.len() <= FEW && !journal.has_buried() {
        true => Places::Known(places.into()),
        false => Places::Any,
    };
    let own = Pid(std::process::id() as i32);
    let mut failed: Vec<Pid> = Vec::new();
    let began = procs::identity(own).map_or(0, |identity| identity.start_time);
    // Kernel threads are among them: they have no executable either.
    let mut ended: HashSet<Pid> = HashSet::new();
    let mut empty_passes = 0;
    for _pass in 0..1000 {
        let mut possible = Vec::new();
        // A process that has ended since it was listed may have forked just before.
        let mut vanished = false;
        for pid in procs::pids().unwrap_or_default() {
            if pid == own || failed.contains(&pid) {
                continue;
            }
            match kinship(pid, programs.as_deref(), began) {
                Kinship::Possible(start) if !known.contains(&(pid, start)) => {}
                Kinship::Possible(_) | Kinship::None => continue,
                Kinship::Ended => {
                    vanished |= ended.insert(pid);
                    continue;
                }
            }
            possible.push(pid);
        }
        let mut found = Vec::new();
        let all = places.clone();
        let look = move |pid| Child::find(pid, &all, session);
        for (pid, answer) in procs::ask_each(&possible, PATIENCE, look) {
            match answer {
                Some(Ok(child)) => found.extend(child),
                Some(Err(error)) => vanished |= matches!(error, RemoteError::Gone { .. }),
                None => {
                    report.locked.push(pid);
                    failed.push(pid);
                }
            }
        }
        let found_one = !found.is_empty();
        let pids: Vec<Pid> = found.iter().map(|child| child.pid).collect();
        let restored = many::each(found, STUCK, move |child| child.restore(session));
        for (pid, restored) in pids.into_iter().zip(restored) {
            let mut restored = restored.unwrap_or_else(|| Detached::stuck(pid));
            if !restored.failed.is_empty() {
                failed.push(pid);
            } else {
                restored.children = restored.processes;
            }
            report.add(restored);
        }
        empty_passes = if found_one { 0 } else { empty_passes + 1 };
        if !found_one && (!vanished || empty_passes > 2) {
            return;
        }
    }
}

/// Repeats while not all threads stop in time, or somebody else holds one: another lancet may look
/// at the process for a moment.
pub(crate) fn patiently<T>(
    mut f: impl FnMut() -> Result<T, RemoteError>,
) -> Result<T, RemoteError> {
    let mut patience = Patience::new();
    loop {
        match f() {
            Err(RemoteError::Busy { .. } | RemoteError::Traced { .. }) if patience.again() => {}
            other => return other,
        }
    }
}

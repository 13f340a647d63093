//! Finds and removes what sessions left in processes.

use std::collections::HashSet;

use lancet_abi::units::{Pid, RuntimeAddr};
use lancet_procs::{self as procs, Identity};
use lancet_remote::journal::StubRecord;
use lancet_remote::slack::{self, LeftStub};
use lancet_remote::{Borrowed, Memory, StopBudget, Stopped, arena};

use crate::children::{PATIENCE, patiently};
use crate::detach::{Detached, note};
use crate::error::EngineError;
use crate::many::{self, STUCK};
use crate::stubs;
use crate::undo;

/// What a look at processes found.
#[derive(Clone, Debug, Default)]
pub struct Looked {
    /// What lancet has in them.
    pub leftovers: Vec<Leftover>,
    /// Processes that could not be looked into in time, since their memory maps are locked.
    pub locked: Vec<Pid>,
}

/// One arena in a process, or a first stub whose arena was never made.
#[derive(Clone, Debug)]
pub struct Leftover {
    /// The process.
    pub pid: Pid,
    /// Its name.
    pub name: String,
    /// Where it lies.
    pub start: RuntimeAddr,
    /// Bytes of code and counters that are mapped.
    pub bytes: u64,
    /// Sites whose text holds a jump.
    pub live: usize,
    /// Sites that were restored; their pads are inert.
    pub inert: usize,
    /// Whether the session that made it is still running.
    pub in_session: bool,
    /// Whether it is a stub in unused bytes behind a segment. Nothing executes it any more.
    pub is_stub: bool,
}

/// Whether the session that an arena belongs to still runs.
pub(crate) fn in_session(header: &arena::Header) -> bool {
    is_running(header.guardian)
}

/// Whether a guardian, by pid and start time, still runs.
pub(crate) fn is_running((pid, start_time): (i32, u64)) -> bool {
    procs::identity(Pid(pid)).is_ok_and(|identity: Identity| {
        identity.start_time == start_time
            && procs::status(Pid(pid)).is_ok_and(|s| !matches!(s.state, 'Z' | 'X'))
    })
}

/// This process, as a guardian is named.
pub(crate) fn own_identity() -> (i32, u64) {
    let pid = std::process::id() as i32;
    let start_time = procs::identity(Pid(pid)).map_or(0, |identity| identity.start_time);
    (pid, start_time)
}

/// What lancet has in one process.
struct Inside {
    memory: Memory,
    arenas: Vec<undo::FoundArena>,
    stubs: Vec<LeftStub>,
}

fn in_process(pid: Pid) -> Option<Inside> {
    let mappings = procs::mappings(pid).ok()?;
    let memory = Memory::open(pid).ok()?;
    let places: Vec<RuntimeAddr> = arena::find(&memory, &mappings)
        .into_iter()
        .map(|(start, _)| start)
        .collect();
    let arenas = undo::read_arenas(&memory, &places, None);
    let stubs = slack::left_stubs(&memory, &mappings);
    (!arenas.is_empty() || !stubs.is_empty()).then_some(Inside {
        memory,
        arenas,
        stubs,
    })
}

/// The processes that have something of lancet in them, and those that could not be looked into.
fn in_each(pids: &[Pid]) -> (Vec<(Pid, Inside)>, Vec<Pid>) {
    let mut found = Vec::new();
    let mut locked = Vec::new();
    for (pid, answer) in procs::ask_each(pids, PATIENCE, in_process) {
        match answer {
            Some(inside) => found.extend(inside.map(|inside| (pid, inside))),
            None => locked.push(pid),
        }
    }
    (found, locked)
}

/// All arenas in processes that this user may look into. A process whose memory map is locked
/// delays it by a second at most.
pub fn status() -> Result<Looked, EngineError> {
    let (found, locked) = in_each(&procs::pids()?);
    let mut all = Vec::new();
    for (pid, inside) in found {
        let name = procs::status(pid).map(|s| s.name).unwrap_or_default();
        all.extend(inside.arenas.iter().map(|found| Leftover {
            pid,
            name: name.clone(),
            start: found.start,
            bytes: found.header.code_length + found.header.region.1,
            live: found.sites.iter().filter(|s| s.live).count(),
            inert: found.sites.iter().filter(|s| !s.live).count(),
            in_session: in_session(&found.header),
            is_stub: false,
        }));
        all.extend(inside.stubs.iter().map(|stub| Leftover {
            pid,
            name: name.clone(),
            start: stub.start,
            bytes: stub.length,
            live: 0,
            inert: 0,
            in_session: is_running(stub.trailer.guardian),
            is_stub: true,
        }));
    }
    Ok(Looked {
        leftovers: all,
        locked,
    })
}

/// Takes first stubs of dead sessions out of a process; whether there were any.
pub(crate) fn clean_stubs(
    pid: Pid,
    memory: &Memory,
    stubs: &[LeftStub],
) -> Result<bool, lancet_remote::RemoteError> {
    let mut some = false;
    for stub in stubs.iter().filter(|s| !is_running(s.trailer.guardian)) {
        patiently(|| stubs::undo(pid, memory, stub))?;
        some = true;
    }
    Ok(some)
}

/// Takes probes of sessions that have ended out of one process.
fn clean_one(pid: Pid, inside: Inside, purge: bool) -> Detached {
    let Inside {
        memory,
        arenas,
        stubs,
    } = inside;
    let mut report = Detached::default();
    match clean_stubs(pid, &memory, &stubs) {
        Ok(some) => report.processes += usize::from(some && arenas.is_empty()),
        Err(error) => report.failed.push((pid, error.to_string())),
    }
    let dead: Vec<&undo::FoundArena> = arenas
        .iter()
        .filter(|found| !in_session(&found.header))
        .collect();
    for found in &dead {
        if let Err(error) = patiently(|| stubs::undo_in_arena(pid, &memory, found)) {
            report.failed.push((pid, error.to_string()));
        }
    }
    let places: Vec<(RuntimeAddr, u64)> = dead
        .iter()
        .filter(|found| found.sites.iter().any(|s| s.live))
        .map(|found| (found.start, found.header.code_length))
        .collect();
    if !places.is_empty() {
        let restored = patiently(|| undo::restore(pid, &memory, &places, None, None));
        let restored = restored.map_err(EngineError::from);
        note(&mut report, pid, &memory, &places, [0; 2], restored);
    }
    // With `purge` only what stays behind that is told.
    report.kept = 0;
    if purge {
        match patiently(|| purge_one(pid, &memory)) {
            Ok(kept) => report.kept = kept,
            Err(error) => report.failed.push((pid, error.to_string())),
        }
    }
    report
}

/// Takes probes of sessions that have ended out of all processes; with `purge` the inert pads
/// too, where nothing refers to them any more. `only`: these processes, or all for none. Processes
/// that could not be looked into are in the report.
pub fn clean(purge: bool, only: &[Pid]) -> Result<Detached, EngineError> {
    let mut report = Detached::default();
    let pids = if only.is_empty() {
        procs::pids()?
    } else {
        only.to_vec()
    };
    let (found, locked) = in_each(&pids);
    report.locked = locked;
    let having: Vec<Pid> = found.iter().map(|(pid, _)| *pid).collect();
    let cleaned = many::each(found, STUCK, move |(pid, inside)| {
        clean_one(pid, inside, purge)
    });
    let mut kept = 0;
    for (&pid, cleaned) in having.iter().zip(cleaned) {
        let cleaned = cleaned.unwrap_or_else(|| Detached::stuck(pid));
        kept += cleaned.kept;
        report.add(cleaned);
    }
    report.kept = kept;
    // Last: a session's file is what its processes share for as long as one of them has probes.
    let mut seen = HashSet::new();
    for pid in pids {
        let (Ok(namespaces), Ok(root)) = (procs::namespaces(pid), procs::root(pid)) else {
            continue;
        };
        if seen.insert((namespaces.mount, root)) {
            report.files += lancet_remote::remove_orphans(pid);
        }
    }
    Ok(report)
}

/// Unmaps inert arenas; returns the bytes that had to stay.
fn purge_one(pid: Pid, memory: &Memory) -> Result<u64, lancet_remote::RemoteError> {
    let stopped = Stopped::all(pid, StopBudget::default())?;
    let mappings = procs::mappings(pid)?;
    let places: Vec<RuntimeAddr> = arena::find(memory, &mappings)
        .into_iter()
        .filter(|(_, header)| !in_session(header))
        .map(|(start, _)| start)
        .collect();
    let arenas = undo::read_arenas(memory, &places, None);
    let total: u64 = arenas.iter().map(|a| a.header.code_length).sum();
    let calls = undo::unmapping_calls(memory, &mappings, &stopped, &arenas);
    let (Some(room), _) = slack::find(memory, &mappings) else {
        return Ok(total);
    };
    let record = StubRecord::default();
    let mut borrowed = Borrowed::from(&stopped, memory, &record)?;
    let mut freed = 0;
    for call in &calls {
        let result = borrowed.run_in_slack(room.address, call, own_identity(), |_| Ok(()))?;
        if result == 0
            && let Some(found) = arenas
                .iter()
                .find(|a| call.arguments[0] == lancet_remote::Argument::Value(a.start.0))
        {
            freed += found.header.code_length;
        }
    }
    borrowed.give_back()?;
    Ok(total - freed)
}

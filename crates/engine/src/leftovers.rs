//! Finds and removes what sessions left in processes.

use lancet_abi::units::{Pid, RuntimeAddr};
use lancet_procs::{self as procs, Identity};
use lancet_remote::journal::StubRecord;
use lancet_remote::{Borrowed, Memory, StopBudget, Stopped, arena, slack};

use crate::children::patiently;
use crate::detach::{Detached, note};
use crate::error::EngineError;
use crate::undo;

/// One arena in a process.
#[derive(Clone, Debug)]
pub struct Leftover {
    /// The process.
    pub pid: Pid,
    /// Its name.
    pub name: String,
    /// Where the arena lies.
    pub start: RuntimeAddr,
    /// Bytes of code and counters that are mapped.
    pub bytes: u64,
    /// Sites whose text holds a jump.
    pub live: usize,
    /// Sites that were restored; their pads are inert.
    pub inert: usize,
    /// Whether the session that made it is still running.
    pub in_session: bool,
}

/// Whether the session that an arena belongs to still runs.
pub(crate) fn in_session(header: &arena::Header) -> bool {
    procs::identity(Pid(header.guardian.0)).is_ok_and(|identity: Identity| {
        identity.start_time == header.guardian.1
            && procs::status(Pid(header.guardian.0)).is_ok_and(|s| !matches!(s.state, 'Z' | 'X'))
    })
}

fn in_process(pid: Pid) -> Option<(Memory, Vec<undo::FoundArena>)> {
    let mappings = procs::mappings(pid).ok()?;
    let candidates = mappings
        .iter()
        .any(|m| m.execute && !m.write && !m.shared && m.inode == 0 && m.path != b"[vdso]");
    if !candidates {
        return None;
    }
    let memory = Memory::open(pid).ok()?;
    let places: Vec<RuntimeAddr> = arena::find(&memory, &mappings)
        .into_iter()
        .map(|(start, _)| start)
        .collect();
    let arenas = undo::read_arenas(&memory, &places, None);
    (!arenas.is_empty()).then_some((memory, arenas))
}

/// All arenas in processes that this user may look into.
pub fn status() -> Result<Vec<Leftover>, EngineError> {
    let mut all = Vec::new();
    for pid in procs::pids()? {
        let Some((_, arenas)) = in_process(pid) else {
            continue;
        };
        let name = procs::status(pid).map(|s| s.name).unwrap_or_default();
        all.extend(arenas.iter().map(|found| Leftover {
            pid,
            name: name.clone(),
            start: found.start,
            bytes: found.header.code_length + found.header.region.1,
            live: found.sites.iter().filter(|s| s.live).count(),
            inert: found.sites.iter().filter(|s| !s.live).count(),
            in_session: in_session(&found.header),
        }));
    }
    Ok(all)
}

/// Takes probes of sessions that have ended out of all processes; with `purge` the inert pads
/// too, where nothing refers to them any more. `only`: these processes, or all for none.
pub fn clean(purge: bool, only: &[Pid]) -> Result<Detached, EngineError> {
    let mut report = Detached::default();
    let pids = if only.is_empty() {
        procs::pids()?
    } else {
        only.to_vec()
    };
    for pid in pids {
        let Some((memory, arenas)) = in_process(pid) else {
            continue;
        };
        let dead: Vec<&undo::FoundArena> = arenas
            .iter()
            .filter(|found| !in_session(&found.header))
            .collect();
        let places: Vec<(RuntimeAddr, u64)> = dead
            .iter()
            .filter(|found| found.sites.iter().any(|s| s.live))
            .map(|found| (found.start, found.header.code_length))
            .collect();
        if !places.is_empty() {
            let restored = patiently(|| undo::restore(pid, &memory, &places, None, None));
            note(
                &mut report,
                pid,
                &memory,
                &places,
                [0; 2],
                restored.map_err(EngineError::from),
            );
        }
        for found in &dead {
            remove_region_file(pid, found.header.region_name);
        }
        if purge {
            match patiently(|| purge_one(pid, &memory)) {
                Ok(kept) => report.kept += kept,
                Err(error) => report.failed.push((pid, error.to_string())),
            }
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
    let Some(room) = slack::find(memory, &mappings) else {
        return Ok(total);
    };
    let record = StubRecord::default();
    let mut borrowed = Borrowed::from(&stopped, memory, &record)?;
    let mut freed = 0;
    for call in &calls {
        let result = borrowed.run_in_slack(room.address, std::slice::from_ref(call))?;
        if result[0] == 0
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

/// Removes a dead session's region file, wherever the process sees it.
fn remove_region_file(pid: Pid, name: u64) {
    if name == 0 {
        return;
    }
    for place in lancet_remote::REGION_PLACES {
        let path = format!(
            "/proc/{pid}/root/{place}/{}",
            lancet_remote::file_name(name)
        );
        let _ = std::fs::remove_file(path);
    }
}

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

use lancet_abi::units::{Pid, RuntimeAddr};
use lancet_procs::{self as procs, ProcError};
use lancet_remote::journal::Program;
use lancet_remote::{Memory, RemoteError, arena};

use crate::detach::{Detached, note};
use crate::error::EngineError;
use crate::patience::Patience;
use crate::undo;

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

/// Whether a process has the session's arena at one of these places.
fn has_arena(memory: &Memory, places: &[RuntimeAddr], session: [u64; 2]) -> bool {
    places
        .iter()
        .any(|&start| arena::read_header(memory, start).is_some_and(|h| h.session == session))
}

/// What is known of a process without a look into its memory.
enum Kinship {
    Possible,
    None,
    /// It has ended, perhaps just now.
    Ended,
}

/// `began`: start time of this process, the tracer or its guardian.
fn kinship(pid: Pid, programs: &[Program], began: u64) -> Kinship {
    let program = match procs::exe(pid) {
        Ok(id) => Program {
            device: id.dev,
            inode: id.inode,
        },
        Err(ProcError::Gone { .. }) => return Kinship::Ended,
        Err(_) => return Kinship::None,
    };
    if !programs.contains(&program) {
        return Kinship::None;
    }
    match procs::identity(pid) {
        Ok(identity) if identity.start_time >= began => Kinship::Possible,
        Ok(_) => Kinship::None,
        Err(_) => Kinship::Ended,
    }
}

/// Takes the probes out of all children; `known` processes are done already, `programs` are what
/// the session's processes run.
pub(crate) fn restore_all(
    places: &[RuntimeAddr],
    session: [u64; 2],
    known: &[Pid],
    programs: &[Program],
    report: &mut Detached,
) {
    if places.is_empty() {
        return;
    }
    let own = Pid(std::process::id() as i32);
    let mut failed: Vec<Pid> = Vec::new();
    let began = procs::identity(own).map_or(0, |identity| identity.start_time);
    // Kernel threads are among them: they have no executable either.
    let mut ended: HashSet<Pid> = HashSet::new();
    let mut empty_passes = 0;
    for _pass in 0..1000 {
        let mut found_one = false;
        // A process that has ended since it was listed may have forked just before.
        let mut vanished = false;
        for pid in procs::pids().unwrap_or_default() {
            if pid == own || failed.contains(&pid) {
                continue;
            }
            match kinship(pid, programs, began) {
                Kinship::Possible => {}
                Kinship::None if known.contains(&pid) => {}
                Kinship::None => continue,
                Kinship::Ended => {
                    vanished |= ended.insert(pid);
                    continue;
                }
            }
            let memory = match Memory::open(pid) {
                Ok(memory) => memory,
                Err(error) => {
                    vanished |= matches!(error, RemoteError::Gone { .. });
                    continue;
                }
            };
            if !has_arena(&memory, places, session) {
                continue;
            }
            let arenas = live_arenas(&memory, places, session);
            if arenas.is_empty() {
                continue;
            }
            found_one = true;
            let restored = patiently(|| undo::restore(pid, &memory, &arenas, Some(session), None));
            if restored.is_err() {
                failed.push(pid);
            }
            if !known.contains(&pid) && restored.is_ok() {
                report.children += 1;
            }
            note(
                report,
                pid,
                &memory,
                &arenas,
                session,
                restored.map_err(EngineError::from),
            );
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

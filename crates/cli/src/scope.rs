//! Which processes a session is about.

use std::time::{Duration, Instant};

use anyhow::Result;
use lancet_abi::units::Pid;
use lancet_procs as procs;

use crate::probes::Found;

/// How long a process that was named may keep its memory map locked before it is given up.
const PATIENCE: Duration = Duration::from_secs(1);

/// As [`locked`], for processes that were named: they are asked again for a while.
pub(crate) fn still_locked(pids: &[Pid]) -> Result<Vec<Pid>> {
    let end = Instant::now() + PATIENCE;
    let mut late = locked(pids)?;
    while !late.is_empty() && Instant::now() < end {
        late = locked(&late)?;
    }
    Ok(late)
}

/// The processes of a list whose memory maps are locked. To attach to one would wait for as long as
/// that lasts.
pub(crate) fn locked(pids: &[Pid]) -> Result<Vec<Pid>> {
    // A read of the command line takes that lock.
    let of = pids.iter().map(|&pid| (pid, None)).collect();
    let readings = procs::Proc::open()?.read_bound(procs::Bound::Cmdline, of);
    let pairs = pids.iter().zip(readings.finish());
    Ok(pairs
        .filter(|(_, reading)| matches!(reading, procs::Reading::Late))
        .map(|(&pid, _)| pid)
        .collect())
}

/// Why nothing can be told of a process, or done to it.
pub(crate) fn is_locked(pid: Pid) -> String {
    let name = procs::status(pid).map(|s| s.name).unwrap_or_default();
    format!(
        "process {pid} ({name}) cannot be looked into: its memory map is locked, as by a page fault or a mapping that does not end"
    )
}

/// Names such a process, and what to do.
pub(crate) fn say_locked(pid: Pid, advice: &str) {
    eprintln!("lancet: {}; {advice}", is_locked(pid));
}

/// Processes that map one of the files now, except (without `all`) pid 1 and our own ancestors;
/// never lancet itself.
pub(crate) struct Mapping {
    /// With those that may map it, but whose memory maps are locked.
    pub(crate) pids: Vec<Pid>,
    /// How many this user may not look into.
    pub(crate) denied: usize,
}

/// Processes that are never probed unless they are named.
pub(crate) fn left_out(all: bool, guardian: Pid) -> Vec<Pid> {
    let own = Pid(std::process::id() as i32);
    let mut left_out = vec![own, guardian];
    if !all {
        left_out.push(Pid(1));
        left_out.extend(procs::ancestors(guardian).unwrap_or_default());
    }
    left_out
}

/// Looks for them.
pub(crate) fn mapping_now(found: &[Found], left_out: &[Pid]) -> Result<Mapping> {
    let mut pids = Vec::new();
    let mut unknown = Vec::new();
    let mut denied = 0;
    for file in found {
        let scan = procs::who_maps(file.binary.id.dev, file.binary.id.inode)?;
        denied = denied.max(scan.denied.len());
        unknown.extend(scan.unknown);
        for mapper in scan.mappers {
            let pid = mapper.identity.pid;
            if !left_out.contains(&pid) && !pids.contains(&pid) {
                pids.push(pid);
            }
        }
    }
    pids.sort_unstable();
    // Others that could not say just start or end.
    unknown.retain(|pid| !left_out.contains(pid) && !pids.contains(pid));
    pids.extend(locked(&unknown)?);
    pids.sort_unstable();
    pids.dedup();
    Ok(Mapping { pids, denied })
}

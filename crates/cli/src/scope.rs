//! Which processes a session is about.

use anyhow::Result;
use lancet_abi::units::Pid;
use lancet_procs as procs;

use crate::probes::Found;

/// Processes that map one of the files now, except (without `all`) pid 1 and our own ancestors;
/// never lancet itself. Also says how many could not be looked into.
pub(crate) fn mapping_now(found: &[Found], all: bool, guardian: Pid) -> Result<(Vec<Pid>, usize)> {
    let own = Pid(std::process::id() as i32);
    let mut left_out = vec![own, guardian];
    if !all {
        left_out.push(Pid(1));
        left_out.extend(procs::ancestors(guardian).unwrap_or_default());
    }
    let mut pids = Vec::new();
    let mut denied = 0;
    for file in found {
        let scan = procs::who_maps(file.binary.id.dev, file.binary.id.inode)?;
        denied = denied.max(scan.denied.len());
        for mapper in scan.mappers {
            let pid = mapper.identity.pid;
            if !left_out.contains(&pid) && !pids.contains(&pid) {
                pids.push(pid);
            }
        }
    }
    pids.sort_unstable();
    Ok((pids, denied))
}

//! Writes jumps into the text of a process: the second of the two stops of attaching.

use std::time::Duration;

use lancet_abi::private;
use lancet_abi::units::RuntimeAddr;
use lancet_procs::{self as procs, Mapping};
use lancet_remote::{RemoteError, Stopped, arena, frames};

use crate::attach::Hold;
use crate::error::{EngineError, Refused};
use crate::pads::Pad;
use crate::process::{Patched, Process};

/// What one stop wrote.
pub(crate) struct Written {
    /// Sites that have their jump now.
    pub(crate) sites: Vec<RuntimeAddr>,
    /// How long the process was held.
    pub(crate) held: Duration,
}

/// Where a thread that stands in a window must go on instead.
fn new_place(pads: &[Pad], thread: &lancet_remote::Thread) -> Option<RuntimeAddr> {
    let ip = thread.ip();
    let after = pads.partition_point(|p| p.record.site <= ip);
    let pad = pads.get(after.checked_sub(1)?)?;
    let distance = ip.offset_from(pad.record.site);
    let window = u64::from(pad.record.window);
    let inside = distance > 0 && distance < window;
    // Behind a system call that the kernel may restart two bytes earlier.
    let behind_call = distance == window && thread.registers.orig_rax as i64 >= 0;
    if !inside && !behind_call {
        return None;
    }
    pad.moves
        .iter()
        .find(|&&(offset, _)| u64::from(offset) == distance)
        .map(|&(_, place)| place)
}

/// Whether a handler would return into the inside of a window.
fn frame_in_window(
    process: &Process,
    mappings: &[Mapping],
    stopped: &Stopped,
    pads: &[Pad],
) -> Option<lancet_abi::units::Tid> {
    let multiple = pads.iter().any(|p| p.moves.len() > 2);
    if !process.handlers || !multiple {
        return None;
    }
    stopped.threads().iter().find_map(|thread| {
        frames::interrupted_addresses(&process.memory, mappings, thread)
            .into_iter()
            .any(|ip| {
                let after = pads.partition_point(|p| p.record.site < ip);
                after
                    .checked_sub(1)
                    .and_then(|i| pads.get(i))
                    .is_some_and(|pad| {
                        ip.offset_from(pad.record.site) < u64::from(pad.record.window)
                    })
            })
            .then_some(thread.tid)
    })
}

/// Nothing jumps to a pad any more that was made anew. Until this is noted the registry has two
/// records of the site, and a restore accepts the jump of either.
fn retire(process: &Process, before: &Patched) -> Result<(), RemoteError> {
    let arena = process.arenas[before.arena].start;
    let record = arena::SiteRecord {
        live: false,
        ..before.record
    };
    arena::write_sites(&process.memory, arena, before.index, &[record])
}

/// Writes one batch of jumps. The second of the two stops.
pub(crate) fn write_text(
    process: &Process,
    pads: &[Pad],
    hold: Hold,
    refused: &mut Vec<Refused>,
) -> Result<Written, EngineError> {
    let mut stopped = hold.stop(process.pid)?;
    process.check_identity()?;
    let mappings = if process.handlers {
        procs::mappings(process.pid)?
    } else {
        Vec::new()
    };
    if let Some(tid) = frame_in_window(process, &mappings, &stopped, pads) {
        return Err(RemoteError::Busy {
            pid: process.pid,
            tid,
            budget_us: 0,
        }
        .into());
    }
    let moves: Vec<_> = stopped
        .threads()
        .iter()
        .filter_map(|t| new_place(pads, t).map(|place| (t.tid, place)))
        .collect();
    for (tid, place) in moves {
        stopped.move_to(tid, place)?;
    }
    let mut written = Vec::new();
    for pad in pads {
        let record = &pad.record;
        let mut now = [0; arena::PATCH];
        process.memory.read(record.site, &mut now)?;
        let before = pad.replaces.as_ref();
        if now == record.old || before.is_some_and(|b| now == b.record.new) {
            process
                .memory
                .write_text(stopped.any(), record.site, &record.new)?;
            written.push(record.site);
        } else if now == record.new {
            written.push(record.site);
        } else {
            if pad.sentinel {
                // Children of this one begin with this word wiped: theirs stay unwatched.
                let word = process.arenas[0].mode.plus(private::UNCERTAIN_BYTE);
                process.memory.write(word, &[1])?;
            }
            refused.push(Refused {
                probe: pad.name.clone(),
                pid: Some(process.pid),
                reason: "foreign bytes",
                message: format!(
                    "somebody else changed the bytes at {} meanwhile",
                    record.site
                ),
            });
        }
    }
    for before in pads.iter().filter_map(|p| p.replaces.as_ref()) {
        if written.contains(&before.record.site) {
            retire(process, before)?;
        }
    }
    Ok(Written {
        sites: written,
        held: stopped.held_for(),
    })
}

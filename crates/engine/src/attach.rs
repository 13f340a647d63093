//! Puts probes into one process.
//!
//! Two stops, both within the budget: in the first, one thread maps the arenas (`mapping.rs`);
//! between them the pads are compiled and written while the process runs (`pads.rs`); in the
//! second the text is written (`text.rs`).

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use lancet_abi::units::{Pid, RuntimeAddr};
use lancet_isa::Plan;
use lancet_jit::script::Scripts;
use lancet_jit::{Action, Scratch};
use lancet_procs::Mapping;
use lancet_remote::{RemoteError, StopBudget, Stopped};

use crate::catalog::Instance;
use crate::domain::Domain;
use crate::error::{EngineError, Refused};
use crate::mapping::map_arenas;
use crate::pads::write_pads;
use crate::patience::Patience;
use crate::process::Process;
use crate::text::write_text;

/// The page with the mode word.
const PRIVATE_PAGE: u64 = 4096;
/// Sites written in one stop.
const BATCH: usize = 1000;

/// A site that is to be patched, with what it does.
pub(crate) struct Wanted<'a> {
    pub(crate) name: &'a str,
    pub(crate) plan: &'a Plan,
    pub(crate) binary: usize,
    pub(crate) actions: Vec<Action>,
    pub(crate) lock_only: bool,
}

impl Wanted<'_> {
    /// Whether it watches a call that makes children.
    pub(crate) fn is_sentinel(&self) -> bool {
        let mark = |action: &Action| matches!(action, Action::MarkUncertain { .. });
        self.actions.iter().any(mark)
    }
}

/// What attaching did to a process.
#[derive(Clone, Debug, Default)]
pub struct Attached {
    /// The process.
    pub pid: i32,
    /// Sites that have a probe now.
    pub sites: usize,
    /// Sites that have none, and why.
    pub refused: Vec<Refused>,
    /// The longest that its threads were held up in one go.
    pub longest_stop: Duration,
    /// The time for all of it.
    pub total: Duration,
    /// Whether counters are per CPU without a lock (else locked additions are used).
    pub per_cpu: bool,
}

/// How threads are stopped: all of a running process, or one that is held already.
#[derive(Clone, Copy)]
pub(crate) enum Hold {
    /// Stop all.
    All,
    /// This thread is stopped under us, the only one; with what is known of its rseq area.
    Held(lancet_abi::units::Tid, Option<i32>),
}

impl Hold {
    pub(crate) fn stop(self, pid: Pid) -> Result<Stopped, RemoteError> {
        match self {
            Self::All => Stopped::all(pid, StopBudget::default()),
            Self::Held(tid, _) => Stopped::adopt(pid, tid),
        }
    }
}

/// Everything that attaching needs to know of its session.
pub(crate) struct Context<'a> {
    pub(crate) domain: &'a Domain,
    pub(crate) session: [u64; 2],
    pub(crate) guardian: (i32, u64),
    pub(crate) layout: &'a lancet_abi::Layout,
    /// The process's mappings a moment ago.
    pub(crate) mappings: &'a [Mapping],
    pub(crate) instances: &'a [Instance],
    pub(crate) binaries: &'a [Arc<crate::catalog::Binary>],
    /// Whether all calls are watched that make children on their parent's thread block.
    pub(crate) certain: bool,
    /// Whether hits assert their invariants.
    pub(crate) check: bool,
    /// The script whose actions run at hits.
    pub(crate) script: Option<&'a Arc<Scripts>>,
    /// The process's id as this process sees it, where that is another than its own.
    pub(crate) shown_pid: Option<Pid>,
}

impl Context<'_> {
    /// Bytes of private memory that a process gets: the page with the mode word, then the scratch
    /// slots of a script.
    pub(crate) fn private_length(&self) -> u64 {
        let scratch = self.script.map_or(0, |script| script.scratch_size());
        PRIVATE_PAGE + scratch.next_multiple_of(PRIVATE_PAGE)
    }

    /// Where the scratch slots are, in a process with this private page.
    pub(crate) fn scratch(&self, mode: RuntimeAddr) -> Option<(Arc<Scripts>, Scratch)> {
        let at = mode.plus(PRIVATE_PAGE);
        self.script
            .map(|script| (Arc::clone(script), Scratch { at }))
    }
}

/// Bytes of pads that script actions take at these sites.
fn script_room(context: &Context<'_>, wanted: &[Wanted<'_>]) -> u64 {
    let Some(script) = context.script else {
        return 0;
    };
    let actions = wanted.iter().flat_map(|site| &site.actions);
    let room = |action: &Action| match action {
        Action::Run { action, .. } => script.room(*action as usize),
        _ => 0,
    };
    actions.map(room).sum()
}

/// Puts all wanted sites into one process.
pub(crate) fn attach(
    process: &mut Process,
    context: &Context<'_>,
    wanted: &[Wanted<'_>],
    hold: Hold,
) -> Result<Attached, EngineError> {
    let start = std::time::Instant::now();
    let mut report = Attached {
        pid: process.pid.0,
        ..Attached::default()
    };
    let abandoned = Arc::clone(&process.abandoned);
    let mut patience = Patience::unless(&abandoned);
    let mut known = Some(context.mappings.to_vec());
    report.longest_stop = loop {
        let room = (wanted.len() as u32, script_room(context, wanted));
        match map_arenas(process, context, room, hold, known.take()) {
            Err(error) if may_pass(&error) && !process.once && patience.again() => {}
            other => break other?,
        }
    };
    if let (Some(pid), Some(arena)) = (context.shown_pid, process.arenas.first()) {
        let at = arena.mode.plus(lancet_abi::private::SHOWN_PID);
        process.memory.write(at, &(pid.0 as u64).to_le_bytes())?;
    }
    let mut pads = write_pads(process, context, wanted, &mut report.refused)?;
    pads.sort_by_key(|p| p.record.site);
    let mut done = HashSet::new();
    let written = pads
        .chunks(BATCH)
        .try_for_each(|batch| -> Result<(), EngineError> {
            let written =
                process.patiently(|| write_text(process, batch, hold, &mut report.refused))?;
            report.longest_stop = report.longest_stop.max(written.held);
            done.extend(written.sites);
            Ok(())
        });
    // What was not written is tried again by the next attach.
    for pad in pads.into_iter().filter(|p| !done.contains(&p.record.site)) {
        match pad.replaces {
            Some(before) => process.patched.insert(pad.record.site, before),
            None => process.patched.remove(&pad.record.site),
        };
    }
    written?;
    report.sites = done.len();
    report.per_cpu = process.facts.is_some_and(|f| f.rseq.is_some());
    report.total = start.elapsed();
    Ok(report)
}

/// Whether the next try may go better: threads that were late, a tracer that only looked, a place
/// that the process itself had just taken.
pub(crate) fn may_pass(error: &EngineError) -> bool {
    match error {
        EngineError::Remote(RemoteError::Busy { .. } | RemoteError::Traced { .. }) => true,
        EngineError::Remote(RemoteError::Call { source, .. }) => {
            source.raw_os_error() == Some(libc::EEXIST)
        }
        _ => false,
    }
}

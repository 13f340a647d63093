//! Takes probes out of a process, given nothing but its memory and where its arenas lie.
//!
//! The same code serves the end of a session, the guardian after the tracer's death, and
//! `clean`; so it believes the registry in the process only as far as that can do no harm:
//! it writes nothing but bytes of files, where our jump or a torn half of it stands.

use std::ops::Range;
use std::time::Duration;

use lancet_abi::units::{Pid, RuntimeAddr, Tid};
use lancet_procs::{self as procs, Mapping};
use lancet_remote::arena::{self, Found, Header, PATCH, SiteRecord};
use lancet_remote::journal::{BorrowedThread, StubRecord};
use lancet_remote::{
    AWAY_MASK, Call, LOOK_BACK, Memory, RemoteError, StopBudget, Stopped, Thread, frames,
    has_calls_ahead, rseq, sys,
};

use crate::pages::Originals;

const PAGE: u64 = 4096;
/// Sites restored in one stop.
const BATCH: usize = 1000;

/// What became of a process's probes.
#[derive(Clone, Debug, Default)]
pub struct Restored {
    /// Sites whose bytes are the file's again.
    pub sites: usize,
    /// Sites where somebody else had written; left alone.
    pub foreign: Vec<RuntimeAddr>,
    /// Threads that were in an action when the text was restored, or whose handler will return
    /// into one: they may count one more hit.
    pub inside: Vec<Tid>,
    /// How long the process was stopped, at most.
    pub held: Duration,
    /// Bytes that stay mapped, inert.
    pub kept: u64,
}

/// One arena as read from the process.
pub(crate) struct FoundArena {
    pub(crate) start: RuntimeAddr,
    pub(crate) header: Header,
    pub(crate) sites: Vec<SiteRecord>,
}

/// Reads the arenas at these places that belong to `session` (or to any).
pub(crate) fn read_arenas(
    memory: &Memory,
    places: &[RuntimeAddr],
    session: Option<[u64; 2]>,
) -> Vec<FoundArena> {
    places
        .iter()
        .filter_map(|&start| {
            let header = arena::read_header(memory, start)?;
            if session.is_some_and(|s| s != header.session) {
                return None;
            }
            let sites = arena::read_sites(memory, start, &header).ok()?;
            Some(FoundArena {
                start,
                header,
                sites,
            })
        })
        .collect()
}

/// Whether a site still lies in file-backed code: after dlclose it may be anything.
fn is_text(mappings: &[Mapping], site: RuntimeAddr) -> bool {
    let last = site.plus(PATCH as u64 - 1);
    let at = mappings.partition_point(|m| m.end <= site);
    mappings.get(at).is_some_and(|m| {
        m.execute
            && !m.write
            && !m.shared
            && m.has_file()
            && m.contains(site)
            && (m.contains(last)
                || mappings
                    .get(at + 1)
                    .is_some_and(|n| n.execute && n.contains(last)))
    })
}

/// Threads whose next steps, or whose handler's return, lie in an action.
fn inside_actions(
    memory: &Memory,
    mappings: &[Mapping],
    stopped: &Stopped,
    arenas: &[FoundArena],
    handlers: bool,
) -> Vec<Tid> {
    let in_action = |ip: RuntimeAddr| {
        arenas.iter().any(|a| {
            ip.offset_from(a.start) < a.header.code_length
                && a.sites.iter().any(|s| s.in_action(ip))
        })
    };
    let is_inside = |thread: &Thread| {
        in_action(thread.ip())
            || handlers
                && frames::interrupted_addresses(memory, mappings, thread)
                    .into_iter()
                    .any(in_action)
    };
    stopped
        .threads()
        .iter()
        .filter(|t| is_inside(t))
        .map(|t| t.tid)
        .collect()
}

fn has_handlers(pid: Pid) -> bool {
    procs::status(pid).map_or(true, |s| s.sig_caught != 0)
}

/// Where a stub may run: the arena's own page, or all of an arena that has no registry yet.
fn in_stub(
    memory: &Memory,
    away: &BorrowedThread,
    places: &[(RuntimeAddr, u64)],
    ip: RuntimeAddr,
) -> bool {
    let covered = away
        .covered
        .as_ref()
        .is_some_and(|(at, bytes)| ip.offset_from(*at) < bytes.len() as u64);
    covered
        || places
            .iter()
            .any(|&(start, length)| match arena::read_header(memory, start) {
                Some(header) => ip.offset_from(arena::stub_page(start, header.capacity)) < PAGE,
                None => ip.offset_from(start) < length,
            })
}

/// Gives the thread that the dead tracer had sent away its place and its mask back.
///
/// The thread has run on since the tracer died: what the journal says of its registers holds
/// only while it is in the stub, and its mask is ours only where it has the value that we set.
fn give_back(
    memory: &Memory,
    stopped: &Stopped,
    away: &BorrowedThread,
    places: &[(RuntimeAddr, u64)],
) -> Result<(), RemoteError> {
    let pid = stopped.pid();
    if away.tid.0 != 0
        && let Some(thread) = stopped.threads().iter().find(|t| t.tid == away.tid)
    {
        let failed = |what| {
            move |source| RemoteError::Ptrace {
                pid,
                tid: thread.tid,
                what,
                source,
            }
        };
        let masked =
            sys::signal_mask(thread.tid).map_err(failed("PTRACE_GETSIGMASK"))? == AWAY_MASK;
        if in_stub(memory, away, places, thread.ip()) {
            let mut around = [0; 1024];
            let length = memory.read_some(thread.ip().minus(LOOK_BACK as u64), &mut around);
            if has_calls_ahead(&around[..length]) {
                // What it opens it also closes.
                return Err(RemoteError::Busy {
                    pid,
                    tid: thread.tid,
                    budget_us: 0,
                });
            }
            sys::set_registers(thread.tid, &away.registers).map_err(failed("PTRACE_SETREGS"))?;
        }
        if masked {
            sys::set_signal_mask(thread.tid, away.mask).map_err(failed("PTRACE_SETSIGMASK"))?;
        }
    }
    if let Some((at, bytes)) = &away.covered {
        memory.write_text(stopped.any(), *at, bytes)?;
    }
    Ok(())
}

/// Whether a mapping is what an arena's code is before it has a header.
pub(crate) fn is_bare(
    memory: &Memory,
    mappings: &[Mapping],
    (start, length): (RuntimeAddr, u64),
) -> bool {
    let is_code = |m: &Mapping| m.execute && !m.write && !m.shared && m.inode == 0;
    mappings
        .iter()
        .any(|m| m.start == start && m.end.offset_from(start) == length && is_code(m))
        && arena::read_header(memory, start).is_none()
}

/// Gives arenas that were mapped but not registered when their tracer died a registry, so that
/// they are found and unmapped later like all others.
pub(crate) fn register_orphans(
    memory: &Memory,
    mappings: &[Mapping],
    places: &[(RuntimeAddr, u64)],
    session: [u64; 2],
) -> Result<(), RemoteError> {
    for &(start, length) in places {
        if is_bare(memory, mappings, (start, length)) {
            let header = Header {
                session,
                code_length: length,
                region: (start.plus(length), 0),
                mode: RuntimeAddr(0),
                private_length: 0,
                guardian: (0, 0),
                region_name: 0,
                sites: 0,
                capacity: 0,
            };
            arena::write_header(memory, start, &header)?;
        }
    }
    Ok(())
}

/// Restores the text of one process. Tries once; [`RemoteError::Busy`] means: again later.
///
/// `stub` is the journal's record of a thread that was sent away; its thread is given back
/// first. `places` are arenas to look at, with their lengths.
pub(crate) fn restore(
    pid: Pid,
    memory: &Memory,
    places: &[(RuntimeAddr, u64)],
    session: Option<[u64; 2]>,
    stub: Option<&StubRecord>,
) -> Result<Restored, RemoteError> {
    if let Some(away) = stub.and_then(StubRecord::read) {
        let stopped = Stopped::all(pid, StopBudget::default())?;
        give_back(memory, &stopped, &away, places)?;
        // Its registers are set anew: they must be read again, so this stop ends here.
        drop(stopped);
        if let Some(stub) = stub {
            stub.clear();
        }
    }
    let mappings = procs::mappings(pid)?;
    if let Some(session) = session {
        register_orphans(memory, &mappings, places, session)?;
    }
    let starts: Vec<RuntimeAddr> = places.iter().map(|p| p.0).collect();
    let mut arenas = read_arenas(memory, &starts, session);
    // Pages of sites that an earlier try restored count too: it may have ended before this.
    let pages = arenas
        .iter()
        .flat_map(|found| &found.sites)
        .flat_map(|site| {
            [site.site, site.site.plus(PATCH as u64 - 1)].map(|at| at.0 & !(PAGE - 1))
        });
    let originals = Originals::read(pid, &mappings, pages);
    let mut result = Restored::default();
    for found in &mut arenas {
        result.kept += found.header.code_length.max(found.header.region.1);
        let mut from = 0;
        while found.sites[from..].iter().any(|s| s.live) {
            let to = (from + BATCH).min(found.sites.len());
            let stopped = Stopped::all(pid, StopBudget::default())?;
            restore_sites(memory, &stopped, found, from..to, &mut result)?;
            result.held = result.held.max(stopped.held_for());
            from = to;
        }
    }
    let stopped = Stopped::all(pid, StopBudget::default())?;
    let mappings = procs::mappings(pid)?;
    result.inside = inside_actions(memory, &mappings, &stopped, &arenas, has_handlers(pid));
    if let Some(first) = arenas.first() {
        let at = arena::stub_page(first.start, first.header.capacity);
        originals.give_back(memory, &mappings, &stopped, at, stub)?;
    }
    result.held = result.held.max(stopped.held_for());
    Ok(result)
}

/// The jumps that other records have for a site: its pad was made anew for a consumer that came
/// later, and who did it may have died before the first record was retired.
fn other_jumps(sites: &[SiteRecord], of: &SiteRecord) -> Vec<[u8; PATCH]> {
    let same = sites.iter().filter(|s| s.site == of.site);
    same.map(|s| s.new).filter(|new| *new != of.new).collect()
}

/// Restores some of an arena's sites, and notes that it is done.
fn restore_sites(
    memory: &Memory,
    stopped: &Stopped,
    found: &mut FoundArena,
    range: Range<usize>,
    result: &mut Restored,
) -> Result<(), RemoteError> {
    let mappings = procs::mappings(stopped.pid())?;
    for index in range.clone() {
        let site = found.sites[index];
        if !site.live {
            continue;
        }
        if is_text(&mappings, site.site) {
            let mut now = [0; PATCH];
            memory.read(site.site, &mut now)?;
            let judged = match site.judge(&now, &[]) {
                Found::Foreign => site.judge(&now, &other_jumps(&found.sites, &site)),
                known => known,
            };
            match judged {
                Found::File => {}
                Found::Ours => memory.write_text(stopped.any(), site.site, &site.old)?,
                Found::UnderTrap => {
                    memory.write_text(stopped.any(), site.site.plus(1), &site.old[1..])?;
                }
                Found::Foreign => {
                    result.foreign.push(site.site);
                    continue;
                }
            }
            result.sites += 1;
        }
        found.sites[index].live = false;
    }
    let first = range.start as u32;
    arena::write_sites(memory, found.start, first, &found.sites[range])
}

/// Waits until no thread is in an action any more. Returns those that did not leave in time.
pub(crate) fn quiesce(
    pid: Pid,
    memory: &Memory,
    places: &[(RuntimeAddr, u64)],
    session: Option<[u64; 2]>,
) -> Result<Vec<Tid>, RemoteError> {
    let starts: Vec<RuntimeAddr> = places.iter().map(|p| p.0).collect();
    let handlers = has_handlers(pid);
    let mut inside = Vec::new();
    for attempt in 0..20u32 {
        std::thread::sleep(Duration::from_micros(200 * u64::from(attempt + 1)));
        let stopped = match Stopped::all(pid, StopBudget::default()) {
            Ok(stopped) => stopped,
            Err(RemoteError::Busy { .. }) => continue,
            Err(error) => return Err(error),
        };
        let mappings = procs::mappings(pid)?;
        let arenas = read_arenas(memory, &starts, session);
        inside = inside_actions(memory, &mappings, &stopped, &arenas, handlers);
        drop(stopped);
        if inside.is_empty() {
            break;
        }
    }
    Ok(inside)
}

/// Calls that unmap the arenas among `places` which nothing refers to any more, for a process
/// that is stopped. What is still referred to is left out.
pub(crate) fn unmapping_calls(
    memory: &Memory,
    mappings: &[Mapping],
    stopped: &Stopped,
    arenas: &[FoundArena],
) -> Vec<Call> {
    if arenas.is_empty() {
        return Vec::new();
    }
    let addresses = addresses(memory, mappings, stopped);
    let code = |found: &FoundArena, ip: RuntimeAddr| {
        ip.offset_from(found.start) < found.header.code_length
    };
    let (referred, free): (Vec<&FoundArena>, Vec<&FoundArena>) = arenas.iter().partition(|found| {
        found.sites.iter().any(|s| s.live)
            || addresses.iter().any(|&ip| code(found, ip))
            || stopped
                .threads()
                .iter()
                .any(|thread| forget_descriptor(memory, thread, &|ip| code(found, ip)))
    });
    // Arenas of one session share the page of the first.
    let mode_is_used = |mode| referred.iter().any(|found| found.header.mode == mode);
    let mut calls = Vec::new();
    for found in free {
        let (region, length) = found.header.region;
        // The header tells where parts were to be mapped; whether they were, the mappings tell. In
        // the place of one that was refused may lie memory of the target itself.
        let (start, mode) = (found.start, found.header.mode);
        let code_end = start.plus(found.header.code_length);
        let region_end = region.plus(length);
        let has_code = mappings
            .iter()
            .any(|m| m.execute && m.inode == 0 && m.start <= start && code_end <= m.end);
        let is_region = |m: &Mapping| {
            let ours = m.path.windows(6).any(|part| part == b"lancet");
            m.shared && ours && (m.start, m.end) == (region, region_end)
        };
        let has_region = length > 0 && region == code_end && mappings.iter().any(is_region);
        let is_page = |m: &Mapping| {
            let end = mode.plus(found.header.private_length);
            m.write && !m.shared && m.inode == 0 && (m.start, m.end) == (mode, end)
        };
        let has_page =
            has_region && mode == region_end && !mode_is_used(mode) && mappings.iter().any(is_page);
        if !has_code {
            continue;
        }
        // In one call, since the parts lie one behind the other: who is killed between two would
        // leave memory behind whose registry is gone.
        let mut whole = found.header.code_length;
        if has_region {
            whole += length;
        }
        if has_page {
            whole += found.header.private_length;
        }
        calls.push(Call::new("munmap", libc::SYS_munmap, &[start.0, whole]));
    }
    calls
}

/// Where the threads go on, and where their handlers return to.
fn addresses(memory: &Memory, mappings: &[Mapping], stopped: &Stopped) -> Vec<RuntimeAddr> {
    let handlers = has_handlers(stopped.pid());
    stopped
        .threads()
        .iter()
        .flat_map(|thread| {
            let interrupted = if handlers {
                frames::interrupted_addresses(memory, mappings, thread)
            } else {
                Vec::new()
            };
            interrupted.into_iter().chain([thread.ip()])
        })
        .collect()
}

/// Clears a thread's pointer to a finished rseq section of ours, as the kernel does whenever it
/// finds the thread outside. Returns whether the pointer stays.
fn forget_descriptor(
    memory: &Memory,
    thread: &Thread,
    ours: &impl Fn(RuntimeAddr) -> bool,
) -> bool {
    let descriptor = rseq::active_descriptor(memory, thread);
    descriptor != 0 && ours(RuntimeAddr(descriptor)) && !rseq::clear_descriptor(memory, thread)
}

/// Restores some sites of a process and nothing else. Tries once.
pub(crate) fn restore_only(
    pid: Pid,
    memory: &Memory,
    places: &[(RuntimeAddr, u64)],
    sites: &[RuntimeAddr],
) -> Result<Restored, RemoteError> {
    let stopped = Stopped::all(pid, StopBudget::default())?;
    let mut result = Restored::default();
    let starts: Vec<RuntimeAddr> = places.iter().map(|p| p.0).collect();
    for mut found in read_arenas(memory, &starts, None) {
        for index in 0..found.sites.len() {
            if sites.contains(&found.sites[index].site) {
                restore_sites(memory, &stopped, &mut found, index..index + 1, &mut result)?;
            }
        }
    }
    Ok(result)
}

//! Takes probes out of a process, given nothing but its memory and where its arenas lie.
//!
//! The same code serves the end of a session, the guardian after the tracer's death, and
//! `clean`; so it believes the registry in the process only as far as that can do no harm:
//! it writes nothing but bytes of files, where our jump or a torn half of it stands.

use std::time::Duration;

use lancet_abi::units::{Pid, RuntimeAddr, Tid};
use lancet_procs::{self as procs, Mapping};
use lancet_remote::arena::{self, Found, Header, PATCH, SiteRecord};
use lancet_remote::journal::{BorrowedThread, StubRecord};
use lancet_remote::{
    AWAY_MASK, Borrowed, Call, LOOK_BACK, Memory, RemoteError, StopBudget, Stopped, Thread, frames,
    has_calls_ahead, rseq, sys,
};

const PAGE: u64 = 4096;

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

/// Gives arenas that were mapped but not registered when their tracer died a registry, so that
/// they are found and unmapped later like all others.
pub(crate) fn register_orphans(
    memory: &Memory,
    mappings: &[Mapping],
    places: &[(RuntimeAddr, u64)],
    session: [u64; 2],
) -> Result<(), RemoteError> {
    for &(start, length) in places {
        let is_ours = mappings.iter().any(|m| {
            (m.start, m.end) == (start, start.plus(length))
                && m.execute
                && !m.write
                && !m.shared
                && m.inode == 0
        });
        if is_ours && arena::read_header(memory, start).is_none() {
            let header = Header {
                session,
                code_length: length,
                region: (start.plus(length), 0),
                mode: RuntimeAddr(0),
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
    let handlers = has_handlers(pid);
    let stopped = Stopped::all(pid, StopBudget::default())?;
    let mappings = procs::mappings(pid)?;
    if let Some(away) = stub.and_then(StubRecord::read) {
        give_back(memory, &stopped, &away, places)?;
        // Its registers are set anew: they must be read again, so this stop ends here.
        drop(stopped);
        if let Some(stub) = stub {
            stub.clear();
        }
        return restore(pid, memory, places, session, None);
    }
    if let Some(session) = session {
        register_orphans(memory, &mappings, places, session)?;
    }
    let starts: Vec<RuntimeAddr> = places.iter().map(|p| p.0).collect();
    let arenas = read_arenas(memory, &starts, session);
    let mut result = Restored::default();
    let mut pages = Vec::new();
    for found in &arenas {
        let span = found.header.code_length.max(found.header.region.1);
        result.kept += span;
        restore_sites(memory, &mappings, &stopped, found, &mut result, &mut pages)?;
    }
    result.inside = inside_actions(memory, &mappings, &stopped, &arenas, handlers);
    if let Some(first) = arenas.first() {
        give_pages_back(memory, &mappings, &stopped, first, &mut pages, stub)?;
    }
    result.held = stopped.held_for();
    Ok(result)
}

fn restore_sites(
    memory: &Memory,
    mappings: &[Mapping],
    stopped: &Stopped,
    found: &FoundArena,
    result: &mut Restored,
    pages: &mut Vec<u64>,
) -> Result<(), RemoteError> {
    for (index, site) in found.sites.iter().enumerate() {
        if !site.live {
            continue;
        }
        if is_text(mappings, site.site) {
            let mut now = [0; PATCH];
            memory.read(site.site, &mut now)?;
            match site.judge(&now) {
                Found::File => result.sites += 1,
                Found::Ours => {
                    memory.write_text(stopped.any(), site.site, &site.old)?;
                    result.sites += 1;
                }
                Found::UnderTrap => {
                    let rest = site.site.plus(1);
                    memory.write_text(stopped.any(), rest, &site.old[1..])?;
                    result.sites += 1;
                }
                Found::Foreign => {
                    result.foreign.push(site.site);
                    continue;
                }
            }
            pages.push(site.site.0 & !(PAGE - 1));
            pages.push(site.site.plus(PATCH as u64 - 1).0 & !(PAGE - 1));
        }
        arena::set_live(memory, found.start, index as u32, false)?;
    }
    Ok(())
}

/// Drops private copies of text pages that equal their file again, from a stub in the arena.
fn give_pages_back(
    memory: &Memory,
    mappings: &[Mapping],
    stopped: &Stopped,
    arena: &FoundArena,
    pages: &mut Vec<u64>,
    stub: Option<&StubRecord>,
) -> Result<(), RemoteError> {
    pages.sort_unstable();
    pages.dedup();
    pages.retain(|&page| equals_file(memory, mappings, RuntimeAddr(page)));
    if pages.is_empty() {
        return Ok(());
    }
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for &page in pages.iter() {
        match ranges.last_mut() {
            Some((_, end)) if *end == page => *end += PAGE,
            _ => ranges.push((page, page + PAGE)),
        }
    }
    let ranges = merge_over_clean(memory.pid(), mappings, ranges);
    let at = arena::stub_page(arena.start, arena.header.capacity);
    let spare = StubRecord::default();
    let mut borrowed = Borrowed::from(stopped, memory, stub.unwrap_or(&spare))?;
    for chunk in ranges.chunks(lancet_remote::MOST_CALLS) {
        let calls: Vec<Call> = chunk
            .iter()
            .map(|&(start, end)| {
                Call::new(
                    "madvise",
                    libc::SYS_madvise,
                    &[start, end - start, libc::MADV_DONTNEED as u64],
                )
            })
            .collect();
        borrowed.run(at, &calls)?;
    }
    borrowed.give_back()
}

/// Whether a page of a private file mapping holds what its file holds.
pub(crate) fn equals_file(memory: &Memory, mappings: &[Mapping], page: RuntimeAddr) -> bool {
    let Some(mapping) = mappings.iter().find(|m| m.contains(page)) else {
        return false;
    };
    let Ok(now) = memory.bytes(page, PAGE as usize) else {
        return false;
    };
    let Some(offset) = mapping.position_of(page) else {
        return false;
    };
    file_page(memory.pid(), mapping, offset.0).is_some_and(|file| file == now)
}

/// One page of a mapping's file, zeros behind its end. Through the mapping itself where that is
/// allowed: a path may name another file by now.
fn file_page(pid: Pid, mapping: &Mapping, offset: u64) -> Option<Vec<u8>> {
    use std::os::unix::fs::FileExt;
    let exact = format!(
        "/proc/{pid}/map_files/{:x}-{:x}",
        mapping.start.0, mapping.end.0
    );
    let file = std::fs::File::open(exact).ok().or_else(|| {
        let path = std::str::from_utf8(&mapping.path).ok()?;
        let file = lancet_remote::open_as_seen(pid, std::path::Path::new(path)).ok()?;
        let id = procs::shown_id(&file).ok()?;
        (id.dev == mapping.dev && id.inode == mapping.inode).then_some(file)
    })?;
    let mut bytes = vec![0; PAGE as usize];
    let mut done = 0;
    while done < bytes.len() {
        match file.read_at(&mut bytes[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(_) => return None,
        }
    }
    Some(bytes)
}

/// Joins ranges of one mapping when no page between them is a private copy: dropping a page
/// that shows the file costs one soft fault, a system call each costs more.
fn merge_over_clean(pid: Pid, mappings: &[Mapping], ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    use std::os::unix::fs::FileExt;
    const PRESENT: u64 = 1 << 63;
    const SWAPPED: u64 = 1 << 62;
    const FILE: u64 = 1 << 61;
    let Ok(pagemap) = std::fs::File::open(format!("/proc/{pid}/pagemap")) else {
        return ranges;
    };
    let clean = |from: u64, to: u64| {
        let mut bytes = vec![0u8; ((to - from) / PAGE * 8) as usize];
        pagemap.read_exact_at(&mut bytes, from / PAGE * 8).is_ok()
            && bytes.chunks_exact(8).all(|entry| {
                let mut word = [0; 8];
                word.copy_from_slice(entry);
                let word = u64::from_le_bytes(word);
                word & SWAPPED == 0 && (word & PRESENT == 0 || word & FILE != 0)
            })
    };
    let mut merged: Vec<(u64, u64)> = Vec::new();
    for (start, end) in ranges {
        let joins = merged.last().is_some_and(|&(_, last)| {
            mappings
                .iter()
                .any(|m| m.contains(RuntimeAddr(last - 1)) && m.contains(RuntimeAddr(start)))
                && clean(last, start)
        });
        match merged.last_mut() {
            Some((_, last)) if joins => *last = end,
            _ => merged.push((start, end)),
        }
    }
    merged
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
        let owned = |start: RuntimeAddr, end: RuntimeAddr, code: bool| {
            mappings
                .iter()
                .any(|m| m.start <= start && end <= m.end && m.execute == code && (code || m.write))
        };
        let code_end = found.start.plus(found.header.code_length);
        if !owned(found.start, code_end, true) {
            continue;
        }
        calls.push(Call::new(
            "munmap",
            libc::SYS_munmap,
            &[found.start.0, found.header.code_length],
        ));
        if length > 0 && owned(region, region.plus(length), false) && region == code_end {
            calls.push(Call::new("munmap", libc::SYS_munmap, &[region.0, length]));
        }
        if found.header.mode == region.plus(length)
            && !mode_is_used(found.header.mode)
            && owned(found.header.mode, found.header.mode.plus(PAGE), false)
        {
            calls.push(Call::new(
                "munmap",
                libc::SYS_munmap,
                &[found.header.mode.0, PAGE],
            ));
        }
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

/// Restores some sites of a process and nothing else.
pub(crate) fn restore_only(
    pid: Pid,
    memory: &Memory,
    places: &[(RuntimeAddr, u64)],
    sites: &[RuntimeAddr],
) -> Result<(), RemoteError> {
    let stopped = Stopped::all(pid, StopBudget::default())?;
    let mappings = procs::mappings(pid)?;
    let starts: Vec<RuntimeAddr> = places.iter().map(|p| p.0).collect();
    for mut found in read_arenas(memory, &starts, None) {
        for site in &mut found.sites {
            site.live &= sites.contains(&site.site);
        }
        let mut ignored = Restored::default();
        let mut pages = Vec::new();
        restore_sites(
            memory,
            &mappings,
            &stopped,
            &found,
            &mut ignored,
            &mut pages,
        )?;
    }
    Ok(())
}

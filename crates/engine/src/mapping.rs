//! Maps the arenas of a process: the first of the two stops of attaching.

use std::ops::Range;
use std::time::Duration;

use lancet_abi::units::{Pid, RuntimeAddr};
use lancet_procs::{self as procs, Mapping};
use lancet_remote::arena::{self, Header};
use lancet_remote::{Argument, Borrowed, Call, RemoteError, Stopped, checked, slack};

use crate::attach::{Context, Hold};
use crate::catalog::Instance;
use crate::error::EngineError;
use crate::facts::facts;
use crate::leftovers;
use crate::process::{Arena, Process};
use crate::undo;

const PAGE: u64 = 4096;
/// Room kept for one pad. Most take half of it.
const PAD_ROOM: u64 = 512;
const ACTION_ROOM: u64 = 512;

/// Groups text that one arena can reach.
fn clusters(instances: &[Instance]) -> Vec<Range<RuntimeAddr>> {
    const WIDEST: u64 = 1 << 30;
    let mut spans: Vec<Range<RuntimeAddr>> = instances.iter().map(|i| i.span.clone()).collect();
    spans.sort_by_key(|s| s.start);
    let mut groups: Vec<Range<RuntimeAddr>> = Vec::new();
    for span in spans {
        match groups.last_mut() {
            Some(group) if span.end.offset_from(group.start) < WIDEST => {
                group.end = group.end.max(span.end);
            }
            _ => groups.push(span),
        }
    }
    groups
}

/// Maps the arenas that are missing. The first of the two stops.
pub(crate) fn map_arenas(
    process: &mut Process,
    context: &Context<'_>,
    wanted: u32,
    hold: Hold,
) -> Result<Duration, EngineError> {
    let capacity = wanted.next_power_of_two().max(64);
    let groups: Vec<Range<RuntimeAddr>> = {
        let missing: Vec<Instance> = context
            .instances
            .iter()
            .filter(|i| process.arena_for(i).is_none())
            .cloned()
            .collect();
        clusters(&missing)
    };
    if groups.is_empty() && process.facts.is_some() {
        return Ok(Duration::ZERO);
    }
    let region_length = context.domain.file.length();
    let pads = PAD_ROOM + ACTION_ROOM;
    let code_length =
        (arena::overhead(capacity) + u64::from(wanted.max(16)) * pads).next_multiple_of(PAGE);
    let total = code_length + region_length + PAGE;

    let stopped = hold.stop(process.pid)?;
    process.check_identity()?;
    let mut mappings = procs::mappings(process.pid)?;
    let mut facts = facts(process, &stopped, hold);
    if !context.certain {
        facts.rseq = None;
    }
    process.facts = Some(facts);
    let room = slack::find(&process.memory, &mappings).ok_or(RemoteError::NoThread {
        pid: process.pid,
        why: "no executable segment and no vdso has 256 unused bytes",
    })?;
    // An attempt before this one may have been given up after its mapping was made.
    undo::register_orphans(
        &process.memory,
        &mappings,
        &process.record().arenas(),
        context.session,
    )?;
    let leftovers = leftovers(process, &mappings);
    for group in groups {
        let start = arena::find_gap(&mappings, group.start, group.end, total).ok_or_else(|| {
            EngineError::NoRoom {
                pid: process.pid,
                file: file_at(&mappings, group.start),
                bytes: total,
            }
        })?;
        let arena = Arena {
            start,
            code_length,
            region: start.plus(code_length),
            mode: process
                .arenas
                .first()
                .map_or(start.plus(code_length + region_length), |a| a.mode),
            capacity,
            sites: 0,
            next_pad: arena::overhead(capacity),
            reach: group,
        };
        if !process.record().add_arena(start, code_length) {
            return Err(EngineError::Usage("too many arenas in one process"));
        }
        map_one(
            process, context, &stopped, &mappings, &leftovers, &room, arena,
        )?;
        mappings = procs::mappings(process.pid)?;
    }
    Ok(stopped.held_for())
}

fn file_at(mappings: &[Mapping], address: RuntimeAddr) -> String {
    mappings
        .iter()
        .find(|m| m.contains(address))
        .map(|m| String::from_utf8_lossy(&m.path).into_owned())
        .unwrap_or_default()
}

/// Arenas of sessions that have ended: inert, and unmapped when nothing refers to them.
fn leftovers(process: &Process, mappings: &[Mapping]) -> Vec<undo::FoundArena> {
    let places: Vec<RuntimeAddr> = arena::find(&process.memory, mappings)
        .into_iter()
        .map(|(start, _)| start)
        .filter(|start| process.arenas.iter().all(|a| a.start != *start))
        .collect();
    undo::read_arenas(&process.memory, &places, None)
        .into_iter()
        // An arena of a session that lives may be about to get its sites.
        .filter(|found| {
            found.sites.iter().all(|s| !s.live) && !leftovers::in_session(&found.header)
        })
        .collect()
}

#[allow(clippy::too_many_arguments)]
fn map_one(
    process: &mut Process,
    context: &Context<'_>,
    stopped: &Stopped,
    mappings: &[Mapping],
    leftovers: &[undo::FoundArena],
    room: &slack::Slack,
    arena: Arena,
) -> Result<(), EngineError> {
    let pid = process.pid;
    let mut unmapping = if process.arenas.is_empty() {
        undo::unmapping_calls(&process.memory, mappings, stopped, leftovers)
    } else {
        Vec::new()
    };
    let record = process.record();
    let mut borrowed = Borrowed::from(stopped, &process.memory, &record.stub)?;
    let code = Call::new(
        "mmap of the probes' code",
        libc::SYS_mmap,
        &[
            arena.start.0,
            arena.code_length,
            (libc::PROT_READ | libc::PROT_EXEC) as u64,
            (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE) as u64,
            u64::MAX,
            0,
        ],
    );
    let result = borrowed.run_in_slack(room.address, std::slice::from_ref(&code))?[0];
    if let Err(error) = checked(pid, &code, result) {
        record.drop_last_arena();
        return Err(error.into());
    }
    let stub = arena::stub_page(arena.start, arena.capacity);
    let region_length = context.domain.file.length();
    // From here on whoever finds the arena knows it; what of it is not mapped yet is told by the
    // process's mappings.
    arena::write_header(
        &process.memory,
        arena.start,
        &Header {
            session: context.session,
            code_length: arena.code_length,
            region: (arena.region, region_length),
            mode: arena.mode,
            guardian: context.guardian,
            region_name: context.domain.file.name(),
            sites: 0,
            capacity: arena.capacity,
        },
    )?;
    // The path lies in the stub's page, behind the longest stub.
    let path = stub.plus(2048);
    process
        .memory
        .write(path, format!("{}\0", context.domain.file.path()).as_bytes())?;
    process.memory.write(stub.plus(2560), b"lancet\0")?;
    let first_arena = process.arenas.is_empty();
    let mapped = map_rest(
        &mut borrowed,
        pid,
        &arena,
        stub,
        path,
        region_length,
        first_arena,
    );
    if let Err(error) = mapped {
        let undo = Call::new(
            "munmap",
            libc::SYS_munmap,
            &[arena.region.0, region_length + PAGE],
        );
        let _ = borrowed.run(stub, &[undo]);
        let code = Call::new(
            "munmap",
            libc::SYS_munmap,
            &[arena.start.0, arena.code_length],
        );
        let _ = borrowed.run_in_slack(room.address, &[code]);
        record.drop_last_arena();
        return Err(error);
    }
    // Not where a probe or somebody else's breakpoint lies in the same page.
    let page = RuntimeAddr(room.address.0 & !(PAGE - 1));
    if room.of_file && undo::equals_file(&process.memory, mappings, page) {
        unmapping.push(Call::new(
            "madvise",
            libc::SYS_madvise,
            &[page.0, PAGE, libc::MADV_DONTNEED as u64],
        ));
    }
    // Names are for people who read the map; kernels without them answer EINVAL.
    for (start, length) in [
        (arena.start.0, arena.code_length),
        (arena.mode.0, if first_arena { PAGE } else { 0 }),
    ] {
        if length != 0 {
            unmapping.push(Call::new(
                "prctl",
                libc::SYS_prctl,
                &[libc::PR_SET_VMA as u64, 0, start, length, stub.plus(2560).0],
            ));
        }
    }
    for chunk in unmapping.chunks(lancet_remote::MOST_CALLS) {
        borrowed.run(stub, chunk)?;
    }
    borrowed.give_back()?;
    process.arenas.push(arena);
    Ok(())
}

fn map_rest(
    borrowed: &mut Borrowed<'_>,
    pid: Pid,
    arena: &Arena,
    stub: RuntimeAddr,
    path: RuntimeAddr,
    region_length: u64,
    first_arena: bool,
) -> Result<(), EngineError> {
    let open = Call::new(
        "opening the region",
        libc::SYS_openat,
        &[
            libc::AT_FDCWD as u64,
            path.0,
            (libc::O_RDWR | libc::O_CLOEXEC | libc::O_NOFOLLOW) as u64,
            0,
        ],
    );
    let data = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let mut map = Call::new(
        "mmap of the region",
        libc::SYS_mmap,
        &[
            arena.region.0,
            region_length,
            data,
            (libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE) as u64,
            0,
            0,
        ],
    );
    map.arguments[4] = Argument::Result(0);
    let mut close = Call::new("close of the region", libc::SYS_close, &[0]);
    close.arguments[0] = Argument::Result(0);
    let mut calls = vec![open, map, close];
    if first_arena {
        calls.push(Call::new(
            "mmap of the private page",
            libc::SYS_mmap,
            &[
                arena.mode.0,
                PAGE,
                data,
                (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE) as u64,
                u64::MAX,
                0,
            ],
        ));
        calls.push(Call::new(
            "madvise(MADV_WIPEONFORK)",
            libc::SYS_madvise,
            &[arena.mode.0, PAGE, libc::MADV_WIPEONFORK as u64],
        ));
    }
    let results = borrowed.run(stub, &calls)?;
    for (call, result) in calls.iter().zip(results) {
        checked(pid, call, result)?;
    }
    Ok(())
}

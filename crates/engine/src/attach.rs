//! Puts probes into one process.
//!
//! Two stops, both within the budget: in the first, one thread maps the arenas; between them the
//! pads are compiled and written while the process runs; in the second the text is written.

use std::cell::Cell;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use lancet_abi::private;
use lancet_abi::units::{Pid, RuntimeAddr};
use lancet_isa::Plan;
use lancet_jit::{Action, Env, Form, Rseq};
use lancet_procs::{self as procs, Mapping};
use lancet_remote::arena::{self, Header, SiteRecord};
use lancet_remote::{
    Argument, Borrowed, Call, RemoteError, StopBudget, Stopped, checked, frames, rseq, slack,
};

use crate::catalog::Instance;
use crate::domain::Domain;
use crate::error::{EngineError, Refused};
use crate::leftovers;
use crate::patience::Patience;
use crate::process::{Arena, Facts, Process};
use crate::undo;

const PAGE: u64 = 4096;
/// Sites written in one stop.
const BATCH: usize = 1000;
/// Room kept for one pad. Most take half of it.
const PAD_ROOM: u64 = 512;
const ACTION_ROOM: u64 = 512;

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
    fn is_sentinel(&self) -> bool {
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
    fn stop(self, pid: Pid) -> Result<Stopped, RemoteError> {
        match self {
            Self::All => Stopped::all(pid, StopBudget::default()),
            Self::Held(tid, _) => Stopped::adopt(pid, tid),
        }
    }
}

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

/// What all threads have in common. Called while they stand still.
fn facts(process: &Process, stopped: &Stopped, hold: Hold) -> Facts {
    if let Hold::Held(_, rseq) = hold {
        // The loader has not set the thread up yet; the libc's own files say where it will.
        return Facts { rseq, tid: None };
    }
    let mut offset = None;
    let mut certain = true;
    for thread in stopped.threads() {
        if let rseq::Registration::At(found) = rseq::registration(&process.memory, thread, None) {
            certain &= offset.is_none_or(|o| o == found);
            offset = Some(found);
        }
    }
    certain &= stopped.threads().iter().all(|thread| {
        rseq::registration(&process.memory, thread, offset) != rseq::Registration::Uncertain
    });
    Facts {
        rseq: offset.filter(|_| certain),
        tid: tid_offset(process, stopped),
    }
}

/// The offset of the thread id in the libc's thread block, if it holds on every thread.
fn tid_offset(process: &Process, stopped: &Stopped) -> Option<i32> {
    const GLIBC: i32 = 0x2d0;
    const MUSL: i32 = 0x30;
    [GLIBC, MUSL].into_iter().find(|&offset| {
        stopped.threads().iter().all(|thread| {
            let innermost = if process.nested_pids {
                procs::thread_status(thread.pid, thread.tid)
                    .ok()
                    .and_then(|s| s.nspid.last().copied())
            } else {
                Some(thread.tid.0)
            };
            let at = thread
                .registers
                .fs_base
                .wrapping_add_signed(i64::from(offset));
            thread.registers.fs_base != 0
                && innermost.is_some_and(|tid| {
                    process
                        .memory
                        .word32(RuntimeAddr(at))
                        .is_ok_and(|w| w == tid as u32)
                })
        })
    })
}

/// Everything that attaching needs to know of its session.
pub(crate) struct Context<'a> {
    pub(crate) domain: &'a Domain,
    pub(crate) session: [u64; 2],
    pub(crate) guardian: (i32, u64),
    pub(crate) layout: &'a lancet_abi::Layout,
    pub(crate) instances: &'a [Instance],
    pub(crate) binaries: &'a [Arc<crate::catalog::Binary>],
    /// Whether all calls are watched that make children on their parent's thread block.
    pub(crate) certain: bool,
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

struct Pad {
    sentinel: bool,
    arena: usize,
    record: SiteRecord,
    /// Window offset of each moved instruction and its address in the copy.
    moves: Vec<(u8, RuntimeAddr)>,
}

/// Compiles the pads and writes them and their records, while the process runs.
fn write_pads(
    process: &mut Process,
    context: &Context<'_>,
    wanted: &[Wanted<'_>],
    refused: &mut Vec<Refused>,
) -> Result<Vec<Pad>, EngineError> {
    let facts = process.facts.unwrap_or(Facts {
        rseq: None,
        tid: None,
    });
    let per_cpu = Cell::new(facts.rseq);
    // Sentinels come first: where one of them has no place, nothing is per CPU.
    let (sentinels, others): (Vec<_>, Vec<_>) = wanted.iter().partition(|w| w.is_sentinel());
    let mut pads = Vec::new();
    let mut images: HashMap<usize, (u64, Vec<u8>)> = HashMap::new();
    for want in sentinels.into_iter().chain(others) {
        let binary = &context.binaries[want.binary];
        let places: Vec<&Instance> = context
            .instances
            .iter()
            .filter(|i| Arc::ptr_eq(&i.binary, binary))
            .filter(|i| {
                let at = RuntimeAddr(want.plan.site().0.wrapping_add(i.bias));
                i.span.contains(&at)
            })
            .collect();
        for instance in places {
            let site = RuntimeAddr(want.plan.site().0.wrapping_add(instance.bias));
            if process.patched.contains_key(&site) {
                continue;
            }
            let silent = want.is_sentinel() && want.actions.len() == 1;
            let mut refuse = |reason: &'static str, message: String| {
                if want.is_sentinel() {
                    per_cpu.set(None);
                }
                if silent {
                    return;
                }
                refused.push(Refused {
                    probe: want.name.to_owned(),
                    pid: Some(process.pid),
                    reason,
                    message,
                });
            };
            if want.plan.has_call() && process.shadow_stack {
                refuse(
                    "call under shadow stack",
                    "the moved bytes hold a call and the process has a shadow stack".into(),
                );
                continue;
            }
            if let Some(other) = process.overlapping(site, want.plan.window_len()) {
                refuse(
                    "overlaps another probe",
                    format!(
                        "a jump at {site} would overwrite bytes that belong to the probe at {other}"
                    ),
                );
                continue;
            }
            let now = process.memory.bytes(site, want.plan.original().len())?;
            if now != want.plan.original() {
                refuse(
                    "foreign bytes",
                    format!(
                        "the bytes at {site} are not those of the file: a breakpoint, a kernel uprobe or another tool's hook is there; remove it first"
                    ),
                );
                continue;
            }
            let Some(index) = process.arena_for(instance) else {
                refuse("out of reach", format!("no arena reaches {site}"));
                continue;
            };
            let arena = &mut process.arenas[index];
            let (base, image) = images.entry(index).or_insert((arena.next_pad, Vec::new()));
            let at = arena.start.plus(*base + image.len() as u64);
            let env = Env {
                rseq: per_cpu.get().map(|area_from_fs| Rseq {
                    area_from_fs,
                    signature: rseq::SIGNATURE,
                }),
                tid_from_fs: facts.tid,
                mode: arena.mode,
                region: arena.region,
                layout: context.layout.clone(),
            };
            let form = if want.lock_only {
                Form::LockOnly
            } else {
                Form::Fused
            };
            match compile(want, &env, form, at, site, instance.bias) {
                Ok((bytes, mut record, moves)) => {
                    let room = arena.code_length - (*base + image.len() as u64);
                    if bytes.len() as u64 > room || arena.sites + 1 > arena.capacity {
                        refuse(
                            "no room",
                            "the room for probes in this process is used up".into(),
                        );
                        continue;
                    }
                    record.site = site;
                    image.extend_from_slice(&bytes);
                    image.resize(image.len().next_multiple_of(32), 0xcc);
                    process.patched.insert(site, want.plan.window_len());
                    arena.sites += 1;
                    pads.push(Pad {
                        sentinel: want.is_sentinel(),
                        arena: index,
                        record,
                        moves,
                    });
                }
                Err((reason, message)) => refuse(reason, message),
            }
        }
    }
    process.facts = Some(Facts {
        rseq: per_cpu.get(),
        ..facts
    });
    for (index, (base, image)) in images {
        let arena = &mut process.arenas[index];
        process.memory.write(arena.start.plus(base), &image)?;
        arena.next_pad = base + image.len() as u64;
        let records: Vec<SiteRecord> = pads
            .iter()
            .filter(|p| p.arena == index)
            .map(|p| p.record)
            .collect();
        let have = arena.sites - records.len() as u32;
        arena::append_sites(&process.memory, arena.start, have, arena.capacity, &records)?;
    }
    Ok(pads)
}

type Compiled = (Vec<u8>, SiteRecord, Vec<(u8, RuntimeAddr)>);

fn compile(
    want: &Wanted<'_>,
    env: &Env,
    form: Form,
    at: RuntimeAddr,
    site: RuntimeAddr,
    bias: u64,
) -> Result<Compiled, (&'static str, String)> {
    let code = lancet_jit::emit(&want.actions, form, env, at, site)
        .map_err(|e| ("not compiled", e.to_string()))?;
    lancet_jit::verify(&code, env, at).map_err(|e| ("not verified", e.to_string()))?;
    let copy_at = at.plus(u64::from(code.end));
    let by_plan = |e: lancet_isa::Refusal| (e.reason(), e.to_string());
    let copy = want.plan.emit_copy(copy_at, bias).map_err(by_plan)?;
    lancet_isa::check(want.plan, &copy, copy_at, bias)
        .map_err(|e| ("not verified", e.to_string()))?;
    let entry = at.plus(u64::from(code.entry));
    let new = lancet_isa::jump(site, entry).map_err(by_plan)?;
    let mut old = [0; arena::PATCH];
    old.copy_from_slice(&want.plan.original()[..arena::PATCH]);
    let record = SiteRecord {
        site,
        pad: entry,
        old,
        new,
        window: want.plan.window_len(),
        live: true,
        before: code.entry as u16,
        action: (code.end - code.entry) as u16,
        copy: copy.bytes.len() as u16,
    };
    let moves = copy
        .boundaries
        .iter()
        .map(|&(window, offset)| (window, copy_at.plus(u64::from(offset))))
        .collect();
    let mut bytes = code.bytes;
    bytes.extend_from_slice(&copy.bytes);
    Ok((bytes, record, moves))
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

/// Writes one batch of jumps. The second of the two stops.
fn write_text(
    process: &Process,
    pads: &[Pad],
    hold: Hold,
    refused: &mut Vec<Refused>,
    names: &HashMap<RuntimeAddr, String>,
) -> Result<(usize, Duration), EngineError> {
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
    let mut written = 0;
    for pad in pads {
        let record = &pad.record;
        let mut now = [0; arena::PATCH];
        process.memory.read(record.site, &mut now)?;
        if now == record.old {
            process
                .memory
                .write_text(stopped.any(), record.site, &record.new)?;
            written += 1;
        } else if now == record.new {
            written += 1;
        } else {
            if pad.sentinel {
                // Children of this one begin with this word wiped: theirs stay unwatched.
                let word = process.arenas[0].mode.plus(private::UNCERTAIN_BYTE);
                process.memory.write(word, &[1])?;
            }
            refused.push(Refused {
                probe: names.get(&record.site).cloned().unwrap_or_default(),
                pid: Some(process.pid),
                reason: "foreign bytes",
                message: format!(
                    "somebody else changed the bytes at {} meanwhile",
                    record.site
                ),
            });
        }
    }
    Ok((written, stopped.held_for()))
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
    let mut patience = Patience::new();
    report.longest_stop = loop {
        match map_arenas(process, context, wanted.len() as u32, hold) {
            Err(EngineError::Remote(RemoteError::Busy { .. } | RemoteError::Traced { .. }))
                if patience.again() => {}
            other => break other?,
        }
    };
    let mut pads = write_pads(process, context, wanted, &mut report.refused)?;
    pads.sort_by_key(|p| p.record.site);
    let names: HashMap<RuntimeAddr, String> = HashMap::new();
    for batch in pads.chunks(BATCH) {
        let (written, held) =
            process.patiently(|| write_text(process, batch, hold, &mut report.refused, &names))?;
        report.sites += written;
        report.longest_stop = report.longest_stop.max(held);
    }
    report.per_cpu = process.facts.is_some_and(|f| f.rseq.is_some());
    report.total = start.elapsed();
    Ok(report)
}

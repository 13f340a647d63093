//! Maps the arenas of a process: the first of the two stops of attaching.

use std::ops::Range;
use std::time::Duration;

use lancet_abi::units::{FileOffset, Pid, RuntimeAddr};
use lancet_procs::{self as procs, Mapping};
use lancet_remote::arena::{self, Header};
use lancet_remote::{Argument, Borrowed, Call, RemoteError, Stopped, checked, slack};

use crate::attach::{Context, Hold};
use crate::catalog::Instance;
use crate::domain::Domain;
use crate::error::EngineError;
use crate::facts::facts;
use crate::leftovers;
use crate::pages::Originals;
use crate::process::{Arena, Process};
use crate::undo;

const PAGE: u64 = 4096;
/// Room kept for one pad. Most take half of it.
const PAD_ROOM: u64 = 512;
const ACTION_ROOM: u64 = 512;
/// What checks add to it.
const CHECK_ROOM: u64 = 1024;

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

/// Maps the arenas that are missing, with room for so many sites and so many bytes of scripts'
/// actions. The first of the two stops. `known` are mappings that were read just now, for the
/// first try.
pub(crate) fn map_arenas(
    process: &mut Process,
    context: &Context<'_>,
    (wanted, scripts): (u32, u64),
    hold: Hold,
    known: Option<Vec<Mapping>>,
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
    let private_length = context.private_length();
    let checks = if context.check { CHECK_ROOM } else { 0 };
    let pads = u64::from(wanted.max(16)) * (PAD_ROOM + ACTION_ROOM + checks) + scripts;
    let code_length = (arena::overhead(capacity) + pads).next_multiple_of(PAGE);
    let total = code_length + region_length + private_length;

    // What can be looked up while the process runs: should a place be taken meanwhile, the kernel
    // refuses it and all is tried again.
    let mappings = match known {
        Some(mappings) => mappings,
        None => procs::mappings(process.pid)?,
    };
    let (mut room, stubs) = slack::find(&process.memory, &mappings);
    if leftovers::clean_stubs(process.pid, &process.memory, &stubs)? {
        room = slack::find(&process.memory, &mappings).0;
    }
    let room = room.ok_or(RemoteError::NoThread {
        pid: process.pid,
        why: "no executable segment and no vdso has 256 unused bytes",
    })?;
    let page = Some(room.address.0 & !(PAGE - 1)).filter(|_| room.of_file);
    let spare = Spare {
        room,
        original: Originals::read(process.pid, &mappings, page.into_iter()),
    };
    let leftovers = leftovers(process, &mappings, context.guardian);
    let mut held = Held {
        stopped: Some(hold.stop(process.pid)?),
        hold,
        longest: Duration::ZERO,
    };
    process.check_identity()?;
    let mut facts = facts(process, held.stopped()?, hold);
    if !context.certain {
        facts.rseq = None;
    }
    process.facts = Some(facts);
    // An attempt before this one may have been given up after its mapping was made.
    undo::register_orphans(
        &process.memory,
        &mappings,
        &process.record().arenas(),
        context.session,
    )?;
    let mut taken = mappings.clone();
    for group in groups {
        let start = arena::find_gap(&taken, group.start, group.end, total).ok_or_else(|| {
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
        taken = with(taken, start, total);
        held.breathe(process)?;
        map_one(process, context, &mut held, &spare, arena)?;
    }
    if !leftovers.is_empty() {
        held.breathe(process)?;
        unmap(process, &mut held, &mappings, &leftovers)?;
    }
    Ok(held.longest())
}

/// Unmaps what earlier sessions have left behind, as far as nothing refers to it.
fn unmap(
    process: &Process,
    held: &mut Held,
    mappings: &[Mapping],
    leftovers: &[undo::FoundArena],
) -> Result<(), EngineError> {
    let Some(runner) = process.arenas.first() else {
        return Ok(());
    };
    let stub = arena::stub_page(runner.start, runner.capacity);
    let (memory, stopped) = (&process.memory, held.stopped()?);
    let calls = undo::unmapping_calls(memory, mappings, stopped, leftovers);
    if calls.is_empty() {
        return Ok(());
    }
    let mut borrowed = Borrowed::from(stopped, memory, &process.record().stub)?;
    for chunk in calls.chunks(lancet_remote::MOST_CALLS) {
        let results = borrowed.run(stub, chunk)?;
        // What is refused once may be done the next time.
        let refused = chunk.iter().zip(results).filter(|(_, result)| *result < 0);
        for (call, _) in refused {
            borrowed.run(stub, std::slice::from_ref(call))?;
        }
    }
    Ok(borrowed.give_back()?)
}

/// A process that stands still, again and again for a short while.
///
/// On a busy machine its thread has to wait for a CPU with each stub that it runs. Between two of
/// them the process may run: nothing is half done there.
struct Held {
    /// None after a stop that failed.
    stopped: Option<Stopped>,
    hold: Hold,
    /// Of the stops before this one.
    longest: Duration,
}

/// A stop that has taken longer is ended where it may be, and another one begun.
const LONG: Duration = Duration::from_millis(1);

impl Held {
    fn stopped(&self) -> Result<&Stopped, EngineError> {
        let lost = EngineError::Usage("the process runs");
        self.stopped.as_ref().ok_or(lost)
    }

    /// Lets the process run for a moment, if it has stood still for long.
    fn breathe(&mut self, process: &Process) -> Result<(), EngineError> {
        let is_long = |stopped: &Stopped| stopped.held_for() > LONG;
        if matches!(self.hold, Hold::Held(..)) || !self.stopped.as_ref().is_some_and(is_long) {
            return Ok(());
        }
        self.longest = self.longest();
        self.stopped = None;
        let again = process.patiently(|| Ok(self.hold.stop(process.pid)?))?;
        self.stopped = Some(again);
        process.check_identity()
    }

    fn longest(&self) -> Duration {
        let now = self.stopped.as_ref().map(Stopped::held_for);
        self.longest.max(now.unwrap_or_default())
    }
}

/// The mappings with one more, which is about to be made.
fn with(mut mappings: Vec<Mapping>, start: RuntimeAddr, length: u64) -> Vec<Mapping> {
    let at = mappings.partition_point(|m| m.start < start);
    mappings.insert(
        at,
        Mapping {
            start,
            end: start.plus(length),
            offset: FileOffset(0),
            read: true,
            write: false,
            execute: true,
            shared: false,
            dev: 0,
            inode: 0,
            path: Vec::new(),
        },
    );
    mappings
}

fn file_at(mappings: &[Mapping], address: RuntimeAddr) -> String {
    mappings
        .iter()
        .find(|m| m.contains(address))
        .map(|m| String::from_utf8_lossy(&m.path).into_owned())
        .unwrap_or_default()
}

/// Arenas of sessions that have ended, those of this tracer among them: inert, and unmapped when
/// nothing refers to them.
fn leftovers(
    process: &Process,
    mappings: &[Mapping],
    guardian: (i32, u64),
) -> Vec<undo::FoundArena> {
    let places: Vec<RuntimeAddr> = arena::find(&process.memory, mappings)
        .into_iter()
        .map(|(start, _)| start)
        .filter(|start| process.arenas.iter().all(|a| a.start != *start))
        .collect();
    undo::read_arenas(&process.memory, &places, None)
        .into_iter()
        // An arena of a session that lives may be about to get its sites.
        .filter(|found| {
            let by_us = found.header.guardian == guardian;
            let is_used = match by_us {
                true => process.is_arena_used(found.start),
                false => leftovers::in_session(&found.header),
            };
            !is_used && found.sites.iter().all(|s| !s.live)
        })
        .collect()
}

/// What one arena is made of, and from where the calls that make it run.
struct Plan<'a> {
    pid: Pid,
    arena: &'a Arena,
    region_length: u64,
    private_length: u64,
    /// The page that the calls run from, with the texts that they need.
    stub: RuntimeAddr,
    first: bool,
}

/// Where the region's path lies in a stub's page, behind the longest stub; and the arena's name.
const PATH: u64 = 2048;
const NAME: u64 = 2560;

/// Where the first call runs from, and what the file has there: read before the stop.
struct Spare {
    room: slack::Slack,
    original: Originals,
}

fn map_one(
    process: &mut Process,
    context: &Context<'_>,
    held: &mut Held,
    spare: &Spare,
    arena: Arena,
) -> Result<(), EngineError> {
    let room = &spare.room;
    let record = process.record();
    let borrowed = Borrowed::from(held.stopped()?, &process.memory, &record.stub)?;
    let mut borrowed = borrowed.hurried();
    let first = process.arenas.is_empty();
    let runner = process.arenas.first().unwrap_or(&arena);
    let plan = Plan {
        pid: process.pid,
        arena: &arena,
        region_length: context.domain.file.length(),
        private_length: context.private_length(),
        stub: arena::stub_page(runner.start, runner.capacity),
        first,
    };
    let header = Header {
        session: context.session,
        code_length: arena.code_length,
        region: (arena.region, plan.region_length),
        mode: arena.mode,
        private_length: context.private_length(),
        guardian: context.guardian,
        region_name: context.domain.file.name(),
        sites: 0,
        capacity: arena.capacity,
    };
    let code = plan.code();
    // From then on whoever finds the arena knows it; what of it is not mapped yet is told by the
    // process's mappings.
    let memory = &process.memory;
    let register = |result: i64| match checked(plan.pid, &code, result) {
        Ok(_) => arena::write_header(memory, arena.start, &header),
        Err(_) => Ok(()),
    };
    let result = if first {
        match borrowed.run_in_slack(room.address, &code, context.guardian, register) {
            Err(error @ RemoteError::Busy { .. }) => {
                let made = |m: &Mapping| m.contains(arena.start);
                if !procs::mappings(plan.pid)?.iter().any(made) {
                    record.drop_last_arena();
                }
                return Err(error.into());
            }
            result => result?,
        }
    } else {
        let result = borrowed.run(plan.stub, std::slice::from_ref(&code))?[0];
        register(result)?;
        result
    };
    if let Err(error) = checked(plan.pid, &code, result) {
        record.drop_last_arena();
        return Err(error.into());
    }
    if first {
        let path = format!("{}\0", context.domain.file.path().unwrap_or_default());
        process
            .memory
            .write(plan.stub.plus(PATH), path.as_bytes())?;
        process.memory.write(plan.stub.plus(NAME), b"lancet\0")?;
    }
    borrowed.give_back()?;
    held.breathe(process)?;
    let mut borrowed = Borrowed::from(held.stopped()?, &process.memory, &record.stub)?;
    let mut mapped = Vec::new();
    if let Some(error) = map_rest(
        process,
        &plan,
        context.domain,
        spare,
        &mut borrowed,
        &mut mapped,
    )? {
        plan.take_back(&mut borrowed, &mapped, room, context.guardian);
        record.drop_last_arena();
        return Err(error);
    }
    borrowed.give_back()?;
    process.arenas.push(arena);
    Ok(())
}

/// Maps everything but the code, which is there; `mapped` is what of it has been mapped. Returns
/// what was refused, if something was.
fn map_rest(
    process: &Process,
    plan: &Plan<'_>,
    domain: &Domain,
    spare: &Spare,
    borrowed: &mut Borrowed<'_>,
    mapped: &mut Vec<(RuntimeAddr, u64)>,
) -> Result<Option<EngineError>, EngineError> {
    let arena = plan.arena;
    let source = match (domain.file.path(), process.arenas.first()) {
        (Some(_), _) => Source::Path,
        (None, Some(first)) => Source::Mapping(first.region),
        (None, None) => match make_memfd(borrowed, plan, domain) {
            Ok(descriptor) => Source::Descriptor(descriptor),
            Err(error) => return Ok(Some(error)),
        },
    };
    if let Source::Mapping(_) = source {
        // mremap to a fixed place replaces what is there; this does not.
        let reserve = plan.reserve();
        let result = borrowed.run(plan.stub, std::slice::from_ref(&reserve))?[0];
        if let Err(error) = checked(plan.pid, &reserve, result) {
            return Ok(Some(error.into()));
        }
        mapped.push((arena.region, plan.region_length));
    }
    let mut calls = plan.rest(source);
    let needed = calls.len();
    // Not where a probe or somebody else's breakpoint lies in the same page.
    let page = RuntimeAddr(spare.room.address.0 & !(PAGE - 1));
    if plan.first && spare.original.all_equal(&process.memory) {
        calls.push(Call::new(
            "madvise",
            libc::SYS_madvise,
            &[page.0, PAGE, libc::MADV_DONTNEED as u64],
        ));
    }
    // For people who read the map; kernels without such names answer EINVAL.
    calls.push(Call::new(
        "prctl",
        libc::SYS_prctl,
        &[
            libc::PR_SET_VMA as u64,
            0,
            arena.start.0,
            arena.code_length,
            plan.stub.plus(NAME).0,
        ],
    ));
    let results = borrowed.run(plan.stub, &calls)?;
    close_again(borrowed, plan, &calls, &results)?;
    let mut failed = None;
    for (call, &result) in calls[..needed].iter().zip(&results) {
        match (
            checked(plan.pid, call, result),
            call.number,
            &call.arguments[..],
        ) {
            (Ok(start), libc::SYS_mmap, [_, Argument::Value(length), ..]) => {
                mapped.push((RuntimeAddr(start), *length));
            }
            (Err(error), ..) if failed.is_none() => failed = Some(error),
            _ => {}
        }
    }
    Ok(failed.map(EngineError::from))
}

/// No descriptor stays: a close that was refused is asked for once more. (The others stand still, so
/// that nobody can have got the same number.)
fn close_again(
    borrowed: &mut Borrowed<'_>,
    plan: &Plan<'_>,
    calls: &[Call],
    results: &[i64],
) -> Result<(), EngineError> {
    for (call, &result) in calls.iter().zip(results) {
        if call.number != libc::SYS_close || result >= 0 {
            continue;
        }
        let descriptor = match call.arguments[0] {
            Argument::Value(number) => number as i64,
            Argument::Result(earlier) => results[earlier],
        };
        if descriptor >= 0 {
            let close = Call::new(call.name, libc::SYS_close, &[descriptor as u64]);
            borrowed.run(plan.stub, &[close])?;
        }
    }
    Ok(())
}

/// How a process gets at the region.
#[derive(Clone, Copy)]
enum Source {
    /// By the path in the stub's page.
    Path,
    /// By a descriptor that it has for this moment.
    Descriptor(u64),
    /// By a mapping that it has already.
    Mapping(RuntimeAddr),
}

/// Has the process make the memory of a region that only it will use; its descriptor stays open
/// in it until the region is mapped.
fn make_memfd(
    borrowed: &mut Borrowed<'_>,
    plan: &Plan<'_>,
    domain: &Domain,
) -> Result<u64, EngineError> {
    // Kernels before 6.3 do not know the seal, and some later ones insist on it.
    const MFD_NOEXEC_SEAL: u32 = 8;
    let mut result = 0;
    for flags in [libc::MFD_CLOEXEC | MFD_NOEXEC_SEAL, libc::MFD_CLOEXEC] {
        let name = plan.stub.plus(NAME).0;
        let make = Call::new(
            "memfd_create",
            libc::SYS_memfd_create,
            &[name, flags.into()],
        );
        let made = borrowed.run(plan.stub, std::slice::from_ref(&make))?[0];
        if made == -i64::from(libc::EINVAL) {
            continue;
        }
        result = checked(plan.pid, &make, made)?;
        break;
    }
    let adopted = domain.adopt(plan.pid, result as i32);
    if adopted.is_err() {
        let close = Call::new("close of the region", libc::SYS_close, &[result]);
        borrowed.run(plan.stub, &[close])?;
    }
    adopted.map(|()| result)
}

impl Plan<'_> {
    fn code(&self) -> Call {
        Call::new(
            "mmap of the probes' code",
            libc::SYS_mmap,
            &[
                self.arena.start.0,
                self.arena.code_length,
                (libc::PROT_READ | libc::PROT_EXEC) as u64,
                (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE) as u64,
                u64::MAX,
                0,
            ],
        )
    }

    /// Everything but the code.
    fn rest(&self, source: Source) -> Vec<Call> {
        let open = || {
            Call::new(
                "opening the region",
                libc::SYS_openat,
                &[
                    libc::AT_FDCWD as u64,
                    self.stub.plus(PATH).0,
                    (libc::O_RDWR | libc::O_CLOEXEC | libc::O_NOFOLLOW) as u64,
                    0,
                ],
            )
        };
        let data = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        let shared = (libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE) as u64;
        let (region, length) = (self.arena.region.0, self.region_length);
        let map = |descriptor| {
            let mut map = Call::new(
                "mmap of the region",
                libc::SYS_mmap,
                &[region, length, data, shared, 0, 0],
            );
            map.arguments[4] = descriptor;
            map
        };
        let close = |descriptor| {
            let mut close = Call::new("close of the region", libc::SYS_close, &[0]);
            close.arguments[0] = descriptor;
            close
        };
        let mut calls = match source {
            Source::Path => vec![open(), map(Argument::Result(0)), close(Argument::Result(0))],
            Source::Descriptor(number) => {
                vec![map(Argument::Value(number)), close(Argument::Value(number))]
            }
            // With an old length of 0 it maps the same memory a second time.
            Source::Mapping(other) => vec![Call::new(
                "mremap of the region",
                libc::SYS_mremap,
                &[
                    other.0,
                    0,
                    length,
                    (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64,
                    region,
                ],
            )],
        };
        if self.first {
            calls.push(Call::new(
                "mmap of the private page",
                libc::SYS_mmap,
                &[
                    self.arena.mode.0,
                    self.private_length,
                    data,
                    (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE) as u64,
                    u64::MAX,
                    0,
                ],
            ));
            calls.push(Call::new(
                "madvise(MADV_WIPEONFORK)",
                libc::SYS_madvise,
                &[
                    self.arena.mode.0,
                    self.private_length,
                    libc::MADV_WIPEONFORK as u64,
                ],
            ));
        }
        calls
    }

    /// Takes the region's place, if it is free.
    fn reserve(&self) -> Call {
        Call::new(
            "mmap of the region's place",
            libc::SYS_mmap,
            &[
                self.arena.region.0,
                self.region_length,
                libc::PROT_NONE as u64,
                (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE) as u64,
                u64::MAX,
                0,
            ],
        )
    }

    /// Unmaps the arena's code and what else was `mapped` for it. Nothing more: where a mapping
    /// was refused, the target itself has one by now, such as a new thread's stack.
    fn take_back(
        &self,
        borrowed: &mut Borrowed<'_>,
        mapped: &[(RuntimeAddr, u64)],
        room: &slack::Slack,
        guardian: (i32, u64),
    ) {
        let unmap =
            |start: RuntimeAddr, length| Call::new("munmap", libc::SYS_munmap, &[start.0, length]);
        for &(start, length) in mapped {
            let _ = borrowed.run(self.stub, &[unmap(start, length)]);
        }
        let code = unmap(self.arena.start, self.arena.code_length);
        let _ = if self.first {
            borrowed
                .run_in_slack(room.address, &code, guardian, |_| Ok(()))
                .map(drop)
        } else {
            borrowed.run(self.stub, &[code]).map(drop)
        };
    }
}

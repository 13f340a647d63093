//! One session from start to report.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use lancet_abi::units::Pid;
use lancet_engine::{
    Attached, Command, Consumer, Detached, EngineError, Event, Kind, ProbeId, Refused, Session,
    State, Tracer, launch,
};

use crate::checks::Checks;
use crate::options::SessionOptions;
use crate::probes::{self, By, Found};
use crate::report::{self, Printer, Source};
use crate::scope;
use crate::upkeep::{Upkeep, say_foreign_tids};
use crate::words;

/// What to count, where.
pub(crate) struct Job {
    pub(crate) probes: Vec<String>,
    pub(crate) kind: Kind,
    pub(crate) by: By,
    pub(crate) options: SessionOptions,
}

/// Runs a job; returns the exit status.
pub(crate) fn run(job: Job) -> Result<u8> {
    let command = command(&job.options)?;
    let mut job = job;
    for pid in &mut job.options.pids {
        *pid = process_of(*pid)?;
    }
    let job = job;
    // All that can be wrong with files and names is said before anything starts.
    let pid = job.options.pids.first().map(|&p| Pid(p));
    let found = probes::find(&job.probes, pid)?;
    let code = launch(command.as_ref(), move |tracer| {
        match in_tracer(&job, &found, &tracer) {
            Ok(code) => code,
            Err(error) => {
                eprintln!("lancet: {}", report::sentence(&error));
                1
            }
        }
    })?;
    Ok(code)
}

/// The command to start.
pub(crate) fn command(options: &SessionOptions) -> Result<Option<Command>> {
    let Some(text) = &options.command else {
        return Ok(None);
    };
    let words = words::split(text).map_err(|e| anyhow!("-c {text}: {e}"))?;
    Ok(Some(Command {
        words: words.into_iter().map(Into::into).collect(),
    }))
}

/// The process that a pid, or the id of any of its threads, names.
pub(crate) fn process_of(id: i32) -> Result<i32> {
    let is_zombie = |id: i32| {
        let is_over = |s: lancet_procs::Status| matches!(s.state, 'Z' | 'X');
        lancet_procs::status(Pid(id)).is_ok_and(is_over) && lancet_procs::face(Pid(id)) == Pid(id)
    };
    // While another thread than its first one becomes another program, it looks like one.
    let end = Instant::now() + Duration::from_millis(50);
    while is_zombie(id) && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(2));
    }
    let Ok(status) = lancet_procs::status(Pid(id)) else {
        bail!("process {id} does not exist");
    };
    if status.tgid != id {
        return process_of(status.tgid);
    }
    if let Err(error) = std::fs::metadata(format!("/proc/{}/root", lancet_procs::face(Pid(id))))
        && error.kind() == std::io::ErrorKind::PermissionDenied
    {
        bail!(
            "not permitted to trace process {id} ({}): {error}; run as its user or as root, and look at kernel.yama.ptrace_scope",
            status.name
        );
    }
    if is_zombie(id) {
        let name = status.name;
        bail!("process {id} ({name}) has ended and waits for its parent (a zombie)");
    }
    Ok(id)
}

fn in_tracer(job: &Job, found: &[Found], tracer: &Arc<Tracer>) -> Result<u8> {
    let report = report::open(&job.options)?;
    let mut session = Session::open(tracer);
    session.check(Checks::wanted(&job.options));
    let mut checks = Checks::default();
    let (source, probes, mut refused) = register(job, found, &mut session)?;
    if probes == 0 {
        summarise(&job.options, &refused, probes + refused.len());
        bail!("none of the {} functions can be probed", refused.len());
    }
    let mut printer = Printer::new(report, source, job.by, &job.options);
    let attached = match attach(&job.options, found, &mut session) {
        Ok(attached) => attached,
        Err(error) => {
            session.detach();
            tracer.signal_command(libc::SIGTERM);
            return Err(error);
        }
    };
    for one in &attached {
        refused.extend(one.refused.iter().cloned());
        say_how_long(&job.options, one);
    }
    printer.attached(probes)?;
    let in_all = probes + refused.iter().filter(|r| r.pid.is_none()).count();
    summarise(&job.options, &refused, in_all);
    let ended = wait(job, &mut session, &mut printer, &mut checks)?;
    say_followed(&job.options, &session);
    let detached = session.detach();
    if ended != Event::CommandEnded {
        tracer.signal_command(libc::SIGTERM);
    }
    say_what_stayed(&job.options, &detached);
    printer.finish(
        &session,
        job.options.interval.is_none() && !job.options.json,
    )?;
    if !job.options.quiet {
        say_foreign_tids(printer.foreign_tids());
    }
    checks.tell(&session)?;
    Ok(match (ended, tracer.command_status()) {
        _ if checks.failed() => 1,
        (Event::CommandEnded, Some(status)) => exit_code(status),
        _ => u8::from(!detached.failed.is_empty()),
    })
}

/// The command's status as a shell shows it.
fn exit_code(status: std::process::ExitStatus) -> u8 {
    use std::os::unix::process::ExitStatusExt;
    status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or(0)) as u8
}

fn register(
    job: &Job,
    found: &[Found],
    session: &mut Session,
) -> Result<(Source, usize, Vec<Refused>)> {
    let keyed = match (job.by.key, job.by.function) {
        (Some(key), by_function) => {
            let map = session.map(job.kind, job.options.max_keys)?;
            Some((map, by_function, key))
        }
        (None, _) => None,
    };
    let consumer = match keyed {
        Some((map, by_function, key)) => Consumer::Keyed {
            map,
            by_function,
            key,
        },
        None => match job.kind {
            Kind::Count => Consumer::Count,
            Kind::Sum(value) => Consumer::Sum(value),
            Kind::Hist(value) => Consumer::Hist(value),
        },
    };
    let mut probes: Vec<ProbeId> = Vec::new();
    let mut refused = Vec::new();
    for file in found {
        for result in session.register_sites(&file.binary, file.sites.clone(), consumer)? {
            match result {
                Ok(probe) => probes.push(probe),
                Err(why) => refused.push(why),
            }
        }
    }
    let count = probes.len();
    let source = match keyed {
        Some((map, _, _)) => Source::Map(map),
        None => Source::Probes(probes),
    };
    Ok((source, count, refused))
}

pub(crate) fn attach(
    options: &SessionOptions,
    found: &[Found],
    session: &mut Session,
) -> Result<Vec<Attached>> {
    if let Some(command) = &options.command {
        let started = session
            .start_command()
            .with_context(|| format!("cannot run {command}"))?;
        for file in &started.missing {
            eprintln!(
                "lancet: {} is not mapped when the program starts; libraries that are loaded later are not followed yet",
                file.display()
            );
        }
        return Ok(started.attached.into_iter().collect());
    }
    if let [pid] = options.pids[..] {
        let pid = Pid(pid);
        if !scope::still_locked(&[pid])?.is_empty() {
            bail!("{}; try again later", scope::is_locked(pid));
        }
        return attach_one(options, session, pid);
    }
    let named = !options.pids.is_empty();
    let (pids, denied) = if named {
        (options.pids.iter().map(|&pid| Pid(pid)).collect(), 0)
    } else {
        let guardian = Pid(rustix::process::getppid().map_or(1, |p| p.as_raw_nonzero().get()));
        let left_out = scope::left_out(options.all, guardian);
        // Before the look, so that who comes meanwhile is not missed.
        session.follow(left_out.iter().copied());
        let mapping = scope::mapping_now(found, &left_out)?;
        (mapping.pids, mapping.denied)
    };
    let mut attached = Vec::new();
    let (mut failed, mut pending) = (0, 0);
    for (pid, state) in session.attach_all(&pids)? {
        // What was found by its mappings, and ends or changes meanwhile, is nobody's loss.
        let passing = matches!(state, State::NotMapped | State::Gone | State::Unknown);
        if !options.quiet && (named || !passing) {
            say_state(pid, &state);
        }
        match state {
            State::Attached(one) => attached.push(one),
            State::Pending => pending += 1,
            State::Failed(_) => failed += 1,
            State::NotMapped | State::Gone | State::Unknown => {}
        }
    }
    if named && attached.is_empty() && pending == 0 {
        bail!("none of the processes could be attached");
    }
    if !options.quiet && !named {
        match attached.len() {
            0 => eprint!("no process maps it yet"),
            some => eprint!("{some} processes map it"),
        }
        if pending > 0 {
            eprint!(", {pending} pending");
        }
        if failed + denied > 0 {
            eprint!(", {} more could not be probed", failed + denied);
        }
        eprintln!();
        if let Some(every) = session.followed().and_then(|followed| followed.every) {
            eprintln!(
                "lancet: the kernel's events are not permitted here (kernel.perf_event_paranoid): all processes are looked through every {} ms for those that come to map it",
                every.as_millis()
            );
        }
    }
    Ok(attached)
}

/// Attaches to the one process that was named. While it is pending it is waited for: whoever waits for
/// the line that tells of the probes can rely on them then.
fn attach_one(options: &SessionOptions, session: &mut Session, pid: Pid) -> Result<Vec<Attached>> {
    let mut states = session.attach_all(&[pid])?;
    loop {
        match states.pop() {
            Some((_, State::Attached(one))) => return Ok(vec![one]),
            Some((_, State::Failed(error))) => return Err(error.into()),
            Some((_, state @ State::Pending)) if !options.quiet => say_state(pid, &state),
            Some((_, State::Pending)) => {}
            Some((_, State::NotMapped)) => {
                let name = lancet_procs::status(pid)
                    .map(|s| s.name)
                    .unwrap_or_default();
                return Err(EngineError::NotMapped { pid, name }.into());
            }
            Some((_, State::Gone)) => bail!("process {pid} has ended"),
            Some((_, State::Unknown)) => {
                bail!("process {pid} maps nothing: it is ending, or becoming another program")
            }
            None => match session.wait(None) {
                Event::Time => states = session.news(),
                _ => bail!("process {pid} was pending to the end: nothing was attached"),
            },
        }
    }
}

/// What is to be said of a process that has no probes.
pub(crate) fn say_state(pid: Pid, state: &State) {
    match state {
        State::Attached(_) => {}
        State::Pending => eprintln!(
            "lancet: process {pid} is pending: it cannot be stopped now, or its memory map is locked; it is tried again, and the others are attached"
        ),
        State::Gone => eprintln!("lancet: process {pid} is gone: it has ended"),
        State::Unknown => eprintln!(
            "lancet: process {pid} is unknown: it maps nothing, as one that ends or becomes another program"
        ),
        State::NotMapped => {
            eprintln!("lancet: process {pid} maps none of the probed files as code");
        }
        State::Failed(error) => eprintln!("lancet: {error}"),
    }
}

/// Waits for the end, printing at intervals.
fn wait(
    job: &Job,
    session: &mut Session,
    printer: &mut Printer,
    checks: &mut Checks,
) -> Result<Event> {
    let start = Instant::now();
    let end = job
        .options
        .duration
        .map(|s| start + Duration::from_secs_f64(s));
    let step = job.options.interval.map(Duration::from_secs_f64);
    let mut next = step.map(|s| start + s);
    let mut upkeep = Upkeep::begin(session, &job.options);
    loop {
        upkeep.look(session);
        let deadline = [end, next, upkeep.next(session)].into_iter().flatten();
        match session.wait(deadline.min()) {
            Event::Time => {
                let now = Instant::now();
                upkeep.learn(session);
                if let (Some(due), Some(step)) = (next, step)
                    && now >= due
                {
                    next = Some((due + step).max(now));
                    if let Err(error) = printer.print(session).and_then(|()| checks.tell(session)) {
                        session.detach();
                        return Err(error);
                    }
                }
                if end.is_some_and(|e| now >= e) {
                    return Ok(Event::Time);
                }
            }
            other => return Ok(other),
        }
    }
}

/// What attaching to a process took.
pub(crate) fn say_how_long(options: &SessionOptions, one: &Attached) {
    if !options.verbose {
        return;
    }
    eprintln!(
        "process {}: {} sites in {:.3} ms, stopped {:.3} ms at most, counters {}",
        one.pid,
        one.sites,
        one.total.as_secs_f64() * 1e3,
        one.longest_stop.as_secs_f64() * 1e3,
        if one.per_cpu {
            "per CPU"
        } else {
            "by locked additions"
        },
    );
}

/// What became of processes that came to map the file after the start.
pub(crate) fn say_followed(options: &SessionOptions, session: &Session) {
    let Some(followed) = session.followed().filter(|_| !options.quiet) else {
        return;
    };
    if followed.lost > 0 {
        eprintln!(
            "lancet: {} of the kernel's events were lost; all processes were looked through instead",
            followed.lost
        );
    }
    if followed.attached > 0 {
        eprint!("{} processes attached after start", followed.attached);
        match followed.slowest {
            Some(slowest) => eprintln!(
                ", slowest {:.3} ms after exec or mmap",
                slowest.as_secs_f64() * 1e3
            ),
            None => eprintln!(),
        }
    }
}

/// How many sites were refused, by reason; each by name when asked for.
pub(crate) fn summarise(options: &SessionOptions, refused: &[Refused], all: usize) {
    if options.quiet || refused.is_empty() {
        return;
    }
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    for one in refused {
        *reasons.entry(one.reason).or_default() += 1;
        if options.verbose {
            eprintln!("refused {}: {}", one.probe, one.message);
        }
    }
    let list: Vec<String> = reasons.iter().map(|(r, n)| format!("{n} {r}")).collect();
    eprintln!(
        "{} of {all} functions refused ({:.1} %): {}{}",
        refused.len(),
        refused.len() as f64 * 100.0 / all.max(1) as f64,
        list.join(", "),
        if options.verbose {
            ""
        } else {
            "; -v names them"
        }
    );
}

pub(crate) fn say_what_stayed(options: &SessionOptions, detached: &Detached) {
    for pid in &detached.replaced {
        eprintln!(
            "lancet: process {pid} became another program (exec), which is not followed yet: the counts end there"
        );
    }
    for (pid, site) in &detached.foreign {
        eprintln!("lancet: process {pid}: somebody else wrote at {site}; left as it is");
    }
    for (pid, error) in &detached.failed {
        eprintln!("lancet: process {pid} keeps probes: {error}; run `lancet clean` later");
    }
    for pid in &detached.locked {
        eprintln!(
            "lancet: process {pid} may keep probes: its memory map is locked; run `lancet clean` later"
        );
    }
    for (pid, tid) in &detached.skipped {
        eprintln!(
            "lancet: process {pid}: thread {tid} did not leave its probe; its last hit may be skipped"
        );
    }
    if options.verbose {
        eprintln!(
            "detached {} processes ({} children, {} gone), {} sites, stopped {:.3} ms at most",
            detached.processes,
            detached.children,
            detached.gone,
            detached.sites,
            detached.longest_stop.as_secs_f64() * 1e3,
        );
    }
}

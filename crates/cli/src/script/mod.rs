//! Scripts: the language in front of the engine. BEGIN, attach, intervals, detach, END, maps.

mod cells;
mod clock;
mod host;
mod list;
mod maps;
mod options;
mod plan;
mod records;
mod show;
mod sys;

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::{CommandFactory, Parser};
use lancet_abi::units::Pid;
use lancet_engine::{Event, Session, Tracer, launch};
use lancet_script::ir::{self, Hoist, Point, PointId, Program, Warning};
use lancet_script::{Options, Source, compile, is_setting};

use crate::checks::Checks;
use crate::options::{Arguments, SessionOptions};
use crate::report;
use crate::run;
use crate::upkeep::{Upkeep, say_foreign_tids};
use clock::Clock;
use host::Runner;
use options::ScriptOptions;
use plan::Plan;
use records::Drain;

/// Whether these words are a script's: an option that no subcommand is behind, or a file.
pub(crate) fn is_meant(words: &[OsString]) -> bool {
    let [program, words @ ..] = words else {
        return false;
    };
    // Called by the other name it takes nothing but scripts.
    if is_bpftrace(program) {
        return true;
    }
    let Some(first) = words.first().and_then(|word| word.to_str()) else {
        return false;
    };
    if first.starts_with('-') {
        return !matches!(first, "-h" | "--help" | "-V" | "--version");
    }
    let verbs = Arguments::command();
    let is_verb = first == "help" || verbs.get_subcommands().any(|verb| verb.get_name() == first);
    !is_verb && (Path::new(first).is_file() || first.contains(['/', '.']))
}

/// The release of the language that scripts are taken as.
const LANGUAGE: &str = "0.26.0";

fn is_bpftrace(program: &std::ffi::OsStr) -> bool {
    Path::new(program)
        .file_name()
        .is_some_and(|name| name == "bpftrace")
}

/// Runs a script; returns the exit status.
pub(crate) fn script(words: &[OsString]) -> Result<u8> {
    let other = words.first().is_some_and(|program| is_bpftrace(program));
    if other
        && words
            .get(1)
            .is_some_and(|word| word == "-V" || word == "--version")
    {
        println!(
            "bpftrace v{LANGUAGE} (lancet {})",
            env!("CARGO_PKG_VERSION")
        );
        return Ok(0);
    }
    let options = match ScriptOptions::try_parse_from(words) {
        Ok(options) => options,
        Err(error) => {
            error.print()?;
            return Ok(u8::from(error.use_stderr()));
        }
    };
    if options.list
        && let Some(probe) = options.listed()
    {
        return list::named(probe, options.pid());
    }
    let text = options.read()?;
    let source = Source {
        name: &text.name,
        text: &text.text,
    };
    let rules = Options {
        params: text.params,
        settings: settings_of_environment(),
    };
    let program = match compile(source, &rules) {
        Ok(program) => program,
        Err(diagnostics) => {
            diagnostics
                .iter()
                .for_each(|one| eprint!("{}", one.render(source)));
            return Ok(1);
        }
    };
    if options.list {
        return list::of_program(&program, options.pid());
    }
    if options.debug {
        let listing = plan::listing(&program)?;
        println!("{}\n\n{}", text.text.trim_end(), listing.trim_end());
        return Ok(0);
    }
    let mut options = options.session();
    for pid in &mut options.pids {
        *pid = run::process_of(*pid)?;
    }
    if options.pids.is_empty() && options.command.is_none() {
        options.pids.extend(only_process(&program));
    }
    let command = run::command(&options)?;
    // All that can be wrong with files and names is said before anything starts.
    let plan = plan::plan(&program, options.pids.first().map(|&pid| Pid(pid)))?;
    Ok(launch(command.as_ref(), move |tracer| {
        in_tracer(&options, &program, &plan, &tracer).unwrap_or_else(|error| {
            eprintln!("lancet: {}", report::sentence(&error));
            1
        })
    })?)
}

fn in_tracer(
    options: &SessionOptions,
    program: &Program,
    plan: &Plan,
    tracer: &Arc<Tracer>,
) -> Result<u8> {
    let report = report::open_script(options)?;
    let mut session = Session::open(tracer);
    session.check(Checks::wanted(options));
    let done = plan.register(program, &mut session)?;
    let refused = done.refused.len();
    if done.probes == 0 && refused > 0 {
        run::summarise(options, &done.refused, refused);
        bail!("none of the {refused} functions can be probed");
    }
    let mut runner = Runner {
        program,
        session,
        report,
        maps: done.maps,
        functions: done.functions,
        probes: done.points,
        drain: Drain::new(formats(program)),
        start: sys::clock(libc::CLOCK_BOOTTIME),
        point: PointId(0),
        exit: None,
        failed: None,
        warned: HashMap::new(),
    };
    clock::set_start(&runner.session, runner.start);
    let mut clock = plan
        .tells_time()
        .then(|| Clock::begin(&runner.session))
        .flatten();
    let mut checks = Checks::default();
    let others = program.actions.iter().flat_map(|action| &action.points);
    let others = others.filter(|point| !program.points[point.index()].in_target());
    let probes = done.probes + others.count();
    let at = |point: Point| move |id: PointId| program.points[id.index()] == point;

    let begun = runner.run(at(Point::Begin));
    let ended = begun.and_then(|()| {
        if runner.exit.is_some() {
            runner.report.attached(probes)?;
            return Ok(None);
        }
        let attached = match plan.is_empty() && options.command.is_none() {
            true => Vec::new(),
            false => run::attach(options, &plan.found, &mut runner.session)?,
        };
        let mut refused = done.refused;
        for one in &attached {
            refused.extend(one.refused.iter().cloned());
            run::say_how_long(options, one);
        }
        runner.report.attached(probes)?;
        // Those who run tests of scripts wait for the line.
        if std::env::var_os(NOTIFY).is_some() {
            println!("{NOTIFY}");
        }
        let in_all = done.probes + refused.iter().filter(|r| r.pid.is_none()).count();
        run::summarise(options, &refused, in_all);
        wait(options, plan, &mut runner, (&mut checks, &mut clock))
    });
    // Probes come out first, whatever happened.
    run::say_followed(options, &runner.session);
    let detached = runner.session.detach();
    if !matches!(ended, Ok(Some(Event::CommandEnded))) {
        tracer.signal_command(libc::SIGTERM);
    }
    run::say_what_stayed(options, &detached);
    ended?;
    runner.take_records(true)?;
    let status = runner.exit.unwrap_or(0);
    runner.run(at(Point::End))?;
    runner.print_all()?;
    say_what_was_warned(options, &runner);
    checks.tell(&runner.session)?;
    if checks.failed() || !detached.failed.is_empty() {
        return Ok(1);
    }
    Ok(status as u8)
}

/// Runs interval blocks until something ends the script; `None` when that was its own `exit()`.
fn wait(
    options: &SessionOptions,
    plan: &Plan,
    runner: &mut Runner<'_>,
    (checks, clock): (&mut Checks, &mut Option<Clock>),
) -> Result<Option<Event>> {
    let start = Instant::now();
    let program = runner.program;
    let points = program.points.iter().zip(0..);
    let mut intervals: Vec<(PointId, Duration, Instant)> = points
        .filter_map(|(point, id)| match point {
            Point::Interval { nanos, .. } => {
                let step = Duration::from_nanos(*nanos);
                Some((PointId(id), step, start.checked_add(step)?))
            }
            _ => None,
        })
        .collect();
    let mut upkeep = Upkeep::begin(&runner.session, options);
    while runner.exit.is_none() {
        if upkeep.look(&mut runner.session) {
            if let Some(clock) = clock {
                clock.update(&runner.session);
            }
            checks.tell(&runner.session)?;
            // A process without probes is in no session that would tell of its end.
            if plan.is_empty()
                && options
                    .pids
                    .iter()
                    .any(|&pid| run::process_of(pid).is_err())
            {
                return Ok(Some(Event::TargetsEnded));
            }
        }
        let due = intervals.iter().map(|(_, _, due)| *due);
        let records = runner.drain.next(&runner.session);
        let deadline = due.chain(upkeep.next(&runner.session)).chain(records).min();
        match runner.session.wait(deadline) {
            Event::Time => {}
            event => return Ok(Some(event)),
        }
        runner.take_records(false)?;
        upkeep.learn(&runner.session);
        for (point, step, due) in &mut intervals {
            let now = Instant::now();
            if now >= *due && runner.exit.is_none() {
                *due = (*due + *step).max(now);
                let meant = *point;
                runner.run(|id| id == meant)?;
            }
        }
    }
    Ok(None)
}

/// A program that sees this in its environment says so on standard output once it has attached.
const NOTIFY: &str = "__BPFTRACE_NOTIFY_PROBES_ATTACHED";

/// Settings that the environment gives by the names that the language has for them.
fn settings_of_environment() -> Vec<(String, String)> {
    let named = std::env::vars().filter_map(|(name, value)| {
        let key = name.strip_prefix("BPFTRACE_")?.to_ascii_lowercase();
        if key == "no_cpp_demangle" {
            let off = if value == "1" { "false" } else { "true" };
            return Some(("cpp_demangle".to_owned(), off.to_owned()));
        }
        is_setting(&key).then_some((key, value))
    });
    named.collect()
}

/// The process that every uprobe block's predicate asks for, if it is there: no other needs a probe.
fn only_process(program: &Program) -> Option<i32> {
    let mut pids = program
        .actions
        .iter()
        .filter(|action| {
            action
                .points
                .iter()
                .any(|p| program.points[p.index()].in_target())
        })
        .map(|action| {
            action.hoist.iter().find_map(|condition| match condition {
                Hoist::Pid(pid) => i32::try_from(*pid).ok(),
                _ => None,
            })
        });
    let first = pids.next()??;
    let all = pids.all(|pid| pid == Some(first));
    (all && run::process_of(first).is_ok()).then_some(first)
}

/// Numbers of the formats that each action writes.
fn formats(program: &Program) -> Vec<Vec<u32>> {
    let of = |action: &ir::Action| action.formats().map(|format| format.0).collect();
    program.actions.iter().map(of).collect()
}

fn say_what_was_warned(options: &SessionOptions, runner: &Runner<'_>) {
    if options.quiet {
        return;
    }
    let foreign: usize = runner.maps.iter().map(|map| map.foreign).sum();
    say_foreign_tids(foreign);
    for (warning, text) in [
        (Warning::MapFull, "a full map dropped an update"),
        (Warning::DivisionByZero, "division by zero gave 1"),
        (
            Warning::Fuel,
            "a block's loops went round too often, and it was ended",
        ),
        (Warning::Unreadable, "memory could not be read"),
    ] {
        let times = runner.warned.get(&warning).copied().unwrap_or(0);
        if times > 0 {
            eprintln!("lancet: {text} ({times} times)");
        }
    }
}

//! The rounds behind the table.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use super::row::milliseconds;
use super::{Options, PrivateCopy, Row, Scenario};
use crate::stats::Range;
use crate::table::left_out;
use crate::trigger::targets;
use crate::{Engine, Trigger};
use lancet_abi::units::Pid;

/// The function with the one probe.
const FUNCTION: &str = "uprobe_target_push";
/// Calls of it in each process.
const CALLS: u64 = 3;
/// An engine that can't attach many probes in a reasonable time is left out beyond this number, and
/// with more than one probe it has only a few rounds.
const MANY: usize = 100;
const FEW_ROUNDS: usize = 3;

/// What one attach and detach showed.
struct Sample {
    attach: Duration,
    stopped: Option<Duration>,
    detach: Duration,
    calls: u64,
    hits: u64,
}

pub(super) fn run(
    engines: &mut [Box<dyn Engine>],
    options: &Options,
    out: &mut dyn Write,
) -> anyhow::Result<Vec<Row>> {
    let copy = PrivateCopy::of(&options.exe)?;
    let mut rows = Vec::new();
    if !options.json {
        writeln!(out, "{}", Row::head())?;
    }
    for &scenario in &options.scenarios {
        let names = scenario.names();
        // samples[engine][part][round]
        let mut samples: Vec<Vec<Vec<Sample>>> = Vec::new();
        samples.resize_with(engines.len(), || names.iter().map(|_| Vec::new()).collect());
        let mut out_of_it = vec![false; engines.len()];
        for round in 0..options.rounds.max(1) {
            for turn in 0..engines.len() {
                let index = (round + turn) % engines.len();
                let engine = engines[index].as_mut();
                if out_of_it[index] || scenario.leaves_out(engine, round, options.rounds) {
                    continue;
                }
                match one_round(engine, scenario, copy.path()) {
                    Ok(parts) => {
                        for (all, part) in samples[index].iter_mut().zip(parts) {
                            all.push(part);
                        }
                    }
                    Err(error) => {
                        // Whatever of it is attached.
                        let _ = engine.detach();
                        out_of_it[index] = true;
                        left_out(engine.name(), &names[0], &error, options.json, out)?;
                    }
                }
            }
        }
        for (part, name) in names.iter().enumerate() {
            for (engine, samples) in engines.iter().zip(&samples) {
                if samples[part].is_empty() {
                    continue;
                }
                let row = summarise(engine.name(), name, &samples[part]);
                let line = if options.json {
                    row.json().to_string()
                } else {
                    row.text()
                };
                writeln!(out, "{line}")?;
                out.flush()?;
                rows.push(row);
            }
        }
    }
    Ok(rows)
}

impl Scenario {
    /// What its rows are called.
    fn names(self) -> Vec<String> {
        match self {
            Self::Processes(count) => ["first", "again"]
                .map(|when| format!("{count} processes, {when}"))
                .to_vec(),
            Self::Probes(1) => vec!["1 probe".to_owned()],
            Self::Probes(count) => vec![format!("{count} probes")],
            Self::Threads {
                count: 1,
                running: false,
            } => vec!["1 sleeping thread more".to_owned()],
            Self::Threads { count, running } => vec![format!(
                "{count} {} threads more",
                if running { "running" } else { "sleeping" }
            )],
        }
    }

    fn leaves_out(self, engine: &dyn Engine, round: usize, rounds: usize) -> bool {
        let slow = |count| {
            !engine.attaches_many()
                && count > 1
                && (count > MANY || round >= (rounds / 5).min(FEW_ROUNDS))
        };
        !engine.counts() || matches!(self, Self::Probes(count) if slow(count))
    }
}

/// One engine's share of one round, on processes of its own: a sample for each of the names.
fn one_round(
    engine: &mut dyn Engine,
    scenario: Scenario,
    exe: &Path,
) -> anyhow::Result<Vec<Sample>> {
    let mut trigger = Trigger::spawn(exe)?;
    match scenario {
        Scenario::Processes(count) => {
            let pids = trigger.crowd(count)?;
            (0..2)
                .map(|_| {
                    sample(engine, &pids, exe, &[FUNCTION], || {
                        trigger.each(FUNCTION, CALLS)?;
                        Ok(CALLS * count as u64)
                    })
                })
                .collect()
        }
        Scenario::Probes(count) => {
            let names = targets::many_names();
            let names: Vec<&str> = names.iter().take(count).map(String::as_str).collect();
            let pids = [trigger.pid()];
            let one = sample(engine, &pids, exe, &names, || {
                // One turn through all; those without a probe count nothing.
                trigger.call(targets::MANY, 1, 1)?;
                Ok(count as u64)
            })?;
            Ok(vec![one])
        }
        Scenario::Threads { count, running } => {
            trigger.hold(count, running)?;
            let pids = [trigger.pid()];
            let one = sample(engine, &pids, exe, &[FUNCTION], || {
                let samples = trigger.call(FUNCTION, 1, CALLS)?;
                Ok(samples.iter().map(|sample| sample.calls).sum())
            })?;
            Ok(vec![one])
        }
    }
}

/// Attaches, has the functions called, and detaches.
fn sample(
    engine: &mut dyn Engine,
    pids: &[Pid],
    exe: &Path,
    functions: &[&str],
    mut call: impl FnMut() -> anyhow::Result<u64>,
) -> anyhow::Result<Sample> {
    let attachment = engine.attach(pids, exe, functions)?;
    let calls = call()?;
    let hits = engine.hits()?;
    let start = Instant::now();
    engine.detach()?;
    Ok(Sample {
        attach: attachment.total,
        stopped: attachment.longest_stop,
        detach: start.elapsed(),
        calls,
        hits,
    })
}

fn summarise(engine: &str, test: &str, samples: &[Sample]) -> Row {
    let range = |of: &dyn Fn(&Sample) -> Duration| {
        Range::of(
            &samples
                .iter()
                .map(|s| milliseconds(of(s)))
                .collect::<Vec<_>>(),
        )
    };
    let stopped: Option<Vec<f64>> = samples
        .iter()
        .map(|s| s.stopped.map(milliseconds))
        .collect();
    Row {
        test: test.to_owned(),
        engine: engine.to_owned(),
        attach_ms: range(&|s| s.attach),
        stopped_ms: stopped.map(|values| Range::of(&values)),
        detach_ms: range(&|s| s.detach),
        calls: samples.iter().map(|s| s.calls).sum(),
        hits: samples.iter().map(|s| s.hits).sum(),
    }
}

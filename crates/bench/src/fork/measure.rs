//! The rounds behind the table.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use super::{Options, Row, Scenario, Target};
use crate::attach::PrivateCopy;
use crate::stats::{Range, median};
use crate::table::left_out;
use crate::trigger::{ForkSample, targets};
use crate::{Engine, Trigger};
use anyhow::bail;

/// Calls of each probed function after an attach.
const CALLS: u64 = 3;
/// How long an engine may take to count in a process that calls all the time.
const PATIENCE: Duration = Duration::from_secs(5);

/// What one engine's share of one round showed.
struct Sample {
    host: ForkSample,
    own: Option<ForkSample>,
    attach: Vec<Duration>,
    stopped: Option<Duration>,
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
        let mut samples: Vec<Vec<Sample>> = engines.iter().map(|_| Vec::new()).collect();
        let mut out_of_it = vec![false; engines.len()];
        for round in 0..options.rounds.max(1) {
            for turn in 0..engines.len() {
                let index = (round + turn) % engines.len();
                let engine = engines[index].as_mut();
                if out_of_it[index] {
                    continue;
                }
                match one_round(engine, scenario, options, copy.path()) {
                    Ok(sample) => samples[index].push(sample),
                    Err(error) => {
                        // Whatever of it is attached.
                        let _ = engine.detach();
                        out_of_it[index] = true;
                        left_out(engine.name(), &scenario.name(), &error, options.json, out)?;
                    }
                }
            }
        }
        let first = rows.len();
        for (engine, samples) in engines.iter().zip(&samples) {
            if !samples.is_empty() {
                rows.push(summarise(engine.as_ref(), scenario, samples));
            }
        }
        // Beside what fork() takes when nobody attaches.
        let idle = rows[first..].iter().find(|row| !row.attaches());
        let idle = idle.map(|row| (row.p999_us.median, row.longest_us.median));
        for row in &mut rows[first..] {
            row.beside(idle);
            let line = if options.json {
                row.json().to_string()
            } else {
                row.text()
            };
            writeln!(out, "{line}")?;
        }
        out.flush()?;
    }
    Ok(rows)
}

impl Scenario {
    /// What its rows are called.
    pub(super) fn name(self) -> String {
        let target = match self.target {
            Target::Idle => "idle".to_owned(),
            Target::Mapping(bytes) => {
                format!("mmap of {:.1} GiB", bytes as f64 / f64::from(1 << 30))
            }
            Target::Forking => "forking".to_owned(),
        };
        let plural = if self.probes == 1 { "" } else { "s" };
        format!("{target}, {} probe{plural}", self.probes)
    }
}

/// One engine's share of one round, on processes of its own.
fn one_round(
    engine: &mut dyn Engine,
    scenario: Scenario,
    options: &Options,
    exe: &Path,
) -> anyhow::Result<Sample> {
    let names: Vec<&str> = targets::NAMED.map(|(name, _)| name).into();
    let functions = &names[..scenario.probes.clamp(1, names.len())];
    // The bystander runs another file, so that no engine has anything to do with it.
    let mut bystander = Trigger::spawn(&options.exe)?;
    let mut target = Trigger::spawn(exe)?;
    match scenario.target {
        Target::Idle => {}
        Target::Mapping(bytes) => target.hold_mapping(bytes)?,
        Target::Forking => target.begin_forks(functions[0])?,
    }
    bystander.begin_forks(names[0])?;
    let mut sample = Sample {
        host: ForkSample::default(),
        own: None,
        attach: Vec::new(),
        stopped: None,
        calls: 0,
        hits: 0,
    };
    let begun = Instant::now();
    while begun.elapsed() < options.window {
        if !engine.counts() {
            std::thread::sleep(options.window);
            continue;
        }
        let attachment = engine.attach(&[target.pid()], exe, functions)?;
        sample.attach.push(attachment.total);
        sample.stopped = sample.stopped.max(attachment.longest_stop);
        if scenario.target == Target::Forking {
            wait_for_a_hit(engine)?;
        } else {
            for function in functions {
                let threads = target.call(function, 1, CALLS)?;
                sample.calls += threads.iter().map(|thread| thread.calls).sum::<u64>();
            }
            sample.hits += engine.hits()?;
        }
        engine.detach()?;
    }
    sample.host = bystander.end_forks()?;
    if scenario.target == Target::Forking {
        sample.own = Some(target.end_forks()?);
    }
    Ok(sample)
}

fn wait_for_a_hit(engine: &mut dyn Engine) -> anyhow::Result<()> {
    let start = Instant::now();
    while engine.hits()? == 0 {
        if start.elapsed() > PATIENCE {
            bail!("nothing is counted in a process that calls all the time");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn summarise(engine: &dyn Engine, scenario: Scenario, samples: &[Sample]) -> Row {
    let range =
        |of: &dyn Fn(&Sample) -> f64| Range::of(&samples.iter().map(of).collect::<Vec<_>>());
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    let millis = |time: Duration| time.as_secs_f64() * 1e3;
    let own: Option<Vec<f64>> = samples
        .iter()
        .map(|s| s.own.map(|own| micros(own.p999)))
        .collect();
    let stopped: Option<Vec<f64>> = samples.iter().map(|s| s.stopped.map(millis)).collect();
    let attaches = engine.counts();
    Row {
        test: scenario.name(),
        engine: engine.name().to_owned(),
        forks: samples.iter().map(|s| s.host.forks).sum(),
        p999_us: range(&|s| micros(s.host.p999)),
        longest_us: range(&|s| micros(s.host.longest)),
        times_idle: None,
        own_p999_us: own.map(|values| Range::of(&values)),
        attach_ms: attaches
            .then(|| range(&|s| median(&s.attach.iter().map(|&t| millis(t)).collect::<Vec<_>>()))),
        stopped_ms: stopped.map(|values| Range::of(&values)),
        attaches: samples.iter().map(|s| s.attach.len() as u64).sum(),
        calls: samples.iter().map(|s| s.calls).sum(),
        hits: samples.iter().map(|s| s.hits).sum(),
    }
}

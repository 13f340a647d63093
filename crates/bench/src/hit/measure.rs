//! The rounds behind the table.

use std::io::Write;
use std::thread;

use serde_json::json;

use super::{Options, Row};
use crate::stats::Summary;
use crate::trigger::targets;
use crate::{Engine, ThreadSample, Trigger};

/// One engine with the trigger that it is attached to.
struct Lane<'a> {
    engine: &'a mut dyn Engine,
    trigger: Trigger,
    attached: bool,
}

impl Lane<'_> {
    fn detach(mut self) -> anyhow::Result<()> {
        self.attached = false;
        self.engine.detach()
    }
}

impl Drop for Lane<'_> {
    /// Where a run ends early its probes are taken out before the trigger is killed.
    fn drop(&mut self) {
        if self.attached {
            // The error that ended the run is the one to report.
            let _ = self.engine.detach();
        }
    }
}

/// What one lane showed in one round.
#[derive(Debug, Clone, Copy)]
struct Share {
    rate: f64,
    call_ns: f64,
    calls: u64,
    hits: u64,
}

/// One series of rounds: the same calls in every lane.
struct Series<'a> {
    test: &'a str,
    function: &'a str,
    threads: usize,
    off: bool,
}

pub(super) fn run(
    engines: &mut [Box<dyn Engine>],
    options: &Options,
    out: &mut dyn Write,
) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    let functions: Vec<&str> = options.functions.iter().map(String::as_str).collect();
    let mut lanes = attach(&mut *engines, &functions, options, out)?;
    for function in &functions {
        let test = short_name(function);
        for &threads in &options.threads {
            let series = Series {
                test: &test,
                function,
                threads,
                off: false,
            };
            let more = rounds(&mut lanes, &series, options, &rows, out)?;
            rows.extend(more);
        }
    }
    switch_off(&mut lanes)?;
    if lanes.iter().any(|lane| lane.engine.counts()) {
        for function in &functions {
            let series = Series {
                test: &short_name(function),
                function,
                threads: 1,
                off: true,
            };
            rows.extend(rounds(&mut lanes, &series, options, &[], out)?);
        }
    }
    detach(lanes)?;

    if options.many {
        let names = targets::many_names();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let able = engines.iter_mut().filter(|engine| engine.attaches_many());
        let mut lanes = attach(able, &names, options, out)?;
        let test = format!("{} functions in turn", targets::MANY_COUNT);
        let series = Series {
            test: &test,
            function: targets::MANY,
            threads: 1,
            off: false,
        };
        rows.extend(rounds(&mut lanes, &series, options, &[], out)?);
        detach(lanes)?;
    }
    Ok(rows)
}

/// Gives each engine a trigger and attaches it; reports and leaves out those that can't.
fn attach<'a>(
    engines: impl IntoIterator<Item = &'a mut Box<dyn Engine>>,
    functions: &[&str],
    options: &Options,
    out: &mut dyn Write,
) -> anyhow::Result<Vec<Lane<'a>>> {
    let mut lanes = Vec::new();
    for engine in engines {
        let trigger = Trigger::spawn(&options.exe)?;
        match engine.attach(&[trigger.pid()], &options.exe, functions) {
            Ok(_) => lanes.push(Lane {
                engine: engine.as_mut(),
                trigger,
                attached: true,
            }),
            Err(error) if options.json => {
                let note = json!({ "engine": engine.name(), "left_out": format!("{error:#}") });
                writeln!(out, "{note}")?;
            }
            Err(error) => writeln!(out, "# {} is left out: {error:#}", engine.name())?,
        }
    }
    Ok(lanes)
}

/// Keeps the bare lane and those that can be switched off, switched off.
fn switch_off(lanes: &mut Vec<Lane<'_>>) -> anyhow::Result<()> {
    let mut kept = Vec::new();
    for lane in lanes.drain(..) {
        if !lane.engine.counts() || lane.engine.set_off()? {
            kept.push(lane);
        } else {
            lane.detach()?;
        }
    }
    *lanes = kept;
    Ok(())
}

fn detach(lanes: Vec<Lane<'_>>) -> anyhow::Result<()> {
    lanes.into_iter().try_for_each(Lane::detach)
}

/// All rounds of one series; writes and returns one row a lane. `before` are the rows so far.
fn rounds(
    lanes: &mut [Lane<'_>],
    series: &Series<'_>,
    options: &Options,
    before: &[Row],
    out: &mut dyn Write,
) -> anyhow::Result<Vec<Row>> {
    let mut shares = vec![Vec::with_capacity(options.rounds); lanes.len()];
    for round in 0..options.rounds.max(1) {
        for turn in 0..lanes.len() {
            // Every round begins with another lane, so that none always follows the same one.
            let index = (round + turn) % lanes.len();
            shares[index].push(share(&mut lanes[index], series, options.milliseconds)?);
        }
    }
    let bare = lanes.iter().position(|lane| !lane.engine.counts());
    let mut rows = Vec::with_capacity(lanes.len());
    for (index, lane) in lanes.iter().enumerate() {
        let base = bare
            .filter(|&bare| bare != index)
            .map(|bare| shares[bare].as_slice());
        let mut row = summarise(lane.engine, series, &shares[index], base);
        row.compare(before);
        let line = if options.json {
            row.json().to_string()
        } else {
            row.text()
        };
        writeln!(out, "{line}")?;
        out.flush()?;
        rows.push(row);
    }
    Ok(rows)
}

#[expect(
    clippy::cast_precision_loss,
    reason = "calls of one round stay far below 2^52"
)]
fn share(lane: &mut Lane<'_>, series: &Series<'_>, milliseconds: u64) -> anyhow::Result<Share> {
    let before = lane.engine.hits()?;
    let samples = lane
        .trigger
        .measure(series.function, series.threads, milliseconds)?;
    let hits = lane.engine.hits()?.saturating_sub(before);
    let calls: u64 = samples.iter().map(|sample| sample.calls).sum();
    let cpu_ns: u64 = samples.iter().map(|sample| sample.cpu_ns).sum();
    Ok(Share {
        rate: rate(&samples),
        call_ns: cpu_ns as f64 / calls as f64,
        calls,
        hits,
    })
}

/// Calls of all threads together, in millions a second.
#[expect(
    clippy::cast_precision_loss,
    reason = "calls of one round stay far below 2^52"
)]
fn rate(samples: &[ThreadSample]) -> f64 {
    let calls: u64 = samples.iter().map(|sample| sample.calls).sum();
    let wall_ns = samples
        .iter()
        .map(|sample| sample.wall_ns)
        .max()
        .unwrap_or(0);
    calls as f64 / wall_ns.max(1) as f64 * 1e3
}

fn summarise(
    engine: &dyn Engine,
    series: &Series<'_>,
    shares: &[Share],
    base: Option<&[Share]>,
) -> Row {
    let rates: Vec<f64> = shares.iter().map(|share| share.rate).collect();
    let costs: Vec<f64> = shares.iter().map(|share| share.call_ns).collect();
    let added_ns = base.map(|base| {
        let added: Vec<f64> = shares
            .iter()
            .zip(base)
            .map(|(share, bare)| share.call_ns - bare.call_ns)
            .collect();
        Summary::of(&added)
    });
    let cpus = thread::available_parallelism()
        .map_or(1, usize::from)
        .min(series.threads.max(1));
    Row {
        test: series.test.to_owned(),
        off: series.off && engine.counts(),
        engine: engine.name().to_owned(),
        threads: series.threads,
        cpus,
        rate: Summary::of(&rates),
        call_ns: Summary::of(&costs),
        added_ns,
        calls: shares.iter().map(|share| share.calls).sum(),
        hits: engine
            .counts()
            .then(|| shares.iter().map(|share| share.hits).sum()),
        of_one: None,
    }
}

/// `uprobe-nop` for `uprobe_target_nop`, as the kernel's benchmark calls it.
fn short_name(function: &str) -> String {
    function.replacen("_target_", "-", 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_over_the_time_until_the_last_thread_ended() {
        let sample = |calls, wall_ns| ThreadSample {
            calls,
            cpu_ns: 1,
            wall_ns,
        };
        assert_eq!(
            rate(&[sample(3_000, 1_000_000), sample(1_000, 2_000_000)]),
            2.0
        );
        assert_eq!(rate(&[]), 0.0);
    }

    #[test]
    fn the_added_cost_is_taken_within_each_round() {
        let share = |call_ns| Share {
            rate: 1.0,
            call_ns,
            calls: 10,
            hits: 10,
        };
        // The machine was slow in the second round, for both.
        let bare = [share(1.0), share(50.0), share(1.0)];
        let probed = [share(4.0), share(53.0), share(4.5)];
        let series = Series {
            test: "t",
            function: "f",
            threads: 1,
            off: false,
        };
        let row = summarise(
            &crate::Kernel::new(crate::Method::Perf),
            &series,
            &probed,
            Some(&bare),
        );
        assert_eq!(
            row.added_ns,
            Some(Summary {
                median: 3.0,
                spread: 0.0
            })
        );
        assert_eq!((row.calls, row.hits, row.cpus), (30, Some(30), 1));
    }

    #[test]
    fn names_are_those_of_the_kernel_benchmark() {
        assert_eq!(short_name("uprobe_target_nop5"), "uprobe-nop5");
    }
}

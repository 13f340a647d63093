//! What a hit of a script costs: the same programs run by lancet and by bpftrace, as a user starts
//! them, on a trigger each.

mod tool;

use std::io::Write;
use std::path::PathBuf;

use serde_json::json;

use crate::Trigger;
use crate::attach::PrivateCopy;
use crate::stats::Summary;
use crate::trigger::targets;
use tool::{Attached, Tool};

/// What is called: an ordinary function's first instruction.
const FUNCTION: &str = "uprobe_target_push";

/// One program; `SITE` is the function, `TEXT` how far behind it a text lies: what lies at other
/// addresses may hold a line's end.
struct Case {
    name: &'static str,
    program: &'static str,
    /// Whether every hit makes a line of output, which may be lost.
    events: bool,
}

const fn case(name: &'static str, program: &'static str) -> Case {
    Case {
        name,
        program,
        events: false,
    }
}

const CASES: [Case; 10] = [
    case("@ = count()", "uprobe:SITE { @ = count(); }"),
    case("@[tid] = count()", "uprobe:SITE { @[tid] = count(); }"),
    case(
        "/predicate/ @ = count()",
        "uprobe:SITE /reg(\"sp\") != 1/ { @ = count(); }",
    ),
    case("@++", "uprobe:SITE { @++; }"),
    case(
        "@[V, V] = count()",
        "uprobe:SITE { @[tid, reg(\"sp\") & 1] = count(); }",
    ),
    case(
        "@ = hist(V / 7)",
        "uprobe:SITE { @ = count(); @h = hist(reg(\"sp\") / 7); }",
    ),
    case("nsecs", "uprobe:SITE { @ = count(); @last = nsecs; }"),
    case(
        "@[str(V)] = count()",
        "uprobe:SITE { @[str(reg(\"ip\") + TEXT, 16)] = count(); }",
    ),
    case(
        "@m[tid] = V; delete(@m[tid])",
        "uprobe:SITE { @ = count(); @m[tid] = 1; delete(@m[tid]); }",
    ),
    Case {
        name: "printf of three integers",
        program: "uprobe:SITE { printf(\"%d %d %d\\n\", tid, reg(\"sp\"), 7); }",
        events: true,
    },
];

/// What [`run`] measures.
#[derive(Debug, Clone)]
pub struct Options {
    /// The binary that is trigger and tool; usually the running one.
    pub exe: PathBuf,
    /// Rounds; the table shows medians over them.
    pub rounds: usize,
    /// How long is measured in one round.
    pub milliseconds: u64,
    /// One JSON object a row instead of the table.
    pub json: bool,
}

impl Options {
    /// The full table, of `exe`.
    #[must_use]
    pub fn new(exe: PathBuf) -> Self {
        Self {
            exe,
            rounds: 15,
            milliseconds: 50,
            json: false,
        }
    }

    /// Fewer and shorter rounds.
    #[must_use]
    pub fn quick(exe: PathBuf) -> Self {
        Self {
            rounds: 3,
            milliseconds: 10,
            ..Self::new(exe)
        }
    }
}

/// One program run by one tool.
#[derive(Debug, Clone)]
pub struct Row {
    /// The program in short.
    pub case: &'static str,
    /// Who ran it.
    pub tool: &'static str,
    /// Nanoseconds of thread CPU time that a hit adds.
    pub added_ns: Summary,
    /// Calls that were made.
    pub calls: u64,
    /// Hits that the tool told of: counted, or printed and lost.
    pub told: u64,
    /// Of these, lost.
    pub lost: u64,
    /// Events printed a second of the tool's time, from the first call to its end.
    pub printed_a_second: Option<f64>,
}

impl Row {
    /// Whether the tool accounts for every call.
    #[must_use]
    pub fn exact(&self) -> bool {
        self.told == self.calls
    }

    fn text(&self) -> String {
        let Self {
            case, tool, calls, ..
        } = self;
        let Summary { median, spread } = self.added_ns;
        let mut line = format!("{case:<30} {tool:<9} {median:>9.1} ± {spread:<7.1} ns a hit");
        if let Some(rate) = self.printed_a_second {
            let lost = self.lost;
            line.push_str(&format!(
                ", {:.2} M/s formatted, {lost} of {calls} lost",
                rate / 1e6
            ));
        }
        if !self.exact() {
            line.push_str(&format!(", tells of {} of {calls} hits", self.told));
        }
        line
    }

    fn json(&self) -> String {
        json!({
            "case": self.case, "tool": self.tool, "added_ns": self.added_ns.median,
            "spread": self.added_ns.spread, "calls": self.calls, "told": self.told,
            "lost": self.lost, "printed_a_second": self.printed_a_second,
        })
        .to_string()
    }
}

/// Measures and writes one row for each program and tool. A tool that is not there is left out.
///
/// # Errors
/// When a trigger or a tool fails, or `out` can't be written.
pub fn run(options: &Options, out: &mut dyn Write) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    let tools = [Tool::lancet(&options.exe), Tool::bpftrace()];
    for case in &CASES {
        for tool in &tools {
            match measure(case, tool, options) {
                Ok(row) => {
                    let line = if options.json { row.json() } else { row.text() };
                    writeln!(out, "{line}")?;
                    out.flush()?;
                    rows.push(row);
                }
                Err(error) if options.json => {
                    let note = json!({ "case": case.name, "tool": tool.name, "left_out": format!("{error:#}") });
                    writeln!(out, "{note}")?;
                }
                Err(error) => {
                    writeln!(out, "# {}: {} is left out: {error:#}", case.name, tool.name)?
                }
            }
        }
    }
    Ok(rows)
}

#[expect(
    clippy::cast_precision_loss,
    reason = "calls of a run stay far below 2^52"
)]
fn measure(case: &Case, tool: &Tool, options: &Options) -> anyhow::Result<Row> {
    // A file of its own: the tools' probes must not meet.
    let copy = PrivateCopy::of(&options.exe)?;
    let mut bare = Trigger::spawn(&options.exe)?;
    let mut probed = Trigger::spawn(copy.path())?;
    let site = format!("{}:{FUNCTION}", copy.path().display());
    let program = case.program.replace("SITE", &site);
    let program = program.replace("TEXT", &targets::TEXT_BEHIND_PUSH.to_string());
    let attached = Attached::start(tool, probed.pid(), &program)?;
    let mut added = Vec::new();
    let mut calls = 0;
    for _ in 0..options.rounds {
        let cost = |trigger: &mut Trigger| -> anyhow::Result<(f64, u64)> {
            let samples = trigger.measure(FUNCTION, 1, options.milliseconds)?;
            let calls: u64 = samples.iter().map(|sample| sample.calls).sum();
            let cpu: u64 = samples.iter().map(|sample| sample.cpu_ns).sum();
            Ok((cpu as f64 / calls as f64, calls))
        };
        let (base, _) = cost(&mut bare)?;
        let (with, made) = cost(&mut probed)?;
        added.push(with - base);
        calls += made;
    }
    let told = attached.stop()?;
    let printed = told.lines as f64 / told.seconds;
    Ok(Row {
        case: case.name,
        tool: tool.name,
        added_ns: Summary::of(&added),
        calls,
        told: if case.events {
            told.lines + told.lost
        } else {
            told.counted
        },
        lost: told.lost,
        printed_a_second: case.events.then_some(printed),
    })
}

//! What fork() takes on the host while probes come and go elsewhere.
//!
//! One process that nobody probes forks in a loop and times each fork(). Meanwhile an engine puts
//! probes into another process and takes them out, again and again. Attaching the kernel's uprobes
//! holds up every fork on the machine while it waits for the memory map of each process with the
//! file; how long, depends on what those processes do with theirs.

mod measure;
mod row;

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use crate::Engine;

pub use row::Row;

/// What the probed process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// It waits.
    Idle,
    /// It maps so many bytes with all their pages, and unmaps them, for ever.
    Mapping(u64),
    /// It forks for ever: forks of the probed process itself, timed too.
    Forking,
}

/// One pair of rows for each engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scenario {
    /// What is probed.
    pub target: Target,
    /// With how many probes; at most four.
    pub probes: usize,
}

/// What [`run`] measures.
#[derive(Debug, Clone)]
pub struct Options {
    /// The binary that knows the trigger mode; usually the running one.
    pub exe: PathBuf,
    /// The rows.
    pub scenarios: Vec<Scenario>,
    /// Rounds; the table shows medians over them, with the least and the most.
    pub rounds: usize,
    /// How long each engine attaches and detaches in a round; it ends what it has begun.
    pub window: Duration,
    /// One JSON object a row instead of the table.
    pub json: bool,
}

impl Options {
    /// The full table.
    #[must_use]
    pub fn new(exe: PathBuf) -> Self {
        let targets = [Target::Idle, Target::Mapping(populated()), Target::Forking];
        let scenarios = targets
            .into_iter()
            .flat_map(|target| [1, 4].map(|probes| Scenario { target, probes }));
        Self {
            exe,
            scenarios: scenarios.collect(),
            rounds: 15,
            window: Duration::from_millis(500),
            json: false,
        }
    }

    /// Fewer and shorter rounds.
    #[must_use]
    pub fn quick(exe: PathBuf) -> Self {
        Self {
            rounds: 3,
            window: Duration::from_millis(200),
            ..Self::new(exe)
        }
    }
}

/// 4 GiB, or a quarter of the memory that is free where that is less.
fn populated() -> u64 {
    const MOST: u64 = 4 << 30;
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"));
    let free = line.and_then(|l| l.trim().trim_end_matches(" kB").parse::<u64>().ok());
    free.map_or(MOST, |kilobytes| (kilobytes * 1024 / 4).min(MOST))
}

/// Measures and writes one row for each scenario and engine.
///
/// Each attach is followed by calls of the probed functions, and the engine's count is compared with
/// them; in a process that forks for ever it is waited for until the engine has counted. An engine
/// that can't attach is reported in one line and left out of the scenario.
///
/// # Errors
/// When a trigger dies, an engine can't detach, or `out` can't be written.
pub fn run(
    engines: &mut [Box<dyn Engine>],
    options: &Options,
    out: &mut dyn Write,
) -> anyhow::Result<Vec<Row>> {
    measure::run(engines, options, out)
}

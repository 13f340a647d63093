//! What attaching and detaching take: to a thousand processes, of a thousand probes, in a process
//! with a hundred threads.
//!
//! All engines are measured in turn in each round, each on fresh processes, which map a private
//! copy of the binary: nobody else's process is touched, and probing the copy as a file reaches
//! the crowd only. The processes of a crowd are forked, so that thousands can be made in seconds.

mod measure;
mod private;
mod row;

use std::io::Write;
use std::path::PathBuf;

use crate::Engine;

pub use private::PrivateCopy;
pub use row::Row;

/// One situation in which probes are attached and detached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scenario {
    /// One probe in so many processes that map one file; then once more in the same processes.
    Processes(usize),
    /// So many probes in one process.
    Probes(usize),
    /// One probe in a process with so many threads, which run or sleep.
    Threads {
        /// How many.
        count: usize,
        /// Whether they spin.
        running: bool,
    },
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
    /// One JSON object a row instead of the table.
    pub json: bool,
}

impl Options {
    /// The full table.
    #[must_use]
    pub fn new(exe: PathBuf) -> Self {
        Self {
            exe,
            scenarios: [1000, 5000]
                .map(Scenario::Processes)
                .into_iter()
                .chain([1, 100, 1000].map(Scenario::Probes))
                .chain(THREADS)
                .collect(),
            rounds: 15,
            json: false,
        }
    }

    /// Fewer rounds and processes.
    #[must_use]
    pub fn quick(exe: PathBuf) -> Self {
        Self {
            scenarios: [Scenario::Processes(100)]
                .into_iter()
                .chain([1, 100, 1000].map(Scenario::Probes))
                .chain(THREADS)
                .collect(),
            rounds: 3,
            ..Self::new(exe)
        }
    }
}

const THREADS: [Scenario; 3] = [
    Scenario::Threads {
        count: 1,
        running: false,
    },
    Scenario::Threads {
        count: 100,
        running: false,
    },
    Scenario::Threads {
        count: 100,
        running: true,
    },
];

/// Measures and writes one row for each scenario and engine, two for a crowd (first and again).
///
/// After each attach the probed functions are called, and the engine's count is compared with the
/// calls. An engine that can't attach is reported in one line and left out of the scenario.
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

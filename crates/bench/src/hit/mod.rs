//! The table of what a hit costs: all engines in one run, in interleaved rounds.

mod measure;
mod row;

use std::io::Write;
use std::path::PathBuf;

use crate::Engine;
use crate::trigger::targets;

pub use row::Row;

/// What [`run`] measures.
#[derive(Debug, Clone)]
pub struct Options {
    /// The binary that knows the trigger mode; usually the running one.
    pub exe: PathBuf,
    /// Functions of [`targets::NAMED`].
    pub functions: Vec<String>,
    /// Numbers of threads that call at the same time.
    pub threads: Vec<usize>,
    /// Rounds, of each of which every engine has its share; the table shows medians over them.
    pub rounds: usize,
    /// How long one engine is measured in one round.
    pub milliseconds: u64,
    /// Whether to measure a thousand functions in turn as well.
    pub many: bool,
    /// One JSON object a row instead of the table.
    pub json: bool,
}

impl Options {
    /// The full table, of `exe` as the trigger.
    #[must_use]
    pub fn new(exe: PathBuf) -> Self {
        Self {
            exe,
            functions: targets::NAMED
                .iter()
                .map(|(name, _)| (*name).to_owned())
                .collect(),
            threads: vec![1, 2, 4, 8, 16, 32, 64],
            rounds: 15,
            milliseconds: 100,
            many: true,
            json: false,
        }
    }

    /// Fewer and shorter rounds, up to eight threads: some seconds in all.
    #[must_use]
    pub fn quick(exe: PathBuf) -> Self {
        Self {
            threads: vec![1, 2, 8],
            rounds: 5,
            milliseconds: 20,
            ..Self::new(exe)
        }
    }
}

/// Measures and writes one row for each function, number of threads and engine.
///
/// Every engine has a trigger process of its own and stays attached to it, so that a round goes
/// through all engines without attaching anew. The added cost is against [`Bare`](crate::Bare) in
/// the same round; without it among `engines` the table shows none. An engine that can't attach is reported in one line and left out.
/// Returns the rows that were written.
///
/// # Errors
/// When a trigger dies or returns wrong results, an engine fails after it was attached, or `out`
/// can't be written.
pub fn run(
    engines: &mut [Box<dyn Engine>],
    options: &Options,
    out: &mut dyn Write,
) -> anyhow::Result<Vec<Row>> {
    measure::run(engines, options, out)
}

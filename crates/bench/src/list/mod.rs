//! What a list of all processes costs: ps, lancet alone, lancet with a served index; one client and many at once; with and
//! without a process that keeps its memory map locked.
//!
//! All three list the same processes in turn in each round. A query's cost is the CPU time of its client, and where an index
//! is served a share of the service's.

mod crowd;
mod measure;
mod sys;

use std::io::Write;
use std::path::PathBuf;

use crate::Error;
use crate::stats::median;

pub use crowd::{BUSY_ARGUMENT, run_busy};
use crowd::{Busy, Crowd, Service};
use measure::{Cost, measure};

/// Who lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lister {
    /// procps.
    Ps,
    /// `lancet ps --alone`.
    Alone,
    /// `lancet ps` beside `lancet index`.
    Served,
}

impl Lister {
    const ALL: [Self; 3] = [Self::Ps, Self::Alone, Self::Served];

    fn name(self) -> &'static str {
        match self {
            Self::Ps => "ps -ef",
            Self::Alone => "lancet alone",
            Self::Served => "lancet served",
        }
    }
}

/// What [`run`] measures.
#[derive(Debug, Clone)]
pub struct Options {
    /// The `lancet` binary.
    pub exe: PathBuf,
    /// How many processes there are beside those of the machine.
    pub processes: Vec<usize>,
    /// How many clients ask at once.
    pub clients: Vec<usize>,
    /// Rounds; the table shows medians.
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
            processes: vec![300, 1000, 5000],
            clients: vec![1, 8, 128],
            rounds: 3,
            json: false,
        }
    }

    /// Fewer rounds, processes and clients.
    #[must_use]
    pub fn quick(exe: PathBuf) -> Self {
        Self {
            processes: vec![300, 1000],
            clients: vec![1, 8],
            rounds: 1,
            ..Self::new(exe)
        }
    }
}

/// One row of the table.
#[derive(Debug, Clone)]
pub struct Row {
    /// Who lists.
    pub lister: Lister,
    /// Processes that there were in all.
    pub processes: usize,
    /// Clients at once.
    pub clients: usize,
    /// Whether a process kept its memory map locked.
    pub busy: bool,
    /// Queries a second.
    pub rate: f64,
    /// User and system milliseconds a query.
    pub user: f64,
    /// As `user`.
    pub system: f64,
    /// The slowest query, in milliseconds.
    pub slowest: f64,
}

/// Measures everything and writes the table as it grows.
///
/// # Errors
/// When a process can't be started, or the table can't be written.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<Vec<Row>, Error> {
    let mut rows = Vec::new();
    if !options.json {
        write(out, &head())?;
    }
    for &processes in &options.processes {
        let crowd = Crowd::start(processes)?;
        for busy in [false, true] {
            let _busy = busy.then(|| Busy::start(&options.exe)).transpose()?;
            for &clients in &options.clients {
                for row in one(options, crowd.all()?, clients, busy)? {
                    write(out, &if options.json { row.json() } else { row.text() })?;
                    rows.push(row);
                }
            }
        }
    }
    Ok(rows)
}

fn one(options: &Options, processes: usize, clients: usize, busy: bool) -> Result<Vec<Row>, Error> {
    let service = Service::start(&options.exe)?;
    let mut costs: [Vec<Cost>; 3] = Default::default();
    for _ in 0..options.rounds {
        for (lister, costs) in Lister::ALL.into_iter().zip(&mut costs) {
            costs.push(measure(&options.exe, lister, clients, &service)?);
        }
    }
    let middle =
        |costs: &[Cost], of: fn(&Cost) -> f64| median(&costs.iter().map(of).collect::<Vec<_>>());
    let rows = Lister::ALL
        .into_iter()
        .zip(&costs)
        .map(|(lister, costs)| Row {
            lister,
            processes,
            clients,
            busy,
            rate: middle(costs, |cost| cost.rate),
            user: middle(costs, |cost| cost.user),
            system: middle(costs, |cost| cost.system),
            slowest: middle(costs, |cost| cost.slowest),
        });
    Ok(rows.collect())
}

fn write(out: &mut dyn Write, line: &str) -> Result<(), Error> {
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .map_err(|source| Error::Run {
            program: "the table".into(),
            source,
        })
}

fn head() -> String {
    format!(
        "{:<14} {:>9} {:>7} {:>6} {:>10} {:>9} {:>9} {:>11}",
        "", "processes", "clients", "locked", "queries/s", "user ms", "sys ms", "slowest ms"
    )
}

impl Row {
    fn text(&self) -> String {
        format!(
            "{:<14} {:>9} {:>7} {:>6} {:>10.1} {:>9.2} {:>9.2} {:>11.1}",
            self.lister.name(),
            self.processes,
            self.clients,
            if self.busy { "one" } else { "-" },
            self.rate,
            self.user,
            self.system,
            self.slowest
        )
    }

    fn json(&self) -> String {
        format!(
            r#"{{"lister": "{}", "processes": {}, "clients": {}, "locked": {}, "queries_per_second": {:.1}, "user_ms": {:.3}, "sys_ms": {:.3}, "slowest_ms": {:.1}}}"#,
            self.lister.name(),
            self.processes,
            self.clients,
            self.busy,
            self.rate,
            self.user,
            self.system,
            self.slowest
        )
    }
}

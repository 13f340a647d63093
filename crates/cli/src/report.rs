//! From counters to a report.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};

use anyhow::{Context, Result};
use lancet_engine::{MapHandle, ProbeId, Session, Total};
use lancet_output::{KeyPart, Map, ProbeLoss, Report, Row, Value, json, text_and_notes};

use crate::options::SessionOptions;
use crate::probes::By;

/// Where the rows of a session come from.
pub(crate) enum Source {
    /// Each probe has counters of its own.
    Probes(Vec<ProbeId>),
    /// One keyed map.
    Map(MapHandle),
}

/// An error with its causes in one line; a cause that the text already tells is not told again.
pub(crate) fn sentence(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    text
}

type RowKey = (Option<ProbeId>, Option<(u64, bool)>);

/// Prints what came in since the last time.
pub(crate) struct Printer {
    report: Box<dyn Report>,
    source: Source,
    by: By,
    printed: HashMap<RowKey, Total>,
    lost: u64,
    foreign_tids: usize,
    /// What to say where writing fails.
    place: String,
}

/// The report's writer: a file, or standard output, which belongs to the command if there is one.
fn writer(options: &SessionOptions) -> Result<Box<dyn Write + Send>> {
    match &options.output {
        Some(path) => {
            let file = File::create(path)
                .with_context(|| format!("cannot write the report to {}", path.display()))?;
            Ok(Box::new(io::BufWriter::new(file)))
        }
        None if options.command.is_some() => Ok(Box::new(io::stderr())),
        None => Ok(Box::new(io::stdout())),
    }
}

/// Opens the report before any target is touched.
pub(crate) fn open(options: &SessionOptions) -> Result<Box<dyn Report>> {
    open_to(writer(options)?, options)
}

/// Opens the report of a script: standard output, unless a file is named.
pub(crate) fn open_script(options: &SessionOptions) -> Result<Box<dyn Report>> {
    let data = match &options.output {
        Some(_) => writer(options)?,
        None => Box::new(io::stdout()),
    };
    open_to(data, options)
}

fn open_to(data: Box<dyn Write + Send>, options: &SessionOptions) -> Result<Box<dyn Report>> {
    if options.json {
        return Ok(json(data));
    }
    let notes: Box<dyn Write + Send> = if options.quiet {
        Box::new(io::sink())
    } else {
        Box::new(io::stderr())
    };
    Ok(text_and_notes(data, notes))
}

impl Printer {
    pub(crate) fn new(
        report: Box<dyn Report>,
        source: Source,
        by: By,
        options: &SessionOptions,
    ) -> Self {
        let place = match &options.output {
            Some(path) => format!("cannot write the report to {}", path.display()),
            None => "cannot write the report".to_owned(),
        };
        Self {
            place,
            report,
            source,
            by,
            printed: HashMap::new(),
            lost: 0,
            foreign_tids: 0,
        }
    }

    /// Rows whose thread had ended before its id could be told in this pid namespace.
    pub(crate) fn foreign_tids(&self) -> usize {
        self.foreign_tids
    }

    pub(crate) fn attached(&mut self, probes: usize) -> io::Result<()> {
        self.report.attached(probes)
    }

    fn totals(&mut self, session: &Session) -> Result<Vec<(RowKey, Total)>> {
        match &self.source {
            Source::Probes(probes) => probes
                .iter()
                .filter_map(|&probe| {
                    let total = session.read(probe).transpose()?;
                    Some(total.map(|t| ((Some(probe), None), t)))
                })
                .collect::<Result<_, _>>()
                .map_err(Into::into),
            Source::Map(map) => {
                let (rows, lost) = session.read_map(*map)?;
                self.lost = lost;
                self.foreign_tids = rows.iter().filter(|row| row.foreign_tid).count();
                Ok(rows
                    .into_iter()
                    .map(|row| ((row.probe, Some((row.key, row.foreign_tid))), row.total))
                    .collect())
            }
        }
    }

    /// One report of what is new; the rows count as printed then.
    pub(crate) fn print(&mut self, session: &Session) -> Result<()> {
        let totals = self.totals(session)?;
        let mut rows = Vec::new();
        for (key, total) in totals {
            let new = match self.printed.get(&key) {
                Some(before) => total.since(before),
                None => total.clone(),
            };
            self.printed.insert(key, total);
            if new.is_zero() {
                continue;
            }
            rows.push(Row {
                key: self.key(session, key),
                value: match new {
                    Total::Count(n) => Value::Count(n),
                    Total::Sum(n) => Value::Sum(n),
                    Total::Hist(buckets) => Value::Hist(buckets),
                },
            });
        }
        let map = Map {
            name: String::new(),
            rows,
        };
        self.report.map(&map).with_context(|| self.place.clone())
    }

    fn key(&self, session: &Session, (probe, key): RowKey) -> Vec<KeyPart> {
        let name = probe
            .filter(|_| self.by.function)
            .map(|p| KeyPart::Name(session.name(p).to_owned()));
        let key = key.map(|(key, _)| KeyPart::Uint(key));
        name.into_iter().chain(key).collect()
    }

    /// The last report: what is new, then what was lost.
    pub(crate) fn finish(&mut self, session: &Session, blank: bool) -> Result<()> {
        if blank {
            self.report.detached().with_context(|| self.place.clone())?;
        }
        self.print(session)?;
        if self.lost > 0 {
            let recorded: u64 = self
                .printed
                .values()
                .map(|t| match t {
                    Total::Count(n) => *n,
                    Total::Hist(buckets) => buckets.iter().sum(),
                    Total::Sum(_) => 0,
                })
                .sum();
            self.report.lost(&ProbeLoss {
                probe: "@ (map full; see --max-keys)".into(),
                hits: recorded + self.lost,
                recorded,
                lost: self.lost,
                skipped: 0,
            })?;
        }
        self.report.finish().with_context(|| self.place.clone())
    }
}

//! The text format, for a terminal.

use std::{
    fmt::Write as _,
    io::{self, Write},
};

use crate::{Map, ProbeLoss, Report, Value, hist, order};

/// Width of a full bar.
const BAR: usize = 52;

/// Maps go to `data`; how many probes were attached and what was lost go to standard error.
#[must_use]
pub fn text(data: Box<dyn Write + Send>) -> Box<dyn Report> {
    text_and_notes(data, Box::new(io::stderr()))
}

/// Maps go to `data`; how many probes were attached and what was lost go to `notes`.
#[must_use]
pub fn text_and_notes(
    data: Box<dyn Write + Send>,
    notes: Box<dyn Write + Send>,
) -> Box<dyn Report> {
    Box::new(Text { data, notes })
}

struct Text {
    data: Box<dyn Write + Send>,
    notes: Box<dyn Write + Send>,
}

impl Report for Text {
    fn attached(&mut self, probes: usize) -> io::Result<()> {
        let plural = if probes == 1 { "" } else { "s" };
        put(
            &mut *self.notes,
            &format!("Attached {probes} probe{plural}\n"),
        )
    }

    fn printf(&mut self, text: &str) -> io::Result<()> {
        put(&mut *self.data, text)
    }

    fn record(&mut self, _: &str, text: &str, _: &str) -> io::Result<()> {
        put(&mut *self.data, text)
    }

    fn detached(&mut self) -> io::Result<()> {
        put(&mut *self.data, "\n\n")
    }

    fn map(&mut self, map: &Map) -> io::Result<()> {
        put(&mut *self.data, &map_text(map))
    }

    fn lost(&mut self, loss: &ProbeLoss) -> io::Result<()> {
        if loss.is_complete() {
            return Ok(());
        }
        let ProbeLoss {
            probe,
            hits,
            recorded,
            lost,
            skipped,
        } = loss;
        let mut note = String::new();
        if *lost > 0 {
            note = format!("Lost {lost} events\n");
        }
        note += &format!(
            "{probe}: {hits} hits = {recorded} recorded + {lost} lost + {skipped} skipped\n"
        );
        put(&mut *self.notes, &note)
    }

    fn finish(&mut self) -> io::Result<()> {
        self.data.flush()?;
        self.notes.flush()
    }
}

/// Writes and flushes, so that an error is that of this call and not of a later one.
fn put(to: &mut dyn Write, text: &str) -> io::Result<()> {
    to.write_all(text.as_bytes())?;
    to.flush()
}

fn map_text(map: &Map) -> String {
    let mut out = String::new();
    for row in order::sorted(map) {
        let _ = write!(out, "@{}", map.name);
        if !row.key.is_empty() {
            let _ = write!(out, "[{}]", row.joined_key(", "));
        }
        let _ = match &row.value {
            Value::Count(count) => writeln!(out, ": {count}"),
            Value::Sum(sum) => writeln!(out, ": {sum}"),
            Value::Shown { text, .. } => writeln!(out, ": {text}"),
            Value::Hist(buckets) => writeln!(out, ":\n{}", hist_text(buckets)),
        };
    }
    out
}

fn hist_text(buckets: &[u64; hist::BUCKETS]) -> String {
    let largest = buckets.iter().copied().max().unwrap_or(0);
    let mut out = String::new();
    for index in hist::used(buckets) {
        let count = buckets[index];
        let label = hist::Bucket::at(index).label();
        let _ = writeln!(
            out,
            "{label:<16}{count:>8} |{:<BAR$}|",
            "@".repeat(bar(count, largest))
        );
    }
    out
}

/// In single precision, as the format was defined by its first program: double gives one mark less for some counts.
fn bar(count: u64, largest: u64) -> usize {
    (count as f32 / largest as f32 * BAR as f32) as usize
}

#[cfg(test)]
mod tests;

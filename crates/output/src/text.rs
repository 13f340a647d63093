//! The text format, for a terminal.

use std::{
    fmt::Write as _,
    io::{self, BufWriter, Write},
};

use crate::{Bucket, Map, ProbeLoss, Report, Value, hist, order};

/// Bytes that are written at once, of many lines.
pub(crate) const BUFFER: usize = 1 << 16;
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
    Box::new(Text {
        data: BufWriter::with_capacity(BUFFER, data),
        notes,
    })
}

struct Text {
    data: BufWriter<Box<dyn Write + Send>>,
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
        self.data.write_all(text.as_bytes())
    }

    fn record(&mut self, _: &str, text: &str, _: &str) -> io::Result<()> {
        self.data.write_all(text.as_bytes())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.data.flush()
    }

    fn detached(&mut self) -> io::Result<()> {
        put(&mut self.data, "\n\n")
    }

    fn map(&mut self, map: &Map) -> io::Result<()> {
        put(&mut self.data, &map_text(map))
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
            Value::Buckets(buckets) => {
                let rows: Vec<(String, u64)> =
                    buckets.iter().map(|b| (label(b), b.count)).collect();
                writeln!(out, ":\n{}", bars(&rows))
            }
            Value::Average(average) => writeln!(out, ": {average}"),
            Value::Stats {
                count,
                average,
                total,
            } => writeln!(out, ": count {count}, average {average}, total {total}"),
        };
    }
    out
}

fn hist_text(buckets: &[u64; hist::BUCKETS]) -> String {
    let rows: Vec<(String, u64)> = hist::used(buckets)
        .map(|index| (hist::Bucket::at(index).label(), buckets[index]))
        .collect();
    bars(&rows)
}

fn bars(rows: &[(String, u64)]) -> String {
    let largest = rows.iter().map(|(_, count)| *count).max().unwrap_or(0);
    let mut out = String::new();
    for (label, count) in rows {
        let _ = writeln!(
            out,
            "{label:<16}{count:>8} |{:<BAR$}|",
            "@".repeat(bar(*count, largest))
        );
    }
    out
}

/// The bounds of a bucket; the upper one is that of the next.
fn label(bucket: &Bucket) -> String {
    match (bucket.min, bucket.max) {
        (None, Some(max)) => format!("(..., {})", short(max + 1)),
        (Some(min), None) => format!("[{}, ...)", short(min)),
        (Some(min), Some(max)) if min == max => format!("[{}]", short(min)),
        (Some(min), Some(max)) => format!("[{}, {})", short(min), short(max + 1)),
        (None, None) => "(..., ...)".into(),
    }
}

/// A number by the suffix of the largest power of 1024 that divides it.
fn short(value: i128) -> String {
    const SUFFIXES: [&str; 7] = ["", "K", "M", "G", "T", "P", "E"];
    let powers = (1..SUFFIXES.len()).take_while(|power| value % (1 << (10 * power)) == 0);
    let power = if value == 0 {
        0
    } else {
        powers.last().unwrap_or(0)
    };
    format!("{}{}", value >> (10 * power), SUFFIXES[power])
}

/// In single precision, as the format was defined by its first program: double gives one mark less for some counts.
fn bar(count: u64, largest: u64) -> usize {
    (count as f32 / largest as f32 * BAR as f32) as usize
}

#[cfg(test)]
mod tests;

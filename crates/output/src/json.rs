//! The JSON format: one object a line.

use std::{
    fmt::Write as _,
    io::{self, BufWriter, Write},
};

use crate::text::BUFFER;
use crate::{Bucket, Map, ProbeLoss, Report, Row, Value, hist, order};

/// Everything goes to `data`.
#[must_use]
pub fn json(data: Box<dyn Write + Send>) -> Box<dyn Report> {
    Box::new(Json {
        data: BufWriter::with_capacity(BUFFER, data),
    })
}

struct Json {
    data: BufWriter<Box<dyn Write + Send>>,
}

impl Json {
    /// Writes a line and flushes, so that an error is that of this call and not of a later one.
    fn line(&mut self, line: String) -> io::Result<()> {
        self.event(line)?;
        self.data.flush()
    }

    /// One of many lines.
    fn event(&mut self, mut line: String) -> io::Result<()> {
        line.push('\n');
        self.data.write_all(line.as_bytes())
    }
}

impl Report for Json {
    fn attached(&mut self, probes: usize) -> io::Result<()> {
        self.line(format!(
            r#"{{"type": "attached_probes", "count": {probes}, "data": {{"probes": {probes}}}}}"#
        ))
    }

    fn printf(&mut self, text: &str) -> io::Result<()> {
        self.event(format!(r#"{{"type": "printf", "data": {}}}"#, quoted(text)))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.data.flush()
    }

    fn record(&mut self, kind: &str, _: &str, data: &str) -> io::Result<()> {
        self.event(format!(r#"{{"type": "{kind}", "data": {data}}}"#))
    }

    fn detached(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn map(&mut self, map: &Map) -> io::Result<()> {
        let rows = order::sorted(map);
        let Some(first) = rows.first() else {
            return Ok(());
        };
        let kind = match first.value {
            Value::Hist(_) | Value::Buckets(_) => "hist",
            Value::Average(_) | Value::Stats { .. } => "stats",
            _ => "map",
        };
        let name = quoted(&format!("@{}", map.name));
        let data = if first.key.is_empty() {
            value(&first.value)
        } else {
            keyed(&rows)
        };
        self.line(format!(
            r#"{{"type": "{kind}", "data": {{{name}: {data}}}}}"#
        ))
    }

    /// One line in the common shape, which readers know, and one that says which probe and why.
    fn lost(&mut self, loss: &ProbeLoss) -> io::Result<()> {
        let ProbeLoss {
            probe,
            hits,
            recorded,
            lost,
            skipped,
        } = loss;
        if *lost > 0 {
            self.line(format!(
                r#"{{"type": "lost_events", "count": {lost}, "data": {{"events": {lost}}}}}"#
            ))?;
        }
        if loss.is_complete() {
            return Ok(());
        }
        let probe = quoted(probe);
        self.line(format!(
            r#"{{"type": "probe_loss", "data": {{"probe": {probe}, "hits": {hits}, "recorded": {recorded}, "lost": {lost}, "skipped": {skipped}}}}}"#
        ))
    }

    fn finish(&mut self) -> io::Result<()> {
        self.data.flush()
    }
}

fn keyed(rows: &[&Row]) -> String {
    let members: Vec<String> = rows
        .iter()
        .map(|row| format!("{}: {}", quoted(&row.joined_key(",")), value(&row.value)))
        .collect();
    format!("{{{}}}", members.join(", "))
}

fn value(value: &Value) -> String {
    match value {
        Value::Count(count) => number(i128::from(*count)),
        Value::Sum(sum) => number(i128::from(*sum)),
        Value::Hist(buckets) => buckets_array(buckets),
        Value::Buckets(buckets) => {
            let members: Vec<String> = buckets.iter().map(bucket).collect();
            format!("[{}]", members.join(","))
        }
        Value::Average(average) => number(*average),
        Value::Stats {
            count,
            average,
            total,
        } => {
            let [count, average, total] = [i128::from(*count), *average, *total].map(number);
            format!(r#"{{"count": {count}, "average": {average}, "total": {total}}}"#)
        }
        Value::Shown { json, .. } => json.clone(),
    }
}

fn bucket(bucket: &Bucket) -> String {
    let bound = |name: &str, value: Option<i128>| {
        value.map(|value| format!(r#""{name}": {}"#, number(value)))
    };
    let count = format!(r#""count": {}"#, bucket.count);
    let parts = [
        bound("min", bucket.min),
        bound("max", bucket.max),
        Some(count),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    format!("{{{}}}", parts.join(", "))
}

fn buckets_array(buckets: &[u64; hist::BUCKETS]) -> String {
    let members: Vec<String> = hist::used(buckets)
        .map(|index| {
            let bucket = hist::Bucket::at(index);
            let min = bucket.min().map_or_else(String::new, |min| {
                format!(r#""min": {}, "#, number(i128::from(min)))
            });
            format!(
                r#"{{{min}"max": {}, "count": {}}}"#,
                number(bucket.max()),
                buckets[index]
            )
        })
        .collect();
    format!("[{}]", members.join(","))
}

/// An integer. Many readers take every number for a double; one that a double can't hold is written as a string.
#[must_use]
pub fn number(value: i128) -> String {
    let magnitude = value.unsigned_abs();
    let significant = magnitude
        .checked_ilog2()
        .map_or(0, |top| top + 1 - magnitude.trailing_zeros());
    if significant <= f64::MANTISSA_DIGITS {
        value.to_string()
    } else {
        format!("\"{value}\"")
    }
}

/// A text as JSON has it, with its quotes.
#[must_use]
pub fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\0'..='\x1f' => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            _ => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests;

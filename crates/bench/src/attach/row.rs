//! One line of the table, and how it is written.

use std::time::Duration;

use serde_json::{Value, json};

use crate::stats::Range;
use crate::table::range;

/// One engine in one scenario.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// The scenario: `1000 processes, first`.
    pub test: String,
    /// The engine's name.
    pub engine: String,
    /// Milliseconds until all was attached.
    pub attach_ms: Range,
    /// The longest that a thread of the targets stood still, milliseconds; where the engine knows.
    pub stopped_ms: Option<Range>,
    /// Milliseconds until all was detached.
    pub detach_ms: Range,
    /// Calls of probed functions between the two, in all rounds.
    pub calls: u64,
    /// Hits that the engine counted meanwhile.
    pub hits: u64,
}

impl Row {
    /// Whether every call was counted exactly once.
    #[must_use]
    pub fn exact(&self) -> bool {
        self.hits == self.calls
    }

    /// The table's head.
    #[must_use]
    pub fn head() -> String {
        format!(
            "{:<32} {:<12} {:>27} {:>27} {:>27}  {}",
            "milliseconds: median (least-most)",
            "",
            "attach",
            "a thread stopped",
            "detach",
            "counted"
        )
        .replacen("(least-most) ", "(least-most)", 1)
    }

    /// The line of the table.
    #[must_use]
    pub fn text(&self) -> String {
        let count = if self.exact() {
            format!("hits == calls ({})", self.hits)
        } else {
            format!("WRONG: {} hits of {} calls", self.hits, self.calls)
        };
        format!(
            "{:<32} {:<12} {:>27} {:>27} {:>27}  {count}",
            self.test,
            self.engine,
            range(self.attach_ms, 2),
            self.stopped_ms
                .map_or_else(|| "-".to_owned(), |stopped| range(stopped, 2)),
            range(self.detach_ms, 2),
        )
    }

    /// The same as one JSON object; times in milliseconds.
    #[must_use]
    pub fn json(&self) -> Value {
        let of = |range: Range| json!({ "median": range.median, "least": range.least, "most": range.most });
        json!({
            "test": self.test,
            "engine": self.engine,
            "attach_ms": of(self.attach_ms),
            "stopped_ms": self.stopped_ms.map(of),
            "detach_ms": of(self.detach_ms),
            "calls": self.calls,
            "hits": self.hits,
            "exact": self.exact(),
        })
    }
}

/// A duration as the table shows it.
pub(super) fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(hits: u64) -> Row {
        let range = |median| Range {
            median,
            least: 1.0,
            most: 9.5,
        };
        Row {
            test: "1000 processes, first".to_owned(),
            engine: "lancet".to_owned(),
            attach_ms: range(4.25),
            stopped_ms: None,
            detach_ms: range(2.0),
            calls: 10,
            hits,
        }
    }

    #[test]
    fn a_row_shows_median_and_range_and_what_was_counted() {
        let text = row(10).text();
        assert!(text.contains("4.25 (1.00-9.50)"), "{text}");
        assert!(text.ends_with("hits == calls (10)"), "{text}");
        let text = row(9).text();
        assert!(text.ends_with("WRONG: 9 hits of 10 calls"), "{text}");
    }

    #[test]
    fn json_says_whether_the_count_is_exact() {
        assert_eq!(row(10).json()["exact"], true);
        assert_eq!(row(11).json()["exact"], false);
        assert_eq!(row(10).json()["stopped_ms"], Value::Null);
        assert_eq!(row(10).json()["attach_ms"]["most"], 9.5);
    }
}

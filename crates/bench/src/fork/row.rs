//! One line of the table, and how it is written.

use serde_json::{Value, json};

use crate::stats::Range;
use crate::table::range;

/// One engine in one scenario.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// The scenario: `idle, 1 probe`.
    pub test: String,
    /// The engine's name.
    pub engine: String,
    /// Forks of the bystander in all rounds.
    pub forks: u64,
    /// What all but one in a thousand of a round's forks took at most, microseconds.
    pub p999_us: Range,
    /// What a round's longest fork took, microseconds.
    pub longest_us: Range,
    /// How many times longer the two took than when nobody attached, by their medians.
    pub times_idle: Option<(f64, f64)>,
    /// The same as `p999_us` for forks of the probed process itself, where it forks.
    pub own_p999_us: Option<Range>,
    /// Milliseconds until all was attached; none where nothing is attached.
    pub attach_ms: Option<Range>,
    /// The longest that a thread of the target stood still, milliseconds; where the engine knows.
    pub stopped_ms: Option<Range>,
    /// Attaches in all rounds.
    pub attaches: u64,
    /// Calls of probed functions behind attaches, in all rounds; 0 where the target calls by itself.
    pub calls: u64,
    /// Hits that the engine counted of them.
    pub hits: u64,
}

impl Row {
    /// Whether every call was counted exactly once.
    #[must_use]
    pub fn exact(&self) -> bool {
        self.hits == self.calls
    }

    /// Whether the engine attached anything.
    #[must_use]
    pub fn attaches(&self) -> bool {
        self.attach_ms.is_some()
    }

    /// Sets the medians of both times of the row without an engine.
    pub(super) fn beside(&mut self, idle: Option<(f64, f64)>) {
        self.times_idle = idle
            .filter(|_| self.attaches())
            .map(|(p999, longest)| (self.p999_us.median / p999, self.longest_us.median / longest));
    }

    /// The table's head.
    #[must_use]
    pub fn head() -> String {
        format!(
            "{:<26} {:<12} {:>24} {:>30} {:>14} {:>24} {:>22} {:>20}  counted",
            "median (least-most)",
            "",
            "fork p99.9, us",
            "longest fork, us",
            "times idle",
            "target's fork p99.9, us",
            "attach, ms",
            "thread stopped, ms",
        )
    }

    /// The line of the table.
    #[must_use]
    pub fn text(&self) -> String {
        let times = self.times_idle.map_or_else(
            || "-".to_owned(),
            |(p999, longest)| format!("{p999:.1}, {longest:.1}"),
        );
        let count = match (self.attaches(), self.exact()) {
            (false, _) => format!("{} forks", self.forks),
            (true, true) => format!("{} attaches, hits == calls ({})", self.attaches, self.hits),
            (true, false) => format!("WRONG: {} hits of {} calls", self.hits, self.calls),
        };
        format!(
            "{:<26} {:<12} {:>24} {:>30} {:>14} {:>24} {:>22} {:>20}  {count}",
            self.test,
            self.engine,
            range(self.p999_us, 0),
            range(self.longest_us, 0),
            times,
            optional(self.own_p999_us, 0),
            optional(self.attach_ms, 2),
            optional(self.stopped_ms, 2),
        )
    }

    /// The same as one JSON object.
    #[must_use]
    pub fn json(&self) -> Value {
        let of = |range: Range| json!({ "median": range.median, "least": range.least, "most": range.most });
        json!({
            "test": self.test,
            "engine": self.engine,
            "forks": self.forks,
            "fork_p999_us": of(self.p999_us),
            "fork_longest_us": of(self.longest_us),
            "p999_times_idle": self.times_idle.map(|times| times.0),
            "longest_times_idle": self.times_idle.map(|times| times.1),
            "own_fork_p999_us": self.own_p999_us.map(of),
            "attach_ms": self.attach_ms.map(of),
            "stopped_ms": self.stopped_ms.map(of),
            "attaches": self.attaches,
            "calls": self.calls,
            "hits": self.hits,
            "exact": self.exact(),
        })
    }
}

fn optional(of: Option<Range>, digits: usize) -> String {
    of.map_or_else(|| "-".to_owned(), |of| range(of, digits))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(attaches: bool) -> Row {
        let range = |median| Range {
            median,
            least: 1.0,
            most: 900.0,
        };
        Row {
            test: "idle, 1 probe".to_owned(),
            engine: "lancet".to_owned(),
            forks: 12,
            p999_us: range(300.0),
            longest_us: range(800.0),
            times_idle: None,
            own_p999_us: None,
            attach_ms: attaches.then(|| range(1.5)),
            stopped_ms: None,
            attaches: 7,
            calls: 21,
            hits: 21,
        }
    }

    #[test]
    fn times_are_shown_beside_those_without_an_engine() {
        let mut with = row(true);
        with.beside(Some((200.0, 1600.0)));
        assert_eq!(with.times_idle, Some((1.5, 0.5)));
        assert!(with.text().contains("1.5, 0.5"), "{}", with.text());
        let mut without = row(false);
        without.beside(Some((200.0, 1600.0)));
        assert_eq!(without.times_idle, None);
        assert!(without.text().ends_with("12 forks"), "{}", without.text());
    }

    #[test]
    fn what_was_counted_wrongly_is_said() {
        let mut wrong = row(true);
        assert!(wrong.text().ends_with("7 attaches, hits == calls (21)"));
        wrong.hits = 20;
        assert!(wrong.text().ends_with("WRONG: 20 hits of 21 calls"));
        assert_eq!(wrong.json()["exact"], false);
    }
}

//! One line of the table, and how it is written.

use serde_json::{Value, json};

use crate::stats::Summary;

/// One engine at one function with one number of threads.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// What was called: `uprobe-nop` for `uprobe_target_nop`, or `1000 functions in turn`.
    pub test: String,
    /// Whether the probes were in place but switched off.
    pub off: bool,
    /// The engine's name.
    pub engine: String,
    /// Threads that called at the same time.
    pub threads: usize,
    /// CPUs that they had: no more than there are.
    pub cpus: usize,
    /// Calls of all threads together, millions a second.
    pub rate: Summary,
    /// Thread CPU time of one call, nanoseconds.
    pub call_ns: Summary,
    /// What the probe adds to that, against the bare calls of the same round.
    pub added_ns: Option<Summary>,
    /// Calls in all rounds.
    pub calls: u64,
    /// Hits that the engine counted meanwhile; none of an engine that does not count.
    pub hits: Option<u64>,
    /// What a thread gets done beside the others, as a share of what one alone does: 1 where they
    /// do not disturb each other. By thread CPU time, so that neither other processes nor more
    /// threads than CPUs change it; the rate has all that in it.
    pub of_one: Option<f64>,
}

impl Row {
    /// Whether every call was counted exactly once (none of them when switched off).
    #[must_use]
    pub fn exact(&self) -> bool {
        let due = if self.off { 0 } else { self.calls };
        self.hits.is_none_or(|hits| hits == due)
    }

    /// Compares with the row of one thread, where there is one before.
    pub(super) fn compare(&mut self, before: &[Self]) {
        let alone = |row: &&Self| {
            (row.threads, &row.test, &row.engine, row.off)
                == (1, &self.test, &self.engine, self.off)
        };
        let one = before.iter().find(alone).filter(|_| self.threads > 1);
        self.of_one = one.map(|one| one.call_ns.median / self.call_ns.median);
    }

    /// The line of the table: name, threads and rate in the columns of the kernel's own uprobe
    /// benchmark, then engine, added cost, what a thread keeps of its pace beside others, and the
    /// check of the count.
    #[must_use]
    pub fn text(&self) -> String {
        let Summary { median, spread } = self.rate;
        #[expect(clippy::cast_precision_loss, reason = "a small number of CPUs")]
        let per_cpu = median / self.cpus as f64;
        let mut line = format!(
            "{:<15} ({:2} cpus): {median:8.3} ± {spread:.3}M/s ({per_cpu:8.3}M/s/cpu)  {:<12}",
            self.test,
            self.threads,
            if self.off {
                format!("{} off", self.engine)
            } else {
                self.engine.clone()
            },
        );
        if let Some(added) = self.added_ns {
            line += &format!(" {:+10.2} ± {:.2} ns/hit", added.median, added.spread);
        }
        if let Some(of_one) = self.of_one {
            line += &format!("  {of_one:.2} of one thread");
        }
        match self.hits {
            None => {}
            Some(hits) if self.exact() && self.off => {
                line += &format!("  hits == {hits} of {} calls", self.calls);
            }
            Some(hits) if self.exact() => line += &format!("  hits == calls ({hits})"),
            Some(hits) => line += &format!("  WRONG: {hits} hits of {} calls", self.calls),
        }
        line.trim_end().to_owned()
    }

    /// The same as one JSON object; rates in millions a second, times in nanoseconds.
    #[must_use]
    pub fn json(&self) -> Value {
        json!({
            "test": self.test,
            "off": self.off,
            "engine": self.engine,
            "threads": self.threads,
            "cpus": self.cpus,
            "rate_m_per_s": self.rate.median,
            "rate_spread": self.rate.spread,
            "call_ns": self.call_ns.median,
            "added_ns": self.added_ns.map(|added| added.median),
            "added_ns_spread": self.added_ns.map(|added| added.spread),
            "calls": self.calls,
            "hits": self.hits,
            "of_one": self.of_one,
            "exact": self.exact(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> Row {
        Row {
            test: "uprobe-nop".to_owned(),
            off: false,
            engine: "bare".to_owned(),
            threads: 1,
            cpus: 1,
            rate: Summary {
                median: 375.94,
                spread: 0.4,
            },
            call_ns: Summary {
                median: 2.66,
                spread: 0.01,
            },
            added_ns: None,
            calls: 1000,
            hits: None,
            of_one: None,
        }
    }

    #[test]
    fn columns_are_those_of_the_kernel_benchmark() {
        assert_eq!(
            row().text(),
            "uprobe-nop      ( 1 cpus):  375.940 ± 0.400M/s ( 375.940M/s/cpu)  bare"
        );
    }

    #[test]
    fn oversubscribed_threads_share_the_cpus() {
        let text = Row {
            threads: 64,
            cpus: 2,
            ..row()
        }
        .text();
        assert!(
            text.starts_with("uprobe-nop      (64 cpus):  375.940 ± 0.400M/s ( 187.970M/s/cpu)")
        );
    }

    #[test]
    fn added_cost_and_count_follow() {
        let added_ns = Some(Summary {
            median: 573.118,
            spread: 4.2,
        });
        let good = Row {
            engine: "kernel-perf".to_owned(),
            added_ns,
            hits: Some(1000),
            ..row()
        };
        assert!(
            good.text()
                .ends_with("kernel-perf     +573.12 ± 4.20 ns/hit  hits == calls (1000)")
        );
        let bad = Row {
            hits: Some(999),
            ..good
        };
        assert!(!bad.exact());
        assert!(bad.text().ends_with("WRONG: 999 hits of 1000 calls"));
    }

    #[test]
    fn threads_are_compared_with_one_of_the_same_engine() {
        let call_ns = |median| Summary {
            median,
            spread: 0.0,
        };
        let one = row();
        let mut two = Row {
            threads: 2,
            call_ns: call_ns(2.8),
            ..row()
        };
        two.compare(&[]);
        assert_eq!(two.of_one, None);
        let other = Row {
            engine: "lancet".to_owned(),
            call_ns: call_ns(9.0),
            ..row()
        };
        two.compare(&[other, one.clone()]);
        assert!(
            two.text().ends_with("bare          0.95 of one thread"),
            "{}",
            two.text()
        );
        let mut again = row();
        again.compare(&[one]);
        assert_eq!(again.of_one, None, "one thread is not compared with itself");
    }

    #[test]
    fn switched_off_probes_may_not_count() {
        let off = Row {
            off: true,
            hits: Some(0),
            ..row()
        };
        assert!(off.exact());
        assert!(
            off.text()
                .ends_with("bare off      hits == 0 of 1000 calls")
        );
        assert!(
            !Row {
                hits: Some(1),
                ..off
            }
            .exact()
        );
    }

    #[test]
    fn json_keeps_the_numbers_and_the_gaps() {
        let value = row().json();
        assert_eq!(value["test"], "uprobe-nop");
        assert_eq!(value["rate_m_per_s"], 375.94);
        assert_eq!(value["added_ns"], Value::Null);
        assert_eq!(value["exact"], true);
    }
}

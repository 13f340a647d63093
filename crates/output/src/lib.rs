//! Report formats: how counts, sums and histograms are written for people and for programs.
//!
//! A [`Report`] is fed in the order of a session: [`attached`](Report::attached), any number of
//! [`printf`](Report::printf) and [`record`](Report::record), [`detached`](Report::detached), a [`map`](Report::map) for each map, a
//! [`lost`](Report::lost) for each probe, [`finish`](Report::finish). Each call writes its part as a whole and flushes it,
//! and returns the error when it could not. Rows may come in any order; the report sorts them.
//!
//! Both formats are those of bpftrace, to the character, so that what reads its output reads ours.
//!
//! ```
//! use lancet_output::{KeyPart, Map, Row, Value, text};
//!
//! let mut report = text(Box::new(std::io::stdout()));
//! report.map(&Map {
//!     name: "calls".into(),
//!     rows: vec![Row { key: vec![KeyPart::Name("malloc".into()), KeyPart::Int(7)], value: Value::Count(3) }],
//! })?; // @calls[malloc, 7]: 3
//! # std::io::Result::Ok(())
//! ```

mod hist;
mod json;
mod map;
mod order;
mod text;

use std::io;

pub use hist::{BUCKETS, bucket_of};
pub use json::{json, number, quoted};
pub use map::{Bucket, KeyPart, Map, Row, Value};
pub use text::{text, text_and_notes};

/// What became of the hits of one probe: `hits = recorded + lost + skipped`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProbeLoss {
    /// The probe as the user wrote it.
    pub probe: String,
    /// How often the probe was reached.
    pub hits: u64,
    /// Hits whose action ran to its end.
    pub recorded: u64,
    /// Hits whose data found no room.
    pub lost: u64,
    /// Hits whose action could not run (re-entry, a thread that could not leave in time).
    pub skipped: u64,
}

impl ProbeLoss {
    /// True when every hit was recorded.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.lost == 0 && self.skipped == 0
    }
}

/// One format of a report.
pub trait Report: Send {
    /// All probes are in place. `probes` counts every one, also begin, end and interval.
    ///
    /// # Errors
    /// When the report can't be written, as in all of these.
    fn attached(&mut self, probes: usize) -> io::Result<()>;

    /// What a script prints, as it is: the newline belongs to the text. It may wait for
    /// [`flush`](Self::flush), or for anything that is no event.
    ///
    /// # Errors
    /// When the report can't be written.
    fn printf(&mut self, text: &str) -> io::Result<()>;

    /// What a script prints in another way: `kind` is `value`, `time` or `join`, `text` is for people, `data` is the same as JSON.
    ///
    /// # Errors
    /// When the report can't be written.
    fn record(&mut self, kind: &str, text: &str, data: &str) -> io::Result<()>;

    /// Writes the events that wait.
    ///
    /// # Errors
    /// When the report can't be written.
    fn flush(&mut self) -> io::Result<()>;

    /// All probes are out and the final maps follow.
    ///
    /// # Errors
    /// When the report can't be written.
    fn detached(&mut self) -> io::Result<()>;

    /// One map. An empty one writes nothing.
    ///
    /// # Errors
    /// When the report can't be written.
    fn map(&mut self, map: &Map) -> io::Result<()>;

    /// The hits of one probe. Writes nothing when all were recorded.
    ///
    /// # Errors
    /// When the report can't be written.
    fn lost(&mut self, loss: &ProbeLoss) -> io::Result<()>;

    /// Nothing follows.
    ///
    /// # Errors
    /// When the report can't be written.
    fn finish(&mut self) -> io::Result<()>;
}

//! What hits that assert the hit path's invariants found broken.

use std::collections::BTreeMap;

use anyhow::Result;
use lancet_engine::{Invariant, Session};

use crate::options::SessionOptions;

/// Tells each invariant that was broken since the last time, at each report and at the end.
#[derive(Default)]
pub(crate) struct Checks {
    told: BTreeMap<Invariant, u64>,
}

impl Checks {
    /// Whether hits are to assert anything: by option, or by the environment for the whole of a
    /// test suite.
    pub(crate) fn wanted(options: &SessionOptions) -> bool {
        options.check || std::env::var_os("LANCET_CHECK").is_some_and(|value| value == "1")
    }

    pub(crate) fn tell(&mut self, session: &Session) -> Result<()> {
        for (invariant, times) in session.broken()? {
            if self.told.insert(invariant, times) != Some(times) {
                let number = invariant.number();
                eprintln!(
                    "lancet: hit path invariant {number} ({invariant}) was broken {times} times"
                );
            }
        }
        Ok(())
    }

    /// Whether any was ever broken.
    pub(crate) fn failed(&self) -> bool {
        !self.told.is_empty()
    }
}

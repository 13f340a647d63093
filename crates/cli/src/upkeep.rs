//! What a session wants done now and then while it waits.

use std::time::{Duration, Instant};

use lancet_engine::{Lost, Session, State};

use crate::options::SessionOptions;
use crate::run::{say_how_long, say_state};

/// How often thread ids of other pid namespaces are learned, while their threads live.
const LEARN: Duration = Duration::from_millis(200);

/// How often the sites are looked at; what a look finds is taken by the next one.
const LOOK: Duration = Duration::from_millis(500);

/// When what is due.
pub(crate) struct Upkeep<'o> {
    options: &'o SessionOptions,
    look: Instant,
    foreign_tids: bool,
}

impl<'o> Upkeep<'o> {
    pub(crate) fn begin(session: &Session, options: &'o SessionOptions) -> Self {
        Self {
            options,
            look: Instant::now() + LOOK,
            foreign_tids: session.learn_tids(),
        }
    }

    /// Looks at the sites, when that is due; whether it was. Tells what was lost, and what has
    /// become of processes that were pending.
    pub(crate) fn look(&mut self, session: &mut Session) -> bool {
        // Those that nobody has named.
        let follows = session.followed().is_some();
        for (pid, state) in session.news() {
            match state {
                State::Attached(one) => say_how_long(self.options, &one),
                // What came by itself and has gone again is nobody's loss.
                State::NotMapped | State::Gone | State::Unknown if follows => {}
                _ if !self.options.quiet => say_state(pid, &state),
                _ => {}
            }
        }
        let now = Instant::now();
        let due = now >= self.look;
        if due {
            self.look = now + LOOK;
            if session.alive().next().is_some() {
                session.verify().iter().for_each(say_lost);
            }
        }
        due
    }

    /// When to wake at the latest. While no process is there, and none was named, there is nothing
    /// to wake for.
    pub(crate) fn next(&self, session: &Session) -> Option<Instant> {
        let some = !self.options.pids.is_empty() || session.alive().next().is_some();
        let look = some.then_some(self.look);
        let learn = self.foreign_tids.then(|| Instant::now() + LEARN);
        [look, learn].into_iter().flatten().min()
    }

    /// Learns thread ids, after each wait, where there are any to be learned.
    pub(crate) fn learn(&mut self, session: &Session) {
        self.foreign_tids = self.foreign_tids && session.learn_tids();
    }
}

fn say_lost(lost: &Lost) {
    let Lost {
        pid,
        site,
        probe,
        loss,
    } = lost;
    let probe = probe.as_deref().unwrap_or("a watched system call");
    eprintln!(
        "lancet: process {pid}: {probe} at {site}: {loss}; the probe was taken out and counts no more"
    );
}

/// Tells how many thread ids of a report could not be translated.
pub(crate) fn say_foreign_tids(count: usize) {
    if count > 0 {
        eprintln!(
            "lancet: {count} thread ids are shown as their own pid namespace had them: the threads had ended before they could be translated"
        );
    }
}

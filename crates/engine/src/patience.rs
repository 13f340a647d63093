//! Trying again while not all threads of a process stop in time.
//!
//! One try holds a target up for its stop budget at most, and the pauses between are much longer;
//! so it may be tried for long, as on a machine with many more threads ready to run than CPUs.

use std::time::{Duration, Instant};

use lancet_remote::StopBudget;

/// From then on each second's tries may hold the target up twice as long, up to a hundred
/// milliseconds: it is worse to leave probes behind, or not to attach at all.
const USUAL: Duration = Duration::from_secs(3);
const MOST: u32 = 16;
/// How long it is tried.
const LIMIT: Duration = Duration::from_secs(10);
/// The longest pause.
const PAUSE: Duration = Duration::from_millis(100);

pub(crate) struct Patience {
    start: Instant,
    pause: Duration,
}

impl Patience {
    pub(crate) fn new() -> Self {
        Self {
            start: Instant::now(),
            pause: Duration::from_millis(2),
        }
    }

    /// Pauses before the next try, each time longer; false when it has been tried long enough.
    pub(crate) fn again(&mut self) -> bool {
        let tried = self.start.elapsed();
        if tried >= LIMIT {
            return false;
        }
        if let Some(beyond) = tried.checked_sub(USUAL) {
            StopBudget::widen((2 << beyond.as_secs().min(8)).min(MOST));
        }
        std::thread::sleep(self.pause);
        self.pause = (self.pause * 2).min(PAUSE);
        true
    }
}

impl Drop for Patience {
    fn drop(&mut self) {
        StopBudget::widen(1);
    }
}

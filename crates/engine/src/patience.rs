//! Trying again while not all threads of a process stop in time.
//!
//! One try holds a target up for its stop budget at most, and the pauses between are much longer;
//! so it may be tried for long, as on a machine with many more threads ready to run than CPUs.

use std::sync::atomic::{AtomicBool, Ordering};
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

/// Gives this thread's stops the budget of what has been tried for so long.
pub(crate) fn widen(tried: Duration) {
    if let Some(beyond) = tried.checked_sub(USUAL) {
        StopBudget::widen((2 << beyond.as_secs().min(8)).min(MOST));
    }
}

pub(crate) struct Patience<'a> {
    start: Instant,
    pause: Duration,
    /// When it is set, nobody waits for the result any more.
    abandoned: Option<&'a AtomicBool>,
}

impl<'a> Patience<'a> {
    pub(crate) fn new() -> Self {
        Self {
            start: Instant::now(),
            pause: Duration::from_millis(2),
            abandoned: None,
        }
    }

    /// Until a word is set.
    pub(crate) fn unless(abandoned: &'a AtomicBool) -> Self {
        Self {
            abandoned: Some(abandoned),
            ..Self::new()
        }
    }

    /// Pauses before the next try, each time longer; false when it has been tried long enough.
    pub(crate) fn again(&mut self) -> bool {
        let tried = self.start.elapsed();
        let abandoned = |word: &AtomicBool| word.load(Ordering::Relaxed);
        if tried >= LIMIT || self.abandoned.is_some_and(abandoned) {
            return false;
        }
        widen(tried);
        std::thread::sleep(self.pause);
        self.pause = (self.pause * 2).min(PAUSE);
        true
    }
}

impl Drop for Patience<'_> {
    fn drop(&mut self) {
        StopBudget::widen(1);
    }
}

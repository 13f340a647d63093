//! The clock of hits: the time stamp counter as nanoseconds, by factors that the tracer keeps current.
//!
//! Where the kernel itself tells the time by the counter, a hit does so too and needs no system
//! call. The factors are a line: a counter value, the boot time there, and nanoseconds a tick. Each
//! new line begins where the old one is at that moment and bends towards the kernel's clock, so that
//! time never jumps or runs backwards.

use std::time::Instant;

use lancet_abi::memory::RingMemory;
use lancet_engine::scripts::Clock as At;
use lancet_engine::{Hurry, Session};

use super::sys;

/// Ticks are worth `SCALE`ths of a nanosecond in the factors.
const SCALE: u32 = 32;
/// How long the first line is measured.
const FIRST: i64 = 2_000_000;

/// The counter and the boot time at one moment.
#[derive(Clone, Copy)]
struct Sample {
    ticks: u64,
    boot: i64,
}

/// The line in use.
struct Line {
    begin: Sample,
    /// Nanoseconds a tick, times 2^32.
    slope: i64,
}

/// What keeps the factors current.
pub(super) struct Clock {
    first: Sample,
    line: Line,
    version: u64,
}

impl Clock {
    /// A clock for hits, if this machine has one that needs no system call.
    pub(super) fn begin(session: &Session) -> Option<Self> {
        let source = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
        if std::fs::read_to_string(source).ok()?.trim() != "tsc" {
            return None;
        }
        let first = Sample::take();
        let started = Instant::now();
        while (started.elapsed().as_nanos() as i64) < FIRST {
            std::hint::spin_loop();
        }
        let now = Sample::take();
        let line = Line {
            begin: now,
            slope: slope(first, now)?,
        };
        let mut clock = Self {
            first,
            line,
            version: 0,
        };
        let slope = clock.line.slope;
        clock.publish(session, slope);
        Some(clock)
    }

    /// A new line from the present one's end.
    pub(super) fn update(&mut self, session: &Session) {
        // From the sample to the last word hits go by the old line, or ask the kernel.
        let _hurry = Hurry::begin();
        let now = Sample::take();
        let shown = self.line.at(now.ticks);
        let Some(slope) = slope(self.first, now) else {
            return;
        };
        let since = now.ticks.saturating_sub(self.line.begin.ticks).max(1);
        // What is missing is made up for in the time that the last line was used.
        let bend = (i128::from(now.boot - shown) << SCALE) / i128::from(since);
        let most = i128::from(slope / 100);
        self.publish(session, slope + bend.clamp(-most, most) as i64);
    }

    /// Bends the line at this moment, and writes it where hits read it. An odd version says that it is
    /// being written.
    ///
    /// The moment comes after the version is odd: a hit that still went by the old line took its
    /// counter before, so that none by the new line is earlier than it.
    fn publish(&mut self, session: &Session, slope: i64) {
        let Some(memory) = session.script_memory() else {
            return;
        };
        let put = |at: At, word: i64| memory.memory.store(memory.base + at.offset(), word as u64);
        let boot = sys::clock(libc::CLOCK_BOOTTIME);
        let monotonic = sys::clock(libc::CLOCK_MONOTONIC) - boot;
        let tai = sys::clock(libc::CLOCK_TAI) - boot;
        put(At::Version, self.version as i64 + 1);
        let ticks = sys::ticks();
        let boot = self.line.at(ticks);
        let begin = Sample { ticks, boot };
        self.line = Line { begin, slope };
        put(At::Ticks, self.line.begin.ticks as i64);
        put(At::Boot, self.line.begin.boot);
        put(At::Slope, self.line.slope);
        put(At::Monotonic, monotonic);
        put(At::Tai, tai);
        self.version += 2;
        put(At::Version, self.version as i64);
    }
}

/// Tells the actions when the program began, by the boot clock.
pub(super) fn set_start(session: &Session, start: i64) {
    if let Some(memory) = session.script_memory() {
        memory
            .memory
            .store(memory.base + At::Start.offset(), start as u64);
    }
}

impl Sample {
    /// The closest of a few looks.
    fn take() -> Self {
        let look = |_| {
            let before = sys::ticks();
            let boot = sys::clock(libc::CLOCK_BOOTTIME);
            let after = sys::ticks();
            let ticks = before + (after - before) / 2;
            (after - before, Sample { ticks, boot })
        };
        let mut looks = (0..8).map(look);
        let first = looks.next().expect("eight looks");
        looks
            .fold(first, |best, one| if one.0 < best.0 { one } else { best })
            .1
    }
}

impl Line {
    fn at(&self, ticks: u64) -> i64 {
        let since = i128::from(ticks) - i128::from(self.begin.ticks);
        self.begin.boot + ((since * i128::from(self.slope)) >> SCALE) as i64
    }
}

/// Nanoseconds a tick between two moments, times 2^32; none where no time has passed.
fn slope(from: Sample, to: Sample) -> Option<i64> {
    let ticks = i128::from(to.ticks.checked_sub(from.ticks)?);
    let nanos = i128::from(to.boot - from.boot);
    i64::try_from((nanos << SCALE).checked_div(ticks)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_runs_through_its_samples() {
        let sample = |ticks, boot| Sample { ticks, boot };
        let (from, to) = (sample(1000, 50), sample(4000, 1050));
        let line = Line {
            begin: from,
            slope: slope(from, to).expect("time passes"),
        };
        assert!((line.at(4000) - 1050).abs() <= 1);
        assert!((line.at(2500) - 550).abs() <= 1);
        assert!((line.at(0) - (50 - 333)).abs() <= 2, "before its begin too");
        assert!(slope(to, from).is_none() && slope(from, from).is_none());
    }
}

//! A process that forks as fast as it can and times each fork().

use std::io;
use std::time::{Duration, Instant};

use super::{ForkSample, sys, targets};

/// Nobody asks for so many; the earliest are forgotten beyond them.
const MOST: usize = 1 << 20;

/// Forks, and calls a function once before each, until there is an order to read on standard input.
///
/// Timed is the parent's side of the fork alone: that is what a stall on the host shows in.
pub(super) fn until_ordered(function: usize) -> io::Result<ForkSample> {
    let call = targets::NAMED[function].1;
    let mut times: Vec<Duration> = Vec::with_capacity(1 << 14);
    while !sys::input_is_there() {
        call();
        let start = Instant::now();
        let Some(child) = sys::fork()? else {
            sys::end();
        };
        let took = start.elapsed();
        sys::reap(child);
        if times.len() < MOST {
            times.push(took);
        }
    }
    Ok(summarise(times))
}

fn summarise(mut times: Vec<Duration>) -> ForkSample {
    times.sort_unstable();
    // The time that all but a share of them do not exceed.
    let at = |per_mille: usize| {
        let rank = (times.len() * per_mille).div_ceil(1000).max(1) - 1;
        times.get(rank).copied().unwrap_or_default()
    };
    ForkSample {
        forks: times.len() as u64,
        median: at(500),
        p999: at(999),
        longest: at(1000),
    }
}

/// Keeps the process's memory map busy for ever: maps so many bytes with all their pages, and
/// unmaps them.
pub(super) fn map_and_unmap(length: usize) {
    loop {
        if sys::populate(length).is_err() {
            // No memory at this moment.
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_thousand_the_999th_is_the_quantile() {
        let sample = summarise((1..=1000).rev().map(Duration::from_micros).collect());
        assert_eq!(sample.forks, 1000);
        assert_eq!(sample.median, Duration::from_micros(500));
        assert_eq!(sample.p999, Duration::from_micros(999));
        assert_eq!(sample.longest, Duration::from_micros(1000));
    }

    #[test]
    fn of_few_it_is_the_longest() {
        let sample = summarise([3, 1, 2].map(Duration::from_micros).to_vec());
        assert_eq!(sample.median, Duration::from_micros(2));
        assert_eq!(sample.p999, sample.longest);
        assert_eq!(summarise(Vec::new()).longest, Duration::ZERO);
    }
}

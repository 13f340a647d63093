//! Does one thing to many processes at once, so that none waits for another.
//!
//! As in the [crew](crate::crew) whoever has been at one for long counts no longer and is replaced;
//! but nothing is tried again here, and the caller waits until all are done or given up.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Who has been at one item for longer does not count as at work.
pub(crate) const LATE: Duration = Duration::from_millis(30);
/// Workers, late ones included.
pub(crate) const MOST_WORKERS: usize = 256;
/// Longer than anything here is tried: what takes more is stuck in the kernel.
pub(crate) const STUCK: Duration = Duration::from_secs(12);

struct State<I, T> {
    waiting: VecDeque<(usize, I)>,
    /// Since when which item is worked at.
    working: Vec<(usize, Instant)>,
    results: Vec<Option<T>>,
    workers: usize,
}

struct Shared<I, T> {
    state: Mutex<State<I, T>>,
    changed: Condvar,
}

impl<I, T> Shared<I, T> {
    fn lock(&self) -> MutexGuard<'_, State<I, T>> {
        // No work is done under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self, work: &impl Fn(I) -> T) {
        let mut state = self.lock();
        while let Some((index, item)) = state.waiting.pop_front() {
            state.working.push((index, Instant::now()));
            drop(state);
            let result = work(item);
            state = self.lock();
            state.working.retain(|(at, _)| *at != index);
            if let Some(place) = state.results.get_mut(index) {
                *place = Some(result);
            }
            self.changed.notify_all();
        }
        state.workers -= 1;
    }
}

impl<I, T> State<I, T> {
    fn punctual(&self) -> usize {
        let late = self.working.iter().filter(|(_, at)| at.elapsed() > LATE);
        self.workers.saturating_sub(late.count())
    }
}

/// How many work at a time. Each keeps two CPUs busy, its own and that of the thread which it has
/// make system calls; more would only make the stops longer.
pub(crate) fn bound() -> usize {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    (cpus / 2).max(1)
}

/// What became of each item, in their order. `None`: the work was at it for all of `patience`; it
/// goes on there, and its result is dropped. A thread that panics gives no result either.
pub(crate) fn each<I, T, F>(items: Vec<I>, patience: Duration, work: F) -> Vec<Option<T>>
where
    I: Send + 'static,
    T: Send + 'static,
    F: Fn(I) -> T + Send + Sync + 'static,
{
    let bound = bound();
    let work = Arc::new(work);
    let results = items.iter().map(|_| None).collect();
    let shared = Arc::new(Shared {
        state: Mutex::new(State {
            waiting: items.into_iter().enumerate().collect(),
            working: Vec::new(),
            results,
            workers: 0,
        }),
        changed: Condvar::new(),
    });
    let mut state = shared.lock();
    loop {
        let lacking = bound.saturating_sub(state.punctual());
        for _ in 0..lacking.min(state.waiting.len()) {
            if state.workers >= MOST_WORKERS {
                break;
            }
            let (of_thread, work) = (Arc::clone(&shared), Arc::clone(&work));
            let worker = std::thread::Builder::new().name("lancet-worker".into());
            let hired = worker.spawn(move || of_thread.work(&*work));
            if hired.is_err() {
                break;
            }
            state.workers += 1;
        }
        if state.workers == 0 && !state.waiting.is_empty() {
            // No thread is to be had: one after the other, then.
            drop(state);
            shared.lock().workers += 1;
            shared.work(&*work);
            state = shared.lock();
        }
        let stuck = |(_, since): &(usize, Instant)| since.elapsed() > patience;
        if state.waiting.is_empty() && state.working.iter().all(stuck) {
            return std::mem::take(&mut state.results);
        }
        let step = if state.waiting.is_empty() {
            LATE
        } else {
            Duration::from_millis(5)
        };
        let woken = shared.changed.wait_timeout(state, step);
        state = woken.unwrap_or_else(PoisonError::into_inner).0;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn every_item_has_its_result_in_its_place() {
        let results = each((0..1000).collect(), STUCK, |n: u64| n * 2);
        assert!(results.iter().zip(0..).all(|(r, n)| *r == Some(2 * n)));
        assert_eq!(results.len(), 1000);
        assert!(each(Vec::<()>::new(), STUCK, |()| ()).is_empty());
    }

    #[test]
    fn stuck_ones_delay_no_other_and_are_given_up() {
        let (release, held) = mpsc::channel::<()>();
        let held = Mutex::new(held);
        let results = each((0..20).collect(), 4 * LATE, move |n: u32| {
            if n < 6 {
                // Until the test has its results.
                let _ = held.lock().map(|held| held.recv());
            }
            n
        });
        drop(release);
        for (n, result) in (0..).zip(results) {
            assert_eq!(result, (n >= 6).then_some(n));
        }
    }

    #[test]
    fn a_panic_is_no_result() {
        let results = each(vec![1, 2, 3], 2 * LATE, |n: u32| {
            assert_ne!(n, 2);
            n
        });
        assert_eq!(results, [Some(1), None, Some(3)]);
    }
}

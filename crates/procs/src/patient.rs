//! Looks that may get stuck, each bounded: on helper threads that are left behind when they do.

use std::{
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI32, Ordering},
    },
    thread,
    time::Duration,
};

use lancet_abi::units::Pid;

use crate::{stat, sys};

/// More helpers than this are never left behind by one caller; what is left to look at then counts as stuck.
const MOST_STUCK: usize = 64;

/// However many are stuck, each one's helper gets this long.
const LEAST: Duration = Duration::from_millis(2);

/// Asks each process on a helper thread, in this order; `None` for each that is stuck: it waited in the kernel for all of
/// `patience`, as behind a locked memory map. It delays the others by no more than that, and the more are stuck, the less.
///
/// What a stuck look still finds later is dropped, so `ask` must change nothing.
pub fn ask_each<T, F>(pids: &[Pid], patience: Duration, ask: F) -> Vec<(Pid, Option<T>)>
where
    T: Send + 'static,
    F: Fn(Pid) -> T + Send + Sync + 'static,
{
    let all: Arc<[Pid]> = pids.into();
    let answers = each(all.len(), patience, move |at| ask(all[at])).finish();
    pids.iter().copied().zip(answers).collect()
}

struct State<T> {
    /// The next one to be looked at; the helper is at the one before.
    next: usize,
    /// How many the helper was given.
    wanted: usize,
    answers: Vec<Option<T>>,
    /// Set when the helper was given up: whatever it still finds is not wanted.
    given_up: bool,
}

struct Shared<T> {
    state: Mutex<State<T>>,
    done: Condvar,
    /// Kernel's id of the helper; 0 until it runs.
    helper: AtomicI32,
}

/// Runs `look(0)` to `look(count - 1)` in this order on a helper thread and gives the answers, `None` for each that was
/// stuck: it did not return within `patience`, and the helper was waiting in the kernel all that time. A helper that only
/// waits for a CPU is waited for. The helper that is stuck is left alone; it ends when its look returns, or with this
/// process. Another one goes on behind it. The more are stuck, the less patience is left for the next.
pub(crate) fn each<T, F>(count: usize, patience: Duration, look: F) -> Pending<T, F>
where
    T: Send + 'static,
    F: Fn(usize) -> T + Send + Sync + 'static,
{
    let look = Arc::new(look);
    let mut pending = Pending {
        current: None,
        answers: Vec::with_capacity(count),
        count,
        patience,
        look,
    };
    pending.start();
    pending
}

/// Looks that are under way; see [`each`].
pub(crate) struct Pending<T, F> {
    current: Option<Arc<Shared<T>>>,
    answers: Vec<Option<T>>,
    count: usize,
    patience: Duration,
    look: Arc<F>,
}

impl<T, F> Pending<T, F>
where
    T: Send + 'static,
    F: Fn(usize) -> T + Send + Sync + 'static,
{
    /// Waits until each has answered or was given up.
    pub(crate) fn finish(mut self) -> Vec<Option<T>> {
        let mut stuck = 0;
        while let Some(shared) = self.current.take() {
            let patience = (self.patience / (1 << stuck.min(8))).max(LEAST);
            let (answers, at_end) = shared.wait(patience);
            self.answers.extend(answers);
            if at_end || self.answers.len() >= self.count {
                break;
            }
            stuck += 1;
            if stuck >= MOST_STUCK {
                self.answers.resize_with(self.count, || None);
                break;
            }
            self.start();
        }
        self.answers
    }

    fn start(&mut self) {
        let first = self.answers.len();
        if first >= self.count {
            return;
        }
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                next: 0,
                wanted: self.count - first,
                answers: Vec::with_capacity(self.count - first),
                given_up: false,
            }),
            done: Condvar::new(),
            helper: AtomicI32::new(0),
        });
        let (count, look) = (self.count, Arc::clone(&self.look));
        let helper = {
            let (shared, look) = (Arc::clone(&shared), Arc::clone(&look));
            move || shared.run(first, count, &*look)
        };
        let started = thread::Builder::new()
            .name("lancet-look".into())
            .stack_size(1 << 18)
            .spawn(helper);
        // At the limit of threads the looks are still made, only without a bound on each.
        if started.is_err() {
            shared.run(first, count, &*look);
        }
        self.current = Some(shared);
    }
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // No look is made under the lock, so nothing can panic there.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, first: usize, count: usize, look: &impl Fn(usize) -> T) {
        self.helper.store(
            rustix::thread::gettid().as_raw_nonzero().get(),
            Ordering::Release,
        );
        for index in first..count {
            let answer = look(index);
            let mut state = self.lock();
            if state.given_up {
                return;
            }
            state.next += 1;
            state.answers.push(Some(answer));
        }
        self.done.notify_one();
    }

    /// The answers, with a `None` behind them if the look after the last one was given up; and whether all are there.
    fn wait(&self, patience: Duration) -> (Vec<Option<T>>, bool) {
        let mut state = self.lock();
        let wanted = state.wanted;
        loop {
            let before = state.next;
            if before >= wanted {
                return (std::mem::take(&mut state.answers), true);
            }
            let (guard, timeout) = self
                .done
                .wait_timeout(state, patience)
                .unwrap_or_else(PoisonError::into_inner);
            state = guard;
            if timeout.timed_out() && state.next == before && before < wanted {
                drop(state);
                let waits = self.helper_waits();
                state = self.lock();
                if waits && state.next == before {
                    state.given_up = true;
                    let mut answers = std::mem::take(&mut state.answers);
                    answers.push(None);
                    return (answers, false);
                }
            }
        }
    }

    /// True when the helper waits in the kernel for something that is not a CPU, or has ended by a panic.
    fn helper_waits(&self) -> bool {
        let tid = self.helper.load(Ordering::Acquire);
        if tid == 0 {
            return false;
        }
        // `thread-self` would be the wrong thread, and the helper is of this process.
        match sys::read(&format!("/proc/self/task/{tid}/stat")) {
            Ok(line) => stat::parse(&line).is_some_and(|stat| stat.state != b'R'),
            Err(_) => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const PATIENCE: Duration = Duration::from_millis(20);

    #[test]
    fn all_answers_in_order() {
        let answers = each(1000, PATIENCE, |n| n * 2).finish();
        assert_eq!(answers.len(), 1000);
        assert!(answers.iter().enumerate().all(|(n, a)| *a == Some(2 * n)));
        assert!(each(0, PATIENCE, |n| n).finish().is_empty());
        // Answers that take no memory are counted too.
        assert_eq!(each(3, PATIENCE, |_| ()).finish(), [Some(()); 3]);
    }

    #[test]
    fn stuck_ones_delay_no_other() {
        let (release, held) = mpsc::channel::<()>();
        let held = Mutex::new(held);
        let answers = each(6, PATIENCE, move |n| {
            if n == 0 || n == 3 || n == 5 {
                // Until the test has its answer.
                let _ = held.lock().map(|held| held.recv());
            }
            n
        })
        .finish();
        drop(release);
        assert_eq!(answers, [None, Some(1), Some(2), None, Some(4), None]);
    }

    #[test]
    fn slow_ones_that_work_are_waited_for() {
        let answers = each(3, PATIENCE, |n| {
            let end = std::time::Instant::now() + 5 * PATIENCE;
            while std::time::Instant::now() < end {
                std::hint::spin_loop();
            }
            n
        })
        .finish();
        assert_eq!(answers, [Some(0), Some(1), Some(2)]);
    }
}

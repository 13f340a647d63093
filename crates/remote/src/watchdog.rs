//! Frees a tracer whose SEIZE is stuck behind an exec.
//!
//! SEIZE takes the target's credential guard. A thread of the target that is in exec holds that
//! guard until its siblings have been reaped, and a sibling that we seized can be reaped by us
//! alone. So the thread that seizes must not be the only one that can reap: this one reaps what
//! has ended among the seized threads whenever an attach takes suspiciously long.

use std::collections::HashSet;
use std::io;
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::Duration;

use lancet_abi::units::Tid;

use crate::sys;

const PATIENCE: Duration = Duration::from_millis(3);

#[derive(Default)]
struct Shared {
    seized: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Attaches in flight; the watchdog sleeps without a timer when there is none.
    armed: usize,
    /// SEIZE requests in flight, and how many there have been: the same request in two looks is
    /// a stuck one.
    seizing: usize,
    requests: u64,
    alive: HashSet<Tid>,
    reaped: HashSet<Tid>,
}

/// Tells the watchdog which threads are seized for as long as it lives.
pub(crate) struct Watch {
    shared: Arc<Shared>,
}

fn shared() -> &'static Arc<Shared> {
    static SHARED: OnceLock<Arc<Shared>> = OnceLock::new();
    SHARED.get_or_init(|| {
        let shared = Arc::new(Shared::default());
        let of_thread = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("lancet-reaper".into())
            .spawn(move || run(&of_thread))
            .expect("a thread can be started");
        shared
    })
}

fn run(shared: &Shared) {
    let mut state = shared.seized.lock().unwrap_or_else(|e| e.into_inner());
    let mut seen = 0;
    loop {
        while state.armed == 0 {
            state = shared
                .changed
                .wait(state)
                .unwrap_or_else(|e| e.into_inner());
        }
        state = shared
            .changed
            .wait_timeout(state, PATIENCE)
            .unwrap_or_else(|e| e.into_inner())
            .0;
        let stuck = state.seizing > 0 && state.requests == seen;
        seen = state.requests;
        if !stuck {
            continue;
        }
        let ended: Vec<Tid> = state
            .alive
            .iter()
            .copied()
            .filter(|&tid| sys::reap_ended(tid))
            .collect();
        for tid in ended {
            state.alive.remove(&tid);
            state.reaped.insert(tid);
        }
    }
}

impl Watch {
    pub(crate) fn start() -> Self {
        let shared = Arc::clone(shared());
        {
            let mut state = shared.seized.lock().unwrap_or_else(|e| e.into_inner());
            state.armed += 1;
            if state.armed == 1 {
                shared.changed.notify_one();
            }
        }
        Self { shared }
    }

    /// Seizes a thread for the calling thread.
    pub(crate) fn seize(&self, tid: Tid) -> io::Result<()> {
        {
            let mut state = self.shared.seized.lock().unwrap_or_else(|e| e.into_inner());
            state.seizing += 1;
            state.requests += 1;
        }
        let result = sys::seize(tid, 0);
        let mut state = self.shared.seized.lock().unwrap_or_else(|e| e.into_inner());
        state.seizing -= 1;
        if result.is_ok() {
            state.alive.insert(tid);
        }
        result
    }

    /// The thread is no longer ours: its end is not ours to reap.
    pub(crate) fn released(&self, tid: Tid) {
        let mut state = self.shared.seized.lock().unwrap_or_else(|e| e.into_inner());
        state.alive.remove(&tid);
        state.reaped.remove(&tid);
    }

    /// Whether the watchdog has reaped the thread.
    pub(crate) fn was_reaped(&self, tid: Tid) -> bool {
        let state = self.shared.seized.lock().unwrap_or_else(|e| e.into_inner());
        state.reaped.contains(&tid)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut state = self.shared.seized.lock().unwrap_or_else(|e| e.into_inner());
        state.armed -= 1;
        if state.armed == 0 {
            state.reaped.clear();
        }
    }
}

//! Follows lancet's own tracer from system call to system call, and kills it at a chosen one.
//!
//! The stepper traces the guardian from before its exec, so that it gets the tracer and its
//! threads with their birth; the guardian itself runs freely.

#![allow(dead_code)]

use std::collections::HashMap;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use lancet_abi::units::{Pid, Tid};
use lancet_remote::sys::{self, Wait};

use crate::session::{LANCET, Lancet};

/// What is counted, and at which of them the tracer is killed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Phase {
    /// From the making of the region on.
    Attach,
    /// From SIGTERM to the guardian on.
    Detach,
}

/// Who is killed at the chosen call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Victims {
    Tracer,
    /// The guardian first, while the tracer is held at its call.
    Both,
}

/// A lancet whose tracer is stepped.
pub(crate) struct Stepped {
    pub(crate) lancet: Lancet,
    /// Tells the stepper to begin counting.
    begin: Sender<()>,
    thread: JoinHandle<Outcome>,
}

/// How it went.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    /// Calls counted.
    pub(crate) calls: usize,
    /// The first that wrote to an address of a process: the first stub.
    pub(crate) first_stub: Option<usize>,
    /// The call that the tracer was about to make when it was killed.
    pub(crate) killed_at: Option<i64>,
}

impl Stepped {
    /// Starts `lancet WORDS`; `victims` are killed before the tracer's call number `at` of the
    /// phase.
    pub(crate) fn start(words: &[&str], phase: Phase, victims: Victims, at: usize) -> Self {
        // The shell waits until it is traced, then becomes lancet.
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", "read go; exec \"$0\" \"$@\" < /dev/null", LANCET])
            .args(words)
            .stdin(Stdio::piped());
        let mut lancet = Lancet::start(&mut command);
        let guardian = lancet.guardian();
        let input = lancet.input();
        let (begin, started) = channel();
        if matches!(phase, Phase::Attach) {
            begin.send(()).expect("the other end is here");
        }
        let thread = thread::spawn(move || {
            let options = libc::PTRACE_O_TRACEFORK
                | libc::PTRACE_O_TRACECLONE
                | libc::PTRACE_O_TRACEVFORK
                | libc::PTRACE_O_TRACESYSGOOD;
            sys::seize(Tid(guardian.0), options).expect("the shell is ours");
            if let Some(mut input) = input {
                input.write_all(b"go\n").expect("the shell reads");
            }
            step(guardian, (phase, victims), &started, at)
        });
        Self {
            lancet,
            begin,
            thread,
        }
    }

    /// Begins to count.
    pub(crate) fn begin(&self) {
        // Fails only when the stepper has ended, with everything that it stepped.
        let _ = self.begin.send(());
    }

    /// Waits for the end of all; what was written, too.
    pub(crate) fn end(self) -> (Outcome, std::process::ExitStatus, String) {
        let outcome = self.thread.join().expect("the stepper does not panic");
        let (status, text) = self.lancet.end();
        (outcome, status, text)
    }
}

/// Any event of what this thread traces.
fn next() -> Option<(Tid, Wait)> {
    let mut status = 0;
    // SAFETY: `status` outlives the call. This thread has no children but its tracees.
    let tid = unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL | libc::__WNOTHREAD) };
    if tid <= 0 {
        return None;
    }
    let wait = if libc::WIFEXITED(status) {
        Wait::Exited(libc::WEXITSTATUS(status))
    } else if libc::WIFSIGNALED(status) {
        Wait::Killed(libc::WTERMSIG(status))
    } else {
        Wait::Stopped {
            signal: libc::WSTOPSIG(status),
            event: status >> 16,
        }
    };
    Some((Tid(tid), wait))
}

fn step(
    guardian: Pid,
    (phase, victims): (Phase, Victims),
    started: &Receiver<()>,
    at: usize,
) -> Outcome {
    const SYSTEM_CALL: i32 = libc::SIGTRAP | 0x80;
    let mut outcome = Outcome::default();
    let mut tracer: Option<Pid> = None;
    let mut in_call: HashMap<i32, bool> = HashMap::new();
    let (mut begun, mut region) = (false, false);
    while let Some((tid, wait)) = next() {
        let Wait::Stopped { signal, event } = wait else {
            continue;
        };
        begun = begun || started.try_recv().is_ok();
        let of_guardian = tid.0 == guardian.0;
        if of_guardian {
            if matches!(event, libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_CLONE) {
                // The tracer is born and has been seized; the guardian is left alone from here.
                let _ = sys::detach(tid, 0);
                tracer = Some(Pid(0));
                continue;
            }
            let deliver = if event == 0 { signal } else { 0 };
            let _ = sys::resume(tid, deliver);
            continue;
        }
        if tracer.is_none_or(|t| t.0 == 0) {
            tracer = Some(Pid(tid.0));
        }
        if (signal, event) != (SYSTEM_CALL, 0) {
            let deliver = if event == 0 { signal } else { 0 };
            let _ = sys::resume_to_syscall(tid, deliver);
            continue;
        }
        let inside = in_call.entry(tid.0).or_default();
        *inside = !*inside;
        if *inside {
            let registers = sys::registers(tid).ok();
            let number = registers.map_or(-1, |r| r.orig_rax as i64);
            // The fourth argument is the offset; files that lancet writes are shorter.
            let writes = number == libc::SYS_pwrite64 && registers.is_some_and(|r| r.r10 > 1 << 32);
            region |= number == libc::SYS_openat2 || matches!(phase, Phase::Detach);
            if begun && region && outcome.killed_at.is_none() {
                outcome.calls += 1;
                if writes && outcome.first_stub.is_none() {
                    outcome.first_stub = Some(outcome.calls);
                }
                if outcome.calls == at {
                    outcome.killed_at = Some(number);
                    if victims == Victims::Both {
                        let ended = || {
                            let state = crate::session::status(&guardian.to_string(), "State");
                            state.is_empty() || state.starts_with('Z')
                        };
                        crate::session::signal(guardian, rustix::process::Signal::KILL);
                        crate::session::until("the guardian's end", ended);
                    }
                    if let Some(tracer) = tracer {
                        crate::session::signal(tracer, rustix::process::Signal::KILL);
                    }
                }
            }
        }
        let _ = sys::resume_to_syscall(tid, 0);
    }
    outcome
}

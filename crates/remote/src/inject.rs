//! Runs system calls in one thread of a stopped process.
//!
//! The others stay stopped, so that a descriptor which exists for a moment is seen by nobody.
//! The thread's signals are masked meanwhile and its original registers, with the interrupted
//! system call's state in them, are given back at the end: the kernel then restarts that call as
//! if there had been a plain stop.

use std::time::{Duration, Instant};

use lancet_abi::units::{Pid, RuntimeAddr, Tid};

use crate::error::RemoteError;
use crate::journal::StubRecord;
use crate::memory::Memory;
use crate::rseq;
use crate::stop::{Stopped, Thread};
use crate::stub::{Away, Call, Stub};
use crate::sys::{self, Wait};

/// How long the calls may take before the attempt is given up. The thread spins in the stub for no
/// longer than one of the pauses, far below the stub's own limit; the rest of this time it waits
/// for a CPU.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest time that the thread is given in one go. Where it does not even get a CPU within
/// it, it stops again before it has made a step.
const LONGEST_PAUSE: u64 = 20_000;

/// How long a [hurried](Borrowed::hurried) thread may wait for a CPU.
const NO_STEP: Duration = Duration::from_millis(3);

/// What a borrowed thread blocks, as the kernel shows it: all that can be blocked but SIGSTKFLT,
/// which nobody sends. No program blocks just this, so whoever finds it knows that it is ours.
pub const AWAY_MASK: u64 = {
    const fn bit(signal: i32) -> u64 {
        1 << (signal - 1)
    }
    !(bit(libc::SIGKILL) | bit(libc::SIGSTOP) | bit(libc::SIGSTKFLT))
};

/// A thread that was chosen to make system calls for us; its state is given back on drop.
pub struct Borrowed<'a> {
    memory: &'a Memory,
    record: &'a StubRecord,
    tid: Tid,
    /// The thread as at the stop, or at its rseq abort handler.
    away: Away,
    masked: bool,
    returned: bool,
    hurried: bool,
}

/// The thread that is best moved: one that is not inside a system call that must be restarted.
fn choose(stopped: &Stopped) -> Option<&Thread> {
    let fit = |t: &&Thread| !t.group_stopped || stopped.threads().len() == 1;
    let threads = || stopped.threads().iter().filter(fit);
    threads()
        .find(|t| !t.in_system_call() && t.pid == stopped.pid())
        .or_else(|| threads().find(|t| t.pid == stopped.pid()))
        .or_else(|| stopped.threads().first())
}

impl<'a> Borrowed<'a> {
    /// Borrows one of the stopped threads. `record` is where the guardian finds its state.
    pub fn from(
        stopped: &Stopped,
        memory: &'a Memory,
        record: &'a StubRecord,
    ) -> Result<Self, RemoteError> {
        let pid = stopped.pid();
        let thread = choose(stopped).ok_or(RemoteError::Gone { pid })?;
        let mut original = thread.registers;
        if let Some(abort) = rseq::abort_address(memory, thread) {
            original.rip = abort.0;
        }
        let tid = thread.tid;
        let mask = sys::signal_mask(tid)
            .map_err(|e| RemoteError::ptrace(pid, tid, "PTRACE_GETSIGMASK", e))?;
        record.begin(tid, &original, mask);
        Ok(Self {
            memory,
            record,
            tid,
            away: Away {
                registers: original,
                mask,
            },
            masked: false,
            returned: false,
            hurried: false,
        })
    }

    /// A stub of which the thread has not made a step within a few milliseconds is given up: nothing
    /// has been done, and the machine may be less busy later.
    #[must_use]
    pub fn hurried(mut self) -> Self {
        self.hurried = true;
        self
    }

    /// The borrowed thread.
    #[must_use]
    pub fn tid(&self) -> Tid {
        self.tid
    }

    /// Makes the calls from code that is written at `at` and stays there; returns their results
    /// as the kernel gave them (negative errno values included).
    pub fn run(&mut self, at: RuntimeAddr, calls: &[Call]) -> Result<Vec<i64>, RemoteError> {
        // Whose it is stands in the arena's header.
        let stub = Stub::encode(calls, &self.away, (0, 0));
        self.memory.write_text(self.tid, at, &stub.code)?;
        self.go(at, &stub)
    }

    /// Makes one call from bytes that nobody uses, and puts them back when the thread has left
    /// them; their copy lies in the journal meanwhile. For those who find them when nobody is left
    /// to do so, they name the guardian and what the call is about. `then` is done with the result
    /// before they go: it is for making what was mapped known by other means.
    pub fn run_in_slack(
        &mut self,
        at: RuntimeAddr,
        call: &Call,
        guardian: (i32, u64),
        then: impl FnOnce(i64) -> Result<(), RemoteError>,
    ) -> Result<i64, RemoteError> {
        let stub = Stub::encode(std::slice::from_ref(call), &self.away, guardian);
        let before = self.memory.bytes(at, stub.code.len())?;
        self.record.covers(at, &before);
        self.memory.write_text(self.tid, at, &stub.code)?;
        let done = self.go(at, &stub).and_then(|results| {
            then(results[0])?;
            Ok(results[0])
        });
        // The thread is stopped in the spin (or gone); it never executes these bytes again,
        // since it goes on from registers that point elsewhere. Its mask first: nobody knows it
        // when these bytes are gone.
        self.leave()?;
        self.unmask()?;
        self.memory.write_text(self.tid, at, &before)?;
        self.record.uncovered();
        done
    }

    /// Points the thread back to where it was, without letting it run.
    fn leave(&self) -> Result<(), RemoteError> {
        if self.returned {
            return Ok(());
        }
        let pid = self.memory.pid();
        sys::set_registers(self.tid, &self.away.registers)
            .map_err(|e| RemoteError::ptrace(pid, self.tid, "PTRACE_SETREGS", e))
    }

    /// Gives the thread its mask back, unless it is on its way with it already.
    fn unmask(&mut self) -> Result<(), RemoteError> {
        let pid = self.memory.pid();
        if self.masked && !self.returned {
            sys::set_signal_mask(self.tid, self.away.mask)
                .map_err(|e| RemoteError::ptrace(pid, self.tid, "PTRACE_SETSIGMASK", e))?;
        }
        self.masked = false;
        Ok(())
    }

    fn go(&mut self, at: RuntimeAddr, stub: &Stub) -> Result<Vec<i64>, RemoteError> {
        let (pid, tid) = (self.memory.pid(), self.tid);
        let ptrace = |what| move |e| RemoteError::ptrace(pid, tid, what, e);
        if !self.masked {
            // Only now: the stub that tells of the thread's own mask is there.
            sys::set_signal_mask(tid, AWAY_MASK).map_err(ptrace("PTRACE_SETSIGMASK"))?;
            self.masked = true;
        }
        let mut registers = self.away.registers;
        registers.rip = at.0;
        registers.orig_rax = u64::MAX;
        sys::set_registers(tid, &registers).map_err(ptrace("PTRACE_SETREGS"))?;
        let start = Instant::now();
        let mut pause = 20;
        loop {
            sys::resume(tid, 0).map_err(ptrace("PTRACE_CONT"))?;
            // Asleep, so that the thread can have this CPU where it needs it.
            std::thread::sleep(Duration::from_micros(pause));
            pause = (pause * 2).min(LONGEST_PAUSE);
            self.stop_again()?;
            let now = sys::registers(tid).map_err(ptrace("PTRACE_GETREGS"))?;
            if stub.parked.contains(&now.rip.wrapping_sub(at.0)) {
                return Ok(stub.results(&now));
            }
            if now.rip.wrapping_sub(at.0) >= stub.code.len() as u64 {
                // We were held up for longer than the stub waits, and it has let the thread go,
                // with its mask and registers as they were: these are out of date by now.
                self.returned = true;
                return Err(RemoteError::Busy {
                    pid,
                    tid,
                    budget_us: PATIENCE.as_micros() as u64,
                });
            }
            let taken = start.elapsed();
            if self.hurried && now.rip == at.0 && taken > NO_STEP {
                return Err(RemoteError::Busy {
                    pid,
                    tid,
                    budget_us: NO_STEP.as_micros() as u64,
                });
            }
            if taken > PATIENCE {
                return Err(RemoteError::Stuck { pid, tid });
            }
        }
    }

    fn stop_again(&self) -> Result<(), RemoteError> {
        let (pid, tid) = (self.memory.pid(), self.tid);
        let mut asked = false;
        let mut looks = 0u32;
        loop {
            // A thread that job control has stopped had come before it was asked, and that
            // request stops it at once when it goes on. To ask again then would be one too many
            // for ever.
            let answer = match sys::wait(tid, false) {
                Ok(None) if asked => {
                    // Not a wait that sleeps: of a leader that was killed nothing is told while
                    // its siblings, which are ours too, have not been reaped.
                    looks += 1;
                    if looks.is_multiple_of(64) && has_ended(pid, tid) {
                        return Err(RemoteError::Gone { pid });
                    }
                    std::thread::sleep(Duration::from_micros(u64::from(looks.min(50)) * 4));
                    continue;
                }
                Ok(None) => {
                    asked = true;
                    sys::interrupt(tid)
                        .map_err(|e| RemoteError::ptrace(pid, tid, "PTRACE_INTERRUPT", e))?;
                    continue;
                }
                answer => answer,
            };
            match answer {
                Ok(Some(Wait::Stopped { event, .. })) if event == libc::PTRACE_EVENT_STOP => {
                    return Ok(());
                }
                // Masked signals stay pending; only SIGSTOP and the kernel's own faults come.
                Ok(Some(Wait::Stopped { signal, event })) => {
                    let deliver = if event == 0 { signal } else { 0 };
                    sys::resume(tid, deliver)
                        .map_err(|e| RemoteError::ptrace(pid, tid, "PTRACE_CONT", e))?;
                }
                Ok(None) => {}
                Ok(Some(Wait::Exited(_) | Wait::Killed(_))) | Err(_) => {
                    return Err(RemoteError::Gone { pid });
                }
            }
        }
    }

    /// Gives the thread back, as it was.
    pub fn give_back(mut self) -> Result<(), RemoteError> {
        self.restore()
    }

    fn restore(&mut self) -> Result<(), RemoteError> {
        if self.returned {
            self.record.end();
            return Ok(());
        }
        self.leave()?;
        self.unmask()?;
        self.returned = true;
        self.record.end();
        Ok(())
    }
}

impl Drop for Borrowed<'_> {
    fn drop(&mut self) {
        // Only a thread that no longer exists cannot be given back.
        let _ = self.restore();
    }
}

/// Whether a thread is dead already, though nobody has reaped it.
fn has_ended(pid: Pid, tid: Tid) -> bool {
    lancet_procs::thread_status(pid, tid).map_or(true, |s| matches!(s.state, 'Z' | 'X'))
}

/// Turns the kernel's answer to a call into a result.
pub fn checked(pid: Pid, call: &Call, result: i64) -> Result<u64, RemoteError> {
    // The whole errno range, not some of it: an unchecked -EAGAIN has been taken for an address.
    if (-4095..0).contains(&result) {
        return Err(RemoteError::Call {
            pid,
            what: call.name,
            source: std::io::Error::from_raw_os_error(-result as i32),
        });
    }
    Ok(result as u64)
}

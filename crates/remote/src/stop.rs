//! Stops every thread that shares an address space, within a budget, or none of them.
//!
//! ```no_run
//! # use lancet_remote::{StopBudget, Stopped};
//! # use lancet_abi::units::Pid;
//! let stopped = Stopped::all(Pid(1234), StopBudget::default())?;
//! for thread in stopped.threads() {
//!     println!("{} is at {:#x}", thread.tid, thread.registers.rip);
//! }
//! drop(stopped); // all run on, as if nothing had been
//! # Ok::<(), lancet_remote::RemoteError>(())
//! ```
//!
//! The unit is the address space, not the process: children of vfork and processes made by
//! `clone(CLONE_VM)` run the same text. When one thread does not come in time all are released
//! at once and the caller tries again later; a thread that is late is let go the moment it
//! arrives. No signal is lost: one that arrives meanwhile is delivered before the stop is taken.

use std::cell::Cell;
use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use lancet_abi::units::{Pid, RuntimeAddr, Tid};
use lancet_procs as procs;

use crate::error::RemoteError;
use crate::sys::{self, Hurry, Registers, Wait};
use crate::watchdog::Watch;

/// How long a target may be held up while its threads are collected.
#[derive(Clone, Copy, Debug)]
pub struct StopBudget {
    /// For the process.
    pub base: Duration,
    /// And for each of its threads.
    pub per_thread: Duration,
}

impl Default for StopBudget {
    fn default() -> Self {
        let factor = FACTOR.get();
        Self {
            base: Duration::from_millis(5) * factor,
            per_thread: Duration::from_micros(20) * factor,
        }
    }
}

thread_local! {
    /// How many times the default budget is given. Writer and reader: the thread that traces.
    static FACTOR: Cell<u32> = const { Cell::new(1) };
}

impl StopBudget {
    /// Makes the default budget of this thread so many times longer, until it is set again.
    ///
    /// For targets that have been tried in vain for seconds: on a machine where many more threads
    /// are ready to run than there are CPUs, a thread may not get one within the usual budget.
    pub fn widen(factor: u32) {
        FACTOR.set(factor.max(1));
    }

    fn total(&self, threads: usize) -> Duration {
        self.base + self.per_thread * u32::try_from(threads).unwrap_or(u32::MAX)
    }
}

/// One stopped thread.
#[derive(Debug)]
pub struct Thread {
    /// Its id.
    pub tid: Tid,
    /// Its process; differs from the target's for vfork children and the like.
    pub pid: Pid,
    /// Its registers as they were at the stop.
    pub registers: Registers,
    /// Whether it is stopped by job control as well.
    pub group_stopped: bool,
}

impl Thread {
    /// Where it goes on.
    #[must_use]
    pub fn ip(&self) -> RuntimeAddr {
        RuntimeAddr(self.registers.rip)
    }

    /// Whether it was interrupted inside a system call that the kernel will restart or end with
    /// EINTR when it goes on.
    #[must_use]
    pub fn in_system_call(&self) -> bool {
        self.registers.orig_rax as i64 >= 0 && matches!(self.registers.rax as i64, -516..=-512 | -4)
    }
}

/// All threads of one address space, stopped. Dropping it lets them run on.
pub struct Stopped {
    pid: Pid,
    threads: Vec<Thread>,
    since: Instant,
    watch: Watch,
    adopted: bool,
    /// While targets stand still for it, each moment that this thread waits for a CPU is theirs too.
    /// At other times it takes its turn: it may work for long.
    _hurry: Option<Hurry>,
}

enum Arrival {
    Yes { group_stopped: bool },
    NotYet,
    Ended,
}

/// Asks once whether a seized and interrupted thread has come to its stop.
fn arrival(tid: Tid, watch: &Watch) -> io::Result<Arrival> {
    match sys::wait(tid, false) {
        Ok(None) => Ok(Arrival::NotYet),
        Ok(Some(Wait::Exited(_) | Wait::Killed(_))) => {
            watch.released(tid);
            Ok(Arrival::Ended)
        }
        Ok(Some(Wait::Stopped { signal, event })) => {
            if event == libc::PTRACE_EVENT_STOP {
                return Ok(Arrival::Yes {
                    group_stopped: signal != libc::SIGTRAP,
                });
            }
            // A signal was on its way. Its handler's frame is built first; the stop that was
            // asked for is still pending and follows at once.
            match sys::resume(tid, if event == 0 { signal } else { 0 }) {
                Ok(()) => Ok(Arrival::NotYet),
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(Arrival::NotYet),
                Err(error) => Err(error),
            }
        }
        Err(error) if error.raw_os_error() == Some(libc::ECHILD) => {
            watch.released(tid);
            Ok(Arrival::Ended)
        }
        Err(error) => Err(error),
    }
}

/// System calls that end with EINTR at any stop although no handler has run. The kernel restarts
/// the others by itself.
const NOT_RESTARTED: [i64; 8] = [
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_io_getevents,
    libc::SYS_io_uring_enter,
];

/// The registers of a stopped thread, so that the stop will not show as an EINTR.
///
/// As ERESTARTNOHAND the call is issued again unless a handler runs, which then sees EINTR as it
/// always does. A relative timeout starts anew.
fn undisturbed_registers(tid: Tid) -> io::Result<Registers> {
    const RESTART_UNLESS_HANDLED: i64 = -514;
    let mut registers = sys::registers(tid)?;
    if registers.rax as i64 == -i64::from(libc::EINTR)
        && NOT_RESTARTED.contains(&(registers.orig_rax as i64))
    {
        registers.rax = RESTART_UNLESS_HANDLED as u64;
        sys::set_registers(tid, &registers)?;
    }
    Ok(registers)
}

/// Waits for threads that were late, or have ended, and lets each go the moment it arrives.
///
/// All of them in turn: a leader that has ended is not told of before its siblings are reaped.
fn release_when_they_arrive(mut tids: Vec<Tid>, watch: &Watch) {
    let mut pause = Duration::from_micros(20);
    while !tids.is_empty() {
        tids.retain(|&tid| {
            let gone = match sys::wait(tid, false) {
                Ok(Some(Wait::Stopped { signal, event })) => {
                    let _ = undisturbed_registers(tid);
                    sys::detach(tid, if event == 0 { signal } else { 0 }).is_ok()
                }
                Ok(None) => false,
                Ok(Some(_)) | Err(_) => true,
            };
            if gone {
                watch.released(tid);
            }
            !gone
        });
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(1));
    }
}

/// The processes that share `pid`'s memory: itself, and children by vfork or `CLONE_VM`.
fn sharers(pid: Pid) -> Vec<Pid> {
    let mut found = vec![pid];
    let mut next = 0;
    while next < found.len() {
        for child in procs::children(found[next]).unwrap_or_default() {
            if !found.contains(&child) && sys::same_memory(pid, child).unwrap_or(false) {
                found.push(child);
            }
        }
        next += 1;
    }
    found
}

/// The id that the kernel gave out last: the same twice means that nothing was born between.
fn last_born() -> Option<String> {
    // Opened once: it is read while threads stand still.
    static FILE: OnceLock<Option<File>> = OnceLock::new();
    let file = FILE.get_or_init(|| File::open("/proc/loadavg").ok());
    let mut bytes = [0; 256];
    let length = file.as_ref()?.read_at(&mut bytes, 0).ok()?;
    let text = std::str::from_utf8(&bytes[..length]).ok()?;
    text.split_whitespace().last().map(str::to_owned)
}

/// How often all threads are asked for before the attempt is given up: the first time, and each time
/// that one which was late has come.
const AMBUSHES: usize = 4;
/// How often it is looked whether one has come; it is held up for so long more.
const LOOK: Duration = Duration::from_micros(200);

struct Collector {
    pid: Pid,
    sharers: Vec<Pid>,
    /// When `sharers` was found.
    born: Option<String>,
    seized: Vec<(Pid, Tid)>,
    known: HashSet<Tid>,
    arrived: Vec<Thread>,
    watch: Watch,
    first_interrupt: Option<Instant>,
}

impl Collector {
    /// Seizes threads not seen before. Returns whether there was one.
    fn seize_new(&mut self) -> Result<bool, RemoteError> {
        let mut any = false;
        // Finding them takes a file a thread; while threads stand still, only if it must be.
        let born = last_born();
        if self.sharers.is_empty() || born.is_none() || born != self.born {
            self.sharers = sharers(self.pid);
            self.born = born;
        }
        for pid in self.sharers.clone() {
            for tid in procs::tids(pid).unwrap_or_default() {
                if !self.known.insert(tid) {
                    continue;
                }
                match self.seize(pid, tid) {
                    Ok(()) => {
                        self.seized.push((pid, tid));
                        any = true;
                    }
                    Err(error) => self.seize_failed(pid, tid, error)?,
                }
            }
        }
        Ok(any)
    }

    /// Seizes a thread. A refusal is asked about again when no tracer is to be seen: it may have
    /// been another one's last moment.
    fn seize(&self, pid: Pid, tid: Tid) -> io::Result<()> {
        let mut tries = 0;
        loop {
            let error = match self.watch.seize(tid) {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            let free = procs::thread_status(pid, tid)
                .is_ok_and(|s| s.tracer_pid == 0 && !matches!(s.state, 'Z' | 'X'));
            tries += 1;
            if error.raw_os_error() != Some(libc::EPERM) || !free || tries == 4 {
                return Err(error);
            }
        }
    }

    /// An ended thread (a zombie leader too) is no obstacle; anything else is.
    fn seize_failed(&self, pid: Pid, tid: Tid, error: io::Error) -> Result<(), RemoteError> {
        let status = match procs::thread_status(pid, tid) {
            Ok(status) => status,
            Err(_) => return Ok(()),
        };
        if matches!(status.state, 'Z' | 'X') || error.raw_os_error() == Some(libc::ESRCH) {
            return Ok(());
        }
        if status.tracer_pid != 0 {
            return Err(RemoteError::Traced {
                pid: self.pid,
                tracer: Pid(status.tracer_pid),
            });
        }
        Err(RemoteError::Denied {
            pid: self.pid,
            source: error,
        })
    }

    fn interrupt_all(&mut self, from: usize) {
        if from < self.seized.len() {
            self.first_interrupt.get_or_insert_with(Instant::now);
        }
        for &(_, tid) in &self.seized[from..] {
            // A thread that has ended meanwhile is noticed when it is waited for.
            let _ = sys::interrupt(tid);
        }
    }

    /// Collects the arrivals of all that are seized; the first late one is returned.
    fn collect(&mut self, budget: StopBudget) -> Result<Option<Tid>, RemoteError> {
        let start = self.first_interrupt.unwrap_or_else(Instant::now);
        let has_come = |tid| self.arrived.iter().any(|thread| thread.tid == tid);
        let seized = self.seized.iter().copied();
        let mut waiting: Vec<(Pid, Tid)> = seized.filter(|&(_, tid)| !has_come(tid)).collect();
        let mut rounds = 0u32;
        loop {
            let mut late = Vec::new();
            for (pid, tid) in waiting {
                if self.watch.was_reaped(tid) {
                    self.watch.released(tid);
                    continue;
                }
                match arrival(tid, &self.watch)
                    .map_err(|e| RemoteError::ptrace(self.pid, tid, "wait", e))?
                {
                    Arrival::Yes { group_stopped } => match undisturbed_registers(tid) {
                        Ok(registers) => self.arrived.push(Thread {
                            tid,
                            pid,
                            registers,
                            group_stopped,
                        }),
                        // Killed between its stop and the question: its end follows.
                        Err(_) => late.push((pid, tid)),
                    },
                    Arrival::NotYet => late.push((pid, tid)),
                    Arrival::Ended => {}
                }
            }
            if late.is_empty() {
                return Ok(None);
            }
            if start.elapsed() > budget.total(self.known.len()) {
                return Ok(Some(late[0].1));
            }
            waiting = late;
            rounds += 1;
            if rounds < 50 {
                sys::yield_now();
            } else {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
    }

    /// Seizes and collects until no thread is new. The first late one is returned.
    fn gather(&mut self, budget: StopBudget) -> Result<Option<Tid>, RemoteError> {
        loop {
            let from = self.seized.len();
            let any = self.seize_new()?;
            self.interrupt_all(from);
            if let Some(late) = self.collect(budget)? {
                return Ok(Some(late));
            }
            if !any {
                return Ok(None);
            }
        }
    }

    /// Lets all go but those that are late, and waits until one of them arrives: it is held, and
    /// the others, who run meanwhile, can be asked again.
    ///
    /// A thread that goes from one long system call into the next is nowhere else for long enough
    /// to be met by chance. The stop that it was asked for waits for it between the two.
    fn lie_in_wait(&mut self) -> Result<(), RemoteError> {
        for thread in std::mem::take(&mut self.arrived) {
            // One that was killed meanwhile must still be reaped, as those that are late.
            if sys::detach(thread.tid, 0).is_ok() {
                self.watch.released(thread.tid);
                self.seized.retain(|&(_, tid)| tid != thread.tid);
            }
        }
        self.known = self.seized.iter().map(|&(_, tid)| tid).collect();
        self.sharers.clear();
        self.first_interrupt = None;
        let mut pause = Duration::from_micros(20);
        while self.arrived.is_empty() && !self.seized.is_empty() {
            for (pid, tid) in self.seized.clone() {
                let ended = self.watch.was_reaped(tid)
                    || match arrival(tid, &self.watch)
                        .map_err(|e| RemoteError::ptrace(self.pid, tid, "wait", e))?
                    {
                        Arrival::Yes { group_stopped } => {
                            if let Ok(registers) = undisturbed_registers(tid) {
                                self.arrived.push(Thread {
                                    tid,
                                    pid,
                                    registers,
                                    group_stopped,
                                });
                            }
                            false
                        }
                        Arrival::NotYet => false,
                        Arrival::Ended => true,
                    };
                if ended {
                    self.watch.released(tid);
                    self.seized.retain(|&(_, of)| of != tid);
                }
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(LOOK);
        }
        self.first_interrupt = Some(Instant::now());
        Ok(())
    }

    /// Lets go of everything. Blocks while a late thread has not arrived: the kernel cannot
    /// detach a running thread, and only this thread may do it.
    fn release(&mut self) {
        for thread in self.arrived.drain(..) {
            // One that was killed meanwhile must still be reaped, as those that are late.
            if sys::detach(thread.tid, 0).is_ok() {
                self.watch.released(thread.tid);
                self.seized.retain(|&(_, tid)| tid != thread.tid);
            }
        }
        let late = std::mem::take(&mut self.seized);
        release_when_they_arrive(late.into_iter().map(|(_, tid)| tid).collect(), &self.watch);
    }
}

impl Stopped {
    /// Stops all threads that share the memory of `pid`.
    pub fn all(pid: Pid, budget: StopBudget) -> Result<Self, RemoteError> {
        let mut collector = Collector {
            pid,
            seized: Vec::new(),
            sharers: Vec::new(),
            born: None,
            known: HashSet::new(),
            arrived: Vec::new(),
            watch: Watch::start(),
            first_interrupt: None,
        };
        let hurry = Hurry::begin();
        let mut tries = 1;
        loop {
            match collector.gather(budget) {
                Ok(None) => break,
                Ok(Some(_)) if tries < AMBUSHES => {
                    tries += 1;
                    if let Err(error) = collector.lie_in_wait() {
                        collector.release();
                        return Err(error);
                    }
                }
                Ok(Some(tid)) => {
                    let budget_us = budget.total(collector.known.len()).as_micros() as u64;
                    collector.release();
                    return Err(RemoteError::Busy {
                        pid,
                        tid,
                        budget_us,
                    });
                }
                Err(error) => {
                    collector.interrupt_all(0);
                    collector.release();
                    return Err(error);
                }
            }
        }
        if collector.arrived.is_empty() {
            return Err(RemoteError::Gone { pid });
        }
        Ok(Self {
            pid,
            threads: std::mem::take(&mut collector.arrived),
            since: collector.first_interrupt.unwrap_or_else(Instant::now),
            watch: collector.watch,
            adopted: false,
            _hurry: Some(hurry),
        })
    }

    /// One thread that this thread of ours has seized and stopped already, as at the start of a
    /// command: it is the only one of its address space, and it stays stopped on drop.
    pub fn adopt(pid: Pid, tid: Tid) -> Result<Self, RemoteError> {
        let registers =
            sys::registers(tid).map_err(|e| RemoteError::ptrace(pid, tid, "PTRACE_GETREGS", e))?;
        Ok(Self {
            pid,
            threads: vec![Thread {
                tid,
                pid,
                registers,
                group_stopped: false,
            }],
            since: Instant::now(),
            watch: Watch::start(),
            adopted: true,
            _hurry: None,
        })
    }

    /// The process that was asked for.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// The threads, all of them stopped.
    #[must_use]
    pub fn threads(&self) -> &[Thread] {
        &self.threads
    }

    /// Any one thread that this thread of ours has stopped, for requests that need one.
    #[must_use]
    pub fn any(&self) -> Tid {
        self.threads[0].tid
    }

    /// How long the target has been held up, at most.
    #[must_use]
    pub fn held_for(&self) -> Duration {
        self.since.elapsed()
    }

    /// Lets one thread go on at another address when all are released.
    ///
    /// If it is between a system call and its restart, the restart takes place there too.
    pub fn move_to(&mut self, tid: Tid, ip: RuntimeAddr) -> Result<(), RemoteError> {
        let pid = self.pid;
        let Some(thread) = self.threads.iter_mut().find(|t| t.tid == tid) else {
            return Err(RemoteError::Gone { pid });
        };
        let mut registers = thread.registers;
        registers.rip = ip.0;
        sys::set_registers(tid, &registers)
            .map_err(|e| RemoteError::ptrace(pid, tid, "PTRACE_SETREGS", e))?;
        thread.registers = registers;
        Ok(())
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        if self.adopted {
            return;
        }
        let mut killed = Vec::new();
        for thread in &self.threads {
            if sys::detach(thread.tid, 0).is_ok() {
                self.watch.released(thread.tid);
            } else {
                killed.push(thread.tid);
            }
        }
        // Their parent is not told of their end before it was told to us.
        release_when_they_arrive(killed, &self.watch);
    }
}

//! Starts a command with probes in place before its code can reach one.
//!
//! The command is seized before exec and followed through its system calls up to the exit of
//! the mmap that brings the last probed file in as code. A hardware breakpoint at the program's
//! entry ends the search: what is not mapped by then is no start-up library. After that nobody
//! is attached any more.

use std::io;
use std::os::fd::AsRawFd;

use lancet_abi::units::{Pid, RuntimeAddr, Tid};
use lancet_procs as procs;
use lancet_remote::RemoteError;
use lancet_remote::sys::{self, Wait};
use lancet_symbols::{Libc, Module, libc_facts};

use crate::attach::Attached;
use crate::error::EngineError;
use crate::session::Session;
use crate::sys::exec_watch::ExecWatch;

/// Offsets of the debug registers in `struct user`.
const DEBUG_REGISTERS: u64 = 848;
/// Executes at the address in register 0, for this thread.
const BREAK_ON_EXECUTION: u64 = 1;

const OPTIONS: i32 = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACEEXEC;

/// What became of the start.
#[derive(Clone, Debug, Default)]
pub struct Started {
    /// What was attached. `None`: the command ended, or ran on, without mapping a probed file.
    pub attached: Option<Attached>,
    /// Probed files that the program does not map at start-up.
    pub missing: Vec<std::path::PathBuf>,
}

enum Stop {
    Exec,
    SystemCallExit,
    Entry,
    Ended,
    Other,
}

struct Command {
    pid: Pid,
    tid: Tid,
    signal: i32,
}

impl Command {
    fn failed(&self, what: &'static str) -> impl Fn(io::Error) -> EngineError {
        let (pid, tid) = (self.pid, self.tid);
        move |source| match source.raw_os_error() {
            Some(libc::ESRCH) => RemoteError::Gone { pid }.into(),
            _ => RemoteError::Ptrace {
                pid,
                tid,
                what,
                source,
            }
            .into(),
        }
    }

    /// Lets it run to its next stop.
    fn next(&mut self) -> Result<Stop, EngineError> {
        let signal = std::mem::take(&mut self.signal);
        sys::resume_to_syscall(self.tid, signal).map_err(self.failed("PTRACE_SYSCALL"))?;
        self.wait()
    }

    fn wait(&mut self) -> Result<Stop, EngineError> {
        const SYSTEM_CALL: i32 = libc::SIGTRAP | 0x80;
        match sys::wait(self.tid, true).map_err(self.failed("wait"))? {
            None | Some(Wait::Exited(_) | Wait::Killed(_)) => Ok(Stop::Ended),
            Some(Wait::Stopped { signal, event }) => match (signal, event) {
                (_, libc::PTRACE_EVENT_EXEC) => Ok(Stop::Exec),
                (SYSTEM_CALL, 0) => {
                    let exit =
                        sys::at_call_exit(self.tid).map_err(self.failed("PTRACE_GETEVENTMSG"))?;
                    Ok(if exit {
                        Stop::SystemCallExit
                    } else {
                        Stop::Other
                    })
                }
                (libc::SIGTRAP, 0) if self.at_breakpoint() => Ok(Stop::Entry),
                (signal, 0) => {
                    self.signal = signal;
                    Ok(Stop::Other)
                }
                _ => Ok(Stop::Other),
            },
        }
    }

    fn at_breakpoint(&self) -> bool {
        const STATUS: u64 = DEBUG_REGISTERS + 6 * 8;
        sys::peek_user(self.tid, STATUS).is_ok_and(|status| status & BREAK_ON_EXECUTION != 0)
    }

    fn break_at(&self, entry: Option<RuntimeAddr>) -> Result<(), EngineError> {
        const CONTROL: u64 = DEBUG_REGISTERS + 7 * 8;
        let set = |at, value| {
            sys::poke_user(self.tid, at, value).map_err(self.failed("setting a debug register"))
        };
        match entry {
            Some(entry) => {
                set(DEBUG_REGISTERS, entry.0)?;
                set(CONTROL, BREAK_ON_EXECUTION)
            }
            None => {
                set(CONTROL, 0)?;
                set(DEBUG_REGISTERS, 0)?;
                set(DEBUG_REGISTERS + 6 * 8, 0)
            }
        }
    }

    /// The program's entry, from the auxiliary vector.
    fn entry(&self) -> Option<RuntimeAddr> {
        auxiliary(self.pid, libc::AT_ENTRY).map(RuntimeAddr)
    }
}

/// Whether the program has a dynamic loader.
fn has_loader(pid: Pid) -> bool {
    auxiliary(pid, libc::AT_BASE).is_some_and(|base| base != 0)
}

/// One value of the auxiliary vector.
fn auxiliary(pid: Pid, wanted: u64) -> Option<u64> {
    let vector = std::fs::read(format!("/proc/{pid}/auxv")).ok()?;
    vector
        .chunks_exact(16)
        .map(|pair| {
            let word = |at: usize| {
                let mut word = [0; 8];
                word.copy_from_slice(&pair[at..at + 8]);
                u64::from_le_bytes(word)
            };
            (word(0), word(8))
        })
        .find(|&(kind, _)| kind == wanted)
        .map(|(_, value)| value)
}

/// Whether so much of a program is mapped that it is known how its threads will count: before that
/// only its loader runs.
fn is_ready(pid: Pid, mappings: &[procs::Mapping]) -> bool {
    !has_loader(pid) || has_libc(mappings)
}

/// As [`is_ready`], of a process that runs.
pub(crate) fn has_begun(pid: Pid) -> bool {
    procs::mappings(pid).is_ok_and(|mappings| is_ready(pid, &mappings))
}

/// Whether the C library is mapped: its calls that make children carry probes of ours too.
fn has_libc(mappings: &[procs::Mapping]) -> bool {
    mappings
        .iter()
        .filter(|m| m.execute && m.has_file())
        .any(|m| {
            let name = m.path.rsplit(|&b| b == b'/').next().unwrap_or_default();
            name.starts_with(b"libc.so")
                || name.starts_with(b"libc-2.")
                || name.starts_with(b"ld-musl")
        })
}

/// Where threads will have their rseq area, if that is known before the loader has set it up:
/// this program's own loader and libc tell it of the same files, else the files themselves may.
pub(crate) fn rseq_by_files(pid: Pid) -> Option<i32> {
    let mappings = procs::mappings(pid).ok()?;
    let own = procs::mappings(Pid(std::process::id() as i32)).ok()?;
    let loader = |mappings: &[procs::Mapping]| {
        mappings
            .iter()
            .filter(|m| m.execute && m.has_file())
            .find(|m| {
                let name = m.path.rsplit(|&b| b == b'/').next().unwrap_or_default();
                name.starts_with(b"ld-linux") || name.starts_with(b"ld-2.")
            })
            .map(|m| (m.dev, m.inode))
    };
    if let (Some(theirs), Some(ours)) = (loader(&mappings), loader(&own))
        && theirs == ours
        && let Some(offset) = crate::sys::own_rseq_offset()
    {
        return Some(offset);
    }
    let modules: Vec<Module> = mappings
        .iter()
        .filter(|m| m.execute && m.has_file())
        .filter_map(|m| {
            let path = String::from_utf8_lossy(&m.path).into_owned();
            Module::open(std::path::Path::new(&path)).ok()
        })
        .collect();
    match libc_facts(&modules) {
        Libc::Glibc {
            rseq_offset: Some(offset),
            ..
        } => i32::try_from(offset).ok(),
        _ => None,
    }
}

impl Session {
    /// Lets the command go and attaches to it on the way.
    pub fn start_command(&mut self) -> Result<Started, EngineError> {
        let tracer = std::sync::Arc::clone(&self.tracer);
        let handle = tracer
            .command()
            .ok_or(EngineError::Usage("the session has no command"))?;
        let mut command = Command {
            pid: handle.pid,
            tid: Tid(handle.pid.0),
            signal: 0,
        };
        sys::seize(command.tid, OPTIONS).map_err(|source| RemoteError::Denied {
            pid: command.pid,
            source,
        })?;
        release(handle.start.as_raw_fd()).map_err(command.failed("starting the command"))?;
        let started = self.go_along(&mut command);
        if started.as_ref().is_ok_and(|s| s.attached.is_some()) {
            // Where perf events are forbidden, only an exec whose program still runs is told of.
            self.command_exec = ExecWatch::open(command.tid).ok();
        }
        let _ = command.break_at(None);
        if sys::detach(command.tid, command.signal).is_err() {
            // It has ended, or was killed: its parent, the guardian, reaps it.
            let _ = sys::wait(command.tid, false);
        }
        started
    }

    fn go_along(&mut self, command: &mut Command) -> Result<Started, EngineError> {
        // Nothing stops before exec but signals.
        loop {
            match command.wait()? {
                Stop::Exec => break,
                Stop::Ended => return Err(EngineError::NotBegun),
                _ => {
                    let signal = std::mem::take(&mut command.signal);
                    sys::resume(command.tid, signal).map_err(command.failed("PTRACE_CONT"))?;
                }
            }
        }
        command.break_at(command.entry())?;
        let mut seen = 0;
        let mut attached: Option<Attached> = None;
        loop {
            let mappings = procs::mappings(command.pid)?;
            let code = mappings
                .iter()
                .filter(|m| m.execute && m.has_file())
                .count();
            // Before libc is there only the loader runs, and nobody knows yet whether per-CPU
            // counting will be certain.
            let ready = is_ready(command.pid, &mappings);
            if code != seen && (ready || self.probes_loader()) {
                seen = code;
                let rseq = rseq_by_files(command.pid).filter(|_| ready);
                match self.attach_held(command.pid, command.tid, rseq) {
                    Ok(now) => attached = Some(add(attached, now)),
                    Err(EngineError::NotMapped { .. }) => {}
                    Err(error) => return Err(error),
                }
                if self.all_mapped(&mappings) && ready {
                    break;
                }
            }
            loop {
                match command.next()? {
                    Stop::SystemCallExit => {
                        let registers = sys::registers(command.tid)
                            .map_err(command.failed("PTRACE_GETREGS"))?;
                        if registers.orig_rax as i64 == libc::SYS_mmap {
                            break;
                        }
                    }
                    Stop::Exec => {
                        self.forget(command.pid);
                        (seen, attached) = (0, None);
                        command.break_at(command.entry())?;
                        break;
                    }
                    Stop::Entry => {
                        // The loader may have mapped the last files by other calls than mmap.
                        match self.attach_held(command.pid, command.tid, rseq_by_files(command.pid))
                        {
                            Ok(now) => attached = Some(add(attached, now)),
                            Err(EngineError::NotMapped { .. }) => {}
                            Err(error) => return Err(error),
                        }
                        return Ok(Started {
                            attached,
                            missing: self.missing(command.pid),
                        });
                    }
                    Stop::Ended => {
                        return Ok(Started {
                            attached,
                            missing: self.missing(command.pid),
                        });
                    }
                    Stop::Other => {}
                }
            }
        }
        Ok(Started {
            attached,
            missing: Vec::new(),
        })
    }

    fn missing(&self, pid: Pid) -> Vec<std::path::PathBuf> {
        match procs::mappings(pid) {
            Ok(mappings) => self.unmapped(&mappings),
            Err(_) => self.files(),
        }
    }
}

fn add(before: Option<Attached>, now: Attached) -> Attached {
    match before {
        None => now,
        Some(mut all) => {
            all.sites += now.sites;
            all.refused.extend(now.refused);
            all.longest_stop = all.longest_stop.max(now.longest_stop);
            all.total += now.total;
            all.per_cpu = now.per_cpu;
            all
        }
    }
}

/// One byte lets the waiting child go on to exec.
fn release(fd: i32) -> io::Result<()> {
    // SAFETY: one byte from a static.
    let written = unsafe { libc::write(fd, b"x".as_ptr().cast(), 1) };
    if written == 1 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

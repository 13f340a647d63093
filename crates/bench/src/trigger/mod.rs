//! A child process that calls tiny functions as fast as it can.
//!
//! The child is the binary itself, started with [`TRIGGER_ARGUMENT`], so that no second program
//! has to be installed. Parent and child speak lines:
//!
//! | parent writes | child answers |
//! |---|---|
//! | (nothing) | `ready PID` |
//! | `run FUNCTION THREADS MILLISECONDS` | `thread CALLS CPU_NS WALL_NS` for each thread, then `done` |
//! | `calls FUNCTION THREADS CALLS` | the same, with exactly this many calls in each thread |
//! | `crowd COUNT` | `member PID` for each of so many processes that it forked, then `done` |
//! | `each FUNCTION CALLS` | `done` when the crowd has obeyed as many such orders as it has members |
//! | `forks FUNCTION`, later `stop` | `forks COUNT MEDIAN_NS P999_NS LONGEST_NS` of the forks between the two, then `done`; FUNCTION is called before each |
//! | `hold mapping BYTES` | `done` when a thread has begun to map and unmap so much for ever |
//! | `hold sleeping COUNT`, `hold running COUNT` | `done` when so many threads have begun, which stay |
//! | (closes the pipe) | ends, the crowd too |
//!
//! A line that can't be obeyed is answered by `error REASON`.

mod child;
mod crowd;
mod forks;
mod sys;
pub mod targets;

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use lancet_abi::units::Pid;

use crate::Error;
pub use child::run_trigger;

/// First argument of the process that shall become the trigger.
pub const TRIGGER_ARGUMENT: &str = "__uprobe-trigger";

/// What one thread of the trigger did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadSample {
    /// Calls of the function.
    pub calls: u64,
    /// CPU time of this thread while it called, in nanoseconds.
    pub cpu_ns: u64,
    /// Time from when the first thread began until this one ended, in nanoseconds.
    pub wall_ns: u64,
}

/// What forking in a loop showed.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct ForkSample {
    /// How many.
    pub forks: u64,
    /// What half of them took at most.
    pub median: Duration,
    /// What all but one in a thousand took at most.
    pub p999: Duration,
    /// What the longest took.
    pub longest: Duration,
}

/// A running trigger; dropping it ends the child.
#[derive(Debug)]
pub struct Trigger {
    exe: PathBuf,
    pid: Pid,
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Trigger {
    /// Starts `exe` (usually the running binary itself) as a trigger and waits until it is ready.
    ///
    /// # Errors
    /// When the binary can't be started or does not know the trigger mode.
    pub fn spawn(exe: &Path) -> Result<Self, Error> {
        Self::spawn_from(exe, None)
    }

    /// As [`spawn`](Self::spawn); the trigger removes a file when it ends, however its parent ends.
    ///
    /// # Errors
    /// As [`spawn`](Self::spawn).
    pub fn spawn_keeper(exe: &Path, file: &Path) -> Result<Self, Error> {
        Self::spawn_from(exe, Some(file))
    }

    fn spawn_from(exe: &Path, removed: Option<&Path>) -> Result<Self, Error> {
        let failed = |source| Error::Trigger {
            exe: exe.to_owned(),
            what: "start",
            source,
        };
        let mut command = Command::new(exe);
        if removed.is_some() {
            // Ctrl-C is for the parent; this one must outlive it.
            command.process_group(0);
        }
        let mut child = command
            .arg(TRIGGER_ARGUMENT)
            .args(removed)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let orders = child.stdin.take();
        let stdout = child
            .stdout
            .take()
            .ok_or_else(|| failed(io::ErrorKind::BrokenPipe.into()))?;
        let pid = Pid(child.id().cast_signed());
        let mut trigger = Self {
            exe: exe.to_owned(),
            pid,
            child,
            orders,
            answers: BufReader::new(stdout),
        };
        let line = trigger.answer()?;
        if line
            .strip_prefix("ready ")
            .and_then(|text| text.parse().ok())
            == Some(pid.0)
        {
            Ok(trigger)
        } else {
            Err(Error::Protocol { pid, line })
        }
    }

    /// The trigger's process.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// The binary that runs as the trigger.
    #[must_use]
    pub fn exe(&self) -> &Path {
        &self.exe
    }

    /// Calls `function` in a loop in each of `threads` threads for `milliseconds`.
    ///
    /// # Errors
    /// When the function is unknown, returns a wrong result, or the child has died.
    pub fn measure(
        &mut self,
        function: &str,
        threads: usize,
        milliseconds: u64,
    ) -> Result<Vec<ThreadSample>, Error> {
        self.order(
            function,
            threads,
            &format!("run {function} {threads} {milliseconds}"),
        )
    }

    /// Calls `function` exactly `calls` times in each of `threads` threads; of
    /// [`targets::MANY`], rounded up to whole turns.
    ///
    /// # Errors
    /// As [`measure`](Self::measure).
    pub fn call(
        &mut self,
        function: &str,
        threads: usize,
        calls: u64,
    ) -> Result<Vec<ThreadSample>, Error> {
        self.order(
            function,
            threads,
            &format!("calls {function} {threads} {calls}"),
        )
    }

    /// Forks `count` processes from the trigger, instead of those that there were.
    ///
    /// # Errors
    /// When they can't be made, or the trigger has died.
    pub fn crowd(&mut self, count: usize) -> Result<Vec<Pid>, Error> {
        let lines = self.lines(&format!("crowd {count}"))?;
        let pid = |line: &String| Some(Pid(line.strip_prefix("member ")?.parse().ok()?));
        lines
            .iter()
            .map(|line| {
                pid(line).ok_or_else(|| Error::Protocol {
                    pid: self.pid,
                    line: line.clone(),
                })
            })
            .collect()
    }

    /// Has the crowd call `function`: `calls` times for each member, though one may take two turns
    /// and another none.
    ///
    /// # Errors
    /// When there is no crowd, no such function, or the trigger has died.
    pub fn each(&mut self, function: &str, calls: u64) -> Result<(), Error> {
        self.lines(&format!("each {function} {calls}")).map(drop)
    }

    /// Starts `count` threads that sleep or spin until the trigger ends.
    ///
    /// # Errors
    /// When the trigger has died.
    pub fn hold(&mut self, count: usize, running: bool) -> Result<(), Error> {
        let what = if running { "running" } else { "sleeping" };
        self.lines(&format!("hold {what} {count}")).map(drop)
    }

    /// Starts a thread that maps so many bytes with all their pages, unmaps them and begins anew.
    ///
    /// # Errors
    /// When the trigger has died.
    pub fn hold_mapping(&mut self, bytes: u64) -> Result<(), Error> {
        self.lines(&format!("hold mapping {bytes}")).map(drop)
    }

    /// Has the trigger fork in a loop, and call `function` before each fork, until
    /// [`end_forks`](Self::end_forks). It must have one thread.
    ///
    /// # Errors
    /// When the trigger has died.
    pub fn begin_forks(&mut self, function: &str) -> Result<(), Error> {
        self.send(&format!("forks {function}"))
    }

    /// Ends what [`begin_forks`](Self::begin_forks) has begun.
    ///
    /// # Errors
    /// When there is no such function, a process can't be made, or the trigger has died.
    pub fn end_forks(&mut self) -> Result<ForkSample, Error> {
        let lines = self.lines("stop")?;
        let sample = lines.first().and_then(|line| ForkSample::read(line));
        sample.ok_or_else(|| Error::Protocol {
            pid: self.pid,
            line: lines.join(" "),
        })
    }

    /// The answer's lines before `done`.
    fn lines(&mut self, order: &str) -> Result<Vec<String>, Error> {
        self.send(order)?;
        let mut lines = Vec::new();
        loop {
            let line = self.answer()?;
            if line == "done" {
                return Ok(lines);
            }
            if line.starts_with("error ") {
                return Err(Error::Protocol {
                    pid: self.pid,
                    line,
                });
            }
            lines.push(line);
        }
    }

    fn send(&mut self, order: &str) -> Result<(), Error> {
        let sent = match &mut self.orders {
            Some(pipe) => writeln!(pipe, "{order}").and_then(|()| pipe.flush()),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        };
        sent.map_err(|source| Error::Trigger {
            exe: self.exe.clone(),
            what: "order",
            source,
        })
    }

    fn order(
        &mut self,
        function: &str,
        threads: usize,
        order: &str,
    ) -> Result<Vec<ThreadSample>, Error> {
        self.send(order)?;
        let mut samples = Vec::with_capacity(threads);
        loop {
            let line = self.answer()?;
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["done"] => return Ok(samples),
                ["error", "unknown"] => {
                    let known = targets::NAMED.map(|(name, _)| name).join(", ");
                    return Err(Error::UnknownFunction {
                        function: function.to_owned(),
                        known: format!("{known} and {}", targets::MANY),
                    });
                }
                ["error", "wrong-result"] => {
                    return Err(Error::WrongResult {
                        pid: self.pid,
                        function: function.to_owned(),
                    });
                }
                ["thread", calls, cpu, wall] => match (calls.parse(), cpu.parse(), wall.parse()) {
                    (Ok(calls), Ok(cpu_ns), Ok(wall_ns)) => {
                        samples.push(ThreadSample {
                            calls,
                            cpu_ns,
                            wall_ns,
                        });
                    }
                    _ => {
                        return Err(Error::Protocol {
                            pid: self.pid,
                            line,
                        });
                    }
                },
                _ => {
                    return Err(Error::Protocol {
                        pid: self.pid,
                        line,
                    });
                }
            }
        }
    }

    fn answer(&mut self) -> Result<String, Error> {
        let mut line = String::new();
        let read = self
            .answers
            .read_line(&mut line)
            .and_then(|bytes| match bytes {
                0 => Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "the process has ended",
                )),
                _ => Ok(()),
            });
        read.map_err(|source| Error::Trigger {
            exe: self.exe.clone(),
            what: "read",
            source,
        })?;
        Ok(line.trim_end().to_owned())
    }
}

impl ForkSample {
    /// Reads the trigger's answer.
    fn read(line: &str) -> Option<Self> {
        let mut words = line.strip_prefix("forks ")?.split(' ');
        let mut number = || words.next()?.parse().ok();
        Some(Self {
            forks: number()?,
            median: Duration::from_nanos(number()?),
            p999: Duration::from_nanos(number()?),
            longest: Duration::from_nanos(number()?),
        })
    }
}

impl Drop for Trigger {
    fn drop(&mut self) {
        // The child ends by itself at the end of its orders; the kill is for one that no longer
        // reads them. Both may fail only because it is gone already.
        self.orders = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

//! A target program at work.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use lancet_abi::units::Pid;

use crate::{Error, is_root, sys, target};

/// How long a target may take for one answer before the test fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running program that speaks lines; killed when dropped.
///
/// It writes `ready PID ...` first, then obeys one order a line on standard input and ends at
/// its end. The kernel kills it when the thread that started it ends, so keep that thread.
#[derive(Debug)]
pub struct Running {
    pid: Pid,
    ready: Vec<String>,
    child: Child,
    orders: Option<ChildStdin>,
    lines: Receiver<String>,
    last: String,
}

impl Running {
    /// Builds the target `name`, starts it with `args` and waits until it is ready.
    ///
    /// # Panics
    /// When it can't be built or does not get ready.
    #[must_use]
    pub fn start(name: &str, args: &[&str]) -> Self {
        Self::spawn(&target(name), args).unwrap_or_else(|error| panic!("target {name}: {error}"))
    }

    /// Starts the target `lockedmm`, or a copy of it, and tells which process's memory map is
    /// locked for as long as it lives; with `args` from the order `lock` on.
    ///
    /// # Errors
    /// Why it can't be made here.
    ///
    /// # Panics
    /// When it does not get ready.
    pub fn locked(program: &Path, args: &[&str]) -> Result<(Self, Pid), &'static str> {
        if !is_root() {
            return Err("not root");
        }
        let running = Self::spawn(program, args).unwrap_or_else(|error| panic!("{error}"));
        let pid = running.facts().first().and_then(|pid| pid.parse().ok());
        match pid {
            None | Some(0) => Err("no FUSE"),
            Some(pid) => Ok((running, Pid(pid))),
        }
    }

    /// Starts any program that speaks the protocol and waits for its `ready` line.
    ///
    /// # Errors
    /// When it can't be started or its first line is another one.
    pub fn spawn<A: AsRef<OsStr>>(program: &Path, args: &[A]) -> Result<Self, Error> {
        let mut running = Self::spawn_silent(program, args)?;
        let line = running.line()?;
        running.ready = line.split(' ').map(str::to_owned).collect();
        if running.ready.first().is_none_or(|word| word != "ready") {
            return Err(Error::Ended {
                pid: running.pid,
                after: format!("{line:?} for ready"),
            });
        }
        Ok(running)
    }

    /// Starts any program and does not wait for a word of it.
    ///
    /// # Errors
    /// When it can't be started.
    pub fn spawn_silent<A: AsRef<OsStr>>(program: &Path, args: &[A]) -> Result<Self, Error> {
        let failed = |source| Error::Io {
            path: program.to_owned(),
            source,
        };
        let mut command = Command::new(program);
        command
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = sys::dies_with_its_parent(&mut command)
            .spawn()
            .map_err(failed)?;
        let (sender, lines) = channel();
        if let Some(output) = child.stdout.take() {
            thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    if sender.send(line).is_err() {
                        break;
                    }
                }
            });
        }
        Ok(Self {
            pid: Pid(child.id().cast_signed()),
            ready: Vec::new(),
            orders: child.stdin.take(),
            child,
            lines,
            last: "its start".to_owned(),
        })
    }

    /// The process.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Words of the `ready` line behind `ready PID`.
    #[must_use]
    pub fn facts(&self) -> &[String] {
        self.ready.get(2..).unwrap_or_default()
    }

    /// Sends one order.
    ///
    /// # Panics
    /// When the process has ended.
    pub fn order(&mut self, line: &str) {
        line.clone_into(&mut self.last);
        let sent = self.orders.as_mut().map(|pipe| writeln!(pipe, "{line}"));
        assert!(
            matches!(sent, Some(Ok(()))),
            "process {} took no order {line:?}: {sent:?}",
            self.pid
        );
    }

    /// The next line it writes.
    ///
    /// # Errors
    /// When none comes in time or the process has ended.
    pub fn line(&mut self) -> Result<String, Error> {
        self.line_within(PATIENCE)
    }

    /// The next line, if it comes within `limit`.
    ///
    /// # Errors
    /// As [`line`](Self::line).
    pub fn line_within(&mut self, limit: Duration) -> Result<String, Error> {
        let (pid, after) = (self.pid, self.last.clone());
        self.lines.recv_timeout(limit).map_err(|error| match error {
            RecvTimeoutError::Timeout => Error::Silent { pid, after, limit },
            RecvTimeoutError::Disconnected => Error::Ended { pid, after },
        })
    }

    /// Sends an order and returns the line that answers it.
    ///
    /// # Panics
    /// When no answer comes.
    pub fn ask(&mut self, order: &str) -> String {
        self.order(order);
        self.line().unwrap_or_else(|error| panic!("{error}"))
    }

    /// Ends its input, and returns its last lines and how it ended.
    ///
    /// # Panics
    /// When it does not end in time.
    pub fn finish(self) -> (Vec<String>, ExitStatus) {
        self.finish_within(PATIENCE)
    }

    /// As [`finish`](Self::finish), with `limit` for each line and for the end.
    ///
    /// # Panics
    /// When it does not end in time.
    #[must_use]
    pub fn finish_within(mut self, limit: Duration) -> (Vec<String>, ExitStatus) {
        "the end of its input".clone_into(&mut self.last);
        self.orders = None;
        let mut lines = Vec::new();
        loop {
            match self.line_within(limit) {
                Ok(line) => lines.push(line),
                Err(Error::Ended { .. }) => break,
                Err(error) => panic!("{error}"),
            }
        }
        let end = Instant::now() + limit;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return (lines, status),
                Ok(None) if Instant::now() < end => thread::sleep(Duration::from_millis(1)),
                other => panic!(
                    "process {} closed its output but runs on: {other:?}",
                    self.pid
                ),
            }
        }
    }

    /// As [`finish`](Self::finish), for targets whose last line is their verdict: returns the
    /// words behind `ok`.
    ///
    /// # Panics
    /// When the verdict is another one, or the process ended by a signal or a failure.
    #[must_use]
    pub fn finish_ok(self) -> Vec<String> {
        let pid = self.pid;
        let (lines, status) = self.finish();
        let verdict: Vec<String> = lines
            .last()
            .map(|line| line.split(' ').map(str::to_owned).collect())
            .unwrap_or_default();
        assert!(
            status.success() && verdict.first().is_some_and(|word| word == "ok"),
            "process {pid} ended with {status}, its last lines: {lines:#?}"
        );
        verdict[1..].to_vec()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Fails only when it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Result<Running, Error> {
        Running::spawn(Path::new("/bin/sh"), &["-c", script])
    }

    #[test]
    fn speaks_lines_until_the_end_of_input() {
        let mut running =
            shell("echo ready $$ one two; while read w; do echo got $w; done; echo ok 7").unwrap();
        assert_eq!(running.facts(), ["one", "two"]);
        assert_eq!(running.ready[1], running.pid().to_string());
        assert_eq!(running.ask("this"), "got this");
        assert_eq!(running.finish_ok(), ["7"]);
    }

    #[test]
    fn a_process_that_ends_early_is_an_error() {
        let error = shell("exit 3").unwrap_err();
        assert!(matches!(error, Error::Ended { .. }), "{error}");
    }

    #[test]
    fn silence_is_an_error() {
        let mut running = shell("echo ready $$; read w").unwrap();
        let error = running.line_within(Duration::from_millis(5)).unwrap_err();
        assert!(matches!(error, Error::Silent { .. }), "{error}");
    }

    #[test]
    #[should_panic(expected = "WRONG")]
    fn a_wrong_verdict_fails_the_test() {
        let _ = shell("echo ready $$; read w; echo WRONG 3")
            .unwrap()
            .finish_ok();
    }

    #[test]
    fn dropping_kills() {
        let running = shell("echo ready $$; exec sleep 1000").unwrap();
        let folder = format!("/proc/{}", running.pid());
        assert!(Path::new(&folder).exists());
        drop(running);
        assert!(!Path::new(&folder).exists());
    }
}

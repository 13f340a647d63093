//! Counting by other means: bpftrace, over the kernel's uprobes.

use std::path::Path;
use std::time::{Duration, Instant};

use lancet_abi::units::Pid;
use rustix::process::{Signal, kill_process};

use crate::{Error, Running, have, is_root};

/// How long bpftrace may take to start or to end: it compiles and attaches first, and the kernel
/// lets all CPUs pass a quiet point before a probe is gone, which a loaded machine makes long.
const PATIENCE: Duration = Duration::from_secs(90);
/// After how long without a word it is asked again to end.
const AGAIN: Duration = Duration::from_secs(5);

/// A bpftrace at work on one process. Its files should be private copies: its
/// probes are written into every process that runs them.
#[derive(Debug)]
pub struct Bpftrace {
    tracer: Running,
    /// What it printed and was read already.
    lines: Vec<String>,
}

impl Bpftrace {
    /// Why there is none here.
    #[must_use]
    pub fn missing() -> Option<&'static str> {
        match (is_root(), have("bpftrace")) {
            (false, _) => Some("not root"),
            (_, false) => Some("no bpftrace"),
            _ => None,
        }
    }

    /// Starts it with `action` on `site` of `file`, for hits in process `pid`, and returns once
    /// the probe is in.
    ///
    /// # Panics
    /// When bpftrace does not attach.
    #[must_use]
    pub fn start(pid: Pid, file: &Path, site: &str, action: &str) -> Self {
        Self::start_at(pid, &[format!("{}:{site}", file.display())], action)
    }

    /// As [`start`](Self::start), at each of these `FILE:SITE`.
    ///
    /// # Panics
    /// When bpftrace does not attach.
    #[must_use]
    pub fn start_at(pid: Pid, sites: &[String], action: &str) -> Self {
        let probes: Vec<String> = sites.iter().map(|site| format!("uprobe:{site}")).collect();
        Self::start_program(pid, &format!("{} {{ {action} }}", probes.join(",")))
    }

    /// As [`start`](Self::start), with a whole program, which has no BEGIN block.
    ///
    /// # Panics
    /// When bpftrace does not attach.
    #[must_use]
    pub fn start_program(pid: Pid, program: &str) -> Self {
        // What BEGIN prints is read only once every probe is attached.
        let script = format!("BEGIN {{ printf(\"counting\\n\"); }} {program}");
        let pid = pid.to_string();
        let words = ["-B", "line", "-p", &pid, "-e", &script];
        let mut tracer = Running::spawn_silent(Path::new("bpftrace"), &words)
            .unwrap_or_else(|error| panic!("bpftrace: {error}"));
        loop {
            match tracer.line_within(PATIENCE) {
                Ok(line) if line == "counting" => {
                    let lines = Vec::new();
                    return Self { tracer, lines };
                }
                Ok(_) => {}
                Err(error) => panic!("bpftrace does not attach to {pid}: {error}: {program}"),
            }
        }
    }

    /// Reads on until it prints this line. It ends without printing the events that it has not read
    /// yet, so a program's last event should be waited for.
    ///
    /// # Panics
    /// When it does not come.
    pub fn wait_for(&mut self, last: &str) {
        while self.lines.last().is_none_or(|line| line != last) {
            match self.tracer.line_within(PATIENCE) {
                Ok(line) => self.lines.push(line),
                Err(error) => panic!("bpftrace does not print {last}: {error}"),
            }
        }
    }

    /// Ends it; what it printed.
    ///
    /// # Panics
    /// When it does not end in time or fails.
    #[must_use]
    pub fn stop(mut self) -> Vec<String> {
        let end = Instant::now() + PATIENCE;
        let mut lines = std::mem::take(&mut self.lines);
        self.interrupt();
        loop {
            match self.tracer.line_within(AGAIN) {
                Ok(line) => lines.push(line),
                // A signal between its look at the flag and its wait is seen only by the next.
                Err(Error::Silent { .. }) if Instant::now() < end => self.interrupt(),
                Err(Error::Ended { .. }) => break,
                Err(error) => panic!("bpftrace does not end: {error}"),
            }
        }
        let (_, status) = self.tracer.finish_within(PATIENCE);
        assert!(status.success(), "bpftrace ended with {status}: {lines:#?}");
        lines
    }

    fn interrupt(&self) {
        if let Some(tracer) = rustix::process::Pid::from_raw(self.tracer.pid().0) {
            kill_process(tracer, Signal::INT).expect("bpftrace is our child and not yet reaped");
        }
    }

    /// Ends it; the value of `@`, which is not printed where it was never written to.
    ///
    /// # Panics
    /// As [`stop`](Self::stop).
    #[must_use]
    pub fn stop_count(self) -> u64 {
        self.stop()
            .iter()
            .find_map(|line| line.strip_prefix("@: ")?.trim().parse().ok())
            .unwrap_or(0)
    }
}

/// How many times `function` of `file` is entered in process `pid` while `run` runs, as bpftrace
/// counts it; none where bpftrace can't be used (not installed, not root).
///
/// The count is over what happens between attaching and the end of `run`, so `run` has to see to
/// it that the calls are made in between.
///
/// # Panics
/// When bpftrace is there but does not attach; then `run` has not run.
pub fn bpftrace_count(pid: Pid, file: &Path, function: &str, run: impl FnOnce()) -> Option<u64> {
    if Bpftrace::missing().is_some() {
        return None;
    }
    let tracer = Bpftrace::start(pid, file, function, "@ = count();");
    run();
    Some(tracer.stop_count())
}

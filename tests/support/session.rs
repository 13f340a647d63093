//! Starting lancet on a target, killing parts of it, and asking whether anything stayed.

#![allow(dead_code)]

use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use lancet_abi::units::Pid;
use lancet_testkit::text_equals_file;

pub(crate) const LANCET: &str = env!("CARGO_BIN_EXE_lancet");
/// Nothing that is waited for takes so long on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// How often a test repeats itself; LANCET_ROUNDS makes it longer.
pub(crate) fn rounds(usual: usize) -> usize {
    let wanted = std::env::var("LANCET_ROUNDS").ok();
    wanted.and_then(|n| n.parse().ok()).unwrap_or(usual)
}

/// Waits until something holds.
pub(crate) fn until(what: &str, holds: impl FnMut() -> bool) {
    until_else(holds, || what.to_owned());
}

/// As [`until`], where what was in vain can be told only then.
pub(crate) fn until_else(mut holds: impl FnMut() -> bool, what: impl Fn() -> String) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "in vain: {}", what());
        thread::sleep(Duration::from_micros(200));
    }
}

/// Numbers that are the same in each run (xorshift).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// Runs lancet to its end.
pub(crate) fn lancet<A: AsRef<OsStr>>(words: &[A]) -> Output {
    Command::new(LANCET)
        .args(words)
        .stdin(Stdio::null())
        .output()
        .expect("lancet starts")
}

pub(crate) fn signal(pid: Pid, signal: rustix::process::Signal) -> bool {
    let pid = rustix::process::Pid::from_raw(pid.0).expect("a pid");
    rustix::process::kill_process(pid, signal).is_ok()
}

/// A running lancet: the guardian, and what it writes.
pub(crate) struct Lancet {
    child: Child,
    text: Arc<Mutex<String>>,
    readers: Vec<JoinHandle<()>>,
}

impl Lancet {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("lancet starts");
        let text = Arc::new(Mutex::new(String::new()));
        let readers = [
            child.stdout.take().map(|pipe| collect(pipe, &text)),
            child.stderr.take().map(|pipe| collect(pipe, &text)),
        ];
        Self {
            child,
            text,
            readers: readers.into_iter().flatten().collect(),
        }
    }

    /// `lancet count PROBE... -p PID`.
    pub(crate) fn count(probes: &[String], pid: Pid) -> Self {
        let mut command = Command::new(LANCET);
        command.arg("count").args(probes);
        command.args(["-p", &pid.to_string()]).stdin(Stdio::null());
        Self::start(&mut command)
    }

    /// The guardian: what the user started.
    /// Runs a script on a process.
    pub(crate) fn script(script: &str, pid: Pid) -> Self {
        let mut command = Command::new(LANCET);
        command.args(["-p", &pid.to_string(), "-e", script]);
        Self::start(command.stdin(Stdio::null()))
    }

    pub(crate) fn guardian(&self) -> Pid {
        Pid(self.child.id().cast_signed())
    }

    /// The tracer, while there is one.
    pub(crate) fn tracer(&self) -> Option<Pid> {
        let guardian = self.guardian();
        let list = fs::read_to_string(format!("/proc/{guardian}/task/{guardian}/children"));
        list.ok()?.split_whitespace().next()?.parse().ok().map(Pid)
    }

    /// Its standard input, where that is a pipe.
    pub(crate) fn input(&mut self) -> Option<std::process::ChildStdin> {
        self.child.stdin.take()
    }

    pub(crate) fn text(&self) -> String {
        self.text.lock().expect("no panic").clone()
    }

    /// Asked of /proc: a wait by this thread would take stops from one that traces the guardian.
    pub(crate) fn has_ended(&self) -> bool {
        let state = status(&self.guardian().to_string(), "State");
        state.is_empty() || state.starts_with('Z')
    }

    /// Waits until the probes are in.
    pub(crate) fn attached(self) -> Self {
        until("probes are in", || {
            self.text().contains("Attached") || self.has_ended()
        });
        assert!(self.text().contains("Attached"), "{}", self.text());
        self
    }

    /// Waits for the guardian's end; its status and all that was written.
    pub(crate) fn end(mut self) -> (ExitStatus, String) {
        until("lancet ends", || self.has_ended());
        let status = self.child.wait().expect("a status");
        for reader in self.readers.drain(..) {
            reader.join().expect("no panic");
        }
        (status, self.text())
    }

    /// Ctrl-C as a shell would send it to a script, and the end.
    pub(crate) fn interrupt(self) -> (ExitStatus, String) {
        signal(self.guardian(), rustix::process::Signal::INT);
        self.end()
    }
}

impl Drop for Lancet {
    fn drop(&mut self) {
        // The guardian takes the probes out, however the test ended.
        if !self.has_ended() {
            signal(self.guardian(), rustix::process::Signal::TERM);
            let end = Instant::now() + Duration::from_secs(5);
            while !self.has_ended() && Instant::now() < end {
                thread::sleep(Duration::from_millis(1));
            }
            if let Some(tracer) = self.tracer() {
                signal(tracer, rustix::process::Signal::KILL);
            }
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn collect(mut pipe: impl Read + Send + 'static, into: &Arc<Mutex<String>>) -> JoinHandle<()> {
    let into = Arc::clone(into);
    thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(got @ 1..) = pipe.read(&mut bytes) {
            let text = String::from_utf8_lossy(&bytes[..got]);
            into.lock().expect("no panic").push_str(&text);
        }
    })
}

/// `FILE:FUNCTION`.
pub(crate) fn probe(program: &Path, function: &str) -> String {
    format!("{}:{function}", program.display())
}

/// The mappings as `/proc/PID/maps` shows them.
pub(crate) fn maps(pid: Pid) -> String {
    fs::read_to_string(format!("/proc/{pid}/maps")).expect("maps")
}

/// A field of `/proc/PID/status` (of a thread: `PID/task/TID`).
pub(crate) fn status(task: &str, field: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{task}/status")).unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix(field));
    line.map(|l| l.trim_start_matches(':').trim().to_owned())
        .unwrap_or_default()
}

/// Threads of a process as paths below `/proc`.
pub(crate) fn tasks(pid: Pid) -> Vec<String> {
    let folder = fs::read_dir(format!("/proc/{pid}/task"));
    folder
        .into_iter()
        .flatten()
        .flatten()
        .map(|e| format!("{pid}/task/{}", e.file_name().to_string_lossy()))
        .collect()
}

/// Text as in the files, nobody attached for long, no thread stopped. (Whoever runs `lancet clean`
/// or `status` beside this test may look at the process for a moment.)
pub(crate) fn assert_untouched(pid: Pid, when: &str) {
    if let Err(error) = text_equals_file(pid, "") {
        panic!("{when}: {error}");
    }
    until(&format!("{when}: nobody holds a thread"), || {
        tasks(pid).iter().all(|task| {
            status(task, "TracerPid") == "0"
                && !status(task, "State").to_lowercase().starts_with('t')
        })
    });
}

/// The region files that a process maps.
pub(crate) fn region_files(pid: Pid) -> Vec<PathBuf> {
    maps(pid)
        .lines()
        .filter_map(|line| line.find("/").map(|at| &line[at..]))
        .filter(|path| path.contains(".lancet-") && !path.ends_with("(deleted)"))
        .map(PathBuf::from)
        .collect()
}

//! The `lancet` binary at work, for the suites that test it as its users run it.

// Each suite is a program of its own and uses a part of this.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lancet_testkit::Running;

/// How long anything may take before the test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A `lancet` that is at work on something; interrupted, then killed when dropped.
pub(crate) struct Lancet {
    child: Child,
    notes: Receiver<String>,
    told: Vec<String>,
    out: Option<JoinHandle<String>>,
}

/// What a `lancet` that has ended wrote, and how it ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Lancet {
    /// Starts `lancet` with these arguments and does not wait for a word of it.
    pub(crate) fn spawn<A: AsRef<std::ffi::OsStr>>(args: &[A]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lancet"));
        command.args(args);
        Self::of(command)
    }

    /// Runs a command that is `lancet`, or becomes it.
    pub(crate) fn of(mut command: Command) -> Self {
        command.stdin(Stdio::null());
        Self::with_input(command)
    }

    /// As [`of`](Self::of), with the standard input that the command was given.
    pub(crate) fn with_input(mut command: Command) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let (sender, notes) = channel();
        let err = child.stderr.take().expect("it is piped");
        std::thread::spawn(move || {
            for line in BufReader::new(err).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let mut out = child.stdout.take().expect("it is piped");
        let out = std::thread::spawn(move || {
            let mut text = Vec::new();
            let _ = out.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        });
        Self {
            child,
            notes,
            told: Vec::new(),
            out: Some(out),
        }
    }

    /// Starts `lancet` and returns once its probes are in.
    ///
    /// # Panics
    /// When it ends before.
    pub(crate) fn start<A: AsRef<std::ffi::OsStr> + std::fmt::Debug>(args: &[A]) -> Self {
        let mut lancet = Self::spawn(args);
        if !lancet.says("Attached ") {
            panic!("lancet {args:?} did not attach: {:?}", lancet.end());
        }
        lancet
    }

    /// Waits for a line of its notes that begins so; false when it ends before.
    pub(crate) fn says(&mut self, start: &str) -> bool {
        let end = Instant::now() + PATIENCE;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.notes.recv_timeout(left) {
                Ok(line) => {
                    let found = line.starts_with(start);
                    self.told.push(line);
                    if found {
                        return true;
                    }
                }
                Err(_) => return false,
            }
        }
    }

    /// The note that was read last.
    pub(crate) fn last_told(&self) -> &str {
        self.told.last().map_or("", String::as_str)
    }

    /// Its process.
    pub(crate) fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// The process that traces for it, a child of the guardian; none before it is there.
    pub(crate) fn tracer(&self) -> Option<i32> {
        let guardian = self.pid();
        let path = format!("/proc/{guardian}/task/{guardian}/children");
        let children = std::fs::read_to_string(path).ok()?;
        children.split(' ').next()?.parse().ok()
    }

    /// Whether it has not ended.
    pub(crate) fn runs(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|status| status.is_none())
    }

    /// Ends it by Ctrl-C.
    pub(crate) fn stop(self) -> Ended {
        signal(self.pid(), "INT");
        let ended = self.end();
        assert!(ended.status.success(), "{ended:?}");
        ended
    }

    /// Waits until it ends by itself.
    pub(crate) fn end(mut self) -> Ended {
        let end = Instant::now() + PATIENCE;
        let status = loop {
            match self.child.try_wait().expect("it is our child") {
                Some(status) => break status,
                None => assert!(Instant::now() < end, "lancet does not end: {:?}", self.told),
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        let out = self.out.take().expect("taken once");
        self.told.extend(self.notes.iter());
        Ended {
            status,
            out: out.join().expect("the reader does not panic"),
            err: self.told.join("\n"),
        }
    }
}

impl Drop for Lancet {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            // The guardian is killed; its tracer notices, detaches and ends.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

impl Ended {
    /// The rows `@[KEY]: N` of a report on standard output, or on standard error for `-c`.
    pub(crate) fn rows(&self) -> BTreeMap<String, u64> {
        let text = [self.out.as_str(), &self.err].join("\n");
        text.lines()
            .filter_map(|line| {
                let (key, value) = line.strip_prefix("@[")?.rsplit_once("]: ")?;
                Some((key.to_owned(), value.trim().parse().ok()?))
            })
            .collect()
    }

    /// The value of one row, 0 where there is none, as for a function that was never hit.
    pub(crate) fn row(&self, key: &str) -> u64 {
        self.rows().get(key).copied().unwrap_or(0)
    }
}

/// Runs `lancet` to its end.
pub(crate) fn lancet<A: AsRef<std::ffi::OsStr>>(args: &[A]) -> Ended {
    Lancet::spawn(args).end()
}

/// Sends a signal, by name, to one process.
pub(crate) fn signal(pid: i32, name: &str) {
    let sent = Command::new("/bin/kill")
        .args([format!("-{name}"), pid.to_string()])
        .status();
    assert!(sent.is_ok_and(|s| s.success()), "kill -{name} {pid}");
}

/// `FILE:WHAT`.
pub(crate) fn probe(file: &Path, what: &str) -> String {
    format!("{}:{what}", file.display())
}

/// A copy of a target's program in a folder of its own: a kernel uprobe on a file is seen by
/// every process that runs it, those of other tests too.
pub(crate) fn private_copy(name: &str) -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join(name);
    std::fs::copy(lancet_testkit::target(name), &file).expect("a copy");
    (folder, file)
}

/// Starts a program that speaks the targets' protocol.
pub(crate) fn start(file: &Path) -> Running {
    Running::spawn::<&str>(file, &[]).unwrap_or_else(|error| panic!("{error}"))
}

/// Where a function of a position-independent program lies in a process that runs it.
pub(crate) fn address(running: &Running, file: &Path, function: &str) -> u64 {
    let out = Command::new("nm").arg(file).output().expect("nm");
    let symbols = String::from_utf8_lossy(&out.stdout).into_owned();
    let value = symbols
        .lines()
        .find(|l| l.ends_with(&format!(" {function}")))
        .and_then(|l| l.split(' ').next())
        .expect("the function is in the symbol table");
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", running.pid())).expect("maps");
    let first = maps
        .lines()
        .find(|l| l.ends_with(&file.display().to_string()))
        .and_then(|l| l.split('-').next())
        .expect("the file is mapped");
    let number = |hex| u64::from_str_radix(hex, 16).expect("a number");
    // The first segment is linked at 0.
    number(first) + number(value)
}

/// Starts counting one probe of a target that runs.
pub(crate) fn counting(target: &Running, probes: &[String]) -> Lancet {
    let pid = target.pid().to_string();
    let mut args = vec!["count", "-v"];
    args.extend(probes.iter().map(String::as_str));
    args.extend(["-p", &pid]);
    Lancet::start(&args)
}

/// The number behind `NAME=` in an answer such as `counts f=3 g=4`.
pub(crate) fn told(answer: &str, name: &str) -> u64 {
    answer
        .split(' ')
        .find_map(|word| word.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
        .unwrap_or_else(|| panic!("no {name} in {answer:?}"))
}

/// How often long tests repeat: by the environment's `LANCET_ROUNDS`, else `usually`.
pub(crate) fn rounds(usually: u64) -> u64 {
    std::env::var("LANCET_ROUNDS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(usually)
}

/// Repeats a question until it is answered with yes.
///
/// # Panics
/// When that takes longer than [`PATIENCE`].
pub(crate) fn eventually(what: &str, mut answer: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !answer() {
        assert!(Instant::now() < end, "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

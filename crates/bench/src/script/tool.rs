//! A tool that runs a script on a process: started, read, ended.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::Instant;

use anyhow::{Context, bail};
use lancet_abi::units::Pid;
use rustix::process::{Signal, kill_process};

/// What the tool prints once it has attached.
const READY: &str = "__BPFTRACE_NOTIFY_PROBES_ATTACHED";

/// Who runs the script.
pub(super) struct Tool {
    pub(super) name: &'static str,
    exe: PathBuf,
    /// What it takes to hear of the attaching.
    begin: &'static str,
}

impl Tool {
    pub(super) fn lancet(exe: &Path) -> Self {
        Self {
            name: "lancet",
            exe: exe.to_owned(),
            begin: "",
        }
    }

    /// The releases that do not know the line by themselves print what BEGIN prints only once
    /// all probes are in.
    pub(super) fn bpftrace() -> Self {
        Self {
            name: "bpftrace",
            exe: "bpftrace".into(),
            begin: "BEGIN { printf(\"__BPFTRACE_NOTIFY_PROBES_ATTACHED\\n\"); } ",
        }
    }
}

/// A tool at work.
pub(super) struct Attached {
    child: Child,
    start: Instant,
    out: JoinHandle<Told>,
    err: JoinHandle<String>,
}

/// What it told.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// Lines of events.
    pub(super) lines: u64,
    /// What the rows of `@` add up to.
    pub(super) counted: u64,
    pub(super) lost: u64,
    pub(super) seconds: f64,
}

impl Attached {
    pub(super) fn start(tool: &Tool, pid: Pid, program: &str) -> anyhow::Result<Self> {
        let program = format!("{}{program}", tool.begin);
        let mut child = Command::new(&tool.exe)
            .args(["-B", "line", "-p", &pid.to_string(), "-e", &program])
            .env(READY, "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", tool.exe.display()))?;
        let (Some(out), Some(mut err)) = (child.stdout.take(), child.stderr.take()) else {
            bail!("no pipes");
        };
        let mut out = BufReader::new(out);
        let mut ready = false;
        let mut line = String::new();
        while !ready && out.read_line(&mut line)? > 0 {
            ready = line.trim() == READY;
            line.clear();
        }
        if !ready {
            let mut why = String::new();
            err.read_to_string(&mut why)?;
            let _ = child.wait();
            bail!("{}", why.trim());
        }
        Ok(Self {
            child,
            start: Instant::now(),
            out: std::thread::spawn(move || read(out)),
            err: std::thread::spawn(move || {
                let mut text = String::new();
                let _ = err.read_to_string(&mut text);
                text
            }),
        })
    }

    /// Ends it.
    pub(super) fn stop(mut self) -> anyhow::Result<Told> {
        let pid = rustix::process::Pid::from_child(&self.child);
        kill_process(pid, Signal::INT).context("it has ended by itself")?;
        let status = self.child.wait()?;
        let mut told = self.out.join().unwrap_or_default();
        told.seconds = self.start.elapsed().as_secs_f64();
        let err = self.err.join().unwrap_or_default();
        told.lost += err.lines().filter_map(lost).sum::<u64>();
        if !status.success() {
            bail!("it ended with {status}: {}", err.trim());
        }
        Ok(told)
    }
}

fn lost(line: &str) -> Option<u64> {
    line.strip_prefix("Lost ")?
        .strip_suffix(" events")?
        .parse()
        .ok()
}

/// Reads to the end. Lines that begin with a digit are events, rows of `@` are counts.
fn read(out: impl BufRead) -> Told {
    let mut told = Told::default();
    for line in out.lines().map_while(Result::ok) {
        if line.starts_with(|c: char| c.is_ascii_digit()) {
            told.lines += 1;
        } else if line.starts_with("@:") || line.starts_with("@[") {
            let count = line
                .rsplit_once(": ")
                .and_then(|(_, n)| n.trim().parse::<u64>().ok());
            told.counted += count.unwrap_or(0);
        } else {
            told.lost += lost(&line).unwrap_or(0);
        }
    }
    told
}

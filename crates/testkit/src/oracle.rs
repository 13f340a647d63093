//! Counting by other means: what bpftrace, over the kernel's uprobes, counts.

use std::path::Path;
use std::time::Duration;

use lancet_abi::units::Pid;
use rustix::process::{Signal, kill_process};

use crate::{Running, have, is_root};

/// How long bpftrace may take to start: it compiles and attaches first.
const START: Duration = Duration::from_secs(20);

/// How many times `function` of `file` is entered in process `pid` while `run` runs, as bpftrace
/// counts it; none where bpftrace can't be used (not installed, not root).
///
/// Scoped to the one process. The count is over what happens between attaching and the end of
/// `run`, so `run` has to see to it that the calls are made in between.
///
/// # Panics
/// When bpftrace is there but does not attach; then `run` has not run.
pub fn bpftrace_count(pid: Pid, file: &Path, function: &str, run: impl FnOnce()) -> Option<u64> {
    if !have("bpftrace") || !is_root() {
        return None;
    }
    // What BEGIN prints is read only once every probe is attached.
    let script = format!(
        "BEGIN {{ printf(\"counting\\n\"); }} uprobe:{}:{function} {{ @ = count(); }}",
        file.display()
    );
    let pid = pid.to_string();
    let mut tracer = Running::spawn_silent(
        Path::new("bpftrace"),
        &["-B", "line", "-p", &pid, "-e", &script],
    )
    .unwrap_or_else(|error| panic!("bpftrace: {error}"));
    loop {
        match tracer.line_within(START) {
            Ok(line) if line == "counting" => break,
            Ok(_) => {}
            Err(error) => panic!("bpftrace does not count {function} of process {pid}: {error}"),
        }
    }
    run();
    if let Some(tracer) = rustix::process::Pid::from_raw(tracer.pid().0) {
        kill_process(tracer, Signal::INT).expect("bpftrace is our child and not yet reaped");
    }
    let (lines, status) = tracer.finish();
    assert!(status.success(), "bpftrace ended with {status}: {lines:#?}");
    // A map that was never written to is not printed.
    Some(
        lines
            .iter()
            .find_map(|line| line.strip_prefix("@: ")?.trim().parse().ok())
            .unwrap_or(0),
    )
}

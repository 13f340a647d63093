//! bpftrace over the kernel's uprobes, at work on one process.

use std::path::Path;

use lancet_testkit::{Running, have, is_root};

use crate::support::{PATIENCE, signal};

/// A bpftrace with one uprobe. Its file should be a private copy: the probe is seen by every
/// process that runs it.
pub(crate) struct Kernel(Running);

impl Kernel {
    /// Why there is none here.
    pub(crate) fn missing() -> Option<&'static str> {
        match (is_root(), have("bpftrace")) {
            (false, _) => Some("not root"),
            (_, false) => Some("no bpftrace"),
            _ => None,
        }
    }

    /// Starts it and returns once its probe is in.
    pub(crate) fn start(running: &Running, file: &Path, site: &str, action: &str) -> Self {
        // What BEGIN prints is read only once every probe is attached.
        let script = format!(
            "BEGIN {{ printf(\"counting\\n\"); }} uprobe:{}:{site} {{ {action} }}",
            file.display()
        );
        let pid = running.pid().to_string();
        let words = ["-B", "line", "-p", &pid, "-e", &script];
        let mut bpftrace = Running::spawn_silent(Path::new("bpftrace"), &words)
            .unwrap_or_else(|error| panic!("{error}"));
        loop {
            match bpftrace.line_within(PATIENCE) {
                Ok(line) if line == "counting" => return Self(bpftrace),
                Ok(_) => {}
                Err(error) => panic!("bpftrace: {error}"),
            }
        }
    }

    /// Ends it; what it printed.
    pub(crate) fn stop(self) -> Vec<String> {
        signal(self.0.pid().0, "INT");
        self.0.finish().0
    }

    /// Ends it; the value of `@`, which is not printed where it was never written to.
    #[allow(dead_code, reason = "each suite uses a part")]
    pub(crate) fn stop_count(self) -> u64 {
        self.stop()
            .iter()
            .find_map(|line| line.strip_prefix("@: ")?.trim().parse().ok())
            .unwrap_or(0)
    }
}

//! A process that errors may not touch, and what an error has to look like.

use std::fs;

use lancet_abi::units::Pid;
use lancet_testkit::{Running, text_equals_file};

use crate::support::{Ended, lancet};

/// It failed with this status, said each of these, and said it in one line without a backtrace.
pub(crate) fn complains(ended: &Ended, status: i32, says: &[&str]) {
    assert_eq!(ended.status.code(), Some(status), "{ended:?}");
    for what in says {
        assert!(ended.err.contains(what), "{what:?} is not in {ended:?}");
    }
    assert!(!ended.err.contains("panicked"), "{ended:?}");
    if status == 1 {
        let lines = ended.err.lines().filter(|l| l.starts_with("lancet: "));
        assert_eq!(lines.count(), 1, "{ended:?}");
    }
}

pub(crate) fn maps(pid: Pid) -> String {
    fs::read_to_string(format!("/proc/{pid}/maps")).unwrap()
}

/// A process that the tests may not disturb, with what its memory looked like.
pub(crate) struct Witness {
    running: Running,
    before: String,
}

impl Witness {
    pub(crate) fn new() -> Self {
        let mut running = Running::start("sleeper", &["1"]);
        running.ask("call 1");
        let before = maps(running.pid());
        Self { running, before }
    }

    pub(crate) fn pid(&self) -> String {
        self.running.pid().to_string()
    }

    /// `lancet` with these words and `-p` fails like that, and nothing is touched.
    pub(crate) fn refuses(&self, words: &[&str], status: i32, says: &[&str]) {
        let pid = self.pid();
        let ended = lancet(&[words, &["-p", &pid]].concat());
        complains(&ended, status, says);
        self.is_untouched();
    }

    pub(crate) fn is_untouched(&self) {
        text_equals_file(self.running.pid(), "").unwrap();
        assert_eq!(maps(self.running.pid()), self.before);
    }

    pub(crate) fn finish(mut self) {
        self.running.ask("call 1");
        self.is_untouched();
        let _ = self.running.finish_ok();
    }
}

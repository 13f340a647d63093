//! A process that lancet has nothing to do with never holds it up, whatever state it is in.

#[path = "support/session.rs"]
mod session;

use std::process::{Command, Stdio};

use lancet_testkit::{Running, skip, target, text_equals_file};
use rustix::process::Signal;
use session::{LANCET, Lancet, assert_untouched, lancet, probe, signal, until};

#[test]
fn a_locked_memory_map_delays_neither_the_end_of_a_session_nor_the_guardian_nor_clean() {
    let (mut neighbour, _) = match Running::locked(&target("lockedmm"), &[]) {
        Ok(locked) => locked,
        Err(why) => skip!("{why}"),
    };
    let mut hammer = Running::start("hammer", &["2"]);
    let pid = hammer.pid();
    let probes = [probe(&target("hammer"), "hammer_*")];

    let (ended, text) = Lancet::count(&probes, pid).attached().interrupt();
    assert!(ended.success(), "{text}");
    assert_untouched(pid, "after a session");

    let session = Lancet::count(&probes, pid).attached();
    signal(session.tracer().expect("a tracer"), Signal::KILL);
    let (_, text) = session.end();
    assert!(!text.contains("keeps probes"), "{text}");
    assert_untouched(pid, "after the tracer's death");

    let session = Lancet::count(&probes, pid).attached();
    let (guardian, tracer) = (session.guardian(), session.tracer().expect("a tracer"));
    signal(guardian, Signal::STOP);
    signal(tracer, Signal::KILL);
    signal(guardian, Signal::KILL);
    let _ = session.end();
    until("clean", || {
        lancet(&["clean", "-p", &pid.to_string()]);
        text_equals_file(pid, "").is_ok()
    });
    assert_untouched(pid, "after clean");

    assert!(!hammer.ask("how").is_empty());
    let _ = hammer.finish_ok();
    // It was locked all the time.
    assert_eq!(neighbour.ask("release"), "released");
    let _ = neighbour.finish_ok();
}

/// Runs lancet until it ends by itself; all that it says.
fn said(words: &[&str]) -> (std::process::ExitStatus, String) {
    let mut command = Command::new(LANCET);
    command.args(words).stdin(Stdio::null());
    Lancet::start(&mut command).end()
}

#[test]
fn a_locked_memory_map_is_named_by_what_looks_at_all_processes_and_by_what_it_is_given_to() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("lockedmm");
    std::fs::copy(target("lockedmm"), &file).expect("a copy");
    let (mut neighbour, locked) = match Running::locked(&file, &[]) {
        Ok((neighbour, locked)) => (neighbour, locked.to_string()),
        Err(why) => skip!("{why}"),
    };
    let named =
        format!("process {locked} (lockedmm) cannot be looked into: its memory map is locked");
    let main = probe(&file, "main");

    let (ended, text) = said(&["status"]);
    assert!(ended.success(), "{text}");
    assert!(text.contains(&named), "{text}");

    let (ended, text) = said(&["clean", "-p", &locked]);
    assert_eq!(ended.code(), Some(1), "{text}");
    assert!(text.contains(&named), "{text}");

    let (ended, text) = said(&["count", &main, "-p", &locked]);
    assert_eq!(ended.code(), Some(1), "{text}");
    assert!(text.contains(&named), "{text}");

    // All processes that run the file: the one that is locked, and its parent, which is not.
    let mut command = Command::new(LANCET);
    command.args(["count", &main]).stdin(Stdio::null());
    let session = Lancet::start(&mut command).attached();
    let (ended, text) = session.interrupt();
    assert!(ended.success(), "{text}");
    let pending = format!("process {locked} is pending: ");
    assert!(text.contains(&pending), "{text}");
    assert!(text.contains("1 processes map it, 1 pending"), "{text}");
    assert!(!text.contains("keeps probes"), "{text}");
    assert_untouched(neighbour.pid(), "after the session");
    // It was locked all the time.
    assert_eq!(neighbour.ask("release"), "released");
    let _ = neighbour.finish_ok();
}

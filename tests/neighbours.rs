//! A process that lancet has nothing to do with never holds it up, whatever state it is in.

#[path = "support/session.rs"]
mod session;

use lancet_testkit::{Running, skip, target, text_equals_file};
use rustix::process::Signal;
use session::{Lancet, assert_untouched, lancet, probe, signal, until};

/// A process whose memory map is locked for as long as this lives; none where it can't be made.
fn locked() -> Option<Running> {
    let target = Running::start("lockedmm", &[]);
    (target.facts().first().is_some_and(|locked| locked != "0")).then_some(target)
}

#[test]
fn a_locked_memory_map_delays_neither_the_end_of_a_session_nor_the_guardian_nor_clean() {
    let Some(mut neighbour) = locked() else {
        skip!("not root, or no FUSE");
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

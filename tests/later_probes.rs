//! Probes that come into a session after its processes are attached.

#[path = "support/session.rs"]
mod session;

use std::process::Command;
use std::sync::Arc;

use lancet_abi::units::Tid;
use lancet_engine::{Binary, Consumer, ProbeId, Session, Total, Tracer, Value, launch, sites};
use lancet_remote::sys;
use lancet_symbols::ProbeSpec;
use lancet_testkit::{Running, target, text_equals_file};
use session::{assert_untouched, rounds};

const INSIDE: &str = "LANCET_TEST_INSIDE";

/// Runs a part of a test in a tracer. A guardian must have one thread, so this test binary starts
/// itself again for the one test.
fn in_tracer(test: &str, part: fn(&Arc<Tracer>)) {
    if std::env::var_os(INSIDE).is_some() {
        let code = launch(None, move |tracer| {
            part(&tracer);
            0
        });
        std::process::exit(i32::from(code.expect("a tracer")));
    }
    let output = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", test, "--test-threads=1", "--nocapture"])
        .env(INSIDE, "1")
        .output()
        .expect("this program starts again");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{}: {text}", output.status);
}

fn binary(name: &str) -> Arc<Binary> {
    Binary::open(&target(name)).expect("an ELF file")
}

fn register(
    session: &mut Session,
    binary: &Arc<Binary>,
    name: &str,
    consumer: Consumer,
) -> ProbeId {
    let spec: ProbeSpec = format!("any:{name}").parse().expect("a probe");
    let found = sites(binary, &spec.target).expect("the function");
    assert_eq!(found.len(), 1);
    let mut probes = session
        .register_sites(binary, found, consumer)
        .expect("room for a counter");
    probes.pop().expect("one").expect("not refused")
}

fn count(session: &Session, probe: ProbeId) -> u64 {
    match session.read(probe).expect("counters") {
        Some(Total::Count(n)) => n,
        Some(Total::Hist(buckets)) => buckets.iter().sum(),
        other => panic!("{other:?}"),
    }
}

fn consumers_come_and_go(tracer: &Arc<Tracer>) {
    let mut running = Running::start("sleeper", &["2"]);
    let pid = running.pid();
    let binary = binary("sleeper");
    let mut session = Session::open(tracer);
    let add =
        |session: &mut Session, consumer| register(session, &binary, "sleeper_function", consumer);

    let first = add(&mut session, Consumer::Count);
    // One is the probe's, the others watch calls that make children.
    assert!(session.attach(pid).expect("attached").sites >= 1);
    let _ = running.ask("call 1000");

    let second = add(&mut session, Consumer::Hist(Value::Arg(0)));
    let again = session.attach(pid).expect("attached again");
    assert_eq!((again.sites, again.refused.len()), (1, 0), "{again:?}");
    let _ = running.ask("call 500");
    assert_eq!(count(&session, first), 1500);
    assert_eq!(count(&session, second), 500);

    // Nothing is new: nothing is done.
    assert_eq!(session.attach(pid).expect("attached again").sites, 0);

    session.unregister(first).expect("unregistered");
    let _ = running.ask("call 10");
    let third = add(&mut session, Consumer::Count);
    assert_eq!(session.attach(pid).expect("attached again").sites, 1);
    let _ = running.ask("call 5");
    assert_eq!(count(&session, first), 1500);
    assert_eq!(count(&session, second), 515);
    assert_eq!(count(&session, third), 5);

    // Not one of them is left: the site is the file's, and can be taken anew.
    session.unregister(second).expect("unregistered");
    session.unregister(third).expect("unregistered");
    text_equals_file(pid, "sleeper").expect("no jump is left in the program");
    let fourth = add(&mut session, Consumer::Count);
    assert_eq!(session.attach(pid).expect("attached again").sites, 1);
    let _ = running.ask("call 7");
    assert_eq!(count(&session, fourth), 7);

    let detached = session.detach();
    assert!(
        detached.failed.is_empty() && detached.foreign.is_empty(),
        "{detached:?}"
    );
    assert_untouched(pid, "after detaching");
    let _ = running.ask("call 3");
    assert_eq!(count(&session, fourth), 7);
    let _ = running.finish_ok();
}

/// A consumer that is registered on a site with a jump counts from the next attach on, and the
/// others lose nothing by it.
#[test]
fn a_consumer_that_comes_later_counts_beside_the_first() {
    in_tracer(
        "a_consumer_that_comes_later_counts_beside_the_first",
        consumers_come_and_go,
    );
}

fn pads_change_under_running_threads(tracer: &Arc<Tracer>) {
    let running = Running::start("runner", &["3"]);
    let pid = running.pid();
    let binary = binary("runner");
    let mut session = Session::open(tracer);
    let add =
        |session: &mut Session| register(session, &binary, "runner_function", Consumer::Count);
    let first = add(&mut session);
    session.attach(pid).expect("attached");
    let mut probe = None;
    for round in 0..rounds(12).min(20) {
        let before = count(&session, first);
        let next = add(&mut session);
        let again = session.attach(pid).expect("attached again");
        assert_eq!((again.sites, again.refused.len()), (1, 0), "{again:?}");
        session::until("both count", || {
            count(&session, next) > 0 && count(&session, first) > before
        });
        let (later, all) = (count(&session, next), count(&session, first));
        assert!(later <= all, "round {round}: {later} of {all}");
        if let Some(probe) = probe.replace(next) {
            session.unregister(probe).expect("unregistered");
        }
    }
    let detached = session.detach();
    assert!(
        detached.failed.is_empty() && detached.foreign.is_empty(),
        "{detached:?}"
    );
    assert_untouched(pid, "after detaching");
    let _ = running.finish_ok();
}

/// Pads are made anew while threads run through them.
#[test]
fn pads_are_made_anew_under_running_threads() {
    in_tracer(
        "pads_are_made_anew_under_running_threads",
        pads_change_under_running_threads,
    );
}

fn one_process_fails(tracer: &Arc<Tracer>) {
    let binary = binary("sleeper");
    let mut session = Session::open(tracer);
    let probe = register(&mut session, &binary, "sleeper_function", Consumer::Count);
    let held = Running::start("sleeper", &["1"]);
    let mut free = Running::start("sleeper", &["1"]);
    for running in [&held, &free] {
        session.attach(running.pid()).expect("attached");
    }
    let _ = free.ask("call 3");

    // Somebody else traces the first one: its threads can't be stopped by us.
    let leader = Tid(held.pid().0);
    sys::seize(leader, 0).expect("it is ours to trace");
    session
        .unregister(probe)
        .expect_err("one process keeps it, which is told");
    text_equals_file(free.pid(), "sleeper").expect("the other one does not");

    sys::interrupt(leader).expect("it runs");
    while sys::wait(leader, true).expect("it is traced").is_none() {}
    sys::detach(leader, 0).expect("it is stopped");
    session.unregister(probe).expect("it may be stopped again");
    assert_eq!(count(&session, probe), 3);
    assert!(session.detach().failed.is_empty());
    for running in [held, free] {
        assert_untouched(running.pid(), "after the session");
        let _ = running.finish_ok();
    }
}

#[test]
fn a_process_that_cannot_be_stopped_keeps_its_probe_alone() {
    in_tracer(
        "a_process_that_cannot_be_stopped_keeps_its_probe_alone",
        one_process_fails,
    );
}

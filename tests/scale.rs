//! Many processes at once: one that cannot be stopped delays and fails no other. What is asserted
//! is the order of things, never a time.

#[path = "support/mod.rs"]
mod support;

use lancet_testkit::{Running, skip, target, text_equals_file};
use support::{Lancet, eventually, probe, rounds, signal};

fn stuck(how: &str) -> Running {
    Running::start("stuck", &[how])
}

/// Starts counting `what` of a target's file in these processes, in this order.
fn counting_in(name: &str, what: &str, pids: &[i32]) -> Lancet {
    let mut args = vec!["count".to_owned(), "-v".to_owned()];
    args.push(probe(&target(name), what));
    for pid in pids {
        args.extend(["-p".to_owned(), pid.to_string()]);
    }
    Lancet::spawn(&args)
}

/// The number of calls in an answer `calls N`.
fn calls(answer: &str) -> u64 {
    answer
        .strip_prefix("calls ")
        .and_then(|n| n.parse().ok())
        .unwrap_or_else(|| panic!("{answer:?}"))
}

#[test]
fn a_process_that_cannot_be_stopped_is_pending_while_others_count() {
    let mut late = stuck("1");
    let mut others: Vec<Running> = (0..5).map(|_| stuck("0")).collect();
    let mut pids = vec![late.pid().0];
    pids.extend(others.iter().map(|o| o.pid().0));
    let mut session = counting_in("stuck", "stuck_function", &pids);
    // The stuck one comes first in the list and is told of while it is stuck.
    assert!(session.says(&format!("lancet: process {} is pending", late.pid())));
    assert!(session.says("Attached "));
    let mut due = 0;
    for other in &mut others {
        due += calls(&other.ask("call 100"));
    }
    // It runs on as if nobody wanted anything of it, and nothing of it counts.
    assert_eq!(late.ask("call 7"), "calls 7");
    text_equals_file(late.pid(), "stuck").unwrap();
    assert_eq!(late.ask("release"), "released 1");
    // Its turn comes without anybody asking.
    assert!(session.says(&format!("process {}: ", late.pid())));
    assert_eq!(late.ask("call 30"), "calls 37");
    due += 30;
    let ended = session.stop();
    assert_eq!(ended.row("stuck_function"), due, "{}", ended.err);
    for running in others.into_iter().chain([late]) {
        text_equals_file(running.pid(), "stuck").unwrap();
        drop(running.finish_ok());
    }
}

/// A process alone is waited for, and Ctrl-C ends that.
#[test]
fn a_single_process_that_cannot_be_stopped_is_waited_for() {
    let mut late = stuck("1");
    let pids = [late.pid().0];
    let pending = format!("lancet: process {} is pending", late.pid());
    let mut session = counting_in("stuck", "stuck_function", &pids);
    assert!(session.says(&pending));
    signal(session.pid(), "INT");
    let ended = session.end();
    assert_eq!(ended.status.code(), Some(1), "{}", ended.err);
    assert!(
        ended.err.contains("was pending to the end"),
        "{}",
        ended.err
    );
    text_equals_file(late.pid(), "stuck").unwrap();

    let mut session = counting_in("stuck", "stuck_function", &pids);
    assert!(session.says(&pending));
    assert_eq!(late.ask("call 7"), "calls 7");
    assert_eq!(late.ask("release"), "released 1");
    assert!(session.says("Attached "));
    assert_eq!(late.ask("call 30"), "calls 37");
    let ended = session.stop();
    assert_eq!(ended.row("stuck_function"), 30, "{}", ended.err);
    text_equals_file(late.pid(), "stuck").unwrap();
    drop(late.finish_ok());
}

/// A control group that does not freeze anybody any more when it is dropped.
struct Freezer(std::path::PathBuf);

impl Freezer {
    fn of(pid: i32) -> Option<Self> {
        let name = format!("lancet-test-{pid}");
        let folders = [
            "/sys/fs/cgroup/freezer",
            "/sys/fs/cgroup/unified",
            "/sys/fs/cgroup",
        ];
        for folder in folders {
            let group = std::path::Path::new(folder).join(&name);
            if std::fs::create_dir(&group).is_err() {
                continue;
            }
            let freezer = Self(group);
            let moved = std::fs::write(freezer.0.join("cgroup.procs"), pid.to_string());
            if moved.is_ok() && freezer.set(true) {
                return Some(freezer);
            }
        }
        None
    }

    /// By the old interface or the new one.
    fn set(&self, frozen: bool) -> bool {
        let old = self.0.join("freezer.state");
        let (file, text) = match old.exists() {
            true => (old, if frozen { "FROZEN" } else { "THAWED" }),
            false => (self.0.join("cgroup.freeze"), if frozen { "1" } else { "0" }),
        };
        file.exists() && std::fs::write(file, text).is_ok()
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        self.set(false);
        let parent = self.0.parent().unwrap().join("cgroup.procs");
        let procs = std::fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default();
        for pid in procs.lines() {
            let _ = std::fs::write(&parent, pid);
        }
        let gone = || std::fs::remove_dir(&self.0).is_ok() || !self.0.exists();
        eventually("the group is removed", gone);
    }
}

/// A frozen process stays frozen, delays no other, and has its probes when it is thawed or at once.
#[test]
fn a_frozen_process_is_pending_or_probed_and_stays_frozen() {
    let (mut cold, mut other) = (stuck("0"), stuck("0"));
    let Some(freezer) = Freezer::of(cold.pid().0) else {
        skip!("no control group that freezes can be made");
    };
    let pids = [cold.pid().0, other.pid().0];
    let mut session = counting_in("stuck", "stuck_function", &pids);
    assert!(session.says("Attached "));
    let due = calls(&other.ask("call 5"));
    // It is frozen still: an order is not obeyed.
    cold.order("call 9");
    let early = cold.line_within(std::time::Duration::from_millis(200));
    assert!(early.is_err(), "{early:?}");
    freezer.set(false);
    assert_eq!(cold.line_within(support::PATIENCE).unwrap(), "calls 9");
    // By now it has its probes, or gets them.
    let state = || {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", cold.pid()));
        maps.unwrap_or_default().contains("/.lancet-")
    };
    eventually("the probes come", state);
    eventually("and count", || {
        cold.ask("call 1").starts_with("calls ") && text_equals_file(cold.pid(), "stuck").is_err()
    });
    let ended = session.stop();
    assert!(ended.row("stuck_function") >= due, "{}", ended.err);
    for running in [cold, other] {
        text_equals_file(running.pid(), "stuck").unwrap();
        drop(running.finish_ok());
    }
}

#[test]
fn a_session_ends_while_a_process_is_pending() {
    let mut late = stuck("1");
    let mut other = stuck("0");
    let pids = [late.pid().0, other.pid().0];
    let mut session = counting_in("stuck", "stuck_function", &pids);
    assert!(session.says("lancet: process "));
    assert!(session.says("Attached "));
    let due = calls(&other.ask("call 50"));
    let ended = session.stop();
    assert!(ended.status.success(), "{}", ended.err);
    assert_eq!(ended.row("stuck_function"), due, "{}", ended.err);
    // Nobody holds it any more, and it is as it was.
    assert_eq!(late.ask("release"), "released 1");
    assert_eq!(late.ask("call 5"), "calls 5");
    for running in [late, other] {
        text_equals_file(running.pid(), "stuck").unwrap();
        drop(running.finish_ok());
    }
}

#[test]
fn a_locked_memory_map_delays_nobody() {
    let (mut locked, child) = match Running::locked(&target("lockedmm"), &[]) {
        Ok(made) => made,
        Err(why) => skip!("{why}"),
    };
    let other = locked.pid().0;
    let mut session = counting_in("lockedmm", "main", &[child.0, other]);
    assert!(session.says(&format!("lancet: process {child} is pending")));
    assert!(session.says(&format!("process {other}: ")));
    assert!(session.says("Attached "));
    assert_eq!(locked.ask("release"), "released");
    // The child ends by itself once it may.
    let ended = session.stop();
    assert!(ended.status.success(), "{}", ended.err);
    drop(locked.finish_ok());
}

#[test]
fn a_memory_map_that_gets_locked_delays_no_others_detach() {
    let (mut locked, child) = match Running::locked(&target("lockedmm"), &["later"]) {
        Ok(made) => made,
        Err(why) => skip!("{why}"),
    };
    let others: Vec<Running> = (0..4)
        .map(|_| Running::start("lockedmm", &["later"]))
        .collect();
    let mut pids = vec![child.0];
    pids.extend(others.iter().map(|o| o.pid().0));
    let mut session = counting_in("lockedmm", "main", &pids);
    assert!(session.says("Attached "));
    assert_eq!(locked.ask("lock"), "locked");
    signal(session.pid(), "INT");
    for other in &others {
        let done = || text_equals_file(other.pid(), "lockedmm").is_ok();
        eventually("the others are as they were", done);
    }
    // It waits for the one that is locked; nobody else did.
    assert!(session.runs());
    assert_eq!(locked.ask("release"), "released");
    let ended = session.end();
    assert!(ended.status.success(), "{}", ended.err);
    drop(locked.finish_ok());
}

#[test]
fn a_memory_map_that_stays_locked_is_given_up_and_named() {
    let (mut locked, child) = match Running::locked(&target("lockedmm"), &["later"]) {
        Ok(made) => made,
        Err(why) => skip!("{why}"),
    };
    let mut session = counting_in("lockedmm", "main", &[child.0]);
    assert!(session.says("Attached "));
    assert_eq!(locked.ask("lock"), "locked");
    signal(session.pid(), "INT");
    let ended = session.end();
    assert_eq!(ended.status.code(), Some(1), "{}", ended.err);
    let keeps = format!("process {child} keeps probes: its memory map is locked");
    assert!(ended.err.contains(&keeps), "{}", ended.err);
    assert_eq!(locked.ask("release"), "released");
    drop(locked.finish_ok());
}

#[test]
fn failures_and_ends_concern_one_process_only() {
    let (mut one, mut two) = (stuck("0"), stuck("0"));
    let stranger = Running::start("sleeper", &["1"]);
    let traced = stuck("0");
    let mut strace = std::process::Command::new("gdb");
    strace
        .args(["-nx", "-q", "-p", &traced.pid().to_string()])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null());
    let Ok(mut debugger) = strace.spawn() else {
        skip!("no gdb");
    };
    let tracer = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", traced.pid()));
        !status.unwrap_or_default().contains("TracerPid:\t0\n")
    };
    eventually("the debugger holds it", tracer);
    let pids = [traced.pid().0, stranger.pid().0, one.pid().0, two.pid().0];
    let mut session = counting_in("stuck", "stuck_function", &pids);
    assert!(session.says("Attached "));
    let due = calls(&one.ask("call 10")) + calls(&two.ask("call 20"));
    let ended = session.stop();
    assert_eq!(ended.row("stuck_function"), due, "{}", ended.err);
    let maps_none = format!("lancet: process {} maps none", stranger.pid());
    assert!(ended.err.contains(&maps_none), "{}", ended.err);
    drop(debugger.stdin.take());
    debugger.wait().unwrap();
    for running in [one, two, traced] {
        text_equals_file(running.pid(), "stuck").unwrap();
        drop(running.finish_ok());
    }
}

#[test]
fn a_crowd_is_counted_exactly_in_every_round() {
    let count = 40;
    let mut crowd: Vec<Running> = (0..count).map(|_| stuck("0")).collect();
    let pids: Vec<i32> = crowd.iter().map(|c| c.pid().0).collect();
    for round in 1..=rounds(3) {
        let mut session = counting_in("stuck", "stuck_function", &pids);
        assert!(session.says("Attached "));
        for member in &mut crowd {
            assert_eq!(calls(&member.ask("call 3")), 3 * round);
        }
        let ended = session.stop();
        assert_eq!(ended.row("stuck_function"), 3 * count, "{}", ended.err);
        for member in &crowd {
            text_equals_file(member.pid(), "stuck").unwrap();
        }
    }
    for member in crowd {
        drop(member.finish_ok());
    }
}

/// Kills a process; false when it has ended before.
fn kill(pid: i32) -> bool {
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).is_ok()
}

/// B127: whoever does it is killed in the middle of the work on a crowd, with all its threads: before,
/// while and after the probes come, and while they go. Nobody is left stopped, or with a probe.
#[test]
fn b127_a_crowd_outlives_its_tracer() {
    let count = if rounds(0) > 0 { 200 } else { 40 };
    let mut crowd: Vec<Running> = (0..count).map(|_| stuck("0")).collect();
    let pids: Vec<i32> = crowd.iter().map(|c| c.pid().0).collect();
    let (mut calls_due, mut times) = (0, Vec::new());
    for round in 0..rounds(8) {
        let mut session = counting_in("stuck", "stuck_function", &pids);
        let guardian = session.pid();
        eventually("there is a tracer", || session.tracer().is_some());
        let victim = session.tracer().unwrap();
        let attached = round % 4 >= 2;
        if attached {
            assert!(session.says("Attached "));
        }
        if round % 4 == 3 {
            signal(guardian, "INT");
        }
        // At another moment each time; the attach of all takes some tens of milliseconds.
        let pause = (round * 7919) % if attached { 20_000 } else { 120_000 };
        std::thread::sleep(std::time::Duration::from_micros(pause));
        let killed = std::time::Instant::now();
        let is_late = !kill(victim);
        let ended = session.end();
        if !is_late {
            times.push(killed.elapsed());
        }
        assert!(!ended.err.contains("keeps probes"), "{}", ended.err);
        for member in &crowd {
            text_equals_file(member.pid(), "stuck").unwrap();
        }
        calls_due += 3;
        for member in &mut crowd {
            assert_eq!(calls(&member.ask("call 3")), calls_due, "round {round}");
        }
    }
    times.sort_unstable();
    eprintln!(
        "{count} processes restored after {:?} (median), {:?} (most)",
        times.get(times.len() / 2),
        times.last()
    );
    for member in crowd {
        drop(member.finish_ok());
    }
}

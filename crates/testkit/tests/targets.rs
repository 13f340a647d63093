//! Every target program by itself, untraced: it builds, obeys its orders and finds itself right.

use std::time::Duration;

use lancet_testkit::{
    Error, Running, bpftrace_count, skip, target, text_equals_file, thread_count, try_target,
};

/// The numbers of an answer, without its word.
fn numbers(line: &str) -> Vec<u64> {
    line.split(' ')
        .filter_map(|word| word.rsplit('=').next()?.parse().ok())
        .collect()
}

fn sleep(milliseconds: u64) {
    std::thread::sleep(Duration::from_millis(milliseconds));
}

#[test]
fn calls_are_exact() {
    let mut running = Running::start("calls", &["3", "1000"]);
    assert_eq!(running.ask("go"), "calls 3000 3000 3000");
    assert_eq!(running.ask("go"), "calls 6000 6000 6000");
    text_equals_file(running.pid(), "/calls").unwrap();
    assert_eq!(running.finish_ok(), ["6000"]);
}

#[test]
fn hammer_runs_from_start_to_end() {
    let mut running = Running::start("hammer", &["3"]);
    assert_eq!(thread_count(running.pid()).unwrap(), 4);
    let first = numbers(&running.ask("calls"))[0];
    sleep(20);
    assert!(numbers(&running.ask("calls"))[0] > first);
    let _ = running.finish_ok();
}

#[test]
fn blocked_threads_acknowledge_each_wake_up() {
    let modes = [
        "sigsuspend",
        "pause",
        "ppoll",
        "poll",
        "epoll_pwait",
        "epoll_wait",
        "select",
        "futex",
        "semop",
        "sigtimedwait",
        "nanosleep",
        "clock_nanosleep",
        "read",
        "accept",
    ];
    let mut all = modes.map(|mode| Running::start("blocked", &[mode]));
    for running in &mut all {
        for _ in 0..5 {
            let answer = running.ask("wake");
            assert!(answer.starts_with("woken "), "{answer}");
        }
    }
    for running in all {
        let woken: u64 = running.finish_ok()[0].parse().unwrap();
        assert!(woken >= 5);
    }
}

#[test]
fn blocked_tells_of_a_wake_up_that_nobody_sent() {
    let running = Running::start("blocked", &["sigsuspend"]);
    let thread: i32 = running.facts()[0].parse().unwrap();
    // A signal from outside ends the call, as a tracer that breaks it would.
    let thread = rustix::process::Pid::from_raw(thread).unwrap();
    rustix::process::kill_process(thread, rustix::process::Signal::USR1).unwrap();
    sleep(20);
    let (lines, status) = running.finish();
    assert!(lines.last().unwrap().starts_with("WRONG"), "{lines:?}");
    assert_eq!(status.code(), Some(1));
}

#[test]
fn spawner_knows_the_truth_of_all_children() {
    let mut running = Running::start("spawner", &[]);
    assert_eq!(running.ask("go 10"), "truth 50");
    assert_eq!(running.finish_ok(), ["50"]);
}

#[test]
fn windowspin_stands_in_the_window() {
    let mut running = Running::start("windowspin", &[]);
    sleep(50);
    assert_eq!(numbers(&running.ask("calls")).len(), 5);
    let _ = running.finish_ok();
}

#[test]
fn sigframe_stays_and_leaves() {
    let mut running = Running::start("sigframe", &[]);
    for _ in 0..2 {
        let stays = running.ask("stay");
        assert!(stays.starts_with("staying "), "{stays}");
        let before = numbers(&stays);
        sleep(5);
        assert_eq!(
            numbers(&running.ask("calls")),
            before,
            "it went on while in the handler"
        );
        assert!(running.ask("leave").starts_with("left "));
    }
    assert_eq!(running.finish_ok(), ["2"]);
}

#[test]
fn rtstorm_receives_what_was_sent() {
    let mut running = Running::start("rtstorm", &[]);
    assert_eq!(running.ask("storm 2000"), "received 2000");
    assert_eq!(running.ask("storm 1000"), "received 3000");
    let _ = running.finish_ok();
}

#[test]
fn churn_counts_threads_that_came_and_went() {
    let mut running = Running::start("churn", &[]);
    assert!(running.ask("go").starts_with("going"));
    sleep(20);
    let counts = numbers(&running.ask("stop"));
    assert!(counts[1] > 0);
    assert_eq!(counts[0], 5 * counts[1]);
    assert_eq!(running.finish_ok(), [counts[0].to_string()]);
}

#[test]
fn sleepers_sleep_and_runners_run() {
    let mut sleeper = Running::start("sleeper", &["50"]);
    assert_eq!(thread_count(sleeper.pid()).unwrap(), 51);
    assert_eq!(sleeper.ask("call 5"), "calls 5");
    assert_eq!(sleeper.finish_ok(), ["5"]);
    let runner = Running::start("runner", &["5"]);
    assert_eq!(thread_count(runner.pid()).unwrap(), 6);
    sleep(5);
    assert!(runner.finish_ok()[0].parse::<u64>().unwrap() > 0);
}

#[test]
fn flags_and_registers_are_kept_natively() {
    let mut running = Running::start("flags", &[]);
    assert_eq!(
        running.ask("go 500"),
        "counts b031=500 b033=500 b033_short=500 b034=500 b039=500"
    );
    assert_eq!(running.finish_ok(), ["500"]);
}

#[test]
fn reloc_functions_are_right_natively() {
    let mut running = Running::start("reloc", &[]);
    let counts = running.ask("go 7");
    // Seven rounds of 1 to 7 turns.
    assert!(
        counts.contains(" b008=28 ") && counts.contains(" b020_loop=28 "),
        "{counts}"
    );
    assert!(
        counts.contains(" b013_c=21 ") && counts.contains(" b004=21 "),
        "{counts}"
    );
    let _ = running.finish_ok();
}

#[test]
fn rust_target_calls_and_unwinds() {
    let mut running = Running::start("rusty", &[]);
    assert_eq!(running.ask("go 1000"), "calls 1002");
    assert_eq!(running.finish_ok(), ["1002"]);
}

#[test]
fn go_target_calls_and_grows_stacks() {
    let program = match try_target("gopher") {
        Ok(program) => program,
        Err(error @ Error::NoCompiler { .. }) => skip!("{error}"),
        Err(error) => panic!("{error}"),
    };
    let mut running = Running::spawn::<&str>(&program, &[]).unwrap();
    assert_eq!(running.ask("go 1000"), "calls 4000");
    assert_eq!(running.finish_ok(), ["4000"]);
}

#[test]
fn bpftrace_counts_what_the_target_counts() {
    let program = target("reloc");
    let mut running = Running::start("reloc", &[]);
    // Calls before and after must not be counted.
    running.ask("go 7");
    let counted = bpftrace_count(running.pid(), &program, "b008", || {
        running.ask("go 7");
    });
    running.ask("go 7");
    let Some(counted) = counted else {
        skip!("bpftrace needs to be installed and root")
    };
    assert_eq!(
        counted, 28,
        "one for each execution of the first instruction"
    );
    let _ = running.finish_ok();
}

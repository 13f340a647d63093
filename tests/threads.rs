//! Threads and signals while probes come and go.
//!
//! The targets check all results, signals and counts themselves; each test compares the counts
//! and looks whether the target's text is its file's afterwards.

#[path = "support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use lancet_abi::units::Pid;
use lancet_testkit::{Running, have, skip, target, text_equals_file, thread_count};
use support::{Lancet, counting, eventually, lancet, probe, rounds, signal, told};

/// Attaches and detaches until the target answers the order that it was given.
fn rounds_until_answer(running: &mut Running, file: &Path, what: &str, least: u64) -> String {
    let mut done = 0;
    loop {
        let session = counting(running, &[probe(file, what)]);
        drop(session.stop());
        done += 1;
        if done >= least
            && let Ok(line) = running.line_within(std::time::Duration::from_millis(1))
        {
            return line;
        }
        assert!(done < 100_000, "no answer");
    }
}

/// A field of the process's status, such as `TracerPid`.
fn status(pid: i32, field: &str) -> String {
    fs::read_to_string(format!("/proc/{pid}/status"))
        .unwrap_or_default()
        .lines()
        .find_map(|line| {
            Some(
                line.strip_prefix(field)?
                    .strip_prefix(':')?
                    .trim()
                    .to_owned(),
            )
        })
        .unwrap_or_default()
}

fn untouched(running: &Running, name: &str) {
    text_equals_file(running.pid(), name).unwrap();
    assert_eq!(status(running.pid().0, "TracerPid"), "0");
}

#[test]
fn b118_rounds_of_attaching_to_functions_that_threads_execute() {
    let file = target("edges");
    let names = [
        "edges_60",
        "edges_61",
        "edges_62",
        "edges_63",
        "edges_page_1",
        "edges_page_2",
        "edges_page_3",
    ];
    let all = [probe(&file, "edges_*")];
    for threads in ["8", "64"] {
        let mut running = Running::start("edges", &[threads]);
        for _ in 0..rounds(4) {
            let session = counting(&running, &all);
            let ended = session.stop();
            assert!(!ended.err.contains("refused"), "{ended:?}");
        }
        // And exactly, between two rests.
        assert_eq!(running.ask("rest"), "resting");
        let session = counting(&running, &all);
        let answer = running.ask("go 300");
        let rows = session.stop().rows();
        for name in names {
            assert_eq!(rows.get(name), Some(&told(&answer, name)), "{name}");
        }
        untouched(&running, "edges");
        let _ = running.finish_ok();
    }
}

#[test]
fn b119_threads_at_each_byte_of_the_window() {
    let file = target("windowspin");
    let mut running = Running::start("windowspin", &[]);
    for _ in 0..rounds(10) {
        let session = counting(&running, &[probe(&file, "windowspin_*")]);
        let before = running.ask("calls");
        eventually("each function is called again", || {
            let now = running.ask("calls");
            let numbers = |line: &str| -> Vec<u64> {
                line.split(' ')
                    .filter_map(|word| word.parse().ok())
                    .collect()
            };
            numbers(&now)
                .iter()
                .zip(numbers(&before))
                .all(|(now, before)| *now > before + 1)
        });
        let rows = session.stop().rows();
        assert_eq!(rows.len(), 5, "{rows:?}");
        untouched(&running, "windowspin");
    }
    let _ = running.finish_ok();
}

#[test]
fn b119_an_address_in_a_signal_frame_is_waited_for() {
    let file = target("sigframe");
    let mut running = Running::start("sigframe", &[]);
    for _ in 0..rounds(3) {
        let staying = running.ask("stay");
        assert!(staying.starts_with("staying "), "{staying}");
        let pid = running.pid().to_string();
        let what = probe(&file, "sigframe_function");
        let mut session = Lancet::spawn(&["count", &what, "-p", &pid]);
        // The code of the probes is there before anybody looks at frames.
        eventually("the probes' region is mapped", || {
            let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
            maps.contains("lancet")
        });
        running.ask("leave");
        assert!(session.says("Attached "), "{:?}", session.end());
        let before = running.ask("calls");
        eventually("the function is called", || running.ask("calls") != before);
        assert!(session.stop().row("sigframe_function") > 0);
        untouched(&running, "sigframe");
    }
    let _ = running.finish_ok();
}

#[test]
fn b122_each_queued_signal_arrives_once_while_probes_come_and_go() {
    let file = target("rtstorm");
    let mut running = Running::start("rtstorm", &[]);
    running.order(&format!("storm {}", 20_000 * rounds(1)));
    let answer = rounds_until_answer(&mut running, &file, "rtstorm_function", 3);
    assert_eq!(answer, format!("received {}", 20_000 * rounds(1)));
    untouched(&running, "rtstorm");
    let _ = running.finish_ok();
}

#[test]
fn b125_faults_children_and_alarms_while_probes_come_and_go() {
    let file = target("sigstorm");
    let mut running = Running::start("sigstorm", &[]);
    running.order(&format!("storm {}", 4_000 * rounds(1)));
    rounds_until_answer(&mut running, &file, "sigstorm_function", 3);
    let before = running.ask("storm 1");
    let session = counting(&running, &[probe(&file, "sigstorm_function")]);
    let during = running.ask("storm 1000");
    let counted = session.stop().row("sigstorm_function");
    // A late SIGCHLD may come after an answer.
    let calls = told(&during, "calls") - told(&before, "calls");
    assert_eq!(counted, calls, "{before}, {during}");
    untouched(&running, "sigstorm");
    let _ = running.finish_ok();
}

#[test]
fn b125_a_process_that_job_control_has_stopped() {
    let file = target("sleeper");
    let mut running = Running::start("sleeper", &["3"]);
    let pid = running.pid().0;
    for _ in 0..rounds(3) {
        signal(pid, "STOP");
        eventually("it is stopped", || status(pid, "State").starts_with('T'));
        let session = counting(&running, &[probe(&file, "sleeper_function")]);
        // When a tracer lets it go it runs for a moment, inside the kernel, until it stops again.
        eventually("it is stopped still", || {
            status(pid, "State").starts_with('T')
        });
        signal(pid, "CONT");
        running.ask("call 10");
        signal(pid, "STOP");
        eventually("it is stopped", || status(pid, "State").starts_with('T'));
        assert_eq!(session.stop().row("sleeper_function"), 10);
        eventually("it is stopped still", || {
            status(pid, "State").starts_with('T')
        });
        untouched(&running, "sleeper");
        signal(pid, "CONT");
    }
    running.ask("call 10");
    let _ = running.finish_ok();
}

#[test]
fn b128_all_threads_count_and_each_by_its_id() {
    let file = target("crowd");
    let mut running = Running::start("crowd", &["100"]);
    let pid = running.pid().to_string();
    let tids = running.ask("tids");
    let what = probe(&file, "crowd_function");
    let session = Lancet::start(&["count", &what, "--by", "tid", "-p", &pid]);
    running.ask("go 10");
    let due: BTreeMap<String, u64> = tids
        .split(' ')
        .skip(1)
        .map(|tid| (tid.to_owned(), 10))
        .collect();
    assert_eq!(session.stop().rows(), due);
    let session = counting(&running, &[what]);
    running.ask("go 10");
    assert_eq!(session.stop().row("crowd_function"), 1000);
    untouched(&running, "crowd");
    let _ = running.finish_ok();
}

#[test]
fn b128_any_thread_names_its_process() {
    let file = target("crowd");
    let mut running = Running::start("crowd", &["4"]);
    let tids = running.ask("tids");
    let tid = tids.split(' ').nth(2).unwrap();
    let what = probe(&file, "crowd_function");
    let session = Lancet::start(&["count", &what, "-p", tid]);
    running.ask("go 10");
    assert_eq!(session.stop().row("crowd_function"), 40);
    untouched(&running, "crowd");
    let _ = running.finish_ok();
}

/// The last thread, under whose id /proc shows the process too.
fn any_thread(running: &Running) -> Pid {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", running.pid())).unwrap();
    let ids = tasks.map(|task| task.unwrap().file_name().to_string_lossy().parse().unwrap());
    Pid(ids.max().unwrap())
}

/// Its first thread has ended: what the others share is to be seen through them only.
#[test]
fn b128_a_process_whose_first_thread_has_ended() {
    let file = target("crowd");
    let mut running = Running::spawn(&file, &["100", "gone"]).unwrap();
    let tids = running.ask("tids");
    let tid = tids.split(' ').nth(2).unwrap();
    let what = probe(&file, "crowd_function");
    for id in [running.pid().to_string(), tid.to_owned()] {
        for _ in 0..rounds(2) {
            let session = Lancet::start(&["count", &what, "-p", &id]);
            running.ask("go 10");
            assert_eq!(session.stop().row("crowd_function"), 1000, "{id}");
            text_equals_file(any_thread(&running), "crowd").unwrap();
        }
    }
    // All that map the file: it is among them.
    let (_folder, copy) = support::private_copy("crowd");
    let mut other = Running::spawn(&copy, &["10", "gone"]).unwrap();
    let mut session = Lancet::spawn(&["count", "-v", &probe(&copy, "crowd_function")]);
    assert!(session.says(&format!("process {}: ", other.pid())));
    other.ask("go 10");
    assert_eq!(session.stop().row("crowd_function"), 100);
    text_equals_file(any_thread(&other), "crowd").unwrap();
    let cleaned = lancet(&["clean", "--purge", "-p", &running.pid().to_string()]);
    assert!(cleaned.status.success(), "{cleaned:?}");
    drop((running.finish_ok(), other.finish_ok()));
}

#[test]
fn threads_that_begin_and_end_while_attaching() {
    let file = target("churn");
    let mut running = Running::start("churn", &[]);
    running.ask("go");
    for _ in 0..rounds(15) {
        let session = counting(&running, &[probe(&file, "churn_function")]);
        session.stop();
        untouched(&running, "churn");
    }
    running.ask("stop");
    let _ = running.finish_ok();
}

#[test]
fn a_thousand_threads() {
    let file = target("sleeper");
    let mut running = Running::start("sleeper", &["1000"]);
    let before = thread_count(running.pid()).unwrap();
    for _ in 0..rounds(2) {
        let session = counting(&running, &[probe(&file, "sleeper_function")]);
        running.ask("call 10");
        assert_eq!(session.stop().row("sleeper_function"), 10);
        untouched(&running, "sleeper");
    }
    assert_eq!(thread_count(running.pid()).unwrap(), before);
    let _ = running.finish_ok();
}

#[test]
fn traps_of_its_own_alternate_stacks_blocked_signals_and_long_jumps() {
    let file = target("habits");
    let mut running = Running::start("habits", &[]);
    let before = running.ask("go 20");
    let session = counting(&running, &[probe(&file, "habits_function")]);
    let during = running.ask("go 300");
    let counted = session.stop().row("habits_function");
    let calls = |line: &str| told(line, "habits_function");
    assert_eq!(counted, calls(&during) - calls(&before));
    running.order("go 20000");
    rounds_until_answer(&mut running, &file, "habits_function", 3);
    untouched(&running, "habits");
    let _ = running.finish_ok();
}

/// A debugger or tracer that is attached to a process; ended by `end`.
fn attached(tool: &str, arguments: &[&str], pid: i32) -> std::process::Child {
    let child = Command::new(tool)
        .args(arguments)
        .args(["-p", &pid.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    eventually("the other tracer is attached", || {
        status(pid, "TracerPid") != "0"
    });
    child
}

fn refused_while_traced(tool: &str, arguments: &[&str], end: impl Fn(&mut std::process::Child)) {
    let file = target("sleeper");
    let mut running = Running::start("sleeper", &["3"]);
    let pid = running.pid().0;
    let what = probe(&file, "sleeper_function");
    let mut other = attached(tool, arguments, pid);
    let refused = lancet(&["count", &what, "-p", &pid.to_string()]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    let message = format!("process {pid} is already traced by process {}", other.id());
    assert!(refused.err.contains(&message), "{refused:?}");
    end(&mut other);
    other.wait().unwrap();
    eventually("the other tracer is gone", || {
        status(pid, "TracerPid") == "0"
    });
    untouched(&running, "sleeper");
    // Afterwards, and the other one while we are there.
    let session = counting(&running, &[what]);
    let mut other = attached(tool, arguments, pid);
    end(&mut other);
    other.wait().unwrap();
    eventually("the other tracer is gone", || {
        status(pid, "TracerPid") == "0"
    });
    running.ask("call 10");
    assert_eq!(session.stop().row("sleeper_function"), 10);
    untouched(&running, "sleeper");
    let _ = running.finish_ok();
}

#[test]
fn a_process_under_strace_is_refused() {
    if !have("strace") {
        skip!("no strace");
    }
    refused_while_traced("strace", &["-f", "-o", "/dev/null"], |strace| {
        signal(strace.id().cast_signed(), "INT");
    });
}

#[test]
fn a_process_under_gdb_is_refused() {
    if !have("gdb") {
        skip!("no gdb");
    }
    // It detaches at the end of its input.
    refused_while_traced("gdb", &["-nx", "-q"], |gdb| drop(gdb.stdin.take()));
}

#[test]
fn a_vfork_in_progress_is_waited_for() {
    let file = target("hardstop");
    let mut running = Running::start("hardstop", &[]);
    for _ in 0..rounds(3) {
        assert_eq!(running.ask("vfork"), "staying");
        let pid = running.pid().to_string();
        let what = probe(&file, "hardstop_function");
        let mut session = Lancet::spawn(&["count", &what, "-p", &pid]);
        eventually("lancet tries", || {
            status(running.pid().0, "TracerPid") != "0"
        });
        text_equals_file(running.pid(), "hardstop").unwrap();
        running.ask("leave");
        assert!(session.says("Attached "), "{:?}", session.end());
        running.ask("call 10");
        let counted = session.stop().row("hardstop_function");
        assert!((10..=11).contains(&counted), "{counted}");
        untouched(&running, "hardstop");
    }
    let _ = running.finish_ok();
}

#[test]
fn a_thread_in_a_long_system_call_is_waited_for() {
    let file = target("hardstop");
    let mut running = Running::start("hardstop", &[]);
    assert_eq!(running.ask("populate 30"), "populating");
    let session = counting(&running, &[probe(&file, "hardstop_function")]);
    running.line_within(support::PATIENCE).unwrap();
    running.ask("call 10");
    let counted = session.stop().row("hardstop_function");
    assert!((10..=40).contains(&counted), "{counted}");
    untouched(&running, "hardstop");
    let _ = running.finish_ok();
}

/// One thread is hardly ever out of a long system call: the stop has to wait for it there, since no
/// moment chosen by chance is a good one.
#[test]
fn a_thread_that_goes_from_one_long_call_into_the_next() {
    let file = target("hardstop");
    let mut running = Running::start("hardstop", &[]);
    assert_eq!(running.ask("forever 512"), "populating");
    let mut due = 0;
    for _ in 0..rounds(3) {
        let session = counting(&running, &[probe(&file, "hardstop_function")]);
        due += 10;
        assert_eq!(running.ask("call 10"), format!("calls {due}"));
        assert_eq!(session.stop().row("hardstop_function"), 10);
        untouched(&running, "hardstop");
    }
    let _ = running.finish_ok();
}

/// The instructions of a function, by address, as objdump has them.
fn instructions(file: &Path, function: &str) -> Option<Vec<String>> {
    let only = format!("--disassemble={function}");
    let listing = Command::new("objdump")
        .args(["-d", &only])
        .arg(file)
        .output();
    let listing = String::from_utf8_lossy(&listing.ok()?.stdout).into_owned();
    let lines = listing.lines().filter_map(|line| line.split_once(":\t"));
    Some(lines.map(|(at, _)| format!("0x{}", at.trim())).collect())
}

/// B026: what lies in a restartable sequence is refused, what follows it and its abort handler are not,
/// and no addition to the counters is lost or made twice.
#[test]
fn b026_restartable_sequences_stay_whole() {
    let file = target("restartable");
    let Some(addresses) = instructions(&file, "restartable_add") else {
        skip!("no objdump");
    };
    assert_eq!(addresses.len(), 17, "{addresses:?}");
    let mut running = Running::start("restartable", &["3"]);
    if running.facts()[0] == "0" {
        skip!("threads have no rseq area here");
    }
    let pid = running.pid().to_string();
    let mut args = vec!["count".to_owned(), "-v".to_owned(), "-p".to_owned(), pid];
    args.extend(addresses.iter().map(|at| probe(&file, at)));
    let mut session = Lancet::spawn(&args);
    assert!(session.says("Attached "), "{:?}", session.end());
    let answer = running.ask("go 200000");
    let (sum, aborts) = answer.split_once(" aborts ").unwrap();
    assert_eq!(sum, "sum 600000");
    let ended = session.stop();
    // From the load of the CPU's number to the store that ends the sequence.
    for at in &addresses[2..10] {
        let of = format!("refused {at}: ");
        let why = ended.err.lines().find(|line| line.starts_with(&of));
        let why = why.unwrap_or_else(|| panic!("{at} is not refused: {}", ended.err));
        assert!(why.contains("restartable sequence"), "{why}");
    }
    let aborts: u64 = aborts.parse().unwrap();
    let rows = ended.rows();
    let of = |at: &String| {
        let row = rows.iter().find(|(name, _)| name.ends_with(at.as_str()));
        row.map_or(0, |(_, count)| *count)
    };
    assert_eq!(of(&addresses[10]), 600_000, "{rows:?}");
    assert_eq!(of(&addresses[13]), aborts, "{rows:?}");
    let mut due = 600_000;
    for _ in 0..rounds(2) {
        running.order("go 200000");
        for _ in 0..3 {
            let mut session = Lancet::spawn(&args);
            assert!(session.says("Attached "), "{:?}", session.end());
            session.stop();
        }
        due += 600_000;
        let answer = running.line_within(support::PATIENCE).unwrap();
        assert!(
            answer.starts_with(&format!("sum {due} aborts ")),
            "{answer}"
        );
    }
    untouched(&running, "restartable");
    let _ = running.finish_ok();
}

/// It becomes another program all the time, from its first thread and from another one: an attach that
/// is overtaken begins anew, and nobody is left stopped or killed.
#[test]
fn a_process_that_becomes_another_program_all_the_time() {
    let file = target("execloop");
    let mut running = Running::start("execloop", &[]);
    let what = probe(&file, "execloop_function");
    let pid = running.pid().to_string();
    let execs = 200 * rounds(1);
    running.order(&format!("go {execs}"));
    let (mut counted, mut overtaken) = (0, 0);
    let answer = loop {
        let ended = lancet(&["count", &what, "-p", &pid, "--duration", "0.02"]);
        match ended.status.code() {
            Some(0) => counted += 1,
            Some(1) if ended.err.contains("lancet: ") => overtaken += 1,
            _ => panic!("{ended:?}"),
        }
        assert!(!ended.err.contains("keeps probes"), "{}", ended.err);
        if let Ok(line) = running.line_within(std::time::Duration::from_millis(1)) {
            break line;
        }
    };
    assert_eq!(answer, format!("done {execs}"));
    eprintln!("{counted} sessions counted, {overtaken} were overtaken");
    assert!(counted > 4 * overtaken, "{counted} {overtaken}");
    untouched(&running, "execloop");
    let session = counting(&running, &[what]);
    assert_eq!(running.ask("go 3"), format!("done {}", execs + 3));
    session.stop();
    untouched(&running, "execloop");
    let _ = running.finish_ok();
}

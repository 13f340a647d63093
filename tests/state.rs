//! Registers, flags and stack are as without a probe.

#[path = "support/mod.rs"]
mod support;

use std::ffi::OsStr;
use std::path::Path;

use lancet_testkit::{Bpftrace, Running, have, is_root, skip, target};

use support::{Ended, Lancet, private_copy, probe, rounds, start, told};

/// Every kind of action on a probe, with the options that make it.
const ACTIONS: [&[&str]; 7] = [
    &["count"],
    &["sum", "arg0"],
    &["hist", "arg0"],
    &["count", "--by", "tid"],
    &["count", "--by", "arg1"],
    &["count", "--by", "func,reg(sp)"],
    &["hist", "reg(ax)", "--by", "tid"],
];

/// Runs an action on probes of a target while it obeys an order.
fn under(action: &[&str], target: &mut Running, probes: &[String], order: &str) -> (String, Ended) {
    let pid = target.pid().to_string();
    let mut words = vec![action[0]];
    words.extend(probes.iter().map(String::as_str));
    words.extend(&action[1..]);
    words.extend(["-p", &pid]);
    let session = Lancet::start(&words);
    let answer = target.ask(order);
    (answer, session.stop())
}

/// Runs every action on these functions of `flags`, which compares all registers and flags.
fn flags_survive(functions: &[&str]) {
    let file = target("flags");
    let probes: Vec<String> = functions.iter().map(|f| probe(&file, f)).collect();
    let mut target = Running::start("flags", &[]);
    for action in ACTIONS {
        let order = format!("go {}", rounds(2000));
        let (_, ended) = under(action, &mut target, &probes, &order);
        assert!(ended.status.success(), "{action:?}: {}", ended.err);
    }
    // The verdict is WRONG when any register or flag differed once.
    let _ = target.finish_ok();
}

/// The count of an instruction is that of its executions.
fn counted(function: &str, at: &str) {
    let file = target("flags");
    let mut target = Running::start("flags", &[]);
    let probes = [probe(&file, at)];
    let (answer, ended) = under(&["count"], &mut target, &probes, "go 5000");
    assert_eq!(ended.row(at), told(&answer, function), "{}", ended.err);
    let _ = target.finish_ok();
}

#[test]
fn b031_red_zone_of_a_leaf() {
    flags_survive(&["b031"]);
    flags_survive(&["b031+0x5"]);
    counted("b031", "b031+0x5");
}

#[test]
fn b033_all_registers_and_flags() {
    flags_survive(&["b033", "b033_short"]);
    counted("b033", "b033");
    counted("b033_short", "b033_short");
}

#[test]
fn b034_direction_and_alignment_flags() {
    flags_survive(&["b034"]);
    counted("b034", "b034");
}

#[test]
fn b039_flags_of_a_displaced_comparison() {
    flags_survive(&["b039"]);
    counted("b039", "b039");
}

#[test]
fn vector_and_x87_state_is_left_alone() {
    let file = target("vectors");
    let probes = [probe(&file, "vectors_function")];
    let mut target = Running::start("vectors", &[]);
    for action in ACTIONS {
        let (_, ended) = under(action, &mut target, &probes, "go 3000");
        assert!(ended.status.success(), "{action:?}: {}", ended.err);
    }
    let _ = target.finish_ok();
}

#[test]
fn arguments_are_read_as_they_are() {
    let file = target("vectors");
    let probes = [probe(&file, "vectors_function")];
    let mut target = Running::start("vectors", &[]);
    let (_, ended) = under(&["sum", "arg0"], &mut target, &probes, "go 1000");
    assert_eq!(
        ended.row("vectors_function"),
        999 * 1000 / 2,
        "{}",
        ended.err
    );
    let (_, ended) = under(&["sum", "reg(si)"], &mut target, &probes, "go 1000");
    assert_eq!(ended.row("vectors_function"), 5000, "{}", ended.err);
    let (_, ended) = under(&["count", "--by", "arg0"], &mut target, &probes, "go 1000");
    let rows = ended.rows();
    assert_eq!(rows.len(), 1000, "{}", ended.err);
    assert!((2000..3000u64).all(|n| rows.get(&n.to_string()) == Some(&1)));
    let _ = target.finish_ok();
}

#[test]
fn the_thread_id_is_the_threads_own() {
    let file = target("vectors");
    let probes = [probe(&file, "vectors_function")];
    let mut target = Running::start("vectors", &[]);
    let (_, ended) = under(&["count", "--by", "tid"], &mut target, &probes, "go 100");
    assert_eq!(ended.row(&target.pid().to_string()), 100, "{}", ended.err);
    let _ = target.finish_ok();
}

#[test]
fn all_extended_state_is_as_before() {
    let file = target("xstate");
    let probes = [probe(&file, "xstate_function")];
    let mut target = Running::start("xstate", &[]);
    for action in ACTIONS {
        let order = format!("go {}", rounds(1000));
        let (_, ended) = under(action, &mut target, &probes, &order);
        assert!(
            !ended.rows().is_empty() || ended.out.contains("@["),
            "{ended:?}"
        );
    }
    let _ = target.finish_ok();
}

#[test]
fn stacks_that_are_nearly_used_up() {
    let file = target("stacks");
    let probes = [probe(&file, "stacks_function")];
    let mut target = Running::start("stacks", &[]);
    for action in ACTIONS {
        under(action, &mut target, &probes, "go 500");
    }
    let before = target.ask("go 1");
    let (answer, ended) = under(&["count"], &mut target, &probes, "go 500");
    let calls = |line: &str| told(line, "stacks_function");
    assert_eq!(
        ended.row("stacks_function"),
        calls(&answer) - calls(&before)
    );
    let _ = target.finish_ok();
}

#[test]
fn ten_arguments_and_all_registers() {
    let file = target("values");
    let mut target = Running::start("values", &[]);
    let mut before = target.ask("go 1");
    let registers = [
        "ax", "bx", "cx", "dx", "si", "di", "bp", "r8", "r9", "r10", "r11", "r12", "r13", "r14",
        "r15",
    ];
    let values = (0..10)
        .map(|n| ("values_args", format!("arg{n}"), format!("arg{n}")))
        .chain(registers.map(|r| ("values_regs", format!("reg({r})"), r.to_owned())));
    for (function, value, name) in values {
        let probes = [probe(&file, function)];
        let (answer, ended) = under(&["sum", &value], &mut target, &probes, "go 20");
        let sum = told(&answer, &name) - told(&before, &name);
        assert_eq!(ended.row(function), sum, "{value}: {ended:?}");
        before = answer;
    }
    for name in ["sp", "ip"] {
        let probes = [probe(&file, "values_regs")];
        let key = format!("reg({name})");
        let (answer, ended) = under(&["count", "--by", &key], &mut target, &probes, "go 20");
        assert_eq!(ended.row(&told(&answer, name).to_string()), 20, "{ended:?}");
        assert_eq!(ended.rows().len(), 1, "{ended:?}");
    }
    let _ = target.finish_ok();
}

#[test]
fn an_argument_on_the_stack_by_value_as_bpftrace_has_it() {
    if let Some(why) = Bpftrace::missing() {
        skip!("{why}");
    }
    let (_folder, file) = private_copy("values");
    let mut target = start(&file);
    // The kernel's by the same calls at another time: the values are the same at each start.
    let kernel = Bpftrace::start(target.pid(), &file, "values_args", "@[arg2] = count();");
    target.ask("go 50");
    let lines = kernel.stop();
    let by_kernel: std::collections::BTreeMap<String, u64> = lines
        .iter()
        .filter_map(|line| {
            let (key, value) = line.strip_prefix("@[")?.split_once("]: ")?;
            Some((key.to_owned(), value.parse().ok()?))
        })
        .collect();
    let _ = target.finish_ok();

    let mut target = start(&file);
    let probes = [probe(&file, "values_args")];
    let (_, ended) = under(&["count", "--by", "arg2"], &mut target, &probes, "go 50");
    assert_eq!(ended.rows(), by_kernel);
    assert_eq!(by_kernel.len(), 50);
    let _ = target.finish_ok();
}

#[test]
fn thread_ids_in_a_pid_namespace() {
    if !is_root() {
        skip!("not root");
    }
    if !have("unshare") {
        skip!("no unshare");
    }
    let file = target("crowd");
    let words = ["--pid", "--fork", "--kill-child", "--mount-proc"];
    let mut words: Vec<&OsStr> = words.iter().map(OsStr::new).collect();
    words.extend([file.as_os_str(), OsStr::new("5")]);
    let mut target = match Running::spawn(Path::new("unshare"), &words) {
        Ok(target) => target,
        Err(error) => skip!("no pid namespace: {error}"),
    };
    let children = format!("/proc/{0}/task/{0}/children", target.pid());
    let pid = std::fs::read_to_string(children).unwrap().trim().to_owned();
    let what = probe(&file, "crowd_function");
    // The thread's own id is the last of its NSpid line, this namespace's the name of its folder.
    let tasks = || {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        let tasks = tasks.map(|task| task.unwrap().file_name().into_string().unwrap());
        let pairs = tasks.map(|tid| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/status"));
            let status = status.unwrap();
            let line = status.lines().find(|l| l.starts_with("NSpid:")).unwrap();
            (line.split_whitespace().last().unwrap().to_owned(), tid)
        });
        pairs.collect::<std::collections::BTreeMap<String, String>>()
    };
    // The argument is gettid() as the thread itself sees it.
    for key in ["tid", "arg0"] {
        let session = Lancet::start(&["count", &what, "--by", key, "-p", &pid]);
        let tids = target.ask("tids");
        target.ask("go 10");
        let tasks = tasks();
        let due = tids.split(' ').skip(1).map(|inner| {
            let shown = if key == "tid" { &tasks[inner] } else { inner };
            (shown.to_owned(), 10)
        });
        let due = due.collect();
        let ended = session.stop();
        assert_eq!(ended.rows(), due, "--by {key}");
        assert!(!ended.err.contains("pid namespace"), "{ended:?}");
    }
    let _ = target.finish_ok();
}

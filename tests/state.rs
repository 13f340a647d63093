//! Registers, flags and stack are as without a probe.

#[path = "support/mod.rs"]
mod support;

use lancet_testkit::{Running, target};

use support::{Ended, Lancet, probe, rounds, told};

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

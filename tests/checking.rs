//! Sessions whose hits assert what the hit path relies on.
//!
//! `moved` makes threads and children whose thread block names a CPU that they are not on. A
//! per-CPU store by one of them breaks an invariant every time, while a count that is wrong by it
//! is rare; so what keeps them off the per-CPU form is tested here, kind by kind.
#![allow(missing_docs)]

#[path = "support/exact.rs"]
mod exact;
#[path = "support/mod.rs"]
mod support;

use std::os::unix::fs::FileExt;
use std::path::Path;

use exact::{Outside, answer, beside, built, form, usual_form, value};
use lancet_testkit::{Running, skip};
use support::{Lancet, probe, rounds, signal};

/// Calls of `moved_function` by each thread or child.
const CALLS: u64 = 10;

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The probes for `moved`: its function, and code that runs around new threads and children.
fn of_moved(file: &Path, around: &[&str]) -> Vec<String> {
    let mut probes = vec![probe(file, "moved_function")];
    probes.extend(exact::existing("libc", around));
    probes
}

/// One kind of child in a fresh process that is counted by these probes and checked.
fn children(file: &Path, kind: &str, around: &[&str]) -> support::Ended {
    let mut target = support::start(file);
    let order = format!("{kind} {}", rounds(5));
    let probes = of_moved(file, around);
    let ended = beside(&mut target, "count", &probes, &["--check"], &order);
    let of_each = match kind {
        "spawn" => 0,
        "thread" => 2 * CALLS,
        _ => CALLS,
    };
    assert_eq!(ended.row("moved_function"), of_each * rounds(5), "{kind}");
    assert_eq!(form(&ended), usual_form(), "{kind}");
    let _ = target.finish_ok();
    ended
}

#[test]
fn children_on_their_parents_thread_block_make_no_per_cpu_store() {
    if cpus() < 2 {
        skip!("one CPU");
    }
    let file = lancet_testkit::target("moved");
    for kind in ["vfork", "own", "clone"] {
        let _ = children(&file, kind, &[]);
    }
    // Not a function of the program, but libc's own code runs in the child of posix_spawn.
    let ended = children(&file, "spawn", &["execve"]);
    assert_eq!(ended.row("execve"), rounds(5));
    let Some((_folder, file)) = built("moved", "cc", &["-static"]) else {
        skip!("no cc -static");
    };
    for kind in ["vfork", "own", "clone", "spawn"] {
        let _ = children(&file, kind, &[]);
    }
}

#[test]
fn threads_make_no_per_cpu_store_before_they_are_registered() {
    if cpus() < 2 {
        skip!("one CPU");
    }
    let file = lancet_testkit::target("moved");
    let early = ["start_thread", "__ctype_init"];
    let ended = children(&file, "thread", &early);
    let early: Vec<String> = exact::existing("libc", &early);
    for probe in &early {
        let function = probe.trim_start_matches("libc:");
        assert_eq!(ended.row(function), 2 * rounds(5), "{function}");
    }
    let Some((_folder, file)) = built("moved", "cc", &["-static"]) else {
        skip!("no cc -static");
    };
    let words = ["start_thread", "__ctype_init"].map(|f| probe(&file, f));
    let mut target = support::start(&file);
    let order = format!("thread {}", rounds(5));
    let ended = beside(&mut target, "count", &words, &["--check"], &order);
    assert_eq!(ended.row("start_thread"), 2 * rounds(5));
    let _ = target.finish_ok();
}

#[test]
fn programs_are_checked_from_their_start() {
    let file = lancet_testkit::target("moved");
    let probes = of_moved(&file, &["start_thread", "__ctype_init", "execve", "malloc"]);
    let mut words = probes.clone();
    words.push("--check".to_owned());
    if cpus() < 2 {
        skip!("one CPU");
    }
    for kind in ["vfork", "spawn", "thread"] {
        let (ended, truth) = Outside::new(&words).run(&file, &[&format!("{kind} 3")]);
        assert_eq!(ended.row("moved_function"), value(&truth[0], 1), "{kind}");
    }
}

/// Changes places of the first two entries of the CPU table in a target's region.
fn swap_blocks(target: &Running) {
    let pid = target.pid();
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let region = maps
        .lines()
        .find(|line| line.contains("rw-s") && line.contains("lancet"))
        .unwrap_or_else(|| panic!("no region: {maps}"));
    let start = region.split('-').next().unwrap();
    let start = u64::from_str_radix(start, 16).unwrap();
    let layout = lancet_abi::LayoutBuilder::new().build(2).unwrap();
    let memory = std::fs::File::options()
        .read(true)
        .write(true)
        .open(format!("/proc/{pid}/mem"))
        .unwrap();
    let mut entries = [0; 16];
    let at = start + layout.cpu_table();
    memory.read_exact_at(&mut entries, at).unwrap();
    entries.rotate_left(8);
    memory.write_all_at(&entries, at).unwrap();
}

#[test]
fn what_is_broken_is_told_at_each_report_and_ends_with_status_1() {
    if cpus() < 2 {
        skip!("one CPU");
    }
    let file = lancet_testkit::target("calls");
    for more in [&[][..], &["--interval", "0.05"]] {
        let mut target = Running::start("calls", &["2", "1000"]);
        let pid = target.pid().to_string();
        let f = probe(&file, "f");
        let mut words = vec!["count", &f, "--check", "-p", &pid];
        words.extend(more);
        let mut lancet = Lancet::start(&words);
        answer(&mut target, "go");
        swap_blocks(&target);
        answer(&mut target, "go");
        if !more.is_empty() {
            assert!(lancet.says("lancet: hit path invariant 3 "));
        }
        signal(lancet.pid(), "INT");
        let ended = lancet.end();
        assert_eq!(ended.status.code(), Some(1), "{ended:?}");
        let due = "lancet: hit path invariant 3 (the block that the CPU table names is that CPU's)";
        let line = ended.err.lines().rfind(|line| line.starts_with(due));
        let line = line.unwrap_or_else(|| panic!("{ended:?}"));
        assert!(line.ends_with(" times"), "{line}");
        // Gone around by the lock form, in the first block.
        let all: u64 = ended
            .out
            .lines()
            .filter_map(|line| line.strip_prefix("@[f]: ")?.parse::<u64>().ok())
            .sum();
        assert_eq!(all, 4000, "{ended:?}");
        let _ = target.finish_ok();
    }
}

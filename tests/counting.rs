//! Counts are exact, whatever runs.
#![allow(missing_docs)]

#[path = "counting/children.rs"]
mod children;
#[path = "support/exact.rs"]
mod exact;
#[path = "support/mod.rs"]
mod support;

use std::collections::BTreeMap;

use exact::{LOCKED, Outside, answer, beside, bucket_rows, built, form};
use lancet_testkit::{Running, have, is_root, skip};
use support::{Lancet, probe, rounds};

const THREADS: u64 = 4;

/// `calls` with so many calls a thread.
fn calls(threads: u64, each: u64) -> Running {
    Running::start("calls", &[&threads.to_string(), &each.to_string()])
}

fn of_calls(functions: &[&str]) -> Vec<String> {
    let file = lancet_testkit::target("calls");
    functions.iter().map(|f| probe(&file, f)).collect()
}

#[test]
fn counts_of_four_threads_are_the_product() {
    let each = rounds(200_000);
    let mut target = calls(THREADS, each);
    let ended = beside(&mut target, "count", &of_calls(&["f", "g", "h"]), &[], "go");
    let all = THREADS * each;
    let due = ["f", "g", "h"].map(|f| (f.to_owned(), all));
    assert_eq!(ended.rows(), BTreeMap::from(due));
    let _ = target.finish_ok();
}

#[test]
fn sums_of_four_threads_are_the_sum() {
    let each = rounds(200_000);
    let mut target = calls(THREADS, each);
    let probes = of_calls(&["f", "g"]);
    let ended = beside(&mut target, "sum", &probes, &["arg0"], "go");
    let due = THREADS * (each * (each - 1) / 2);
    assert_eq!((ended.row("f"), ended.row("g")), (due, due));
    let ended = beside(&mut target, "sum", &probes[1..], &["arg1"], "go");
    assert_eq!(ended.row("g"), THREADS * (each * (each + 1) / 2));
    let _ = target.finish_ok();
}

#[test]
fn histograms_of_four_threads_have_every_call() {
    let each = rounds(200_000);
    let mut target = calls(THREADS, each);
    let ended = beside(&mut target, "hist", &of_calls(&["f"]), &["arg0"], "go");
    let mut due: BTreeMap<u64, u64> = BTreeMap::new();
    // By bit length: 0, 1, 2-3, 4-7, ...
    let mut low = 0;
    while low < each {
        let high = if low == 0 { 1 } else { (2 * low).min(each) };
        due.insert(low, THREADS * (high - low));
        low = high;
        if low == each {
            break;
        }
    }
    assert_eq!(bucket_rows(&ended.out), due, "{}", ended.out);
    let _ = target.finish_ok();
}

#[test]
fn keys_of_four_threads_are_exact() {
    let each = rounds(200_000);
    let mut target = calls(THREADS, each);
    let probes = of_calls(&["f", "g", "h"]);
    let ended = beside(&mut target, "count", &probes, &["--by", "tid"], "go");
    let rows: Vec<u64> = ended.rows().into_values().collect();
    assert_eq!(rows, vec![3 * each; THREADS as usize]);

    let more = ["--by", "func,tid"];
    let ended = beside(&mut target, "count", &probes, &more, "go");
    let rows: Vec<u64> = ended.rows().into_values().collect();
    assert_eq!(rows, vec![each; 3 * THREADS as usize]);

    let more = ["arg0", "--by", "func,tid"];
    let ended = beside(&mut target, "sum", &probes[..1], &more, "go");
    let rows: Vec<u64> = ended.rows().into_values().collect();
    assert_eq!(rows, vec![each * (each - 1) / 2; THREADS as usize]);
    let _ = target.finish_ok();
}

#[test]
fn keys_by_argument_are_exact_and_a_full_map_says_what_it_lost() {
    let each = rounds(2000).min(100_000);
    let mut target = calls(THREADS, each);
    let probes = of_calls(&["f"]);
    let room = (2 * each).next_power_of_two().to_string();
    let more = ["--by", "arg0", "--max-keys", &room];
    let ended = beside(&mut target, "count", &probes, &more, "go");
    let due = (0..each).map(|n| (n.to_string(), THREADS)).collect();
    assert_eq!(ended.rows(), due);

    let more = ["--by", "arg0", "--max-keys", "64"];
    let ended = beside(&mut target, "count", &probes, &more, "go");
    let rows = ended.rows();
    let recorded: u64 = rows.values().sum();
    assert!(rows.len() <= 64 && recorded > 0, "{rows:?}");
    let note = ended.err.lines().find(|line| line.contains("lost"));
    let note = note.unwrap_or_else(|| panic!("no loss is told: {}", ended.err));
    let numbers = exact::numbers(note);
    let all = THREADS * each;
    assert!(
        numbers.contains(&all) && numbers.contains(&(all - recorded)),
        "{recorded} recorded of {all}: {note}"
    );
    let _ = target.finish_ok();
}

#[test]
fn rows_of_intervals_add_up() {
    let each = rounds(100_000);
    let mut target = calls(THREADS, each);
    let more = ["--interval", "0.01"];
    let probes = of_calls(&["f"]);
    let pid = target.pid().to_string();
    let words = ["count", &probes[0], more[0], more[1], "-p", &pid];
    let lancet = Lancet::start(&words);
    for _ in 0..5 {
        answer(&mut target, "go");
    }
    let ended = lancet.stop();
    let rows: Vec<u64> = ended
        .out
        .lines()
        .filter_map(|line| line.strip_prefix("@[f]: ")?.parse().ok())
        .collect();
    assert_eq!(rows.iter().sum::<u64>(), 5 * THREADS * each, "{rows:?}");
    assert!(!rows.contains(&0), "{rows:?}");
    let _ = target.finish_ok();
}

#[test]
fn what_bpftrace_counts() {
    if !have("bpftrace") {
        skip!("no bpftrace");
    }
    if !is_root() {
        skip!("not root");
    }
    const CALLS: u64 = 5000;
    let (_folder, file) = support::private_copy("calls");
    let words = [THREADS.to_string(), CALLS.to_string()];
    let mut target = Running::spawn(&file, &words).unwrap();
    for (verb, value, action) in [
        ("count", "", "count()"),
        ("sum", "arg0", "sum(arg0)"),
        ("hist", "arg0", "hist(arg0)"),
    ] {
        let probes = ["f", "g", "h"].map(|f| probe(&file, f));
        let probes = if verb == "count" {
            &probes[..]
        } else {
            &probes[..2]
        };
        let more: &[&str] = if value.is_empty() { &[] } else { &[value] };
        let ours = beside(&mut target, verb, probes, more, "go").out;
        let theirs = exact::bpftrace(target.pid(), probes, action, || {
            answer(&mut target, "go");
        });
        assert_eq!(exact::normal(&ours), exact::normal(&theirs));
        assert!(ours.contains("@[f]:"), "{ours}");
    }
    let _ = target.finish_ok();
}

#[test]
fn sixty_four_threads_on_few_cpus_are_exact() {
    let each = rounds(5000);
    let mut target = calls(64, each);
    let probes = of_calls(&["f", "g", "h"]);
    let ended = beside(&mut target, "count", &probes, &[], "go");
    let due = ["f", "g", "h"].map(|f| (f.to_owned(), 64 * each));
    assert_eq!(ended.rows(), BTreeMap::from(due));
    let more = ["arg0", "--by", "tid"];
    let ended = beside(&mut target, "sum", &probes[..1], &more, "go");
    let rows: Vec<u64> = ended.rows().into_values().collect();
    assert_eq!(rows, vec![each * (each - 1) / 2; 64]);
    let _ = target.finish_ok();
}

#[test]
fn threads_that_change_their_cpu_all_the_time_are_exact() {
    let each = rounds(20_000);
    let mut target = Running::start("migrate", &["6"]);
    let probes = [probe(
        &lancet_testkit::target("migrate"),
        "migrate_function",
    )];
    let order = format!("go {each}");
    let ended = beside(&mut target, "count", &probes, &[], &order);
    assert_eq!(ended.row("migrate_function"), 6 * each);
    let ended = beside(&mut target, "hist", &probes, &["arg0"], &order);
    let all: u64 = bucket_rows(&ended.out).values().sum();
    assert_eq!(all, 6 * each);
    let _ = target.finish_ok();
}

#[test]
fn programs_without_a_shared_libc_are_exact() {
    let each = rounds(20_000);
    let words = [THREADS.to_string(), each.to_string()];
    for (compiler, flags) in [
        ("cc", &["-static"][..]),
        ("cc", &["-static-pie"]),
        ("musl-gcc", &[]),
        ("musl-gcc", &["-static"]),
    ] {
        let Some((_folder, file)) = built("calls", compiler, flags) else {
            eprintln!("skipped: no {compiler} {flags:?}");
            continue;
        };
        let due = THREADS * each;
        let probes = ["f", "g", "h"].map(|f| probe(&file, f));
        let mut target = Running::spawn(&file, &words).unwrap();
        for more in [&[][..], &["--by", "func"]] {
            let ended = beside(&mut target, "count", &probes, more, "go");
            let rows: Vec<u64> = ended.rows().into_values().collect();
            assert_eq!(rows, [due; 3], "{compiler} {flags:?}");
        }
        let ended = beside(
            &mut target,
            "sum",
            &probes[..1],
            &["arg0", "--by", "tid"],
            "go",
        );
        let rows: Vec<u64> = ended.rows().into_values().collect();
        assert_eq!(rows, [each * (each - 1) / 2; 4], "{compiler} {flags:?}");
        let _ = target.finish_ok();

        let mut started = Outside::new(&probes);
        started.words = words.to_vec();
        let (ended, _) = started.run(&file, &["go"]);
        let rows: Vec<u64> = ended.rows().into_values().collect();
        // Its own check at the end calls h once more.
        assert_eq!(rows, [due, due, due + 1], "-c, {compiler} {flags:?}");
    }
}

#[test]
fn go_programs_are_exact() {
    if !have("go") {
        skip!("no go");
    }
    let each = rounds(20_000);
    let mut target = Running::start("gopher", &[]);
    let file = lancet_testkit::target("gopher");
    let probes = [probe(&file, "main.gopherHot")];
    let order = format!("go {each}");
    let ended = beside(&mut target, "count", &probes, &[], &order);
    assert_eq!(ended.row("main.gopherHot"), 4 * each);
    assert_eq!(form(&ended), LOCKED);
    let ended = beside(&mut target, "sum", &probes, &["reg(ax)"], &order);
    assert_eq!(ended.row("main.gopherHot"), 4 * (each * (each - 1) / 2));
    let _ = target.finish_ok();
}

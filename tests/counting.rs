//! Counts are exact, whatever runs.
#![allow(missing_docs)]

#[path = "support/exact.rs"]
mod exact;
#[path = "support/mod.rs"]
mod support;

use std::collections::BTreeMap;

use exact::{Outside, answer, bucket_rows, built, value};
use lancet_abi::units::Pid;
use lancet_testkit::{Running, have, is_root, skip, text_equals_file};
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

/// Runs a lancet with these words and probes beside one order to a target; its report.
fn beside(
    target: &mut Running,
    verb: &str,
    probes: &[String],
    more: &[&str],
    order: &str,
) -> support::Ended {
    let pid = target.pid().to_string();
    let mut words = vec![verb];
    words.extend(probes.iter().map(String::as_str));
    words.extend(more);
    words.extend(["-p", &pid]);
    let lancet = Lancet::start(&words);
    answer(target, order);
    let ended = lancet.stop();
    text_equals_file(target.pid(), "").unwrap();
    ended
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
fn spawning_of_every_kind_beside_all_of_libc_is_exact() {
    let due = 5 * rounds(30);
    let order = format!("go {}", due / 5);
    let file = lancet_testkit::target("spawner");
    let probes = [probe(&file, "spawner_function"), "libc:*".to_owned()];

    let mut target = Running::start("spawner", &[]);
    let ended = beside(&mut target, "count", &probes, &[], &order);
    assert_eq!(ended.row("spawner_function"), due);
    assert!(ended.row("vfork") >= due / 5, "{}", ended.row("vfork"));
    let _ = target.finish_ok();

    let (ended, truth) = Outside::new(&probes).run(&file, &[&order]);
    assert_eq!(value(&truth[0], 1), due);
    assert_eq!(ended.row("spawner_function"), due);
}

#[test]
fn children_that_no_library_makes_are_exact() {
    let file = lancet_testkit::target("oddthreads");
    let probes = [probe(&file, "odd_function")];
    let order = format!("go {}", rounds(20));
    let mut target = Running::start("oddthreads", &[]);
    let pid = target.pid().to_string();
    let lancet = Lancet::start(&["count", &probes[0], "-p", &pid]);
    let truth = value(&answer(&mut target, &order), 1);
    assert_eq!(lancet.stop().row("odd_function"), truth);
    let _ = target.finish_ok();

    let (ended, truth) = Outside::new(&probes).run(&file, &[&order]);
    assert_eq!(ended.row("odd_function"), value(&truth[0], 1));
}

#[test]
fn threads_that_come_and_go_are_exact_from_their_first_instruction() {
    let file = lancet_testkit::target("churn");
    let mut probes = vec![probe(&file, "churn_function"), probe(&file, "brief")];
    // Code that runs before a thread is registered, and after.
    let early = [
        "start_thread",
        "__ctype_init",
        "clone3",
        "__nptl_deallocate_stack",
    ];
    probes.extend(exact::existing("libc", &early));
    let mut target = Running::start("churn", &[]);
    let pid = target.pid().to_string();
    let mut words = vec!["count"];
    words.extend(probes.iter().map(String::as_str));
    words.extend(["-p", &pid]);
    let lancet = Lancet::start(&words);
    answer(&mut target, "go");
    // Threads are made while the probes come out of another session's sites, too.
    for _ in 0..rounds(3) {
        let other = Lancet::start(&["count", "libc:pthread_join", "-p", &pid]);
        other.stop();
    }
    let truth = answer(&mut target, "stop");
    let (calls, threads) = (value(&truth, 1), value(&truth, 2));
    let ended = lancet.stop();
    assert_eq!(ended.row("churn_function"), calls);
    assert_eq!(ended.row("brief"), threads);
    let made = threads + 3;
    for function in ["start_thread", "__ctype_init"] {
        let here = probes.iter().any(|p| p.ends_with(function));
        // The makers are threads of libc too.
        assert!(
            !here || ended.row(function) == made,
            "{function}: {ended:?}"
        );
    }
    text_equals_file(target.pid(), "").unwrap();
    let _ = target.finish_ok();
}

#[test]
fn forked_children_are_counted_and_cleaned() {
    let file = lancet_testkit::target("family");
    let probes = [probe(&file, "family_function")];
    let mut target = Running::start("family", &[]);
    let pid = target.pid().to_string();
    let child = |target: &mut Running| Pid(value(&answer(target, "fork"), 1) as i32);
    let before = child(&mut target);
    let lancet = Lancet::start(&["count", &probes[0], "-p", &pid]);
    let after: Vec<Pid> = (0..6).map(|_| child(&mut target)).collect();
    let each = rounds(10_000);
    answer(&mut target, &format!("go {each}"));
    // The child that was there before the session is not part of it.
    assert_eq!(lancet.stop().row("family_function"), 7 * each);
    for pid in after.iter().chain([&before, &target.pid()]) {
        text_equals_file(*pid, "").unwrap();
    }
    answer(&mut target, "go 10");
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
fn static_programs_that_spawn_are_exact() {
    let due = 5 * rounds(30);
    let order = format!("go {}", due / 5);
    for (compiler, flags) in [("cc", &["-static"][..]), ("musl-gcc", &["-static"])] {
        let Some((_folder, file)) = built("spawner", compiler, flags) else {
            eprintln!("skipped: no {compiler} {flags:?}");
            continue;
        };
        let probes = [probe(&file, "spawner_function")];
        let mut target = support::start(&file);
        let ended = beside(&mut target, "count", &probes, &[], &order);
        assert_eq!(ended.row("spawner_function"), due, "{compiler}");
        let _ = target.finish_ok();
        let (ended, _) = Outside::new(&probes).run(&file, &[&order]);
        assert_eq!(ended.row("spawner_function"), due, "-c, {compiler}");
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
    let ended = beside(&mut target, "sum", &probes, &["reg(ax)"], &order);
    assert_eq!(ended.row("main.gopherHot"), 4 * (each * (each - 1) / 2));
    let _ = target.finish_ok();
}

//! Children and threads of every kind, however they are made.

use lancet_abi::units::Pid;
use lancet_testkit::{Running, text_equals_file};

use crate::exact::{self, LOCKED, Outside, answer, beside, built, form, usual_form, value};
use crate::support::{self, Lancet, probe, rounds};

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
    let mut probes = vec![probe(&file, "odd_function")];
    // Code that the new threads run first and last, and the calls that make them.
    let around = [
        "start_thread",
        "__ctype_init",
        "clone3",
        "clone",
        "pthread_exit",
    ];
    probes.extend(exact::existing("libc", &around));
    let each = rounds(20);
    let order = format!("go {each}");
    let mut target = Running::start("oddthreads", &[]);
    for _ in 0..2 {
        // From the second session on the process is as a new one again.
        let ended = beside(&mut target, "count", &probes, &[], &order);
        assert_eq!(ended.row("odd_function"), 14_000 * each);
        assert_eq!(ended.row("clone"), 2 * each);
        assert_eq!(ended.row("pthread_exit"), each);
        for function in ["start_thread", "__ctype_init"] {
            let here = probes.iter().any(|p| p.ends_with(function));
            assert!(
                !here || ended.row(function) == each,
                "{function}: {ended:?}"
            );
        }
        assert_eq!(form(&ended), usual_form());
    }
    let _ = target.finish_ok();

    let (ended, truth) = Outside::new(&probes).run(&file, &[&order]);
    assert_eq!(ended.row("odd_function"), value(&truth[0], 1));
}

#[test]
fn a_vfork_that_can_not_be_watched_makes_all_additions_locked() {
    let file = lancet_testkit::target("hiddenvfork");
    let probes = [probe(&file, "hidden_function")];
    let each = rounds(100);
    let order = format!("go {each}");
    let mut target = Running::start("hiddenvfork", &[]);
    let ended = beside(&mut target, "count", &probes, &[], &order);
    assert_eq!(ended.row("hidden_function"), 4000 * each);
    assert_eq!(form(&ended), LOCKED);
    let _ = target.finish_ok();
    let (ended, _) = Outside::new(&probes).run(&file, &[&order]);
    assert_eq!(ended.row("hidden_function"), 4000 * each);
}

#[test]
fn a_second_session_whose_watch_is_taken_counts_by_locked_additions() {
    let file = lancet_testkit::target("oddthreads");
    let mut target = Running::start("oddthreads", &[]);
    let each = rounds(20);
    let order = format!("go {each}");
    let first = support::counting(&target, &[probe(&file, "odd_function")]);
    let inner = [probe(&file, "loop")];
    let second = support::counting(&target, &inner);
    answer(&mut target, &order);
    let first = first.stop();
    assert_eq!(first.row("odd_function"), 14_000 * each);
    assert_eq!(form(&first), usual_form());
    // The first one's watch is gone by now; the second never relied on it.
    answer(&mut target, &order);
    let second = second.stop();
    assert_eq!(second.row("loop"), 2 * 7 * each);
    assert_eq!(form(&second), LOCKED);
    text_equals_file(target.pid(), "").unwrap();
    let _ = target.finish_ok();
}

#[test]
fn a_probe_on_a_call_that_is_watched_counts_and_watches() {
    let file = lancet_testkit::target("oddthreads");
    let mut target = Running::start("oddthreads", &[]);
    let each = rounds(20);
    // The first window holds the watched instruction, and the second is in its way.
    let probes = [
        probe(&file, "odd_function"),
        "libc:vfork".to_owned(),
        "libc:vfork+1".to_owned(),
    ];
    let ended = beside(&mut target, "count", &probes, &[], &format!("go {each}"));
    assert_eq!(ended.row("odd_function"), 14_000 * each);
    assert_eq!(form(&ended), usual_form());
    let mut spawner = Running::start("spawner", &[]);
    let file = lancet_testkit::target("spawner");
    let probes = [probe(&file, "spawner_function"), "libc:vfork".to_owned()];
    let ended = beside(&mut spawner, "count", &probes, &[], &format!("go {each}"));
    assert_eq!(ended.row("spawner_function"), 5 * each);
    assert_eq!(ended.row("vfork"), each);
    assert_eq!(form(&ended), usual_form());
    let _ = (target.finish_ok(), spawner.finish_ok());
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
fn static_programs_that_spawn_are_exact() {
    let each = rounds(20);
    let order = format!("go {each}");
    let static_glibc = ("cc", usual_form());
    for (compiler, expected) in [static_glibc, ("musl-gcc", LOCKED.to_owned())] {
        for (name, function, due) in [
            ("spawner", "spawner_function", 5 * each),
            ("oddthreads", "odd_function", 14_000 * each),
        ] {
            let Some((_folder, file)) = built(name, compiler, &["-static"]) else {
                eprintln!("skipped: no {compiler} -static");
                continue;
            };
            let probes = [probe(&file, function)];
            let mut target = support::start(&file);
            let ended = beside(&mut target, "count", &probes, &[], &order);
            assert_eq!(ended.row(function), due, "{compiler} {name}");
            assert_eq!(form(&ended), expected, "{compiler} {name}");
            let _ = target.finish_ok();
            let (ended, _) = Outside::new(&probes).run(&file, &[&order]);
            assert_eq!(ended.row(function), due, "-c, {compiler} {name}");
        }
    }
}

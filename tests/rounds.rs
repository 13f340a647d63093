//! Thousands of rounds of attaching and detaching in one tracer, as a program does that uses the
//! engine by itself. LANCET_ROUNDS makes them more.
//!
//! Without the test harness: a tracer is cloned before there are threads.

#[path = "support/blocked.rs"]
mod modes;
#[path = "support/session.rs"]
mod session;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lancet_abi::units::Pid;
use lancet_engine::{Binary, Consumer, Session, Tracer, launch, sites};
use lancet_remote::trial;
use lancet_symbols::{Pattern, Target};
use lancet_testkit::{Running, fd_count, harness, smaps_summary, target, thread_count};
use modes::MODES;
use session::{Random, assert_untouched, rounds};

type Test = fn(&Arc<Tracer>);

const TESTS: [(&str, Test); 4] = [
    ("b123_rounds_with_a_probe_elsewhere", b123_elsewhere),
    (
        "b123_rounds_with_a_probe_on_the_wrapper",
        b123_on_the_wrapper,
    ),
    ("rounds_leave_nothing", rounds_leave_nothing),
    ("each_call_in_the_target_is_refused", each_call_is_refused),
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let wanted = harness::wanted(&TESTS.map(|(name, _)| name), &args);
    if wanted.is_empty() {
        return ExitCode::SUCCESS;
    }
    let code = launch(None, move |tracer| {
        for (name, test) in TESTS.iter().filter(|(name, _)| wanted.contains(name)) {
            println!("test {name}");
            test(&tracer);
        }
        0
    });
    ExitCode::from(code.expect("a tracer"))
}

/// A function of a file.
type Place = (Arc<Binary>, &'static str);

/// One session: attaches, and detaches after a while.
fn round(tracer: &Arc<Tracer>, pid: Pid, places: &[Place], random: &mut Random, when: &str) {
    let mut session = Session::open(tracer);
    for (binary, function) in places {
        let found = sites(binary, &Target::Functions(Pattern::new(function)));
        let found = found.unwrap_or_else(|error| panic!("{when}: {error}"));
        session
            .register_sites(binary, found, Consumer::Count)
            .unwrap_or_else(|error| panic!("{when}: {error}"));
    }
    let attached = session.attach(pid);
    let attached = attached.unwrap_or_else(|error| panic!("{when}: {error}"));
    assert!(attached.sites > 0, "{when}: {:?}", attached.refused);
    pause(random);
    let detached = session.detach();
    assert_eq!(detached.processes, 1, "{when}: {detached:?}");
    assert!(detached.failed.is_empty(), "{when}: {detached:?}");
    assert!(detached.foreign.is_empty(), "{when}: {detached:?}");
}

fn pause(random: &mut Random) {
    for _ in 0..random.below(20_000) {
        std::hint::spin_loop();
    }
}

/// While somebody wakes the thread at random moments. The target itself checks that each wake-up
/// comes once, that no call ends without one, and that sleeps take their time.
fn disturb(tracer: &Arc<Tracer>, mode: &str, places: &[Place]) {
    let blocked = Running::start("blocked", &[mode]);
    let pid = blocked.pid();
    let over = AtomicBool::new(false);
    let blocked = std::thread::scope(|scope| {
        let waker = scope.spawn(|| {
            let mut blocked = blocked;
            let mut random = Random::new(7);
            while !over.load(Ordering::Relaxed) {
                let answer = blocked.ask("wake");
                assert!(answer.starts_with("woken"), "{mode}: {answer}");
                pause(&mut random);
                // Now and then it is left alone for longer than a round takes.
                if random.below(8) == 0 {
                    std::thread::sleep(std::time::Duration::from_millis(10));
                }
            }
            blocked
        });
        let mut random = Random::new(mode.len() as u64);
        for number in 0..rounds(30) {
            assert!(!waker.is_finished(), "{mode}: the waker failed");
            round(
                tracer,
                pid,
                places,
                &mut random,
                &format!("{mode}, {number}"),
            );
        }
        over.store(true, Ordering::Relaxed);
        waker.join().expect("no wake-up was lost")
    });
    assert_untouched(pid, mode);
    let _ = blocked.finish_ok();
}

fn blocked() -> Arc<Binary> {
    Binary::open(&target("blocked")).expect("the target's program")
}

/// B123: the thread is only stopped, or lent for the mapping calls.
fn b123_elsewhere(tracer: &Arc<Tracer>) {
    let places = [(blocked(), "on_signal")];
    for (mode, _) in MODES {
        disturb(tracer, mode, &places);
    }
}

/// B123: the thread is moved from the window to the copy, and comes back out of the copy after the
/// probe has gone.
fn b123_on_the_wrapper(tracer: &Arc<Tracer>) {
    let libc = lancet_symbols::locate("libc", None).expect("libc");
    let libc = Binary::open(&libc).expect("libc");
    for (mode, wrapper) in MODES {
        disturb(tracer, mode, &[(Arc::clone(&libc), wrapper)]);
    }
}

/// What a process has: mappings, descriptors, threads.
fn seen(pid: Pid) -> [usize; 4] {
    let summary = smaps_summary(pid).expect("it lives");
    [
        summary.mappings,
        summary.anonymous_executable,
        fd_count(pid).expect("it lives"),
        thread_count(pid).expect("it lives"),
    ]
}

/// Whatever call of an attach or a detach the kernel refuses, the target is as it was, nobody hangs,
/// and the next round is like any other.
fn each_call_is_refused(tracer: &Arc<Tracer>) {
    let program = target("hammer");
    let hammer = Running::spawn(&program, &["2"]).expect("the target");
    let pid = hammer.pid();
    let binary = Binary::open(&program).expect("the target's program");
    let libc = lancet_symbols::locate("libc", None).expect("libc");
    let libc = Binary::open(&libc).expect("libc");
    // Two files, which lie too far from each other for one arena.
    let places: Vec<Place> = vec![(binary, "hammer_target"), (libc, "getpid")];
    let mut random = Random::new(13);
    for number in 0..3 {
        round(
            tracer,
            pid,
            &places,
            &mut random,
            &format!("before, {number}"),
        );
    }
    let usual = seen(pid);
    let masks = || -> Vec<String> {
        let tasks = session::tasks(pid);
        tasks
            .iter()
            .map(|task| session::status(task, "SigBlk"))
            .collect()
    };
    let usual_masks = masks();
    let (mut refused, mut failed) = (0, 0);
    loop {
        let when = format!("call {}", refused + 1);
        let mut session = Session::open(tracer);
        for (binary, function) in &places {
            let found = sites(binary, &Target::Functions(Pattern::new(function)));
            session
                .register_sites(binary, found.expect("there is one"), Consumer::Count)
                .expect("it can be probed");
        }
        trial::refuse(refused + 1);
        if let Err(error) = session.attach(pid) {
            let text = error.to_string();
            assert!(text.contains("Function not implemented"), "{when}: {text}");
            failed += 1;
        }
        let detached = session.detach();
        assert!(detached.failed.is_empty(), "{when}: {detached:?}");
        let over = trial::is_over();
        trial::refuse(0);
        assert_untouched(pid, &when);
        assert_eq!(masks(), usual_masks, "{when}");
        round(tracer, pid, &places, &mut random, &format!("after {when}"));
        assert_eq!(seen(pid), usual, "after {when}");
        if !over {
            break;
        }
        refused += 1;
    }
    println!("{refused} calls, {failed} of them make an attach fail");
    assert!(refused >= 12 && failed >= 6, "{refused} {failed}");
    let _ = hammer.finish_ok();
}

/// After many rounds target and tracer are as after a few.
fn rounds_leave_nothing(tracer: &Arc<Tracer>) {
    const FEW: usize = 10;
    let program = target("hammer");
    let mut hammer = Running::spawn(&program, &["2"]).expect("the target");
    let (pid, own) = (hammer.pid(), Pid(std::process::id().cast_signed()));
    let binary = Binary::open(&program).expect("the target's program");
    let places: Vec<Place> = ["hammer_target", "hammer_zero", "hammer_ret"]
        .map(|function| (Arc::clone(&binary), function))
        .into();
    let mut random = Random::new(11);
    let mut after_few = None;
    let most = rounds(300).max(2 * FEW);
    for number in 1..=most {
        round(
            tracer,
            pid,
            &places,
            &mut random,
            &format!("round {number}"),
        );
        if number == FEW {
            let rss = |pid| smaps_summary(pid).expect("it lives").rss_kib;
            after_few = Some((seen(pid), seen(own), rss(pid), rss(own)));
        }
        if number % 1000 == 0 {
            assert!(hammer.ask("calls").starts_with("calls "));
        }
    }
    let (target_then, own_then, target_rss, own_rss) = after_few.expect("there were more rounds");
    assert_eq!(seen(pid), target_then, "after {most} rounds");
    let own_now = seen(own);
    assert_eq!(own_now[2], own_then[2], "descriptors, after {most} rounds");
    // A worker may just have ended, or begun.
    assert!(own_now[3] <= own_then[3] + 1, "{own_then:?} {own_now:?}");
    let rss = |pid| smaps_summary(pid).expect("it lives").rss_kib;
    assert!(rss(pid) <= target_rss + 256, "{target_rss} {}", rss(pid));
    assert!(rss(own) <= own_rss + 8192, "{own_rss} {}", rss(own));
    assert_untouched(pid, "after all rounds");
    let _ = hammer.finish_ok();
}

//! Whoever is killed at whatever moment, no target is harmed and none keeps a probe.

#[path = "support/session.rs"]
mod session;
#[path = "support/stepper.rs"]
mod stepper;

use std::fs;
use std::path::Path;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use lancet_abi::units::Pid;
use lancet_testkit::{Running, is_root, target, text_equals_file};
use rustix::process::Signal;
use session::{
    Lancet, Random, assert_untouched, lancet, maps, probe, region_files, rounds, signal, status,
    tasks, until, until_else,
};
use stepper::{Outcome, Phase, Stepped, Victims};

/// A target with a /dev/shm of its own, where that is possible: nobody else's files are there.
struct Alone {
    target: Running,
    own_files: bool,
}

impl Alone {
    fn start(name: &str, argument: &str) -> Self {
        let program = target(name);
        let script = format!(
            "mount -t tmpfs x /dev/shm && exec {} {argument}",
            program.display()
        );
        let unshare = Path::new("/usr/bin/unshare");
        if is_root()
            && let Ok(target) = Running::spawn(unshare, &["-m", "sh", "-c", &script])
        {
            return Self {
                target,
                own_files: true,
            };
        }
        let target = Running::spawn(&program, &[argument]).unwrap();
        Self {
            target,
            own_files: false,
        }
    }

    fn pid(&self) -> Pid {
        self.target.pid()
    }

    /// All signs of a clean end.
    fn assert_clean(&self, when: &str) {
        assert_untouched(self.pid(), when);
        for task in tasks(self.pid()) {
            // Threads of these targets block nothing.
            assert_eq!(
                status(&task, "SigBlk"),
                "0000000000000000",
                "{when}: {task}"
            );
        }
        if self.own_files {
            let folder = format!("/proc/{}/root/dev/shm", self.pid());
            let left: Vec<_> = fs::read_dir(folder).unwrap().flatten().collect();
            assert!(left.is_empty(), "{when}: {left:?}");
        }
    }
}

fn started(pid: Pid) {
    until("all threads have started", || {
        tasks(pid)
            .iter()
            .all(|t| status(t, "SigBlk") == "0000000000000000")
    });
}

fn report(what: &str, times: &mut [Duration]) {
    times.sort();
    if let (Some(median), Some(most)) = (times.get(times.len() / 2), times.last()) {
        eprintln!(
            "{what}: {} kills, restored after {median:?} (median), {most:?} (most)",
            times.len()
        );
    }
}

/// Kills the tracer at a random moment of an attach, of the steady state, or of a detach.
/// Returns the time until guardian and all its work had ended, if there was something to kill.
fn kill_at_random(alone: &Alone, probes: &[String], random: &mut Random) -> Option<Duration> {
    let pid = alone.pid();
    let mut lancet = Lancet::count(probes, pid);
    let phase = random.below(3);
    if phase == 0 {
        until("a tracer", || {
            lancet.tracer().is_some() || lancet.has_ended()
        });
    } else {
        lancet = lancet.attached();
        if phase == 2 {
            signal(lancet.guardian(), Signal::INT);
        }
    }
    let tracer = lancet.tracer()?;
    let moment = Instant::now()
        + Duration::from_micros(random.below([60_000, 2000, 15_000][phase as usize]));
    while Instant::now() < moment {
        std::hint::spin_loop();
    }
    let killed = Instant::now();
    if !signal(tracer, Signal::KILL) {
        return None;
    }
    let (_, text) = lancet.end();
    let took = killed.elapsed();
    assert!(!text.contains("keeps probes"), "{text}");
    Some(took)
}

#[test]
fn the_tracer_is_killed_at_random() {
    let each = rounds(15).div_ceil(3);
    for (name, argument, function) in [
        ("hammer", "1", "hammer_*"),
        ("hammer", "4", "hammer_*"),
        ("runner", "100", "runner_function"),
    ] {
        let mut alone = Alone::start(name, argument);
        started(alone.pid());
        let probes = [probe(&target(name), function)];
        let mut random = Random::new(each as u64 + argument.len() as u64);
        let mut times = Vec::new();
        for round in 0..each {
            times.extend(kill_at_random(&alone, &probes, &mut random));
            alone.assert_clean(&format!("{name} {argument}, round {round}"));
        }
        report(&format!("{name} {argument}"), &mut times);
        assert!(!alone.target.ask("how").is_empty());
        lancet(&["clean", "--purge", "-p", &alone.pid().to_string()]);
        let _ = alone.target.finish_ok();
    }
}

/// A whole run of lancet whose victims are killed before the tracer's call number `at`.
fn stepped(
    words: &[&str],
    phase: Phase,
    victims: Victims,
    at: usize,
) -> (Outcome, ExitStatus, String) {
    let mut stepped = Stepped::start(words, phase, victims, at);
    match phase {
        Phase::Attach => until("the end, or the probes", || {
            stepped.lancet.has_ended() || stepped.lancet.text().contains("Attached")
        }),
        Phase::Detach => {
            stepped.lancet = stepped.lancet.attached();
            stepped.begin();
        }
    }
    signal(stepped.lancet.guardian(), Signal::TERM);
    stepped.end()
}

/// Kills the tracer before each of its system calls in turn; in short runs before some of them.
fn kill_before_each_call(phase: Phase) {
    let mut alone = Alone::start("hammer", "2");
    let pid = alone.pid();
    started(pid);
    let whole = maps(pid);
    let probe = probe(&target("hammer"), "hammer_*");
    let words = ["count", &probe, "-p", &pid.to_string()];
    let start = |at: usize| stepped(&words, phase, Victims::Tracer, at);
    let (outcome, status, text) = start(usize::MAX);
    assert!(
        status.success() && outcome.killed_at.is_none(),
        "{outcome:?}: {text}"
    );
    alone.assert_clean("nobody killed");
    let step = if rounds(0) > 0 {
        1
    } else {
        outcome.calls.div_ceil(20)
    };
    let mut killed = 0;
    for at in (1..outcome.calls + outcome.calls / 10).step_by(step) {
        let (outcome, status, text) = start(at);
        let when = format!("{phase:?}, before call {at}, {outcome:?}: {text}");
        alone.assert_clean(&when);
        assert!(!text.contains("keeps probes"), "{when}");
        killed += usize::from(outcome.killed_at.is_some());
        assert_eq!(status.success(), outcome.killed_at.is_none(), "{when}");
        if at % 16 == 1 {
            // Whatever was mapped is known, and goes.
            let is_whole = || {
                lancet(&["clean", "--purge", "-p", &pid.to_string()]);
                maps(pid) == whole
            };
            until_else(is_whole, || {
                format!("{when}: unmapped:\n{}instead of\n{whole}", maps(pid))
            });
        }
    }
    assert!(killed > 0);
    eprintln!(
        "{phase:?}: {} system calls, killed before {killed} of them",
        outcome.calls
    );
    assert!(!alone.target.ask("how").is_empty());
    let _ = alone.target.finish_ok();
}

#[test]
fn the_tracer_is_killed_before_each_call_of_an_attach() {
    kill_before_each_call(Phase::Attach);
}

#[test]
fn the_tracer_is_killed_before_each_call_of_a_detach() {
    kill_before_each_call(Phase::Detach);
}

/// The tracer notices that its guardian has died, detaches and ends.
#[test]
fn the_guardian_is_killed() {
    let alone = Alone::start("hammer", "3");
    started(alone.pid());
    for round in 0..rounds(4).min(50) {
        let lancet = Lancet::count(&[probe(&target("hammer"), "hammer_*")], alone.pid()).attached();
        let tracer = lancet.tracer().expect("a tracer");
        signal(lancet.guardian(), Signal::KILL);
        until("the tracer ends", || {
            status(&tracer.to_string(), "State").is_empty()
                || status(&tracer.to_string(), "State").starts_with('Z')
        });
        alone.assert_clean(&format!("round {round}"));
    }
    let _ = alone.target.finish_ok();
}

/// Both are killed at once: the probes stay, harmless, until `clean`.
#[test]
fn both_are_killed_and_clean_follows() {
    let alone = Alone::start("hammer", "3");
    let pid = alone.pid();
    started(pid);
    let whole = maps(pid);
    let mut random = Random::new(7);
    for round in 0..rounds(6).min(100) {
        let when = format!("round {round}");
        let mut session = Lancet::count(&[probe(&target("hammer"), "hammer_*")], pid);
        let mut probed = false;
        if round % 2 == 0 {
            session = session.attached();
            probed = true;
        } else {
            until("a tracer", || session.tracer().is_some());
            let moment = Instant::now() + Duration::from_micros(random.below(60_000));
            while Instant::now() < moment {
                std::hint::spin_loop();
            }
        }
        let files = region_files(pid);
        let (guardian, tracer) = (session.guardian(), session.tracer().expect("a tracer"));
        // The guardian must not see the other's end.
        signal(guardian, Signal::STOP);
        signal(tracer, Signal::KILL);
        signal(guardian, Signal::KILL);
        let _ = session.end();
        if probed {
            assert!(text_equals_file(pid, "hammer").is_err(), "{when}");
            let shown = lancet(&["status"]);
            let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
            let row =
                |l: &&str| l.trim_start().starts_with(&format!("{pid} ")) && l.contains("killed");
            assert!(shown.lines().any(|l| row(&l)), "{when}: {shown}");
        }
        until(&format!("{when}: clean"), || {
            lancet(&["clean", "-p", &pid.to_string()]);
            text_equals_file(pid, "").is_ok()
        });
        assert_untouched(pid, &when);
        assert!(
            files
                .iter()
                .all(|f| !Path::new(&format!("/proc/{pid}/root{}", f.display())).exists()),
            "{when}"
        );
        let shown = lancet(&["status"]);
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        let live =
            |l: &&str| l.trim_start().starts_with(&format!("{pid} ")) && l.contains("killed");
        assert!(!shown.lines().any(|l| live(&l)), "{when}: {shown}");
        started(pid);
    }
    until("maps as before", || {
        lancet(&["clean", "--purge", "-p", &pid.to_string()]);
        maps(pid) == whole
    });
    let _ = alone.target.finish_ok();
}

/// Both are killed before each of the tracer's system calls of an attach in turn; in short runs
/// before some of them. That includes the moment when the first stub lies in unused bytes of the
/// target and no arena tells of it yet.
#[test]
fn both_are_killed_before_each_call_of_an_attach() {
    let mut alone = Alone::start("hammer", "2");
    let pid = alone.pid();
    started(pid);
    let whole = maps(pid);
    let probe = probe(&target("hammer"), "hammer_*");
    let words = ["count", &probe, "-p", &pid.to_string()];
    let run = |at: usize| stepped(&words, Phase::Attach, Victims::Both, at);
    let (whole_run, status, text) = run(usize::MAX);
    assert!(status.success(), "{whole_run:?}: {text}");
    // In short: some of all, and those around the first stub.
    let stub = whole_run.first_stub.expect("a stub is written");
    let chosen = |at: &usize| {
        at.is_multiple_of(whole_run.calls.div_ceil(12)) || (stub - 1..stub + 12).contains(at)
    };
    let (mut killed, mut stubs) = (0, 0);
    for at in (1..whole_run.calls).filter(|at| rounds(0) > 0 || chosen(at)) {
        let (outcome, _, text) = run(at);
        let when = format!("before call {at}, {outcome:?}: {text}");
        killed += usize::from(outcome.killed_at.is_some());
        let shown = lancet(&["status"]);
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        let of_target = |l: &&str| l.trim_start().starts_with(&format!("{pid} "));
        let is_stub = |l: &&str| of_target(l) && l.contains("wipes it");
        stubs += shown.lines().filter(is_stub).count();
        // On a busy machine the threads may not stop in time, and it says so.
        let mut cleaned = lancet(&["clean", "-p", &pid.to_string()]);
        for _ in 0..3 {
            if !cleaned.status.success() {
                cleaned = lancet(&["clean", "-p", &pid.to_string()]);
            }
        }
        assert!(cleaned.status.success(), "{when}: {cleaned:?}");
        text_equals_file(pid, "").unwrap_or_else(|error| panic!("{when}: {error}; {cleaned:?}"));
        alone.assert_clean(&when);
        until(&format!("{when}: unmapped"), || {
            lancet(&["clean", "--purge", "-p", &pid.to_string()]);
            maps(pid) == whole
        });
    }
    assert!(killed > 0, "{whole_run:?}");
    eprintln!(
        "{} calls, {killed} double kills, {stubs} stubs left",
        whole_run.calls
    );
    assert!(!alone.target.ask("how").is_empty());
    let _ = alone.target.finish_ok();
}

/// The target's own death is nothing that lancet fails or hangs on.
#[test]
fn the_target_is_killed_at_every_stage() {
    let mut random = Random::new(3);
    for round in 0..rounds(9).min(300) {
        let victim = Running::start("hammer", &["2"]);
        let mut session = Lancet::count(&[probe(&target("hammer"), "hammer_*")], victim.pid());
        match round % 3 {
            0 => until("a tracer", || {
                session.tracer().is_some() || session.has_ended()
            }),
            1 => session = session.attached(),
            _ => {
                session = session.attached();
                signal(session.guardian(), Signal::INT);
            }
        }
        let moment =
            Instant::now() + Duration::from_micros(random.below([50_000, 1, 10_000][round % 3]));
        while Instant::now() < moment {
            std::hint::spin_loop();
        }
        signal(victim.pid(), Signal::KILL);
        let (status, text) = session.end();
        assert!(
            !text.contains("panicked") && !text.contains("keeps probes"),
            "{text}"
        );
        assert!(status.code().is_some_and(|c| c <= 1), "{status}: {text}");
        let pid = victim.pid();
        drop(victim);
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
    }
}

/// B156: whatever ends it, lancet ends, and the probes are off.
#[test]
fn b156_every_way_to_end_takes_the_probes_out() {
    let alone = Alone::start("hammer", "2");
    let pid = alone.pid();
    started(pid);
    let probes = [probe(&target("hammer"), "hammer_*")];
    for signals in [
        &[Signal::INT][..],
        &[Signal::INT, Signal::INT],
        &[Signal::TERM],
        &[Signal::HUP],
        &[Signal::TERM, Signal::INT, Signal::HUP],
    ] {
        let session = Lancet::count(&probes, pid).attached();
        for &one in signals {
            signal(session.guardian(), one);
        }
        let (ended, text) = session.end();
        assert!(ended.success(), "{signals:?}: {text}");
        alone.assert_clean(&format!("{signals:?}"));
    }
    // Nobody reads the report; the disk is full.
    for redirect in ["| true", "-o /dev/full"] {
        let script = format!(
            "'{}' count '{}' -p {pid} --interval 0.01 --duration 20 {redirect}",
            session::LANCET,
            probes[0]
        );
        let mut command = std::process::Command::new("/bin/sh");
        command.args(["-c", &script]);
        let (_, text) = Lancet::start(&mut command).end();
        assert!(!text.contains("panicked"), "{redirect}: {text}");
        until("probes are off", || text_equals_file(pid, "").is_ok());
        alone.assert_clean(redirect);
    }
    let _ = alone.target.finish_ok();
}

/// A process that forks all the time, children that fork too: none keeps a jump.
#[test]
fn forks_while_detaching() {
    let mut spawner = Running::start("spawner", &[]);
    let pid = spawner.pid();
    let probes = [probe(&target("spawner"), "spawner_function")];
    for round in 0..rounds(4).min(100) {
        spawner.order("go 40");
        let (ended, text) = Lancet::count(&probes, pid).attached().interrupt();
        assert!(ended.success(), "{text}");
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        for child in children.unwrap_or_default().split_whitespace() {
            // It may end, or become another program, at any moment.
            if let Err(error @ lancet_testkit::Error::TextDiffers { .. }) =
                text_equals_file(Pid(child.parse().unwrap()), "spawner")
            {
                panic!("round {round}: {error}");
            }
        }
        if let Err(error @ lancet_testkit::Error::TextDiffers { .. }) = text_equals_file(pid, "") {
            panic!("round {round}: {error}");
        }
        assert!(spawner.line().unwrap().starts_with("truth "));
    }
    assert_untouched(pid, "at the end");
    let _ = spawner.finish_ok();
}

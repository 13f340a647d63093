//! Attaching and detaching does not show in system calls that were interrupted for it.

#[path = "support/blocked.rs"]
mod blocked;
#[path = "support/session.rs"]
mod session;

use blocked::MODES;
use lancet_testkit::{Running, target};
use rustix::process::Signal;
use session::{Lancet, Random, assert_untouched, lancet, probe, rounds, signal, status};

/// Wakes the thread at random moments for as long as something goes on. The target itself checks
/// that each wake-up comes once, that no call ends without one, and that sleeps take their time.
fn wake_while(blocked: &mut Running, random: &mut Random, mut goes_on: impl FnMut() -> bool) {
    while goes_on() {
        let answer = blocked.ask("wake");
        assert!(answer.starts_with("woken"), "{answer}");
        for _ in 0..random.below(20_000) {
            std::hint::spin_loop();
        }
    }
}

/// Attaches and detaches again and again. Returns what lancet said of the last round.
fn disturb(mode: &str, probes: &[String], rounds: usize) -> String {
    let mut blocked = Running::start("blocked", &[mode]);
    let pid = blocked.pid();
    let mut random = Random::new(rounds as u64 + mode.len() as u64);
    let task = format!("{pid}/task/{}", blocked.facts()[0]);
    let mut said = String::new();
    for round in 0..rounds {
        let session = Lancet::count(probes, pid);
        wake_while(&mut blocked, &mut random, || {
            !session.has_ended() && !session.text().contains("Attached")
        });
        // In every other round it sleeps undisturbed until the probes go again.
        if round % 2 == 0 {
            let answer = blocked.ask("wake");
            assert!(answer.starts_with("woken"), "{answer}");
        }
        signal(session.guardian(), Signal::INT);
        wake_while(&mut blocked, &mut random, || !session.has_ended());
        let (ended, text) = session.end();
        assert!(ended.success(), "{mode}, {round}: {text}");
        said = text;
    }
    assert_untouched(pid, mode);
    assert_ne!(status(&task, "SigBlk"), "", "the blocked thread is there");
    lancet(&["clean", "--purge", "-p", &pid.to_string()]);
    let _ = blocked.finish_ok();
    said
}

/// B123, with a probe elsewhere: the thread is only stopped, or lent for the mapping calls.
#[test]
fn b123_no_call_is_lost_or_cut() {
    let elsewhere = [probe(&target("blocked"), "on_signal")];
    for (mode, _) in MODES {
        disturb(mode, &elsewhere, rounds(3));
    }
}

/// B123, with the probe on the very wrapper that the thread is blocked in: it is moved from the
/// window to the copy, and comes back out of the copy after the probe has gone.
#[test]
fn b123_blocked_inside_a_probed_wrapper() {
    let mut probed = 0;
    for (mode, wrapper) in MODES {
        let said = disturb(mode, &[format!("libc:{wrapper}")], rounds(2));
        probed += usize::from(said.contains("Attached"));
    }
    assert_eq!(probed, MODES.len());
}

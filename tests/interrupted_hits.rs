//! Hits that are interrupted anywhere, by handlers that hit probes themselves; hardware
//! breakpoints beside probes; probes on all that a thread does.

#[path = "support/mod.rs"]
mod support;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use lancet_testkit::{Running, skip, target, text_equals_file};
use support::{Lancet, address, counting, probe, rounds, told};

const FUNCTION: &str = "watched_function";

/// The target; none where the kernel gives it no breakpoints.
fn watched(mode: &str) -> Option<Running> {
    let running = Running::start("watched", &[mode]);
    (running.facts()[0] == "1").then_some(running)
}

#[test]
fn b121_hardware_watchpoints_whatever_the_target_does_with_traps() {
    let probes = [probe(&target("watched"), FUNCTION)];
    for mode in ["default", "blocked", "ignored", "handler"] {
        let Some(mut running) = watched(mode) else {
            skip!("no hardware breakpoints");
        };
        let before = running.ask("go 10");
        let session = counting(&running, &probes);
        let during = running.ask(&format!("go {}", rounds(2000)));
        let ended = session.stop();
        running.ask("go 10");
        let calls = told(&during, FUNCTION) - told(&before, FUNCTION);
        assert_eq!(ended.row(FUNCTION), calls, "{mode}: {ended:?}");
        text_equals_file(running.pid(), "watched").unwrap();
        let _ = running.finish_ok();
    }
}

/// Where the jump at the function leads to.
fn pad(running: &Running) -> u64 {
    let site = address(running, &target("watched"), FUNCTION);
    let memory = File::open(format!("/proc/{}/mem", running.pid())).unwrap();
    let mut jump = [0; 5];
    memory.read_exact_at(&mut jump, site).unwrap();
    assert_eq!(jump[0], 0xe9, "no jump at {site:x}");
    let [_, displacement @ ..] = jump;
    (site + 5).wrapping_add_signed(i32::from_le_bytes(displacement).into())
}

/// A breakpoint at every address around the pad's entry in turn: whatever instruction of the
/// action, the copy and the way back it is, a signal interrupts the hit there once, and its
/// handler hits the same probe three times.
#[test]
fn b129_a_handler_that_hits_the_probe_interrupts_the_action_at_every_instruction() {
    let what = probe(&target("watched"), FUNCTION);
    for action in [
        &["count"][..],
        &["sum", "arg0"],
        &["hist", "arg0"],
        &["count", "--by", "tid"],
        &["count", "--by", "func,tid"],
    ] {
        let Some(mut running) = watched("handler") else {
            skip!("no hardware breakpoints");
        };
        let pid = running.pid().to_string();
        let mut words = vec![action[0], "-v", &what];
        words.extend(&action[1..]);
        words.extend(["-p", &pid]);
        let before = running.ask("go 1");
        let session = Lancet::start(&words);
        let entry = pad(&running);
        let mut during = String::new();
        for _ in 0..rounds(1) {
            running.ask(&format!("sweep {}", entry - 256));
            during = running.ask(&format!("sweep {}", entry + 256));
        }
        let fired = told(&during, "fired");
        let ended = session.stop();
        let calls = told(&during, FUNCTION) - told(&before, FUNCTION);
        eprintln!("{action:?}: {calls} calls, interrupted at {fired} places");
        // The copy, the way back and at least a save, an addition and a restore.
        assert!(fired > 8, "{during}");
        if action[0] == "count" {
            let counted: u64 = ended.rows().values().sum();
            assert_eq!(counted, calls, "{action:?}: {ended:?}");
        }
        running.ask("go 5");
        text_equals_file(running.pid(), "watched").unwrap();
        let _ = running.finish_ok();
    }
}

/// All functions of libc and the dynamic loader, while threads start and end.
#[test]
fn b054_every_function_of_libc_and_loader_while_threads_come_and_go() {
    let mut running = Running::start("churn", &[]);
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", running.pid())).unwrap();
    let mut files: Vec<PathBuf> = maps
        .lines()
        .filter(|l| l.contains(" r-xp "))
        .filter_map(|l| Some(PathBuf::from(l.get(l.find('/')?..)?)))
        .collect();
    files.dedup();
    let probes: Vec<String> = files.iter().map(|file| probe(file, "*")).collect();
    assert!(probes.len() > 2, "{maps}");
    running.ask("go");
    for _ in 0..rounds(2) {
        let ended = counting(&running, &probes).stop();
        assert!(ended.rows().len() > 20, "{ended:?}");
        text_equals_file(running.pid(), "churn").unwrap();
    }
    running.ask("stop");
    let _ = running.finish_ok();
}

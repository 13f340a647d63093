//! Probes without `-p` and `-c`: every process that maps the file has them, those that come later
//! too. Only on private copies: nobody else maps these.

#[path = "support/mod.rs"]
mod support;

use std::path::Path;
use std::process::Command;
use std::sync::Mutex;

use lancet_abi::units::Pid;
use lancet_testkit::{Running, target, text_equals_file};
use support::{Lancet, private_copy, probe, rounds, signal, start};

/// Counts a function of a file everywhere.
fn everywhere(file: &Path, function: &str) -> Lancet {
    Lancet::start(&["count", "-v", &probe(file, function)])
}

/// Waits until the probes are in a process.
fn probed(lancet: &mut Lancet, running: &Running) {
    let line = format!("process {}: ", running.pid());
    assert!(lancet.says(&line), "not probed: {}", lancet.last_told());
}

fn finish(running: Running, file: &Path) {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    text_equals_file(running.pid(), &name).unwrap();
    drop(running.finish_ok());
}

#[test]
fn a_program_that_starts_later_is_probed() {
    let (_folder, file) = private_copy("later");
    let mut lancet = everywhere(&file, "later_function");
    let mut first = start(&file);
    probed(&mut lancet, &first);
    let mut second = start(&file);
    probed(&mut lancet, &second);
    assert_eq!(first.ask("call 1000"), "called 1000");
    assert_eq!(second.ask("call 234"), "called 234");
    let ended = lancet.stop();
    assert_eq!(ended.row("later_function"), 1234, "{}", ended.err);
    let told = "2 processes attached after start";
    assert!(ended.err.contains(told), "{}", ended.err);
    finish(first, &file);
    finish(second, &file);
}

#[test]
fn one_that_becomes_itself_anew_is_probed_again() {
    let (_folder, file) = private_copy("later");
    let mut running = start(&file);
    let mut lancet = everywhere(&file, "later_function");
    assert_eq!(running.ask("call 10"), "called 10");
    for round in 1..=rounds(3) {
        assert_eq!(running.ask("exec 0"), format!("ready {}", running.pid()));
        probed(&mut lancet, &running);
        assert_eq!(running.ask("call 100"), "called 100", "round {round}");
    }
    let ended = lancet.stop();
    let due = 10 + 100 * rounds(3);
    assert_eq!(ended.row("later_function"), due, "{}", ended.err);
    finish(running, &file);
}

#[test]
fn a_library_that_is_loaded_later_is_probed() {
    let (_folder, library) = private_copy("laterlib");
    let words = [library.display().to_string()];
    let mut running = Running::spawn(&target("later"), &words).unwrap();
    let mut lancet = everywhere(&library, "later_library");
    assert_eq!(running.ask("load 0"), "loaded");
    probed(&mut lancet, &running);
    assert_eq!(running.ask("use 500"), "used 500");
    let ended = lancet.stop();
    assert_eq!(ended.row("later_library"), 500, "{}", ended.err);
    finish(running, &library);
}

/// A library that is loaded by a child which has its parent's probes in its program already.
#[test]
fn a_child_with_probes_gets_those_of_a_library() {
    let (_folder, file) = private_copy("later");
    let (_other, library) = private_copy("laterlib");
    let mut running = Running::spawn(&file, &[library.display().to_string()]).unwrap();
    let probes = [
        probe(&file, "later_function"),
        probe(&library, "later_library"),
    ];
    let mut lancet = Lancet::start(&["count", "-v", &probes[0], &probes[1]]);
    assert_eq!(running.ask("call 5"), "called 5");
    assert_eq!(running.ask("load 0"), "loaded");
    probed(&mut lancet, &running);
    assert_eq!(running.ask("use 7"), "used 7");
    assert_eq!(running.ask("fork 11"), "forked");
    let ended = lancet.stop();
    assert_eq!(ended.row("later_function"), 16, "{}", ended.err);
    assert_eq!(ended.row("later_library"), 7, "{}", ended.err);
    finish(running, &file);
}

/// Children of a process that came later count, those of one that has ended already too.
#[test]
fn children_of_later_processes_count_and_are_restored() {
    let (_folder, file) = private_copy("later");
    let mut lancet = everywhere(&file, "later_function");
    let mut running = start(&file);
    probed(&mut lancet, &running);
    assert_eq!(running.ask("burst 200"), "forked");
    assert_eq!(running.ask("fork 300"), "forked");
    let ended = lancet.stop();
    assert_eq!(ended.row("later_function"), 500, "{}", ended.err);
    finish(running, &file);
}

/// A child outlives its parent, which came later and has ended: nothing of it stays probed.
#[test]
fn a_child_of_one_that_has_ended_is_restored() {
    let (_folder, file) = private_copy("later");
    let mut lancet = everywhere(&file, "later_function");
    let mut running = start(&file);
    probed(&mut lancet, &running);
    let answer = running.ask("orphan 0");
    let orphan = answer.strip_prefix("orphan ").and_then(|n| n.parse().ok());
    let orphan = Pid(orphan.unwrap_or_else(|| panic!("{answer}")));
    assert_eq!(running.ask("call 60"), "called 60");
    // Its parent is forgotten when another one comes.
    let mut other = start(&file);
    probed(&mut lancet, &other);
    assert_eq!(other.ask("call 3"), "called 3");
    let ended = lancet.stop();
    assert_eq!(ended.row("later_function"), 63, "{}", ended.err);
    text_equals_file(orphan, "later").unwrap();
    finish(other, &file);
}

/// The same, where the tracer is killed and its guardian cleans up.
#[test]
fn a_child_of_one_that_has_ended_is_restored_by_the_guardian() {
    let (_folder, file) = private_copy("later");
    let mut lancet = everywhere(&file, "later_function");
    let mut running = start(&file);
    probed(&mut lancet, &running);
    let answer = running.ask("orphan 0");
    let orphan = answer.strip_prefix("orphan ").and_then(|n| n.parse().ok());
    let orphan = Pid(orphan.unwrap_or_else(|| panic!("{answer}")));
    let other = start(&file);
    probed(&mut lancet, &other);
    let guardian = lancet.pid();
    let path = format!("/proc/{guardian}/task/{guardian}/children");
    let tracer = std::fs::read_to_string(path).expect("the guardian runs");
    signal(tracer.trim().parse().expect("one child"), "KILL");
    let ended = lancet.end();
    assert!(!ended.status.success(), "{ended:?}");
    text_equals_file(orphan, "later").unwrap();
    finish(other, &file);
}

/// Programs that come and go all the time, whole process trees: none is harmed, and none keeps a probe.
#[test]
fn a_storm_of_short_programs_is_survived() {
    let (_folder, file) = private_copy("later");
    let lancet = everywhere(&file, "later_function");
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..rounds(50) {
                    let status = Command::new(&file).args(["call", "20"]).status();
                    if !status.as_ref().is_ok_and(|status| status.success()) {
                        failed.lock().unwrap().push(format!("{status:?}"));
                    }
                }
            });
        }
    });
    let ended = lancet.stop();
    assert!(failed.into_inner().unwrap().is_empty());
    let counted = ended.row("later_function");
    assert!(counted <= 4 * 20 * rounds(50), "{counted}");
}

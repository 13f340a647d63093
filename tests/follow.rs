//! Probes without `-p` and `-c`: every process that maps the file has them, those that come later
//! too. Only on private copies: nobody else maps these.

#[path = "support/mod.rs"]
mod support;

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;

use lancet_abi::units::Pid;
use lancet_testkit::{Running, is_root, skip, target, text_equals_file};
use support::{Lancet, address, eventually, private_copy, probe, rounds, signal, start};

/// Counts a function of a file everywhere.
fn everywhere(file: &Path, function: &str) -> Lancet {
    Lancet::start(&["count", "-v", &probe(file, function)])
}

/// Waits until the probes are in a process.
fn probed(lancet: &mut Lancet, running: &Running) {
    let line = format!("process {}: ", running.pid());
    assert!(lancet.says(&line), "not probed: {}", lancet.last_told());
}

/// Counts in a program that starts later, and has its probes.
fn with_one(file: &Path) -> (Lancet, Running) {
    let mut lancet = everywhere(file, "later_function");
    let running = start(file);
    probed(&mut lancet, &running);
    (lancet, running)
}

/// Lets a process end and its child go on in its place; the child.
fn orphan(running: &mut Running) -> Pid {
    let answer = running.ask("orphan 0");
    let pid = answer.strip_prefix("orphan ").and_then(|n| n.parse().ok());
    Pid(pid.unwrap_or_else(|| panic!("{answer}")))
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
    let (lancet, mut running) = with_one(&file);
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
    let (mut lancet, mut running) = with_one(&file);
    let orphan = orphan(&mut running);
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
    let (mut lancet, mut running) = with_one(&file);
    let orphan = orphan(&mut running);
    let other = start(&file);
    probed(&mut lancet, &other);
    signal(lancet.tracer().expect("a tracer"), "KILL");
    let ended = lancet.end();
    assert!(!ended.status.success(), "{ended:?}");
    text_equals_file(orphan, "later").unwrap();
    finish(other, &file);
}

/// A child that is forked before its parent has its probes is found by its fork, or has inherited
/// them: either way what it calls later counts.
#[test]
fn children_of_the_window_are_probed() {
    let (_folder, file) = private_copy("later");
    let lancet = everywhere(&file, "later_function");
    let mut due = 0;
    let mut all = Vec::new();
    for round in 0..rounds(20) {
        let mut running = start(&file);
        let at = address(&running, &file, "later_function");
        let orphan = orphan(&mut running);
        let is_probed = || {
            let memory = std::fs::File::open(format!("/proc/{orphan}/mem"));
            let mut first = [0];
            let read = memory.and_then(|memory| memory.read_exact_at(&mut first, at));
            // A jump.
            read.is_ok() && first == [0xe9]
        };
        eventually(&format!("round {round}: {orphan} has a probe"), is_probed);
        assert_eq!(running.ask("call 10"), "called 10");
        due += 10;
        all.push((running, orphan));
    }
    let ended = lancet.stop();
    assert_eq!(ended.row("later_function"), due, "{}", ended.err);
    for (_, orphan) in &all {
        text_equals_file(*orphan, "later").unwrap();
    }
}

/// Whoever becomes a program without the file is no loss that is to be told of.
#[test]
fn nothing_is_said_of_what_maps_the_file_no_more() {
    let (_folder, file) = private_copy("later");
    let mut lancet = everywhere(&file, "later_function");
    let script = format!("{} call 5; exec sleep 60", file.display());
    let other = Command::new("/bin/sh").args(["-c", &script]).spawn();
    let mut other = other.expect("a shell");
    let mut running = start(&file);
    probed(&mut lancet, &running);
    assert_eq!(running.ask("become 0"), "became");
    let ended = lancet.stop();
    for word in ["not followed", "lancet:"] {
        assert!(!ended.err.contains(word), "{}", ended.err);
    }
    let _ = other.kill();
    let _ = other.wait();
}

/// Where events are forbidden, as to an ordinary user, all processes are looked through instead.
#[test]
fn an_ordinary_user_follows_by_looking() {
    if !is_root() || !Path::new("/usr/bin/setpriv").exists() {
        skip!("not root, or no setpriv");
    }
    let paranoid = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid");
    if paranoid.is_ok_and(|text| text.trim().parse().is_ok_and(|n: i32| n <= 0)) {
        skip!("everybody may have events");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let public = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path(), public).expect("it is ours");
    let [binary, file] = ["lancet", "later"].map(|name| folder.path().join(name));
    std::fs::copy(env!("CARGO_BIN_EXE_lancet"), &binary).expect("a copy");
    std::fs::copy(target("later"), &file).expect("a copy");
    const NOBODY: [&str; 3] = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    let mut command = Command::new("setpriv");
    command.args(NOBODY).arg(&binary);
    command.args(["count", "-v", &probe(&file, "later_function")]);
    let mut lancet = Lancet::of(command);
    assert!(lancet.says("lancet: the kernel's events are not permitted here"));
    assert!(lancet.says("Attached 1 probe"));
    let words = NOBODY.map(str::to_owned);
    let words: Vec<_> = words
        .into_iter()
        .chain([file.display().to_string()])
        .collect();
    let mut running = Running::spawn(Path::new("/usr/bin/setpriv"), &words).unwrap();
    probed(&mut lancet, &running);
    assert_eq!(running.ask("call 30"), "called 30");
    assert_eq!(running.ask("exec 0"), format!("ready {}", running.pid()));
    probed(&mut lancet, &running);
    assert_eq!(running.ask("call 4"), "called 4");
    let ended = lancet.stop();
    assert_eq!(ended.row("later_function"), 34, "{}", ended.err);
    finish(running, &file);
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

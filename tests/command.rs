//! The command line as its users meet it.

#[path = "support/mod.rs"]
mod support;

use std::io::{Read, Write};
use std::process::{Command, Stdio};

use lancet_testkit::{Running, have, is_root, target};

use support::{Ended, Lancet, lancet, probe};

fn run(words: &[&str]) -> Ended {
    lancet(words)
}

/// The path of a target's program.
fn program(name: &str) -> String {
    target(name).display().to_string()
}

#[test]
fn main_is_counted_once_from_the_very_start() {
    let calls = program("calls");
    let main = format!("{calls}:main");
    let ended = run(&["count", &main, "-c", &format!("{calls} 1 1")]);
    assert_eq!(ended.row("main"), 1, "{}", ended.err);
}

#[test]
fn start_is_counted_once_in_a_dynamic_program() {
    let calls = program("calls");
    let start = format!("{calls}:_start");
    let ended = run(&["count", &start, "-c", &format!("{calls} 1 1")]);
    assert_eq!(ended.row("_start"), 1, "{}", ended.err);
}

#[test]
fn the_commands_status_is_passed_on() {
    for (script, status) in [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 128 + 9)] {
        let ended = run(&["count", "libc:malloc", "-c", &format!("sh -c '{script}'")]);
        assert_eq!(ended.status.code(), Some(status), "{script}: {}", ended.err);
    }
}

/// A program that a probed process becomes is not followed, and the report says so.
#[test]
fn the_exec_of_a_probed_process_is_told_of() {
    const SAYS: &str = "became another program (exec)";
    let told = |script: &str| {
        let ended = run(&["count", "libc:*alloc*", "-c", &format!("sh -c '{script}'")]);
        assert!(ended.status.success(), "{}", ended.err);
        ended.err.matches(SAYS).count()
    };
    assert_eq!(told("exec cat /dev/null"), 1);
    assert_eq!(told("exec sh -c \"exec cat /dev/null\""), 1);
    assert_eq!(told("cat /dev/null; echo other > /proc/self/comm"), 0);

    let mut shell = Command::new("sh")
        .args(["-c", "read line; exec cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("sh starts");
    let pid = shell.id().to_string();
    let session = Lancet::start(&["count", "libc:*alloc*", "-p", &pid]);
    let mut input = shell.stdin.take().expect("a pipe");
    input.write_all(b"first\nsecond\n").expect("sh reads");
    let mut seen = [0; 6];
    let output = shell.stdout.as_mut().expect("a pipe");
    output.read_exact(&mut seen).expect("cat answers");
    let ended = session.stop();
    assert!(ended.err.contains(SAYS), "{}", ended.err);
    drop(input);
    assert!(shell.wait().expect("cat ends").success());
}

#[test]
fn a_commands_output_is_its_own_and_the_report_goes_to_standard_error() {
    let ended = run(&["count", "libc:*", "-c", "echo hello"]);
    assert_eq!(ended.out, "hello\n");
    assert!(ended.err.contains("\n@["), "{}", ended.err);
}

#[test]
fn input_and_environment_reach_the_command() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lancet"));
    command
        .args([
            "count",
            "libc:*",
            "-q",
            "-o",
            "/dev/null",
            "-c",
            "sh -c 'cat; env'",
        ])
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("MARK", "seen")
        .stdin(Stdio::piped());
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("lancet runs");
    use std::io::Write;
    child
        .stdin
        .take()
        .expect("it is piped")
        .write_all(b"from me\n")
        .expect("written");
    let out = child.wait_with_output().expect("it ends");
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(text.starts_with("from me\n"), "{text}");
    assert!(text.contains("MARK=seen"), "{text}");
    assert!(!text.contains("LD_PRELOAD"), "{text}");
}

#[test]
fn scripts_with_an_interpreter_line_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("script");
    std::fs::write(&path, "#!/bin/sh\necho from a script\n").expect("written");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&path, mode).expect("executable");
    let ended = run(&[
        "count",
        "libc:*",
        "-q",
        "-c",
        path.to_str().expect("a path"),
    ]);
    assert_eq!(ended.out, "from a script\n", "{}", ended.err);
    assert!(ended.status.success());
    assert!(ended.err.contains("@["), "{}", ended.err);
}

#[test]
fn a_report_goes_to_a_file() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let path = file.path().to_str().expect("a path");
    let ended = run(&["count", "libc:*", "-o", path, "-c", "ls /"]);
    let text = std::fs::read_to_string(path).expect("the report");
    assert!(text.contains("@[malloc]: "), "{text}");
    assert!(!ended.err.contains("@["), "{}", ended.err);
}

#[test]
fn json_is_one_object_a_line() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let path = file.path().to_str().expect("a path");
    for verb in [
        vec!["count", "libc:*"],
        vec!["hist", "libc:malloc", "arg0"],
        vec!["sum", "libc:malloc", "arg0"],
        vec!["count", "libc:malloc", "--by", "tid"],
    ] {
        let mut words = verb.clone();
        words.extend(["--json", "-o", path, "-c", "ls -l /"]);
        let ended = run(&words);
        assert!(ended.status.success(), "{}", ended.err);
        let text = std::fs::read_to_string(path).expect("the report");
        let types: Vec<String> = text
            .lines()
            .map(|line| {
                let object: serde_json::Value =
                    serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"));
                object["type"].as_str().expect("a type").to_owned()
            })
            .collect();
        assert_eq!(types[0], "attached_probes", "{text}");
        let kind = if verb[0] == "hist" { "hist" } else { "map" };
        assert!(types.iter().any(|t| t == kind), "{text}");
    }
}

#[test]
fn quiet_means_only_the_report() {
    let ended = run(&["count", "libc:malloc", "-q", "-c", "ls /"]);
    let notes: Vec<&str> = ended
        .err
        .lines()
        .filter(|l| !l.is_empty() && !l.starts_with("@["))
        .collect();
    assert!(notes.is_empty(), "{notes:?}");
}

#[test]
fn interrupt_ends_in_a_report_and_status_0() {
    let running = Running::start("runner", &["1"]);
    let function = probe(&target("runner"), "runner_function");
    let words = ["count", &function, "-p", &running.pid().to_string()];
    for name in ["INT", "TERM", "HUP", "QUIT"] {
        let session = Lancet::start(&words);
        support::signal(session.pid(), name);
        let ended = session.end();
        assert_eq!(ended.status.code(), Some(0), "SIG{name}: {}", ended.err);
        assert!(ended.row("runner_function") > 0, "SIG{name}: {}", ended.out);
    }
    let _ = running.finish_ok();
}

#[test]
fn the_end_of_the_process_ends_the_session() {
    let mut running = Running::start("sleeper", &["1"]);
    let function = probe(&target("sleeper"), "sleeper_function");
    let session = Lancet::start(&["count", &function, "-p", &running.pid().to_string()]);
    running.ask("call 50");
    let _ = running.finish_ok();
    let ended = session.end();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.err);
    assert!(ended.row("sleeper_function") >= 50, "{}", ended.out);
}

#[test]
fn several_processes_count_together() {
    let one = Running::start("sleeper", &["2"]);
    let two = Running::start("sleeper", &["2"]);
    let function = probe(&target("sleeper"), "sleeper_function");
    let session = Lancet::start(&[
        "count",
        &function,
        "-p",
        &one.pid().to_string(),
        "-p",
        &two.pid().to_string(),
    ]);
    let (mut one, mut two) = (one, two);
    let before = (calls(&one.ask("call 0")), calls(&two.ask("call 0")));
    let after = (calls(&one.ask("call 100")), calls(&two.ask("call 23")));
    let ended = session.stop();
    let truth = after.0 + after.1 - before.0 - before.1;
    assert_eq!(ended.row("sleeper_function"), truth, "{}", ended.err);
}

fn calls(answer: &str) -> u64 {
    answer
        .split(' ')
        .nth(1)
        .and_then(|n| n.parse().ok())
        .unwrap_or_else(|| panic!("{answer:?}"))
}

#[test]
fn without_pid_and_command_all_who_map_the_file_are_probed() {
    let (folder, file) = support::private_copy("sleeper");
    let mut targets: Vec<Running> = (0..3)
        .map(|_| Running::spawn(&file, &["1"]).unwrap_or_else(|e| panic!("{e}")))
        .collect();
    let function = probe(&file, "sleeper_function");
    let session = Lancet::start(&["count", &function]);
    let truth: u64 = targets
        .iter_mut()
        .map(|t| {
            let before = calls(&t.ask("call 0"));
            calls(&t.ask("call 10")) - before
        })
        .sum();
    let ended = session.stop();
    assert_eq!(ended.row("sleeper_function"), truth, "{}", ended.err);
    assert!(ended.err.contains("3 processes map it"), "{}", ended.err);
    drop(folder);
}

#[test]
fn duration_ends_a_session_and_intervals_print_what_is_new() {
    let running = Running::start("runner", &["1"]);
    let function = probe(&target("runner"), "runner_function");
    let pid = running.pid().to_string();
    let ended = run(&[
        "count",
        &function,
        "-p",
        &pid,
        "--interval",
        "0.05",
        "--duration",
        "2",
    ]);
    assert!(ended.status.success());
    let reports = ended.out.matches("@[runner_function]: ").count();
    assert!(reports >= 3, "{}", ended.out);
}

#[test]
fn list_shows_what_a_pattern_matches() {
    let ended = run(&["list", "libc:str*"]);
    assert!(
        ended.out.lines().any(|l| l.ends_with(":strdup")),
        "{}",
        ended.out
    );
    assert!(
        ended.out.lines().all(|l| l.contains(":str")),
        "{}",
        ended.out
    );
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    if !have("head") {
        println!("skipped: no head");
        return;
    }
    let script = format!("{} list 'libc:*' | head -n 1", env!("CARGO_BIN_EXE_lancet"));
    let out = Command::new("bash")
        .args(["-o", "pipefail", "-c", &script])
        .output()
        .expect("bash runs");
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
}

#[test]
fn status_names_a_probed_process() {
    let running = Running::start("runner", &["1"]);
    let function = probe(&target("runner"), "runner_function");
    let session = Lancet::start(&["count", &function, "-p", &running.pid().to_string()]);
    let row = |text: &str| {
        text.lines()
            .find(|l| l.split_whitespace().next() == Some(&running.pid().to_string()))
            .map(str::to_owned)
    };
    let during = run(&["status"]).out;
    assert!(
        row(&during).is_some_and(|l| l.contains("probed")),
        "{during}"
    );
    session.stop();
    let after = run(&["status"]).out;
    assert!(row(&after).is_some_and(|l| l.contains("inert")), "{after}");
}

#[test]
fn the_kernel_tells_of_the_same_counts() {
    if !is_root() || !have("bpftrace") {
        println!("skipped: not root, or no bpftrace");
        return;
    }
    let (_folder, file) = support::private_copy("calls");
    let mut running = Running::spawn(&file, &["2", "5000"]).unwrap_or_else(|e| panic!("{e}"));
    let theirs = lancet_testkit::bpftrace_count(running.pid(), &file, "f", || {
        running.ask("go");
    });
    let mut again = Running::spawn(&file, &["2", "5000"]).unwrap_or_else(|e| panic!("{e}"));
    let session = Lancet::start(&["count", &probe(&file, "f"), "-p", &again.pid().to_string()]);
    again.ask("go");
    let ended = session.stop();
    assert_eq!(Some(ended.row("f")), theirs, "{}", ended.err);
}

//! Moved instructions do what they did in place.
//!
//! Each test is named after its row in the list of cases. The targets check registers and results
//! of each call themselves and tell how often each function was executed.

#[path = "support/mod.rs"]
mod support;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use lancet_testkit::{Bpftrace, Running, bpftrace_count, have, skip, target, text_equals_file};
use support::{Lancet, counting, eventually, lancet, private_copy, probe, start, told};

fn probes(file: &Path, sites: &[&str]) -> Vec<String> {
    sites.iter().map(|site| probe(file, site)).collect()
}

/// Runs `lancet count` on a target that it starts itself, which obeys `orders`.
fn count_command(file: &Path, sites: &[&str], orders: &str) -> support::Ended {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lancet"));
    command
        .args(["count", "-v"])
        .args(probes(file, sites))
        .args(["-c".as_ref(), file.as_os_str()]);
    let (reader, mut writer) = std::io::pipe().expect("a pipe");
    command.stdin(reader);
    let started = Lancet::with_input(command);
    writer
        .write_all(orders.as_bytes())
        .expect("the pipe has room");
    drop(writer);
    started.end()
}

/// Counts sites of a target that runs, with calls before, between and after; what was counted
/// must be `due` of what the target tells it did between. Then the same on a command.
fn exact(name: &str, sites: &[&str], due: impl Fn(&str, &dyn Fn(&str) -> u64) -> u64) {
    let file = target(name);
    let mut running = Running::start(name, &[]);
    running.ask("go 3");
    let before = running.ask("go 7");
    let session = counting(&running, &probes(&file, sites));
    let during = running.ask("go 50");
    let ended = session.stop();
    assert!(!ended.err.contains("refused"), "{}", ended.err);
    running.ask("go 20");
    text_equals_file(running.pid(), name).unwrap();
    let between = |function: &str| told(&during, function) - told(&before, function);
    for site in sites {
        let is = ended.row(site);
        assert_eq!(is, due(site, &between), "{site} of -p: {ended:?}");
        assert!(is > 0, "{site} was never executed");
    }
    let _ = running.finish_ok();

    let ended = count_command(&file, sites, "go 40\ngo 10\n");
    assert!(ended.status.success(), "{ended:?}");
    assert!(ended.out.contains("\nok "), "{ended:?}");
    let told_last = ended.out.lines().rfind(|line| line.starts_with("counts "));
    let all = |function: &str| told(told_last.expect("an answer"), function);
    for site in sites {
        assert_eq!(ended.row(site), due(site, &all), "{site} of -c: {ended:?}");
    }
}

/// As [`exact`], for entries of functions of `reloc`.
fn exact_entries(sites: &[&str]) {
    exact("reloc", sites, |site, executed| executed(site));
}

/// Each site is refused for this reason, by its name; the target does its work.
fn refused(name: &str, sites: &[&str], reason: &str) {
    let file = target(name);
    let mut running = Running::start(name, &[]);
    let pid = running.pid().to_string();
    for site in sites {
        let ended = lancet(&["count", "-v", &probe(&file, site), "-p", &pid]);
        assert_eq!(ended.status.code(), Some(1), "{ended:?}");
        assert!(
            ended.err.contains(&format!("refused {site}: ")),
            "{ended:?}"
        );
        assert!(ended.err.contains(reason), "{ended:?}");
    }
    running.ask("go 20");
    text_equals_file(running.pid(), name).unwrap();
    let _ = running.finish_ok();
}

#[test]
fn b001_calls_jumps_and_pushes_through_a_slot() {
    exact_entries(&["b001_call"]);
    exact_entries(&["b001_jmp", "b001_push"]);
}

#[test]
fn b003_short_functions_are_refused_by_name_and_neighbours_work() {
    refused(
        "short",
        &["b003_rep_ret", "b003_ret", "b003_zero"],
        "where something else begins: a jump needs 5",
    );
    exact("short", &["b003_neighbour"], |site, calls| calls(site));
}

#[test]
fn b003_short_functions_with_padding_behind_work() {
    let padded = ["b003_rep_ret_padded", "b003_ret_padded", "b003_zero_padded"];
    exact("short", &padded, |site, calls| calls(site));
}

#[test]
fn b003_neighbours_are_called_by_other_threads_all_the_time() {
    let file = target("hammer");
    let mut running = Running::start("hammer", &["3"]);
    let short = ["hammer_rep_ret", "hammer_ret", "hammer_zero"];
    for _ in 0..support::rounds(20) {
        let session = counting(&running, &[probe(&file, "hammer_*")]);
        // Its threads may have no CPU for a while.
        let first = running.ask("calls");
        eventually("it calls", || running.ask("calls") != first);
        let ended = session.stop();
        for name in short {
            assert!(
                ended.err.contains(&format!("refused {name}: only ")),
                "{ended:?}"
            );
        }
        assert!(ended.row("hammer_target") > 0, "{ended:?}");
    }
    text_equals_file(running.pid(), "hammer").unwrap();
    let _ = running.finish_ok();
}

#[test]
fn b004_instructions_inside_a_function() {
    // One of the three inputs is not below or equal.
    exact(
        "reloc",
        &["b004+0x6", "b004+0x14"],
        |site, executed| match site {
            "b004+0x6" => executed("b004"),
            _ => executed("b004") / 3 * 2,
        },
    );
    exact("reloc", &["b004+0x8"], |_, executed| executed("b004") / 3);
    exact("reloc", &["b004+0xf"], |_, executed| {
        executed("b004") / 3 * 2
    });
    exact("reloc", &["b004+0x15"], |_, executed| {
        executed("b004") / 3 * 2
    });
}

#[test]
fn b004_a_ret_before_a_branch_target_is_refused_by_name() {
    refused("reloc", &["b004+0xd", "b004+0xe"], "b004");
}

#[test]
fn b005_a_jump_to_the_next_instruction() {
    exact_entries(&["b005"]);
}

#[test]
fn b006_branches_into_their_own_window() {
    exact_entries(&["b006"]);
    exact_entries(&["b006_je", "b006_je_far"]);
}

#[test]
fn b007_a_window_that_ends_on_a_ret_behind_endbr64() {
    exact_entries(&["b007"]);
    exact("reloc", &["b007+0x4"], |_, executed| executed("b007"));
}

#[test]
fn b008_a_function_that_jumps_back_to_its_start() {
    exact_entries(&["b008"]);
    if let Some(why) = Bpftrace::missing() {
        skip!("{why}");
    }
    let (_folder, file) = private_copy("reloc");
    let mut running = start(&file);
    let by_kernel = bpftrace_count(running.pid(), &file, "b008", || {
        running.ask("go 50");
    });
    let session = counting(&running, &[probe(&file, "b008")]);
    running.ask("go 50");
    assert_eq!(by_kernel, Some(session.stop().row("b008")));
    let _ = running.finish_ok();
}

#[test]
fn b009_a_branch_from_elsewhere_into_the_window_is_found() {
    refused("reloc", &["b009_b"], "control may enter at");
    exact_entries(&["b009_a"]);
}

#[test]
fn b013_a_probe_on_a_thunk_counts_only_its_callers() {
    exact_entries(&["b013_a"]);
    exact_entries(&["b013_b"]);
    exact_entries(&["b013_a", "b013_b", "b013_c"]);
}

#[test]
fn b017_a_kernel_uprobe_over_our_jump() {
    if let Some(why) = Bpftrace::missing() {
        skip!("{why}");
    }
    // The first instruction has five bytes: the kernel goes on behind the jump that it covers.
    let (_folder, file) = private_copy("reloc");
    let mut running = start(&file);
    let session = counting(&running, &[probe(&file, "b021")]);
    running.ask("go 10");
    let kernel = Bpftrace::start(running.pid(), &file, "b021", "@ = count();");
    running.ask("go 20");
    // Ours goes first: what stays is the file's text under the kernel's trap.
    let ended = session.stop();
    assert!(ended.row("b021") >= 10, "{ended:?}");
    running.ask("go 30");
    let by_kernel = kernel.stop_count();
    assert!((30..=50).contains(&by_kernel), "{by_kernel}");
    running.ask("go 40");
    text_equals_file(running.pid(), "reloc").unwrap();
    let _ = running.finish_ok();
}

#[test]
fn b018_a_kernel_uprobe_on_the_site_is_seen_and_refused() {
    if let Some(why) = Bpftrace::missing() {
        skip!("{why}");
    }
    let (_folder, file) = private_copy("reloc");
    let mut running = start(&file);
    let kernel = Bpftrace::start(running.pid(), &file, "b005", "@ = count();");
    let before = running.ask("go 10");
    let session = counting(&running, &probes(&file, &["b005", "b007"]));
    let during = running.ask("go 20");
    let ended = session.stop();
    assert!(
        ended.err.contains("refused b005: the bytes at "),
        "{ended:?}"
    );
    assert_eq!(ended.row("b005"), 0, "{ended:?}");
    assert_eq!(
        ended.row("b007"),
        told(&during, "b007") - told(&before, "b007")
    );
    let after = running.ask("go 20");
    assert_eq!(
        kernel.stop_count(),
        told(&after, "b005"),
        "the kernel's count"
    );
    text_equals_file(running.pid(), "reloc").unwrap();
    let _ = running.finish_ok();
}

#[test]
fn b019_a_trap_byte_of_the_file_is_refused_by_name() {
    refused(
        "short",
        &["b019_trap"],
        "holds a trap byte (int3) in the file",
    );
}

#[test]
fn b020_xbegin_jrcxz_and_loop() {
    exact_entries(&["b020_jrcxz"]);
    exact_entries(&["b020_loop"]);
    exact_entries(&["b020_loop_once"]);
    // Processors without transactions have no call of it to count.
    let file = target("reloc");
    let mut running = Running::start("reloc", &[]);
    let session = counting(&running, &[probe(&file, "b020_xbegin")]);
    let answer = running.ask("go 50");
    assert_eq!(
        session.stop().row("b020_xbegin"),
        told(&answer, "b020_xbegin")
    );
    text_equals_file(running.pid(), "reloc").unwrap();
    let _ = running.finish_ok();
}

#[test]
fn b021_system_calls() {
    exact_entries(&["b021"]);
    let wrappers = [
        "b021_getpid",
        "b021_read",
        "b021_fork",
        "b021_clone",
        "b021_execve",
    ];
    exact("syscalls", &wrappers, |site, calls| calls(site));
    exact("syscalls", &["b021_five"], |site, calls| calls(site));
    // The probe on the move in front of the system call: behind one byte that is popped.
    exact("syscalls", &["b021_vfork+0x1"], |_, calls| {
        calls("b021_vfork")
    });
}

#[test]
fn b021_a_system_call_with_something_behind_it_is_refused_by_name() {
    refused(
        "syscalls",
        &["b021_getpid+0x5"],
        "probe the instruction in front",
    );
}

#[test]
fn b023_a_moved_call_leaves_the_original_return_address() {
    exact_entries(&["b023"]);
    let file: PathBuf = target("unwinder");
    let mut running = Running::start("unwinder", &[]);
    let session = counting(&running, &[probe(&file, "unwinder_first")]);
    running.ask("go 20");
    let stayed = running.ask("stay");
    if have("gdb") {
        let pid = running.pid().to_string();
        let gdb = Command::new("gdb")
            .args(["-nx", "-batch", "-p", &pid, "-ex", "bt"])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&gdb.stdout);
        let frame = |name: &str| text.lines().position(|line| line.contains(name));
        let frames = [
            frame("unwinder_inner"),
            frame("unwinder_first"),
            frame(" main "),
        ];
        assert!(
            frames.iter().all(Option::is_some) && frames.is_sorted(),
            "{text}"
        );
    } else {
        eprintln!("skipped: no gdb");
    }
    running.ask("leave");
    assert_eq!(stayed, "staying 21");
    assert_eq!(session.stop().row("unwinder_first"), 21);
    text_equals_file(running.pid(), "unwinder").unwrap();
    let _ = running.finish_ok();
}

#[test]
fn b024_a_call_to_the_next_instruction() {
    exact_entries(&["b024"]);
}

#[test]
fn b027_unknown_instructions_are_refused_by_name() {
    refused(
        "short",
        &["b027_rex2", "b027_none"],
        "its length can't be told",
    );
}

#[test]
fn b027_newer_known_instructions_work() {
    let file = target("short");
    let mut running = Running::start("short", &[]);
    let session = counting(&running, &[probe(&file, "b027_mulx")]);
    let answer = running.ask("go 50");
    assert_eq!(session.stop().row("b027_mulx"), told(&answer, "b027_mulx"));
    let _ = running.finish_ok();
}

#[test]
fn b028_one_function_that_can_not_be_probed_does_not_stop_3499_others() {
    let file = target("many");
    let mut running = Running::start("many", &[]);
    let session = counting(&running, &[probe(&file, "many_*")]);
    running.ask("go 3");
    let ended = session.stop();
    let rows = ended.rows();
    for number in 0..3500 {
        let name = format!("many_{number}");
        let refusal = format!("refused {name}: only ");
        if number % 7 == 0 {
            assert!(ended.err.contains(&refusal), "{name} is not refused");
        } else {
            assert_eq!(rows.get(&name), Some(&3), "{name}");
        }
    }
    assert!(
        ended.err.contains("500 of 3500 functions refused"),
        "{}",
        ended.err
    );
    text_equals_file(running.pid(), "many").unwrap();
    let _ = running.finish_ok();
}

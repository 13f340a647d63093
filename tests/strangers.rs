//! Others who trace, watch or write where lancet has its probes: kernel uprobes, debuggers,
//! hardware watchpoints.

#[path = "support/mod.rs"]
mod support;

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;

use lancet_testkit::{Bpftrace, Running, skip, target, text_equals_file};
use support::{Lancet, address, counting, private_copy, probe};

/// A function whose first instruction is shorter than our jump, in a target that calls it only
/// when it is told to.
const FUNCTION: &str = "sleeper_function";

fn sleeper(file: &Path) -> Running {
    Running::spawn(file, &["1"]).unwrap_or_else(|error| panic!("{error}"))
}

/// The target's memory, which its parent may write.
fn memory(running: &Running) -> std::fs::File {
    OpenOptions::new()
        .read(true)
        .write(true)
        .open(format!("/proc/{}/mem", running.pid()))
        .unwrap()
}

/// Waits until lancet says that it has lost the probe for this reason.
fn lost(session: &mut Lancet, running: &Running, why: &str) {
    let start = format!("lancet: process {}: {FUNCTION} at 0x", running.pid());
    assert!(session.says(&start), "never said");
    let line = session.last_told();
    assert!(line.contains(why), "{line}");
    assert!(line.ends_with("the probe was taken out and counts no more"));
}

#[test]
fn b017_a_kernel_uprobe_over_a_short_first_instruction_is_given_the_place() {
    if let Some(why) = Bpftrace::missing() {
        skip!("{why}");
    }
    let (_folder, file) = private_copy("sleeper");
    let mut running = sleeper(&file);
    let mut session = counting(&running, &[probe(&file, FUNCTION)]);
    running.ask("call 10");
    let kernel = Bpftrace::start(running.pid(), &file, FUNCTION, "@ = count();");
    lost(&mut session, &running, "such as a kernel uprobe");
    // The kernel steps over the first instruction and goes on inside what was our jump.
    running.ask("call 20");
    assert_eq!(kernel.stop_count(), 20);
    running.ask("call 30");
    text_equals_file(running.pid(), "sleeper").unwrap();
    let ended = session.stop();
    assert_eq!(ended.row(FUNCTION), 10, "{ended:?}");
    running.ask("call 40");
    text_equals_file(running.pid(), "sleeper").unwrap();
    let _ = running.finish_ok();
}

/// What the kernel leaves when its uprobe goes before ours: the file's first byte, our displacement.
#[test]
fn b017_a_kernel_uprobe_that_came_and_went() {
    let file = target("sleeper");
    let mut running = sleeper(&file);
    let (at, memory) = (address(&running, &file, FUNCTION), memory(&running));
    let mut first = [0];
    memory.read_exact_at(&mut first, at).unwrap();
    let mut session = counting(&running, &[probe(&file, FUNCTION)]);
    running.ask("call 10");
    memory.write_all_at(&first, at).unwrap();
    lost(&mut session, &running, "took it away");
    text_equals_file(running.pid(), "sleeper").unwrap();
    running.ask("call 20");
    assert_eq!(session.stop().row(FUNCTION), 10);
    let _ = running.finish_ok();
}

#[test]
fn a_probe_that_somebody_else_takes_out_is_reported() {
    let file = target("sleeper");
    let mut running = sleeper(&file);
    let (at, memory) = (address(&running, &file, FUNCTION), memory(&running));
    let mut file_bytes = [0; 5];
    memory.read_exact_at(&mut file_bytes, at).unwrap();
    let mut session = counting(&running, &[probe(&file, FUNCTION)]);
    running.ask("call 10");
    memory.write_all_at(&file_bytes, at).unwrap();
    lost(&mut session, &running, "wrote the file's bytes back");
    running.ask("call 20");
    let ended = session.stop();
    assert_eq!(ended.row(FUNCTION), 10);
    assert!(!ended.err.contains("left as it is"), "{ended:?}");
    text_equals_file(running.pid(), "sleeper").unwrap();
    let _ = running.finish_ok();
}

#[test]
fn bytes_of_somebody_else_stay_and_are_reported() {
    let file = target("sleeper");
    let mut running = sleeper(&file);
    let (at, memory) = (address(&running, &file, FUNCTION), memory(&running));
    let mut file_bytes = [0; 5];
    memory.read_exact_at(&mut file_bytes, at).unwrap();
    let mut session = counting(&running, &[probe(&file, FUNCTION)]);
    running.ask("call 10");
    // Another patcher's jump, to nowhere: the function is not called meanwhile.
    let theirs = [0xe9, 0x11, 0x22, 0x33, 0x44];
    memory.write_all_at(&theirs, at).unwrap();
    lost(&mut session, &running, "other bytes there, which stay");
    let ended = session.stop();
    assert!(ended.err.contains("left as it is"), "{ended:?}");
    let mut now = [0; 5];
    memory.read_exact_at(&mut now, at).unwrap();
    assert_eq!(now, theirs);
    memory.write_all_at(&file_bytes, at).unwrap();
    running.ask("call 20");
    text_equals_file(running.pid(), "sleeper").unwrap();
    let _ = running.finish_ok();
}

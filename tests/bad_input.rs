//! Bad input gets a clear error, and no target is touched.
//!
//! Clear: status 1 (2 where the words themselves are wrong), one sentence that names the file,
//! probe or process and says what to do. Untouched: the target's text and mappings are as before,
//! nobody traces it, and a command is not left behind.

#[path = "support/mod.rs"]
mod support;
#[path = "support/witness.rs"]
mod witness;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use lancet_testkit::{Running, have, is_root, skip, target, text_equals_file, try_target};
use support::{Lancet, eventually, lancet, probe, signal};
use witness::{Witness, complains, maps};

/// A folder with files that are no programs.
struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn put(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    }
}

#[test]
fn files_that_are_no_programs() {
    let files = Files::new();
    let witness = Witness::new();
    let whole = fs::read(target("sleeper")).unwrap();
    let mut small = b"\x7fELF\x01\x01\x01".to_vec();
    small.resize(200, 0);
    small[18] = 3;
    let folder = files.0.path().join("folder");
    fs::create_dir(&folder).unwrap();
    let fifo = files.0.path().join("fifo");
    assert!(
        Command::new("mkfifo")
            .arg(&fifo)
            .status()
            .unwrap()
            .success()
    );
    let dangling = files.0.path().join("dangling");
    symlink("nowhere", &dangling).unwrap();
    let cases: Vec<(PathBuf, &str)> = vec![
        (
            files.put("text", b"hello\n"),
            "is not an ELF file; name a program",
        ),
        (files.put("empty", b""), "is empty"),
        (
            files.put("header", &whole[..30]),
            "is truncated: the ELF header",
        ),
        (files.put("table", &whole[..100]), "is truncated"),
        (files.put("half", &whole[..whole.len() / 3]), "is truncated"),
        (
            files.put("small", &small),
            "is built for 32-bit x86; only 64-bit",
        ),
        (folder, "is a directory"),
        (fifo, "is a FIFO"),
        (PathBuf::from("/dev/zero"), "is a device"),
        (files.0.path().join("missing"), "cannot "),
        (dangling, "cannot "),
    ];
    for (file, says) in cases {
        let name = file.display().to_string();
        let what = probe(&file, "main");
        witness.refuses(&["count", &what], 1, &[&name, says]);
        let listed = lancet(&["list", &what]);
        complains(&listed, 1, &[&name, says]);
    }
    witness.finish();
}

#[test]
fn names_that_are_not_there() {
    let witness = Witness::new();
    let file = target("sleeper");
    let of = |what: &str| probe(&file, what);
    let name = file.display().to_string();
    let near = "did you mean `sleeper_function`?";
    witness.refuses(&["count", &of("sleeper_functio")], 1, &[&name, near]);
    witness.refuses(
        &["count", &of("zzz")],
        1,
        &["no function `zzz` in ", "FILE:*part*"],
    );
    witness.refuses(&["count", &of("zz*")], 1, &["zz*", &name]);
    witness.refuses(&["count", "libnone:f"], 1, &["`libnone`", "searched"]);
    witness.refuses(&["count", "none:f"], 1, &["`none`", "searched"]);
    // One bad name among good ones: nothing is attached.
    let good = of("sleeper_function");
    witness.refuses(&["count", &good, &of("zzz")], 1, &["`zzz`"]);
    let other = target("runner");
    let says = ["maps none of the probed files", "/maps"];
    witness.refuses(&["count", &probe(&other, "runner_function")], 1, &says);
    witness.finish();
}

#[test]
fn places_that_are_no_instructions() {
    let witness = Witness::new();
    let file = target("sleeper");
    let of = |what: &str| probe(&file, what);
    let not_a_start = "is not the start of an instruction; instructions start at";
    witness.refuses(&["count", &of("sleeper_function+1")], 1, &[not_a_start]);
    witness.refuses(
        &["count", &of("sleeper_function+0x1000")],
        1,
        &["lies outside"],
    );
    witness.refuses(&["count", &of("0x12")], 1, &["is not in executable code"]);
    witness.refuses(
        &["count", &of("0xffffffffffffffff")],
        1,
        &["is not in executable code"],
    );
    for wrong in ["0x", "", "0xzz"] {
        let says = ["cannot read the probe", "FILE:FUNCTION+OFFSET"];
        witness.refuses(&["count", &of(wrong)], 1, &says);
    }
    for wrong in ["", "no-colon", ":f"] {
        witness.refuses(
            &["count", wrong],
            1,
            &["cannot read the probe", "FILE:FUNCTION"],
        );
    }
    witness.refuses(
        &["count", &of("sleeper_function+zz")],
        1,
        &["sleeper_function+zz"],
    );
    witness.finish();
}

#[test]
fn values_and_keys_that_are_none() {
    let witness = Witness::new();
    let what = probe(&target("sleeper"), "sleeper_function");
    witness.refuses(
        &["hist", &what, "arg16"],
        1,
        &["'arg16' is no argument", "arg15"],
    );
    witness.refuses(
        &["hist", &what, "foo"],
        1,
        &["'foo' is no value", "reg(ax)"],
    );
    witness.refuses(&["sum", &what, "reg(xx)"], 1, &["'reg(xx)' is no value"]);
    witness.refuses(
        &["count", &what, "--by", "foo"],
        1,
        &["'foo' is no key", "tid"],
    );
    witness.refuses(&["count", &what, "--by", ""], 1, &["is no key"]);
    witness.refuses(
        &["count", &what, "--by", "tid,arg0"],
        1,
        &["one key beside func"],
    );
    witness.refuses(
        &["count", &what, "--by", "tid,tid"],
        1,
        &["one key beside func"],
    );
    witness.refuses(&["hist", &what], 2, &["<VALUE>"]);
    for number in ["0", "1", "-1", "99999999999", "many"] {
        let option = format!("--max-keys={number}");
        witness.refuses(&["count", &what, &option], 2, &["--max-keys"]);
    }
    for number in ["0", "-1", "nan", "inf", "soon"] {
        let option = format!("--duration={number}");
        witness.refuses(&["count", &what, &option], 2, &["--duration"]);
        let option = format!("--interval={number}");
        witness.refuses(&["count", &what, &option], 2, &["--interval"]);
    }
    witness.refuses(&["count", &what, "-c", "true"], 2, &["--pid", "--command"]);
    witness.refuses(&["count"], 2, &["<PROBE>"]);
    witness.refuses(&["cuont", &what], 2, &["count"]);
    witness.finish();
}

#[test]
fn commands_that_can_not_be_run() {
    let files = Files::new();
    let what = probe(&target("sleeper"), "sleeper_function");
    let plain = files.put("plain", b"no program\n").display().to_string();
    let refuses = |command: &str, says: &[&str]| {
        complains(&lancet(&["count", &what, "-c", command]), 1, says);
    };
    refuses("echo 'x", &["never closes it"]);
    refuses("echo \\", &["backslash"]);
    refuses("", &["the command of -c is empty"]);
    refuses("  ", &["the command of -c is empty"]);
    refuses("''", &["cannot run"]);
    refuses(
        "/no/such/program x",
        &["cannot run /no/such/program", "No such file"],
    );
    refuses("no-such-program x", &["cannot run no-such-program", "PATH"]);
    refuses(&plain, &["cannot run ", &plain, "ermission denied"]);
    refuses(&files.0.path().display().to_string(), &["cannot run "]);
    let executable = fs::Permissions::from_mode(0o755);
    fs::set_permissions(&plain, executable).unwrap();
    refuses(&plain, &["cannot run ", &plain]);
}

/// The processes that run a program.
fn running(program: &Path) -> Vec<PathBuf> {
    fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|folder| fs::read_link(folder.join("exe")).is_ok_and(|exe| exe == program))
        .collect()
}

#[test]
fn reports_that_can_not_be_written() {
    let (_folder, file) = support::private_copy("sleeper");
    let witness = Witness::new();
    let what = probe(&target("sleeper"), "sleeper_function");
    let report = "cannot write the report to ";
    for place in ["/no/such/folder/report", "/"] {
        let says = [report, place];
        witness.refuses(&["count", &what, "-o", place], 1, &says);
        // A command that waits for its input is not left behind.
        let ended = lancet(&[
            "count",
            &probe(&file, "sleeper_function"),
            "-o",
            place,
            "-c",
            &file.display().to_string(),
        ]);
        complains(&ended, 1, &says);
        eventually("the command has ended", || running(&file).is_empty());
    }
    if !Path::new("/dev/full").exists() {
        skip!("no /dev/full");
    }
    // This one is noticed only at the first report: after that everything is taken out.
    let mut running = Running::start("sleeper", &["1"]);
    let pid = running.pid().to_string();
    let words = ["count", &what, "-o", "/dev/full", "-p", &pid];
    let mut session = Lancet::spawn(&words);
    assert!(session.says("Attached "), "{:?}", session.end());
    running.ask("call 3");
    signal(session.pid(), "INT");
    complains(&session.end(), 1, &[report, "/dev/full", "No space left"]);
    text_equals_file(running.pid(), "").unwrap();
    let mut session = Lancet::spawn(&[&words[..], &["--interval", "0.01"]].concat());
    assert!(session.says("Attached "), "{:?}", session.end());
    running.ask("call 3");
    complains(&session.end(), 1, &[report, "/dev/full", "No space left"]);
    text_equals_file(running.pid(), "").unwrap();
    let _ = running.finish_ok();
    witness.finish();
}

#[test]
fn processes_that_are_none() {
    let what = probe(&target("sleeper"), "sleeper_function");
    let refuses = |pid: &str, status: i32, says: &[&str]| {
        complains(&lancet(&["count", &what, "-p", pid]), status, says);
    };
    // Beyond what the kernel gives out.
    refuses("4194305", 1, &["process 4194305 does not exist"]);
    refuses("0", 1, &["process 0 does not exist"]);
    refuses("x", 2, &["--pid"]);
    refuses("99999999999", 2, &["--pid"]);
    let mut child = Command::new("true").stdin(Stdio::null()).spawn().unwrap();
    let pid = child.id().to_string();
    eventually("it is a zombie", || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.contains(") Z ")
    });
    refuses(&pid, 1, &[&format!("process {pid} "), "zombie"]);
    child.wait().unwrap();
    refuses(&pid, 1, &[&format!("process {pid} does not exist")]);
}

#[test]
fn kernel_threads() {
    if fs::read_to_string("/proc/2/comm").ok().as_deref() != Some("kthreadd\n") {
        skip!("no kernel thread is seen here");
    }
    let what = probe(&target("sleeper"), "sleeper_function");
    let says = if is_root() {
        "it is a kernel thread"
    } else {
        "process 2"
    };
    complains(
        &lancet(&["count", &what, "-p", "2"]),
        1,
        &["process 2", says],
    );
}

#[test]
fn processes_of_another_kind() {
    let program = match try_target("small32") {
        Ok(program) => program,
        Err(error) => skip!("no 32-bit compiler: {error}"),
    };
    let what = probe(&target("sleeper"), "sleeper_function");
    let mut running = Running::spawn::<&str>(&program, &[]).unwrap();
    let pid = running.pid();
    let before = maps(pid);
    let says = ["it is a 32-bit program; only 64-bit"];
    complains(&lancet(&["count", &what, "-p", &pid.to_string()]), 1, &says);
    assert_eq!(maps(pid), before);
    assert!(running.line_within(std::time::Duration::ZERO).is_err());
    let own = probe(&program, "_start");
    complains(
        &lancet(&["count", &own, "-p", &pid.to_string()]),
        1,
        &["32-bit"],
    );
    drop(running);
    let command = program.display().to_string();
    let ended = lancet(&["count", "libc:malloc", "-c", &command]);
    complains(&ended, 1, &says);
    let left = self::running(&program);
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_process_under_seccomp() {
    let file = target("filtered");
    let mut running = Running::start("filtered", &[]);
    let pid = running.pid();
    let before = maps(pid);
    let what = probe(&file, "filtered_function");
    let ended = lancet(&["count", &what, "-p", &pid.to_string()]);
    complains(
        &ended,
        1,
        &[&format!("process {pid} (filtered)"), "seccomp"],
    );
    assert_eq!(maps(pid), before);
    text_equals_file(pid, "").unwrap();
    running.ask("call 5");
    let _ = running.finish_ok();
}

#[test]
fn without_the_right_to_it() {
    if !is_root() {
        skip!("not root");
    }
    if !have("setpriv") {
        skip!("no setpriv");
    }
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let binary = folder.path().join("lancet");
    fs::copy(env!("CARGO_BIN_EXE_lancet"), &binary).unwrap();
    let file = folder.path().join("sleeper");
    fs::copy(target("sleeper"), &file).unwrap();
    let nobody = |words: &[&str]| {
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(&binary)
            .args(words);
        Lancet::of(command).end()
    };
    let mut running = Running::spawn(&file, &["1"]).unwrap();
    let pid = running.pid();
    let before = maps(pid);
    let what = probe(&file, "sleeper_function");
    let ended = nobody(&["count", &what, "-p", &pid.to_string()]);
    let message = format!("not permitted to trace process {pid}");
    complains(&ended, 1, &[&message, "run as its user or as root"]);
    // A file that may not be read.
    let secret = folder.path().join("secret");
    fs::copy(&file, &secret).unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o700)).unwrap();
    let ended = nobody(&["count", &probe(&secret, "sleeper_function"), "-c", "true"]);
    let name = secret.display().to_string();
    complains(&ended, 1, &[&name, "Permission denied"]);
    assert_eq!(maps(pid), before);
    text_equals_file(pid, "").unwrap();
    running.ask("call 1");
    let _ = running.finish_ok();
}

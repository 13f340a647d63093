//! Real programs, all of libc counted: their output is the same.

#[path = "support/mod.rs"]
mod support;

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use lancet_abi::units::Pid;
use lancet_testkit::{Running, have, text_equals_file};

use support::{Lancet, lancet, rounds};

/// What a command wrote and how it ended.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    out: Vec<u8>,
    code: i32,
}

/// Runs a command without and with all of libc counted, in the same folder; compares.
fn same_with_libc_counted(words: &[&str], folder: &Path) {
    if !have(words[0]) {
        println!("skipped: no {}", words[0]);
        return;
    }
    let plain = Command::new(words[0])
        .args(&words[1..])
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()
        .expect("the program runs");
    let plain = Outcome {
        out: plain.stdout,
        code: plain.status.code().expect("it exits"),
    };
    let report = tempfile::NamedTempFile::new().expect("a file");
    let mut quoted = String::new();
    for word in words {
        let _ = write!(quoted, "'{}' ", word.replace('\'', r"'\''"));
    }
    let probed = Command::new(env!("CARGO_BIN_EXE_lancet"))
        .args(["count", "libc:*", "-o"])
        .arg(report.path())
        .args(["-c", &quoted])
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()
        .expect("lancet runs");
    let notes = String::from_utf8_lossy(&probed.stderr).into_owned();
    let probed = Outcome {
        out: probed.stdout,
        code: probed.status.code().unwrap_or(-1),
    };
    assert!(
        plain == probed,
        "{words:?} differs under lancet: status {} and {}, {} and {} bytes\n{notes}",
        plain.code,
        probed.code,
        plain.out.len(),
        probed.out.len()
    );
    let text = std::fs::read_to_string(report.path()).expect("the report");
    let functions = text.lines().filter(|l| l.starts_with("@[")).count();
    assert!(
        functions > 20,
        "{words:?}: only {functions} functions hit\n{notes}"
    );
    assert!(notes.contains("Attached"), "{notes}");
}

fn scratch() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

#[test]
fn ls_of_a_tree() {
    same_with_libc_counted(&["ls", "-lR", "/usr/share/doc"], Path::new("/"));
}

#[test]
fn shell_with_pipes_subshells_and_a_status() {
    let script =
        "for i in 1 2 3; do echo $i | cat; (exit 3); done; x=$(ls /usr); echo \"$x\"; exit 7";
    same_with_libc_counted(&["bash", "-c", script], Path::new("/"));
    same_with_libc_counted(&["sh", "-c", script], Path::new("/"));
}

#[test]
fn perl_with_hashes_and_a_child() {
    let script =
        "my %h; $h{$_}=$_*2 for 1..5000; print join(',', map {$h{$_}} sort keys %h), `echo sub`";
    same_with_libc_counted(&["perl", "-e", script], Path::new("/"));
}

#[test]
fn sqlite_with_a_script() {
    let folder = scratch();
    let script = "create table t(a integer, b text);
        with recursive c(n) as (select 1 union all select n+1 from c where n<5000)
        insert into t select n, hex(n*n) from c;
        select count(*), sum(a), max(b) from t; select b from t order by b limit 5;";
    std::fs::write(folder.path().join("q.sql"), script).expect("written");
    same_with_libc_counted(&["sqlite3", ":memory:", ".read q.sql"], folder.path());
}

#[test]
fn git_log_of_a_repository() {
    if !have("git") {
        println!("skipped: no git");
        return;
    }
    let folder = scratch();
    let git = |words: &[&str]| {
        let done = Command::new("git")
            .args(["-c", "user.name=a", "-c", "user.email=a@b"])
            .args(words)
            .current_dir(folder.path())
            .output()
            .expect("git runs");
        assert!(done.status.success(), "{words:?}");
    };
    git(&["init", "-q"]);
    for n in 0..20 {
        std::fs::write(folder.path().join("file"), n.to_string()).expect("written");
        git(&["add", "file"]);
        git(&["commit", "-q", "-m", &format!("change {n}")]);
    }
    same_with_libc_counted(&["git", "log", "--stat"], folder.path());
}

#[test]
fn compiler_and_a_parallel_make() {
    let folder = scratch();
    let mut rules = String::from("all: a0.o a1.o a2.o a3.o\n\tcat a0.o a1.o a2.o a3.o | cksum\n");
    for n in 0..4 {
        let _ = write!(rules, "a{n}.o: a{n}.c\n\tcc -O1 -c a{n}.c -o a{n}.o\n");
        let source = format!("int f{n}(int x) {{ return x * {n}; }}\n");
        std::fs::write(folder.path().join(format!("a{n}.c")), source).expect("written");
    }
    std::fs::write(folder.path().join("Makefile"), rules).expect("written");
    same_with_libc_counted(&["cc", "-O2", "-S", "-o", "-", "a1.c"], folder.path());
    let clean_make = "rm -f *.o; make -s -j2";
    same_with_libc_counted(&["sh", "-c", clean_make], folder.path());
}

#[test]
fn checksum_and_archive() {
    same_with_libc_counted(
        &[
            "sh",
            "-c",
            "tar cf - -C /usr/share/doc bash 2>/dev/null | gzip -n | cksum",
        ],
        Path::new("/"),
    );
    same_with_libc_counted(
        &["openssl", "dgst", "-sha256", "/etc/passwd"],
        Path::new("/"),
    );
}

#[test]
fn python_with_threads_and_children() {
    let script = "import json, hashlib, threading, subprocess
t = [threading.Thread(target=lambda: [json.dumps(list(range(50))) for _ in range(50)]) for _ in range(4)]
[x.start() for x in t]; [x.join() for x in t]
print(hashlib.sha256(b'x').hexdigest(), subprocess.run(['echo', 'hi'], capture_output=True).stdout)";
    same_with_libc_counted(&["python3", "-c", script], Path::new("/"));
}

#[test]
fn node_evaluates() {
    let script = "let a = []; for (let i = 0; i < 1e5; i++) a.push(i * i); console.log(a.length)";
    same_with_libc_counted(&["node", "-e", script], Path::new("/"));
}

#[test]
fn refusals_are_few_and_named() {
    let ended = lancet(&["count", "libc:*", "-v", "-c", "true"]);
    let summary = ended
        .err
        .lines()
        .find(|l| l.contains(" functions refused ("))
        .unwrap_or_else(|| panic!("no summary in {}", ended.err));
    let share: f64 = summary
        .split('(')
        .nth(1)
        .and_then(|s| s.split(' ').next())
        .and_then(|n| n.parse().ok())
        .expect("a share");
    assert!(share < 3.0, "{summary}");
    let named = ended
        .err
        .lines()
        .filter(|l| l.starts_with("refused "))
        .count();
    let told: usize = summary
        .split(' ')
        .next()
        .and_then(|n| n.parse().ok())
        .expect("a number");
    assert!(named >= told, "{named} named, {told} counted");
}

/// Attaches to and detaches from a process again and again; it must not notice.
fn rounds_on(pid: Pid, probes: &[&str], count: u64) {
    let pid_text = pid.to_string();
    for round in 0..count {
        let mut words = vec!["count"];
        words.extend(probes);
        words.extend(["-q", "-p", &pid_text, "--duration", "0.01"]);
        let ended = lancet(&words);
        assert!(ended.status.success(), "round {round}: {}", ended.err);
    }
}

#[test]
fn redis_under_load_loses_no_request() {
    if !have("redis-server") || !have("redis-benchmark") {
        println!("skipped: no redis-server");
        return;
    }
    let folder = scratch();
    let socket = folder.path().join("redis");
    let socket = socket.to_str().expect("a path");
    let server = Running::spawn_silent(
        Path::new("redis-server"),
        &[
            "--port",
            "0",
            "--unixsocket",
            socket,
            "--save",
            "",
            "--appendonly",
            "no",
        ],
    )
    .expect("redis starts");
    support::eventually("redis listens", || Path::new(socket).exists());
    let cli = |words: &[&str]| {
        let out = Command::new("redis-cli")
            .args(["-s", socket])
            .args(words)
            .output()
            .expect("redis-cli runs");
        String::from_utf8_lossy(&out.stdout).into_owned()
    };
    let processed = || -> u64 {
        cli(&["info", "stats"])
            .lines()
            .find_map(|l| l.strip_prefix("total_commands_processed:"))
            .and_then(|n| n.trim().parse().ok())
            .expect("a count")
    };
    // Its helpers start when it likes; none but its own may be there.
    let strangers = || -> Vec<String> {
        let own = ["redis", "bio_", "io_thd", "jemalloc"];
        let tasks = std::fs::read_dir(format!("/proc/{}/task", server.pid())).expect("threads");
        let names = tasks
            .flatten()
            .filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
        names
            .filter(|name| !own.iter().any(|own| name.starts_with(own)))
            .collect()
    };
    let requests = 100_000.max(4000 * rounds(10));
    let before = processed();
    let mut load = Command::new("redis-benchmark")
        .args(["-s", socket, "-c", "8", "-t", "set", "-q"])
        .args(["-n", &requests.to_string()])
        .stdout(Stdio::null())
        .spawn()
        .expect("redis-benchmark runs");
    rounds_on(
        server.pid(),
        &["libc:malloc", "libc:read", "redis-server:*Command"],
        rounds(10),
    );
    assert!(load.wait().expect("it ends").success());
    // The query for `before` counts too; benchmarks ask for the configuration first.
    let asked = processed() - before;
    let due = requests + 1..=requests + 10;
    assert!(due.contains(&asked), "{asked} of {requests}");
    assert_eq!(strangers(), Vec::<String>::new());
    text_equals_file(server.pid(), "").expect("text as in the files");
}

#[test]
fn rust_and_go_programs_under_rounds() {
    // What each calls for an order of 1000.
    for (name, probe, tool, truth) in [
        ("rusty", "rusty_hot", "rustc", 1002),
        ("gopher", "main.gopherHot", "go", 4000),
    ] {
        if !have(tool) {
            println!("skipped: no {tool}");
            continue;
        }
        let mut target = Running::start(name, &[]);
        let file = support::probe(&lancet_testkit::target(name), probe);
        rounds_on(target.pid(), &[&file], rounds(5));
        // The calls of one order are counted exactly, as the program knows them.
        let running = Lancet::start(&["count", &file, "-p", &target.pid().to_string()]);
        target.ask("go 1000");
        let ended = running.stop();
        assert_eq!(ended.row(probe), truth, "{}", ended.err);
        text_equals_file(target.pid(), name).expect("text as in the file");
        let _ = target.finish_ok();
    }
}

#[test]
fn python_computes_right_under_rounds() {
    if !have("python3") {
        println!("skipped: no python3");
        return;
    }
    const PROGRAM: &str = "
import hashlib, os, sys, threading
def work(n, out, at):
    text = b''
    for i in range(n):
        text = hashlib.sha256(text + str([i, {i: at}]).encode()).digest()
    out[at] = text.hex()
print('ready', os.getpid(), flush=True)
for line in sys.stdin:
    out = [None] * 3
    threads = [threading.Thread(target=work, args=(int(line), out, at)) for at in range(3)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    print(*out, flush=True)
";
    let mut python = Running::spawn(Path::new("python3"), &["-c", PROGRAM]).expect("it starts");
    let pid = python.pid();
    let alone = python.ask("3000");
    // A thread that was joined is still on its way out.
    let alone_again = || lancet_testkit::thread_count(pid).expect("threads") == 1;
    support::eventually("its threads have ended", alone_again);
    let descriptors = lancet_testkit::fd_count(pid).expect("descriptors");
    for _ in 0..rounds(5).div_ceil(5) {
        python.order("3000");
        rounds_on(pid, &["libc:malloc", "libc:free", "libc:*mutex*"], 5);
        assert_eq!(python.line().expect("an answer"), alone);
    }
    support::eventually("no thread is left", alone_again);
    assert_eq!(
        lancet_testkit::fd_count(pid).expect("descriptors"),
        descriptors
    );
    text_equals_file(pid, "").expect("text as in the files");
    let (_, status) = python.finish();
    assert!(status.success(), "{status}");
}

/// B035: probes on any instructions of a program that a jump can take, with all registers live:
/// what it computes is the same, and every hit counts.
#[test]
fn b035_random_instructions_of_gzip() {
    if !have("gzip") || !have("objdump") {
        println!("skipped: no gzip or no objdump");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("gzip");
    let found = Command::new("sh")
        .args(["-c", "readlink -f $(command -v gzip)"])
        .output();
    let found = String::from_utf8(found.expect("sh runs").stdout).expect("a path");
    std::fs::copy(found.trim(), &program).expect("there is room");
    let listing = Command::new("objdump")
        .arg("-d")
        .arg(&program)
        .output()
        .expect("it runs");
    let listing = String::from_utf8_lossy(&listing.stdout).into_owned();
    let mut addresses: Vec<&str> = listing
        .lines()
        .filter_map(|line| line.split_once(":\t"))
        .map(|(address, _)| address.trim())
        .collect();
    assert!(addresses.len() > 5000, "{listing}");
    // Any order that is the same each time.
    let mut state = 7u64;
    for at in (1..addresses.len()).rev() {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        addresses.swap(at, (state >> 33) as usize % (at + 1));
    }
    addresses.truncate(rounds(1500) as usize);
    let input = folder.path().join("input");
    let text: String = (0..20_000).map(|n| format!("{n} {}\n", n * n)).collect();
    std::fs::write(&input, text).expect("there is room");
    let words = ["-9", "-c", input.to_str().expect("a name")];
    let plain = Command::new(&program)
        .args(words)
        .output()
        .expect("it runs");
    let report = folder.path().join("report");
    let command = format!("'{}' {}", program.display(), words.join(" "));
    let (out, err) = loop {
        let probes = addresses
            .iter()
            .map(|a| format!("{}:0x{a}", program.display()));
        let ran = Command::new(env!("CARGO_BIN_EXE_lancet"))
            .arg("count")
            .args(probes)
            .arg("-o")
            .arg(&report)
            .args(["-c", &command])
            .stdin(Stdio::null())
            .output()
            .expect("lancet runs");
        let err = String::from_utf8_lossy(&ran.stderr).into_owned();
        // The listing takes bytes between functions for instructions.
        let wrong = err.split(&format!("{}:0x", program.display())).nth(1);
        let wrong = wrong.and_then(|rest| rest.split(':').next());
        match wrong.and_then(|wrong| addresses.iter().position(|a| *a == wrong)) {
            Some(at) if ran.status.code() == Some(1) => {
                addresses.swap_remove(at);
            }
            _ => break (ran.stdout, err),
        }
    };
    assert!(
        out == plain.stdout,
        "{} and {} bytes: {err}",
        out.len(),
        plain.stdout.len()
    );
    let rows = std::fs::read_to_string(&report).expect("a report");
    let hit = rows.lines().filter(|row| row.starts_with("@[")).count();
    assert!(
        hit > addresses.len() / 20,
        "{hit} of {}: {err}",
        addresses.len()
    );
}

//! `/proc` at scale: many clients, storms of processes, pids that are used again, programs with many mappings.

#[path = "support/mod.rs"]
mod support;

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lancet_abi::units::Pid;
use lancet_procs::served::{Keeper, Query, ask};
use lancet_procs::{
    Bound, Calm, Events, FileId, Index, Proc, Reading, Wanted, identity, same, table,
};
use lancet_testkit::{Running, have, is_root, skip, target};

use support::{PATIENCE, eventually, rounds};

const ALL: Wanted = Wanted {
    owner: true,
    status: true,
    arguments: true,
    environment: false,
    wchan: false,
    cgroup: true,
    exe: false,
    addresses: false,
    threads: false,
};

fn lancet() -> Command {
    Command::new(env!("CARGO_BIN_EXE_lancet"))
}

/// `lancet index` at a socket of its own; ended when dropped.
struct Service {
    child: Child,
    folder: tempfile::TempDir,
}

impl Service {
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("index.sock");
        let child = lancet()
            .args(["index", "--socket"])
            .arg(&socket)
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        let service = Self { child, folder };
        eventually("it serves", || {
            service.list(&["-p", "1"]).is_some() && socket.exists()
        });
        service
    }

    fn socket(&self) -> std::path::PathBuf {
        self.folder.path().join("index.sock")
    }

    /// The standard output of a list that asks it.
    fn list(&self, args: &[&str]) -> Option<String> {
        let out = lancet()
            .arg("ps")
            .args(args)
            .env("LANCET_INDEX", self.socket())
            .output()
            .expect("it runs");
        out.status
            .success()
            .then(|| String::from_utf8_lossy(&out.stdout).into_owned())
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        support::signal(self.child.id().cast_signed(), "TERM");
        let _ = self.child.wait();
    }
}

/// Starts and ends processes as fast as one thread can, until dropped.
struct Storm {
    stop: std::sync::Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<u64>>,
}

impl Storm {
    fn start() -> Self {
        let stop = std::sync::Arc::new(AtomicBool::new(false));
        let thread = {
            let stop = std::sync::Arc::clone(&stop);
            std::thread::spawn(move || {
                let mut started = 0;
                while !stop.load(Ordering::Relaxed) {
                    // Sub-shells: forked by a shell, without an exec.
                    let script = "i=0; while [ $i -lt 500 ]; do (:) & i=$((i+1)); done; wait";
                    let _ = Command::new("sh").args(["-c", script]).status();
                    started += 500;
                }
                started
            })
        };
        Self {
            stop,
            thread: Some(thread),
        }
    }

    fn end(mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread
            .take()
            .expect("ended once")
            .join()
            .expect("it does not panic")
    }
}

#[test]
fn b171_scans_find_every_lasting_process_in_a_storm() {
    let lasting = Running::start("relatives", &[]);
    let mut pids: Vec<i32> = lasting
        .facts()
        .iter()
        .map(|pid| pid.parse().expect("a pid"))
        .collect();
    pids.push(lasting.pid().0);
    let root = Proc::open().expect("/proc");
    let mut keeper = Keeper::new().expect("/proc");
    let storm = Storm::start();
    for _ in 0..rounds(30) {
        for rows in [
            table(&root, ALL).expect("a table").rows,
            keeper.scan(ALL).expect("a table").rows,
        ] {
            for pid in &pids {
                let row = rows.iter().find(|row| row.pid.0 == *pid);
                let row = row.unwrap_or_else(|| panic!("{pid} is missing"));
                assert_eq!(row.owner.uid, rustix::process::geteuid().as_raw());
            }
            let odd = rows
                .iter()
                .find(|row| row.pid.0 == pids[0])
                .expect("the odd one");
            assert!(matches!(&odd.arguments, Reading::Read(bytes) if bytes.starts_with(b"odd\0")));
        }
    }
    assert!(storm.end() > 0);
}

#[test]
fn b165_many_clients_share_scans_and_each_sees_its_own_processes() {
    let service = Service::start();
    let busy = Storm::start();
    let clients: Vec<_> = (0..rounds(1) * 128)
        .map(|_| {
            lancet()
                .args(["ps", "-e", "-o", "pid="])
                .env("LANCET_INDEX", service.socket())
                .stdout(Stdio::piped())
                .spawn()
                .expect("a client")
        })
        .collect();
    let me = std::process::id();
    for client in clients {
        let pid = client.id();
        let out = client.wait_with_output().expect("it ends");
        let text = String::from_utf8_lossy(&out.stdout);
        let pids: BTreeSet<u32> = text
            .lines()
            .map(|l| l.trim().parse().expect("a pid"))
            .collect();
        // The scan began after the client did: strict.
        assert!(pids.contains(&pid) && pids.contains(&me), "{pid} of {text}");
    }
    busy.end();
}

#[test]
fn what_is_served_is_what_one_sees_alone() {
    let service = Service::start();
    let family = Running::start("relatives", &[]);
    let parent = family.pid().to_string();
    for args in [
        &["-f", "--ppid", &parent][..],
        &["-F", "--ppid", &parent],
        &["-o", "pid,user,rss,stat,args", "--ppid", &parent],
        &[
            "-o",
            "pid,ruid,supgid,pending,caught,cgroup,container,args",
            "--ppid",
            &parent,
        ],
    ] {
        let mut alone = args.to_vec();
        alone.push("--alone");
        let mut last = (None, None);
        eventually("both say the same", || {
            last = (service.list(args), service.list(&alone));
            last.0 == last.1
        });
        assert!(
            last.0
                .is_none_or(|text| text.contains("odd") || text.contains("relatives"))
        );
    }
    // An old snapshot is taken only by who allows it.
    let before = service.list(&["-e", "-o", "pid="]).expect("a list");
    let later = Running::start("sleeper", &["1"]);
    let pid = later.pid().to_string();
    let has = |args: &[&str]| {
        let text = service.list(args).expect("a list");
        text.lines().any(|line| line.trim() == pid)
    };
    assert!(!before.lines().any(|line| line.trim() == pid));
    assert!(!has(&["-e", "-o", "pid=", "--max-age", "100000"]));
    assert!(has(&["-e", "-o", "pid="]));
}

#[test]
fn the_socket_is_for_its_owner_or_a_group() {
    let service = Service::start();
    let mode = std::fs::metadata(service.socket())
        .expect("a socket")
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    let second = lancet()
        .args(["index", "--socket"])
        .arg(service.socket())
        .output()
        .expect("it ends");
    assert!(!second.status.success());
    let socket = service.socket();
    drop(service);
    assert!(!socket.exists());
    // What a killed service has left is replaced.
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("index.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).expect("a socket"));
    let group = rustix::process::getgid().as_raw().to_string();
    let mut child = lancet()
        .args(["index", "--group", &group, "--socket"])
        .arg(&path)
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    eventually("it serves", || {
        std::fs::metadata(&path).is_ok_and(|m| m.mode() & 0o777 == 0o660)
    });
    support::signal(child.id().cast_signed(), "TERM");
    assert!(child.wait().expect("it ends").success());
    assert!(!path.exists());
}

#[test]
fn without_a_service_or_with_nonsense_in_its_place_one_scans_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("index.sock");
    let list = || {
        let out = lancet()
            .args(["ps", "-e", "-o", "pid="])
            .env("LANCET_INDEX", &path)
            .output();
        String::from_utf8_lossy(&out.expect("it runs").stdout).into_owned()
    };
    let me = std::process::id().to_string();
    assert!(list().lines().any(|line| line.trim() == me));
    // Somebody who accepts and hangs up at once.
    let socket = rustix::net::socket(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::SEQPACKET,
        None,
    )
    .expect("a socket");
    let address = rustix::net::SocketAddrUnix::new(&path).expect("a path");
    rustix::net::bind(&socket, &address).expect("it binds");
    rustix::net::listen(&socket, 4).expect("it listens");
    let server = std::thread::spawn(move || {
        let client = rustix::net::accept(&socket).expect("a client");
        let _ = rustix::net::send(&client, &[0xff; 16], rustix::net::SendFlags::NOSIGNAL);
    });
    assert!(list().lines().any(|line| line.trim() == me));
    server.join().expect("it does not panic");
    let query = Query {
        wanted: Wanted { exe: true, ..ALL },
        max_age: Duration::ZERO,
    };
    assert!(ask(&query).is_err());
}

#[test]
fn b172_a_pid_that_is_used_again_is_not_the_old_process() {
    if !is_root() || !have("unshare") {
        skip!("not root, or no unshare");
    }
    // The limit of pids belongs to the namespace; where it does not, writing it would change the machine's.
    let probe = "echo 400 > /proc/sys/kernel/pid_max && cat /proc/sys/kernel/pid_max";
    let before = std::fs::read_to_string("/proc/sys/kernel/pid_max").expect("a limit");
    if !kernel_is_at_least(6, 14) {
        skip!("pid_max is not of the namespace");
    }
    let text = in_a_namespace(
        "in_a_namespace_of_few_pids",
        probe,
        &rounds(2000).to_string(),
    );
    assert!(text.contains("recycled pids seen"), "{text}");
    let after = std::fs::read_to_string("/proc/sys/kernel/pid_max").expect("a limit");
    assert_eq!(before, after);
}

/// Runs a test of this suite in pid and mount namespaces of its own, where `/proc` shows nobody else.
fn in_a_namespace(test: &str, before: &str, value: &str) -> String {
    let own = std::env::current_exe().expect("its path");
    let script = format!(
        "{before} >/dev/null && {} --exact {test} --nocapture",
        own.display()
    );
    let out = Command::new("unshare")
        .args(["-p", "-f", "-m", "--mount-proc", "sh", "-c", &script])
        .env("LANCET_NAMESPACE", value)
        .output()
        .expect("it runs");
    let text = [out.stdout, out.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(out.status.success(), "{text}");
    text
}

/// The value that [`in_a_namespace`] gave; `None` elsewhere.
fn namespace_value() -> Option<u64> {
    std::env::var("LANCET_NAMESPACE").ok()?.parse().ok()
}

/// The part of the test above that runs where pids are few; elsewhere it has nothing to do.
#[test]
fn in_a_namespace_of_few_pids() {
    let Some(rounds) = namespace_value() else {
        return;
    };
    let mut keeper = Keeper::new().expect("/proc");
    let mut old = std::collections::HashMap::new();
    let mut recycled = 0;
    for round in 0..rounds {
        let name = format!("r{round}");
        let mut child = Command::new("/bin/sh")
            .args(["-c", "read x", &name])
            .stdin(Stdio::piped())
            .spawn()
            .expect("a shell");
        let pid = Pid(child.id().cast_signed());
        let of = identity(pid).expect("it lives");
        if let Some(before) = old.insert(pid, of) {
            recycled += 1;
            assert!(
                !same(&before),
                "{pid} is taken for the process of an earlier round"
            );
            assert_ne!(
                (before.folder, before.start_time),
                (of.folder, of.start_time)
            );
        }
        assert!(same(&of));
        // The kept files of the old process must not answer for the new one.
        if round % 8 == 0 {
            let rows = keeper.scan(ALL).expect("a table").rows;
            let row = rows.iter().find(|row| row.pid == pid).expect("its row");
            assert_eq!(row.stat.start_time, of.start_time);
            let Reading::Read(arguments) = &row.arguments else {
                panic!("no arguments of {pid}");
            };
            let own = arguments.ends_with(format!("{name}\0").as_bytes());
            // Just forked, it may still be what it was forked from.
            let forked = !arguments.starts_with(b"/bin/sh\0");
            assert!(
                own || forked,
                "{pid} shows {:?}",
                String::from_utf8_lossy(arguments)
            );
        }
        drop(child.stdin.take());
        child.wait().expect("it ends");
        assert!(!same(&of));
    }
    assert!(
        recycled > rounds / 4,
        "only {recycled} pids were used again"
    );
    println!("{recycled} recycled pids seen");
}

fn kernel_is_at_least(major: u32, minor: u32) -> bool {
    let release = rustix::system::uname();
    let text = release.release().to_string_lossy().into_owned();
    let mut numbers = text
        .split(['.', '-'])
        .filter_map(|word| word.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(major), Some(minor))
}

#[test]
fn b173_b174_many_mappings_are_neither_statted_nor_read_one_by_one() {
    if !have("strace") {
        skip!("no strace");
    }
    let mapper = Running::start("mappings", &["20000"]);
    let exe = std::fs::read_link(format!("/proc/{}/exe", mapper.pid())).expect("its program");
    let pid = mapper.pid().to_string();
    let (calls, out) = traced(&["--maps", &exe.display().to_string(), "-o", "pid=", "-e"]);
    assert!(out.lines().any(|line| line.trim() == pid), "{out}");
    let about = |name: &str| calls.iter().filter(|call| call.contains(name)).count();
    assert_eq!(
        about("/dev/zero") + about("/dev/shm") + about("map_files") + about("SYSV"),
        0
    );
    if kernel_is_at_least(6, 11) {
        // Asked for its code alone: the kernel passes over the rest.
        let ioctls = about("ioctl(");
        let processes = Proc::open()
            .and_then(|root| root.list())
            .expect("/proc")
            .len();
        assert!(
            ioctls < 200 * processes,
            "{ioctls} questions about {processes} processes"
        );
    }
}

/// Traces a list; gives its system calls and what it wrote.
fn traced(args: &[&str]) -> (Vec<String>, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("calls");
    let out = Command::new("strace")
        .args([
            "-f",
            "-qq",
            "-s",
            "200",
            "-e",
            "trace=file,read,pread64,ioctl,getdents64",
            "-o",
        ])
        .arg(&log)
        .arg(env!("CARGO_BIN_EXE_lancet"))
        .arg("ps")
        .args(args)
        .output()
        .expect("strace runs");
    let calls = std::fs::read_to_string(&log).expect("a log");
    (
        calls.lines().map(str::to_owned).collect(),
        String::from_utf8_lossy(&out.stdout).into_owned(),
    )
}

#[test]
fn only_the_files_of_the_table_are_read_and_waiting_ones_on_helper_threads() {
    if !have("strace") {
        skip!("no strace");
    }
    let columns = "pid,ppid,user,ruid,rss,wchan,cgroup,exe,environ,args";
    let (calls, out) = traced(&["-e", "-o", columns, "--alone"]);
    assert!(!out.is_empty());
    let main = calls[0].split(' ').next().expect("a thread").to_owned();
    let calm: Vec<&str> = Calm::ALL.iter().map(|file| file.name()).collect();
    let bound: Vec<&str> = Bound::ALL.iter().map(|file| file.name()).collect();
    let mut seen = BTreeSet::new();
    for call in calls
        .iter()
        .filter(|call| call.contains("openat(") || call.contains("readlinkat("))
    {
        let Some(path) = call.split('"').nth(1) else {
            continue;
        };
        // Relative to the open /proc: `PID/NAME`.
        let Some((pid, file)) = path
            .split_once('/')
            .filter(|(pid, _)| pid.parse::<u32>().is_ok())
        else {
            continue;
        };
        assert!(!pid.is_empty());
        let known = calm.contains(&file) || bound.contains(&file) || matches!(file, "exe" | "task");
        assert!(known, "{call} is not in the table");
        if bound.contains(&file) {
            assert!(
                !call.starts_with(&main),
                "{call} may wait, and is made by the main thread"
            );
        }
        seen.insert(file.to_owned());
    }
    for file in [
        "stat", "status", "wchan", "cgroup", "cmdline", "environ", "exe",
    ] {
        assert!(seen.contains(file), "{file} is not read: {seen:?}");
    }
}

#[test]
fn a_locked_process_is_marked_in_what_is_served() {
    let (mut locked, pid) = match Running::locked(&target("lockedmm"), &[]) {
        Ok((locked, pid)) => (locked, pid.to_string()),
        Err(why) => skip!("{why}"),
    };
    let service = Service::start();
    let out = service.list(&["-e", "-o", "pid,args"]).expect("a list");
    let row = out
        .lines()
        .find(|line| line.trim_start().starts_with(&format!("{pid} ")));
    assert!(
        row.is_some_and(|row| row.ends_with("[lockedmm] <busy>")),
        "{out}"
    );
    locked.order("release");
    assert_eq!(locked.line_within(PATIENCE).expect("an answer"), "released");
    assert!(Path::new("/proc/self").exists());
}

/// Pid, folder, executable, files.
type Known = (i32, u64, Option<FileId>, Option<Vec<FileId>>);

/// What an index knows, in an order.
fn known(index: &Index) -> Vec<Known> {
    let mut all: Vec<Known> = index
        .entries()
        .map(|e| (e.identity.pid.0, e.identity.folder, e.exe, e.files.clone()))
        .collect();
    all.sort();
    all
}

/// Updates until two fresh scans and the index between them say the same.
fn settles(index: &mut Index) {
    eventually("the index equals a fresh scan", || {
        index.update().expect("an update");
        let mut fresh = Index::with_events(None).expect("/proc");
        fresh.update().expect("a scan");
        known(index) == known(&fresh)
    });
}

#[test]
fn b168_an_update_costs_what_has_changed() {
    if !is_root() || !have("unshare") {
        skip!("not root, or no unshare");
    }
    let text = in_a_namespace(
        "in_a_namespace_with_a_crowd",
        "true",
        &rounds(1000).to_string(),
    );
    assert!(text.contains("looked into"), "{text}");
}

/// The part of the test above that runs where nobody else begins or ends.
#[test]
fn in_a_namespace_with_a_crowd() {
    let Some(crowd) = namespace_value() else {
        return;
    };
    let script = format!(
        "exec 3<&0; i=0; while [ $i -lt {crowd} ]; do (read x) <&3 & i=$((i+1)); done; echo ready; wait"
    );
    let mut shell = Command::new("sh")
        .args(["-c", &script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a shell");
    let mut line = String::new();
    let out = shell.stdout.take().expect("it is piped");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).expect("a line");
    let mut index = Index::new().expect("/proc");
    if index.events().is_none() {
        println!("no events: looked into all");
    } else {
        let first = index.update().expect("an update").looks as u64;
        assert!(first >= crowd, "{first}");
        settles(&mut index);
        assert_eq!(index.update().expect("an update").looks, 0);
        for _ in 0..3 {
            assert!(Command::new("true").status().expect("it runs").success());
        }
        let changed = index.update().expect("an update");
        assert_eq!(changed.lost, 0);
        assert!((1..=6).contains(&changed.looks), "{changed:?}");
        settles(&mut index);
        println!("looked into {} of {first}", changed.looks);
    }
    drop(shell.stdin.take());
    shell.wait().expect("it ends");
}

#[test]
fn a_storm_with_lost_events_ends_equal_to_a_fresh_scan() {
    if !is_root() || !have("unshare") {
        skip!("not root, or no unshare");
    }
    let storm = (rounds(1) * 30_000).to_string();
    let text = in_a_namespace("in_a_namespace_with_a_storm", "true", &storm);
    assert!(text.contains("after a storm"), "{text}");
}

/// The part of the test above that runs where nobody else begins or ends.
#[test]
fn in_a_namespace_with_a_storm() {
    let Some(forks) = namespace_value() else {
        return;
    };
    let Ok(events) = Events::with_pages(1) else {
        println!("no events, no loss after a storm");
        return;
    };
    let lasting = Running::start("relatives", &[]);
    let mut index = Index::with_events(Some(events)).expect("/proc");
    index.update().expect("an update");
    let mut lost = 0;
    for _ in 0..forks.div_ceil(500) {
        let script = "i=0; while [ $i -lt 500 ]; do (:) & i=$((i+1)); done; wait";
        assert!(
            Command::new("sh")
                .args(["-c", script])
                .status()
                .expect("it runs")
                .success()
        );
        lost += index.update().expect("an update").lost;
    }
    // Another program in the place of a process whose exec may have been lost.
    let replaced = Running::start("sleeper", &["1"]);
    settles(&mut index);
    assert!(lost > 0, "no event was lost");
    assert!(index.get(lasting.pid()).is_some() && index.get(replaced.pid()).is_some());
    println!("{lost} events lost; equal after a storm of {forks}");
}

#[test]
fn b169_an_exec_is_noticed_though_pid_and_start_time_stay() {
    let program = target("sleeper");
    let mut index = Index::new().expect("/proc");
    let mut shell = Command::new("sh")
        .args(["-c", "read x; exec \"$0\" 1"])
        .arg(&program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a shell");
    let pid = Pid(shell.id().cast_signed());
    let file = std::fs::File::open(&program).expect("a program");
    let id = lancet_procs::shown_id(&file).expect("its identity");
    let mut wrapper = None;
    eventually("the wrapper is known", || {
        index.update().expect("an update");
        wrapper = index.get(pid).cloned();
        wrapper
            .as_ref()
            .is_some_and(|e| e.files.as_ref().is_some_and(|f| !f.is_empty()))
    });
    let wrapper = wrapper.expect("an entry");
    assert!(!index.who_maps(id).0.contains(&wrapper.identity));
    let mut input = shell.stdin.take().expect("it is piped");
    std::io::Write::write_all(&mut input, b"go\n").expect("it reads");
    eventually("the new program is known", || {
        index.update().expect("an update");
        index.who_maps(id).0.contains(&wrapper.identity)
    });
    let after = index.get(pid).expect("an entry");
    assert_eq!(after.identity, wrapper.identity);
    assert_ne!(after.exe, wrapper.exe);
    drop(input);
    shell.wait().expect("it ends");
    eventually("it is gone", || {
        index.update().expect("an update");
        index.get(pid).is_none()
    });
}

//! `lancet ps` beside ps, on processes that stand still.

#[path = "support/mod.rs"]
mod support;

use std::collections::BTreeSet;
use std::os::unix::process::CommandExt;
use std::process::Command;

use lancet_testkit::{Running, have, is_root, skip, target};

use support::{eventually, signal};

/// Output and errors of a command.
fn output(command: &mut Command) -> (String, String) {
    let out = command
        .output()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&out.stdout), text(&out.stderr))
}

/// The rows a command prints and the status it exits with.
fn listed(command: &mut Command) -> (String, Option<i32>) {
    let out = command
        .output()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let rows = String::from_utf8_lossy(&out.stdout).into_owned();
    (rows, out.status.code())
}

fn theirs(args: &[&str]) -> Command {
    let mut command = Command::new("ps");
    command.args(args).env_remove("COLUMNS");
    command
}

fn ours(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lancet"));
    command.arg("ps").args(args).env_remove("COLUMNS");
    command
}

/// A family of processes in every state, all stopped.
struct Family {
    _running: Running,
    pids: Vec<String>,
}

impl Family {
    fn new() -> Self {
        let running = Running::start("relatives", &[]);
        let mut pids = vec![running.pid().to_string()];
        pids.extend(running.facts().iter().cloned());
        let family = Self {
            _running: running,
            pids,
        };
        for pid in &family.pids {
            signal(pid.parse().expect("a pid"), "STOP");
        }
        for pid in &family.pids {
            eventually("it stops", || {
                let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("stat");
                let state = stat.rsplit(") ").next().expect("a state");
                state.starts_with(['T', 'Z'])
            });
        }
        family
    }

    /// All of them, or those whose name is not shown differently by versions of ps.
    fn list(&self, with_zombie: bool) -> String {
        let chosen: Vec<&str> = self
            .pids
            .iter()
            .enumerate()
            .filter(|&(at, _)| with_zombie || !matches!(at, 2 | 3))
            .map(|(_, pid)| pid.as_str())
            .collect();
        chosen.join(",")
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        for pid in self.pids.iter().rev() {
            let _ = Command::new("/bin/kill").args(["-CONT", pid]).status();
        }
    }
}

/// Both say the same in the end: shares of CPU time go down as processes get older.
fn same(args: &[&str], tidy: impl Fn(&str) -> String) {
    let mut seen = (String::new(), String::new());
    let end = std::time::Instant::now() + support::PATIENCE;
    loop {
        seen.0 = tidy(&output(&mut theirs(args)).0);
        seen.1 = tidy(&output(&mut ours(args)).0);
        if seen.0 == seen.1 {
            assert!(!seen.0.is_empty(), "ps {args:?} says nothing");
            return;
        }
        if std::time::Instant::now() > end {
            panic!("ps {args:?}\n{}\nlancet ps\n{}", seen.0, seen.1);
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
}

#[test]
fn formats_of_all_styles_are_those_of_ps() {
    if !have("ps") {
        skip!("no ps");
    }
    let family = Family::new();
    let pids = family.list(true);
    // Versions of ps differ in whether names of zombies are marked. Arguments are marked by all.
    let tidy = |text: &str| {
        text.lines()
            .map(|line| match line.contains('[') {
                true => format!("{line}\n"),
                false => format!("{}\n", line.trim_end_matches(" <defunct>")),
            })
            .collect()
    };
    for format in [
        "",
        "-f",
        "-F",
        "-l",
        "-lf",
        "-Fl",
        "-ly",
        "-L",
        "-Lf",
        "-Ll",
        "-j",
        "-jf",
        "-c",
        "-fc",
        "-T",
        "-P",
        "-lj",
        "u",
        "l",
        "j",
        "s",
        "v",
        "-f --forest",
        "--forest",
        "-H",
        "u --forest",
        "f",
        "uf",
        "lf",
        "jf",
        "-f --cols 60",
        "-f --cols 20",
        "-f -w --cols 40",
        "-f -ww --cols 40",
        "-O ppid",
        "O ppid",
        "-f --no-headers",
        "h",
        "u S",
        "uc",
        "-f --sort=-pid",
        "-F --sort ppid,-pid",
        "-o pid=,args=",
        "-o pid=A,args=B",
        "-o pid:20,user:3,args",
        "-o pid,args:12,ppid",
        "-o ppid,args --sort args,-pid",
        "k -ppid,pid",
    ] {
        let mut args: Vec<&str> = format.split(' ').filter(|word| !word.is_empty()).collect();
        args.extend(["-p", &pids]);
        same(&args, tidy);
    }
}

#[test]
fn every_column_is_that_of_ps() {
    if !have("ps") {
        skip!("no ps");
    }
    let family = Family::new();
    let pids = family.list(false);
    let (known, _) = output(&mut theirs(&["L"]));
    let known: BTreeSet<&str> = known
        .lines()
        .filter_map(|line| line.split(' ').next())
        .collect();
    let (mine, _) = output(&mut ours(&["--help", "columns"]));
    let mut compared = 0;
    for name in mine.lines().filter_map(|line| line.split(' ').next()) {
        // Elapsed time and what is divided by it go on while both look.
        let moves = matches!(
            name,
            "etime" | "etimes" | "pcpu" | "%cpu" | "cp" | "c" | "util"
        );
        if moves || !known.contains(name) {
            continue;
        }
        let format = format!("pid,{name},ppid");
        same(&["-o", &format, "-p", &pids], str::to_owned);
        same(&["-o", name, "-p", &pids], str::to_owned);
        compared += 1;
    }
    assert!(compared > 100, "only {compared} columns were compared");
}

#[test]
fn choices_are_those_of_ps() {
    if !have("ps") {
        skip!("no ps");
    }
    let family = Family::new();
    let parent = family.pids[0].clone();
    let of_family = |text: &str| -> String {
        let of: Vec<&str> = text
            .lines()
            .filter(|line| family.pids.iter().any(|pid| line.trim() == pid))
            .collect();
        of.join("\n")
    };
    let session = std::fs::read_to_string(format!("/proc/{parent}/stat")).expect("stat");
    let session = session
        .rsplit(") ")
        .next()
        .and_then(|rest| rest.split(' ').nth(3));
    let session = session.expect("a session").to_owned();
    let group = rustix::process::getgid().as_raw().to_string();
    let user = rustix::process::getuid().as_raw().to_string();
    for choice in [
        "-e",
        "-A",
        "ax",
        "x",
        "-d",
        "-N -p 1",
        "-C relatives",
        "-u USER",
        "-U USER",
        "-G GROUP",
        "-s SESSION",
        "-g SESSION",
        "--ppid PARENT",
        "--sid SESSION",
        "--user USER",
        "--deselect -C relatives -e",
        "-p PARENT --ppid PARENT",
        "p PARENT",
        "-q PARENT",
        "-C odd,relatives",
        "-t ?",
        "-g 0",
        "-s 0",
        "--sid 0",
        "--ppid 0",
        "-p 0",
        "p 0",
        "-q 0",
        "-s -1",
        "-p 2147483648",
        "-p PARENT,x",
        "-g 0,x",
    ] {
        let words: Vec<String> = choice
            .split(' ')
            .map(|word| match word {
                "USER" => user.clone(),
                "GROUP" => group.clone(),
                "SESSION" => session.clone(),
                "PARENT" => parent.clone(),
                word => word.to_owned(),
            })
            .collect();
        let mut args: Vec<&str> = words.iter().map(String::as_str).collect();
        args.extend(["-o", "pid="]);
        let (theirs, ours) = (listed(&mut theirs(&args)), listed(&mut ours(&args)));
        assert_eq!(of_family(&theirs.0), of_family(&ours.0), "{args:?}");
        assert_eq!(theirs.1, ours.1, "{args:?}: exit status");
    }
}

#[test]
fn all_processes_are_listed_in_the_order_of_ps() {
    if !have("ps") {
        skip!("no ps");
    }
    let family = Family::new();
    for args in [["-e", "-o", "pid="], ["-eL", "-o", "lwp="]] {
        let (before, _) = output(&mut theirs(&args));
        let (mine, _) = output(&mut ours(&args));
        let (after, _) = output(&mut theirs(&args));
        let set = |text: &str| -> Vec<i32> {
            text.lines()
                .map(|l| l.trim().parse().expect("a pid"))
                .collect()
        };
        let (before, mine, after) = (set(&before), set(&mine), set(&after));
        for pid in before.iter().filter(|pid| after.contains(pid)) {
            assert!(mine.contains(pid), "{pid} is missing");
        }
        // Numbers of others may mean another process by now.
        let own = |list: &[i32]| -> Vec<String> {
            let own = |pid: &i32| family.pids.contains(&pid.to_string());
            list.iter()
                .filter(|pid| own(pid))
                .map(i32::to_string)
                .collect()
        };
        assert_eq!(own(&before), own(&mine));
        assert_eq!(own(&mine).len(), family.pids.len());
    }
}

#[test]
fn texts_are_cleaned_as_in_the_locale() {
    if !have("ps") {
        skip!("no ps");
    }
    let family = Family::new();
    for locale in ["C", "C.UTF-8"] {
        let args = ["-o", "args", "-p", &family.pids[1]];
        let (theirs, _) = output(theirs(&args).env("LC_ALL", locale));
        let (ours, _) = output(ours(&args).env("LC_ALL", locale));
        assert_eq!(theirs, ours);
        assert!(!ours.contains('\x1b'));
    }
}

#[test]
fn zombies_and_kernel_threads_are_shown_in_brackets() {
    let family = Family::new();
    let zombie = &family.pids[3];
    let (out, _) = output(&mut ours(&["-o", "args=", "-p", zombie]));
    assert_eq!(out, "[relatives] <defunct>\n");
    let (out, _) = output(&mut ours(&["-o", "comm=", "-p", zombie]));
    assert_eq!(out, "relatives <defunct>\n");
    let (out, _) = output(&mut ours(&["-o", "args=", "-p", "2"]));
    if std::fs::read_to_string("/proc/2/comm").is_ok_and(|name| name == "kthreadd\n") {
        assert_eq!(out, "[kthreadd]\n");
    }
}

#[test]
fn names_match_as_in_pgrep() {
    if !have("pgrep") {
        skip!("no pgrep");
    }
    let family = Family::new();
    let parent = &family.pids[0];
    for (pattern, full) in [
        ("^relat.*s$", false),
        ("two w[a-o]+ds", true),
        ("R 1 .y", false),
        ("nothing-like-it", true),
    ] {
        let mut pgrep = Command::new("pgrep");
        pgrep
            .args(full.then_some("-f"))
            .args(["-P", parent, pattern]);
        let mut args = vec!["--ppid", parent, "-o", "pid=", "--match", pattern];
        // Arguments are matched where they are shown.
        if full {
            args = vec!["--ppid", parent, "-f", "--no-headers", "--match", pattern];
        }
        let (mine, _) = output(&mut ours(&args));
        let mine: Vec<&str> = mine
            .lines()
            .filter_map(|line| line.split_whitespace().nth(usize::from(full)))
            .collect();
        let (theirs, _) = output(&mut pgrep);
        assert_eq!(mine, theirs.lines().collect::<Vec<_>>(), "{pattern}");
    }
    let (_, error) = output(&mut ours(&["--match", "("]));
    assert!(error.contains("--match \"(\""), "{error}");
}

#[test]
fn json_has_a_member_a_column() {
    let family = Family::new();
    let pids = family.list(true);
    let args = [
        "--json",
        "-o",
        "pid,ppid,user,args,nice,rss,stat,time,container,pcpu",
        "-p",
        &pids,
    ];
    let (out, _) = output(&mut ours(&args));
    let rows: Vec<serde_json::Value> = out
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}")))
        .collect();
    assert_eq!(rows.len(), family.pids.len());
    let odd = rows
        .iter()
        .find(|row| row["pid"].as_i64() == family.pids[1].parse().ok())
        .expect("the odd one");
    assert!(
        odd["args"]
            .as_str()
            .is_some_and(|args| args.contains("two words"))
    );
    assert_eq!(odd["ppid"].to_string(), family.pids[0]);
    assert!(odd["rss"].as_u64().is_some_and(|rss| rss > 0));
    assert!(odd.get("late").is_none());
}

#[test]
fn who_maps_a_file_and_who_is_probed() {
    let target = Running::start("sleeper", &["1"]);
    let exe = std::fs::read_link(format!("/proc/{}/exe", target.pid())).expect("its program");
    let pids = |args: &[&str]| -> Vec<String> {
        let (out, _) = output(&mut ours(args));
        out.lines().map(|line| line.trim().to_owned()).collect()
    };
    let own = target.pid().to_string();
    let maps = pids(&["--maps", &exe.display().to_string(), "-e", "-o", "pid="]);
    assert!(maps.contains(&own), "{maps:?}");
    assert!(!maps.contains(&std::process::id().to_string()));
    assert!(!pids(&["--probed", "-e", "-o", "pid="]).contains(&own));
    let session = support::counting(&target, &[support::probe(&exe, "sleeper_function")]);
    assert!(pids(&["--probed", "-e", "-o", "pid="]).contains(&own));
    session.stop();
}

#[test]
fn a_locked_process_delays_nobody_and_is_marked() {
    let (mut locked, pid) = match Running::locked(&target("lockedmm"), &[]) {
        Ok((locked, pid)) => (locked, pid.to_string()),
        Err(why) => skip!("{why}"),
    };
    let beside = Running::start("sleeper", &["1"]);
    for args in [
        &["-ef"][..],
        &["aux"],
        &["-eLf"],
        &["-e", "-o", "pid,ppid,environ:5,args"],
    ] {
        let (out, err) = output(&mut ours(args));
        let row = |pid: &str| {
            let is_of = |line: &&str| line.split_whitespace().take(2).any(|word| word == pid);
            out.lines()
                .find(is_of)
                .unwrap_or_else(|| panic!("no row of {pid}: {out}"))
                .to_owned()
        };
        assert!(row(&pid).contains("[lockedmm] <busy>"), "{out}");
        assert!(
            row(&beside.pid().to_string()).contains("sleeper 1"),
            "{out}"
        );
        assert!(
            row(&std::process::id().to_string()).contains("ps-"),
            "{out}"
        );
        assert!(err.contains("since the memory is locked"), "{err}");
    }
    let (out, _) = output(&mut ours(&["--json", "-f", "-p", &pid]));
    let row: serde_json::Value = serde_json::from_str(&out).expect("an object");
    assert_eq!(row["late"], true);
    locked.order("release");
    assert_eq!(locked.line().expect("an answer"), "released");
}

#[test]
fn an_ordinary_user_sees_what_ps_shows_him() {
    if !is_root() || !have("ps") {
        skip!("not root, or no ps");
    }
    let family = Family::new();
    // The program lies where another user may not be able to reach it.
    let folder = tempfile::tempdir().expect("a folder");
    let copy = folder.path().join("lancet");
    std::fs::copy(env!("CARGO_BIN_EXE_lancet"), &copy).expect("a copy");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path(), open).expect("it is ours");
    let pids = family.list(true);
    for columns in [
        "pid,user,ruid,rss,stat,args",
        "pid,wchan,exe,supgid,trs,drs,stackp,args",
    ] {
        let args = ["-o", columns, "-p", &pids];
        let (theirs, _) = output(theirs(&args).uid(65534).gid(65534));
        let mut command = Command::new(&copy);
        let (ours, _) = output(command.arg("ps").args(args).uid(65534).gid(65534));
        assert_eq!(theirs, ours);
    }
}

#[test]
fn a_hidden_proc_hides_as_much_and_says_so() {
    if !is_root() || !have("ps") || !have("unshare") || !have("setpriv") {
        skip!("not root, or no ps, unshare or setpriv");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path(), open).expect("it is ours");
    let copy = folder.path().join("lancet");
    std::fs::copy(env!("CARGO_BIN_EXE_lancet"), &copy).expect("a copy");
    for (hidden, note) in [
        ("1", "may not be looked at"),
        ("2", "are hidden by the way /proc is mounted"),
    ] {
        let script = format!(
            "mount -t proc -o hidepid={hidden} proc /proc && cd / && \
             exec setpriv --reuid=65534 --regid=65534 --clear-groups sh -c 'ps -e -o comm=; echo =; {} ps -e -o comm='",
            copy.display()
        );
        let (out, err) = output(Command::new("unshare").args(["-m", "sh", "-c", &script]));
        let (theirs, ours) = out
            .split_once("=\n")
            .unwrap_or_else(|| panic!("{out}{err}"));
        assert_eq!(
            theirs.replace("ps\n", ""),
            ours.replace("lancet\n", ""),
            "{err}"
        );
        assert!(err.contains(note), "{err}");
    }
}

#[test]
fn what_is_wrong_is_named() {
    for (args, message) in [
        (&["-Z"][..], "unknown option \"-Z\""),
        (&["-o", "nothing"], "unknown column \"nothing\""),
        (&["-p"], "must be followed by a list"),
        (&["-u", "no-such-user"], "\"no-such-user\" is not a user"),
        (&["-f", "-o", "pid"], "can't be used together"),
        (&["--sort", "nothing"], "unknown column"),
    ] {
        let mut command = ours(args);
        let (out, err) = output(&mut command);
        assert!(err.contains(message) && out.is_empty(), "{args:?}: {err}");
    }
    let status = ours(&["-p", "2147483647"])
        .stdout(std::process::Stdio::null())
        .status();
    assert_eq!(status.expect("it runs").code(), Some(1));
}

/// A benchmark that is killed takes its processes and its files with it.
#[test]
fn a_killed_bench_ps_leaves_nothing() {
    let temporary = tempfile::tempdir().expect("a folder");
    let mut bench = Command::new(env!("CARGO_BIN_EXE_lancet"))
        .args(["bench", "ps", "--quick"])
        .env("TMPDIR", temporary.path())
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("it starts");
    let files = || {
        std::fs::read_dir(temporary.path())
            .expect("a folder")
            .count()
    };
    let children = |pid: u32| -> Vec<u32> {
        let path = format!("/proc/{pid}/task/{pid}/children");
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.split_whitespace().flat_map(str::parse).collect()
    };
    let has_service = || {
        children(bench.id()).iter().any(|pid| {
            let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            words.windows(7).any(|part| part == b"\0index\0")
        })
    };
    eventually("a service", || files() > 0 && has_service());
    let started = children(bench.id());
    bench.kill().expect("it runs");
    bench.wait().expect("it is our child");
    eventually("all have ended", || {
        let is_there = |pid: &u32| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
            status.is_ok_and(|text| !text.contains("State:\tZ"))
        };
        !started.iter().any(is_there)
    });
    eventually("the files are gone", || files() == 0);
}

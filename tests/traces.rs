//! After detaching a target is as it was.

#[path = "support/session.rs"]
mod session;

use std::collections::BTreeMap;
use std::fs;

use lancet_abi::units::Pid;
use lancet_testkit::{Running, fd_count, is_root, skip, smaps_summary, target, thread_count};
use rustix::process::Signal;
use session::{
    Lancet, assert_untouched, lancet, maps, probe, region_files, rounds, signal, status, tasks,
    until,
};

/// What a user can see of a process and lancet must leave alone.
#[derive(Debug, PartialEq)]
struct Seen {
    descriptors: usize,
    threads: usize,
    masks: Vec<[String; 4]>,
    handlers: [String; 2],
}

fn seen(pid: Pid) -> Seen {
    let whole = pid.to_string();
    Seen {
        descriptors: fd_count(pid).unwrap(),
        threads: thread_count(pid).unwrap(),
        masks: tasks(pid)
            .iter()
            .map(|t| ["SigBlk", "SigPnd", "ShdPnd", "NoNewPrivs"].map(|f| status(t, f)))
            .collect(),
        handlers: ["SigCgt", "SigIgn"].map(|f| status(&whole, f)),
    }
}

/// The target's own mappings must all be there as they were; beside them only what lancet says
/// that it keeps: inert code, region and private page. Returns those.
fn added(before: &str, pid: Pid, when: &str) -> Vec<String> {
    let now = maps(pid);
    let lines: Vec<&str> = now.lines().collect();
    for line in before.lines() {
        assert!(lines.contains(&line), "{when}: {line} is gone from\n{now}");
    }
    let mine: Vec<&str> = before.lines().collect();
    let new: Vec<String> = lines
        .into_iter()
        .filter(|line| !mine.contains(line))
        .map(str::to_owned)
        .collect();
    for line in &new {
        let anonymous = line.contains(" 00:00 0 ");
        let region = line.contains("/.lancet-") || line.contains("/memfd:lancet ");
        let known = line.contains(" rw-s ") && region
            || anonymous && (line.contains(" r-xp ") || line.contains(" rw-p "));
        assert!(known, "{when}: {line}");
    }
    new
}

/// Of each mapping of a file: the permissions, and the kilobytes that are private copies.
fn file_mappings(pid: Pid) -> BTreeMap<String, String> {
    let smaps = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let mut found = BTreeMap::new();
    let mut current = String::new();
    for line in smaps.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if words.len() >= 5 && words[0].contains('-') {
            let of_file = words.get(5).is_some_and(|p| p.starts_with('/'));
            let ours = line.contains("lancet");
            current = if of_file && !ours {
                line.to_owned()
            } else {
                String::new()
            };
        } else if !current.is_empty() && current.contains(" r-xp ") && words[0] == "Private_Dirty:"
        {
            found.insert(current.clone(), words[1].to_owned());
        }
    }
    found
}

fn once(probes: &[String], pid: Pid) {
    let (status, text) = Lancet::count(probes, pid).attached().interrupt();
    assert!(status.success(), "{text}");
    assert!(!text.contains("keeps probes"), "{text}");
}

/// B149: attaching again works each time and uses no more memory.
#[test]
fn b149_a_thousand_rounds_leave_what_one_leaves() {
    let program = target("hammer");
    let mut hammer = Running::spawn(&program, &["3"]).unwrap();
    let pid = hammer.pid();
    let probes = [probe(&program, "hammer_*")];
    // Threads start with all signals blocked.
    let starting = |pid| seen(pid).masks.iter().any(|m| m[0].starts_with("fff"));
    until("all threads have started", || !starting(pid));
    let (before, texts) = (seen(pid), file_mappings(pid));
    let whole = maps(pid);
    let mut first = None;
    let mut most_rss = 0;
    for round in 0..rounds(12) {
        once(&probes, pid);
        assert_untouched(pid, &format!("round {round}"));
        assert_eq!(seen(pid), before, "round {round}");
        assert_eq!(file_mappings(pid), texts, "round {round}");
        let now = smaps_summary(pid).unwrap();
        assert_eq!(now.writable_and_executable, 0);
        let first = first.get_or_insert(now);
        assert_eq!(
            now.mappings,
            first.mappings,
            "round {round}:\n{}",
            maps(pid)
        );
        assert_eq!(now.anonymous_executable, first.anonymous_executable);
        // Dropped pages of files come back one by one; growth round by round would pass this.
        if round < 4 {
            most_rss = most_rss.max(now.rss_kib);
        }
        assert!(now.rss_kib <= most_rss + 256, "round {round}: {now:?}");
        assert!(hammer.ask("calls").starts_with("calls "));
    }
    until("inert pads are unmapped", || {
        lancet(&["clean", "--purge", "-p", &pid.to_string()]);
        maps(pid) == whole
    });
    assert_untouched(pid, "after clean --purge");
    assert_eq!(seen(pid), before);
    let _ = hammer.finish_ok();
}

/// B067: no permission of the target's own mappings changes, while attached or after, and no
/// memory is ever writable and executable.
#[test]
fn b067_permissions_are_never_changed() {
    let program = target("hammer");
    let hammer = Running::spawn(&program, &["2"]).unwrap();
    let pid = hammer.pid();
    let whole = maps(pid);
    let session = Lancet::count(&[probe(&program, "hammer_*")], pid).attached();
    let during = added(&whole, pid, "while attached");
    assert_eq!(smaps_summary(pid).unwrap().writable_and_executable, 0);
    assert!((3..=8).contains(&during.len()), "{during:?}");
    let files = region_files(pid);
    assert!(
        !files.is_empty() && files.iter().all(|f| f.exists()),
        "{files:?}"
    );
    let (status, text) = session.interrupt();
    assert!(status.success(), "{text}");
    let after = added(&whole, pid, "after detaching");
    assert_eq!(after.len(), during.len(), "{after:?}");
    assert!(files.iter().all(|f| !f.exists()), "{files:?} stays");
    let shown = lancet(&["status"]);
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    let rows = shown
        .lines()
        .filter(|l| l.trim_start().starts_with(&pid.to_string()));
    assert!(
        rows.clone().count() > 0 && rows.clone().all(|l| l.contains("inert")),
        "{shown}"
    );
    until("inert pads are unmapped", || {
        lancet(&["clean", "--purge", "-p", &pid.to_string()]);
        maps(pid) == whole
    });
    let _ = hammer.finish_ok();
}

/// B084: a process that job control has stopped is probed, stays stopped, and runs on later.
#[test]
fn b084_a_stopped_process_stays_stopped() {
    let program = target("hammer");
    let mut hammer = Running::spawn(&program, &["2"]).unwrap();
    let pid = hammer.pid();
    signal(pid, Signal::STOP);
    let all_stopped = || {
        tasks(pid)
            .iter()
            .all(|t| status(t, "State").starts_with('T'))
    };
    until("all threads are stopped", all_stopped);
    let session = Lancet::count(&[probe(&program, "hammer_target")], pid).attached();
    until("still stopped while attached", all_stopped);
    let (ended, text) = session.interrupt();
    assert!(ended.success(), "{text}");
    until("still stopped after detaching", all_stopped);
    lancet_testkit::text_equals_file(pid, "").unwrap();
    signal(pid, Signal::CONT);
    assert!(hammer.ask("calls").starts_with("calls "));
    assert_untouched(pid, "after SIGCONT");
    let _ = hammer.finish_ok();
}

/// Signals that were pending and blocked stay so.
#[test]
fn pending_and_blocked_signals_stay() {
    let blocked = Running::start("blocked", &["read"]);
    let pid = blocked.pid();
    let program = target("blocked");
    let sleeper: i32 = blocked.facts()[0].parse().unwrap();
    // Its thread blocks SIGUSR1; to the thread alone, so that it stays pending.
    // SAFETY: takes integers only.
    let sent = unsafe { libc::syscall(libc::SYS_tgkill, pid.0, sleeper, libc::SIGUSR1) };
    assert_eq!(sent, 0);
    let before = seen(pid);
    assert!(
        before.masks.iter().any(|m| m[1] != "0000000000000000"),
        "{before:?}"
    );
    for _ in 0..3 {
        once(&[probe(&program, "on_signal")], pid);
        assert_eq!(seen(pid), before);
    }
}

/// Probes a `guarded` in its state, and takes the probes out again.
fn probe_guarded(mut guarded: Running, pid: Pid, when: &str) {
    let program = target("guarded");
    let before = seen(pid);
    let whole = maps(pid);
    for round in 0..2 {
        let session = Lancet::count(&[probe(&program, "guarded_function")], pid).attached();
        // Orders change the state, where one is to change while there is a probe. It may be at the
        // point of answering all along: between two answers it calls the function.
        assert!(guarded.ask("go").starts_with("calls "));
        assert!(guarded.ask("go").starts_with("calls "));
        assert_eq!(smaps_summary(pid).unwrap().writable_and_executable, 0);
        let (status, text) = session.interrupt();
        assert!(status.success(), "{when}, {round}: {text}");
        let counted = text.lines().any(|l| l.starts_with("@[guarded_function]: "));
        assert!(counted, "{when}: {text}");
        assert_untouched(pid, when);
        let _ = added(&whole, pid, when);
        assert_eq!(seen(pid), before, "{when}");
    }
    let _ = guarded.finish_ok();
}

/// B066: where nothing may become executable that was not.
#[test]
fn b066_memory_deny_write_execute() {
    match Running::spawn(&target("guarded"), &["mdwe"]) {
        Ok(guarded) => {
            let pid = guarded.pid();
            probe_guarded(guarded, pid, "MDWE");
        }
        Err(_) => skip!("no PR_SET_MDWE"),
    }
}

/// A process that gives up being dumpable belongs to root in /proc; what is held goes on working.
#[test]
fn a_target_that_stops_being_dumpable_is_cleaned() {
    let program = target("guarded");
    let mut guarded = Running::spawn(&program, &["undumpable"]).unwrap();
    let pid = guarded.pid();
    let session = Lancet::count(&[probe(&program, "guarded_function")], pid).attached();
    assert!(guarded.ask("go").starts_with("calls "));
    let (status, text) = session.interrupt();
    if is_root() {
        assert!(status.success(), "{text}");
        assert_untouched(pid, "undumpable");
    }
    let _ = guarded.finish_ok();
}

/// B155: at a limit attaching fails with a clear error, and nothing stays.
#[test]
fn b155_at_a_limit_nothing_stays() {
    for state in ["space", "mappings"] {
        let program = target("guarded");
        let Ok(mut guarded) = Running::spawn(&program, &[state]) else {
            skip!("the limit of {state} can't be reached here");
        };
        let pid = guarded.pid();
        let (before, whole) = (seen(pid), maps(pid));
        let words = [
            "count",
            &probe(&program, "guarded_function"),
            "-p",
            &pid.to_string(),
        ];
        let output = lancet(&words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{state}: {said}");
        assert!(said.contains("memory"), "{state}: {said}");
        assert_eq!(maps(pid), whole, "{state}");
        assert_eq!(seen(pid), before, "{state}");
        // The page that the first call was made from stays a copy, with the file's bytes.
        assert!(smaps_summary(pid).unwrap().text_copied_kib <= 4, "{state}");
        assert_untouched(pid, state);
        assert!(guarded.ask("go").starts_with("calls "));
        let _ = guarded.finish_ok();
    }
}

fn run(words: &[&str]) -> Option<Running> {
    Running::spawn(std::path::Path::new(words[0]), &words[1..]).ok()
}

fn tool(name: &str) -> String {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&paths)
        .map(|p| p.join(name))
        .find(|p| p.is_file());
    found.unwrap_or_default().display().to_string()
}

/// Own mount namespace with own /dev/shm, own root, own pid namespace, another user.
#[test]
fn other_namespaces_and_users() {
    if !is_root() {
        skip!("not root");
    }
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().display().to_string();
    let program = target("guarded").display().to_string();
    let own_files = format!("mount -t tmpfs x /dev/shm && exec {program} plain");
    let own_root = format!(
        "mount --rbind / {root} && mount -t tmpfs x {root}/dev/shm && exec chroot {root} {program} plain"
    );
    let no_tmpfs = format!(
        "for f in /dev/shm /run/shm /run /tmp; do \
         [ \"$(stat -f -c %T $f 2>/dev/null)\" != tmpfs ] || mount --bind /etc $f; done; \
         exec {program} plain"
    );
    let (unshare, setpriv) = (tool("unshare"), tool("setpriv"));
    let cases: [(&str, Vec<&str>); 5] = [
        ("no tmpfs", vec![&unshare, "-m", "sh", "-c", &no_tmpfs]),
        (
            "mount namespace",
            vec![&unshare, "-m", "sh", "-c", &own_files],
        ),
        ("root", vec![&unshare, "-m", "sh", "-c", &own_root]),
        (
            "pid namespace",
            vec![&unshare, "-p", "--fork", "--kill-child", &program, "plain"],
        ),
        (
            "user",
            vec![
                &setpriv,
                "--reuid",
                "65534",
                "--regid",
                "65534",
                "--clear-groups",
                &program,
                "plain",
            ],
        ),
    ];
    for (what, words) in cases {
        let Some(guarded) = run(&words) else {
            eprintln!("skipped: {what}: {words:?} does not start");
            continue;
        };
        let pid = guarded.pid();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        let inner = children
            .split_whitespace()
            .next()
            .and_then(|c| c.parse().ok());
        probe_guarded(guarded, inner.map_or(pid, Pid), what);
    }
}

/// Texts are read, maps written and records made while threads hammer the functions; then all of
/// it is taken out again, or the tracer is killed.
#[test]
fn compiled_actions_come_and_go_under_load() {
    let program = target("hammer");
    let mut hammer = Running::spawn(&program, &["3"]).unwrap();
    let pid = hammer.pid();
    let site = probe(&program, "hammer_*");
    let script = format!(
        "uprobe:{site} {{ @c[func, arg0 % 5] = count(); @s = str(arg0); @d[tid] = nsecs; printf(\"%d\\n\", arg0); }}
         uprobe:{site} /@d[tid]/ {{ delete(@d[tid]); }}"
    );
    let (threads, descriptors) = (thread_count(pid).unwrap(), fd_count(pid).unwrap());
    for round in 0..rounds(8) {
        let session = Lancet::script(&script, pid).attached();
        let mut calls = || -> u64 {
            let said = hammer.ask("calls");
            let number = said
                .strip_prefix("calls ")
                .and_then(|n| n.split(' ').next());
            number.and_then(|n| n.parse().ok()).expect("a number")
        };
        let before = calls();
        until("it goes on calling", || calls() > before + 1000);
        if round % 2 == 0 {
            let (status, text) = session.interrupt();
            assert!(status.success(), "round {round}: {text}");
            assert!(text.contains("@c[hammer_"), "round {round}: {text}");
        } else {
            // The guardian takes the probes out.
            assert!(signal(session.tracer().expect("it runs"), Signal::KILL));
            let _ = session.end();
        }
        assert_untouched(pid, &format!("round {round}"));
        assert_eq!(smaps_summary(pid).unwrap().writable_and_executable, 0);
    }
    assert_eq!(thread_count(pid).unwrap(), threads);
    assert_eq!(fd_count(pid).unwrap(), descriptors);
    let _ = hammer.finish_ok();
}

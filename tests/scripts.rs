//! Scripts: what they print, beside bpftrace where it is there; exact counts; what is refused.

#[path = "support/mod.rs"]
mod support;

use std::io::Write;
use std::process::{Command, Stdio};

use lancet_testkit::{Bpftrace, Running, target};

use support::{Ended, Lancet, lancet, private_copy, rounds, start};

fn calls() -> String {
    target("calls").display().to_string()
}

/// The lines of what it printed, without empty ones.
fn lines(text: &str) -> Vec<&str> {
    text.lines().filter(|line| !line.is_empty()).collect()
}

/// Runs a script on `calls` while two threads call f, g and h 1000 times each.
fn on_calls(words: &[&str], script: &str) -> Ended {
    let mut calls = Running::start("calls", &["2", "1000"]);
    let pid = calls.pid().to_string();
    let mut all = vec!["-p", &pid, "-e", script];
    all.extend(words);
    all.push("-v");
    let mut session = Lancet::spawn(&all);
    assert!(session.says("process "), "it does not attach");
    assert_eq!(calls.ask("go"), "calls 2000 2000 2000");
    let _ = calls.finish_ok();
    let ended = session.end();
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    ended
}

#[test]
fn every_hit_is_counted_by_each_statement_and_block() {
    let file = calls();
    let script = format!(
        "u:{file}:f,u:{file}:g {{ @ = count(); @by[func] = count(); @tid[tid] = count(); }}
         uprobe:{file}:g {{ @by[func] = count(); @sum = sum(arg0); @h = hist(reg(\"di\")); }}
         END {{ printf(\"%d threads\\n\", len(@tid)); clear(@tid); }}"
    );
    let ended = on_calls(&[], &script);
    assert!(ended.err.contains("\nAttached 4 probes"), "{}", ended.err);
    let out = lines(&ended.out);
    assert_eq!(
        out[..6],
        [
            "2 threads",
            "@: 4000",
            "@by[f]: 2000",
            "@by[g]: 4000",
            "@h:",
            "[0]                    2 |                                                    |"
        ],
    );
    assert_eq!(out.last(), Some(&"@sum: 999000"));
    let counted: u64 = out[5..out.len() - 1]
        .iter()
        .map(|line| line[16..24].trim().parse::<u64>().expect("a count"))
        .sum();
    assert_eq!(counted, 2000);
}

/// What a block prints is what it clears: no hit between the two is lost.
#[test]
fn what_is_printed_and_cleared_adds_up() {
    let script = format!(
        "uprobe:{}:h {{ @[tid] = count(); @n = count(); }} interval:ms:1 {{ print(@); clear(@); zero(@n); }}",
        calls()
    );
    let ended = on_calls(&[], &script);
    let rows = ended.out.lines().filter(|line| line.starts_with("@["));
    let counted: u64 = rows
        .map(|line| {
            line.rsplit(' ')
                .next()
                .and_then(|n| n.parse::<u64>().ok())
                .expect("a count")
        })
        .sum();
    // main calls h once itself.
    assert_eq!(counted, 2001, "{}", ended.out);
}

#[test]
fn json_has_one_object_a_line() {
    let file = calls();
    let script = format!("BEGIN {{ printf(\"a\\n\"); }} uprobe:{file}:f {{ @[func] = count(); }}");
    let ended = on_calls(&["-f", "json"], &script);
    let objects: Vec<serde_json::Value> = ended
        .out
        .lines()
        .map(|line| serde_json::from_str(line).expect("an object"))
        .collect();
    let kinds: Vec<&str> = objects
        .iter()
        .filter_map(|one| one["type"].as_str())
        .collect();
    assert_eq!(kinds, ["printf", "attached_probes", "map"]);
    assert_eq!(objects[2]["data"]["@"]["f"], 2000);
}

/// The number behind a row's name.
fn counted(out: &str, row: &str) -> u64 {
    let line = out.lines().find_map(|line| line.strip_prefix(row));
    line.and_then(|rest| rest.trim_start_matches(": ").parse().ok())
        .unwrap_or_else(|| panic!("no {row} in {out}"))
}

#[test]
fn compiled_blocks_are_exact_under_threads() {
    let file = calls();
    let script = format!(
        "uprobe:{file}:f {{ @n++; @k[arg0 % 7] = count(); @a = avg(arg0); $x = arg0; if ($x & 1) {{ @odd += $x; }} }}
         uprobe:{file}:g /arg0 % 10 == 3/ {{ @threes[tid] = count(); printf(\"hit %d %d\\n\", arg0, arg1); }}
         uprobe:{file}:h {{ @h = count(); }} uprobe:{file}:h {{ @again++; }}
         END {{ printf(\"%d keys\\n\", len(@k)); }}"
    );
    let ended = on_calls(&[], &script);
    let out = &ended.out;
    assert_eq!(counted(out, "@n"), 2000);
    assert_eq!(
        (0..7)
            .map(|k| counted(out, &format!("@k[{k}]")))
            .sum::<u64>(),
        2000
    );
    assert_eq!(counted(out, "@a"), 499);
    assert_eq!(counted(out, "@odd"), 2 * 250_000);
    assert_eq!((counted(out, "@h"), counted(out, "@again")), (2001, 2001));
    let said: Vec<&str> = out
        .lines()
        .filter(|line| line.starts_with("hit "))
        .collect();
    assert_eq!(said.len(), 200, "{out}");
    assert!(said.iter().all(|line| {
        let words: Vec<u64> = line.split(' ').filter_map(|w| w.parse().ok()).collect();
        words[0] % 10 == 3 && words[1] == words[0] + 1
    }));
    assert!(out.contains("7 keys"), "{out}");
    let threads = out.lines().filter(|line| line.starts_with("@threes["));
    assert_eq!(threads.count(), 2);
}

/// Children share the maps of their parent, and are counted as themselves.
#[test]
fn b139_forked_children_have_ids_of_their_own() {
    let mut family = Running::start("family", &[]);
    let pid = family.pid();
    let file = target("family").display().to_string();
    let script = format!(
        "uprobe:{file}:family_function {{ @n = count(); @by[pid, comm] = count(); @x++; }}"
    );
    let session = Lancet::start(&["-p", &pid.to_string(), "-e", &script]);
    for _ in 0..3 {
        assert!(family.ask("fork").starts_with("child "));
    }
    assert_eq!(family.ask("go 500"), "calls 2000");
    let ended = session.stop();
    let _ = family.finish_ok();
    assert_eq!(counted(&ended.out, "@n"), 2000, "{}", ended.out);
    assert_eq!(counted(&ended.out, "@x"), 2000);
    let rows: Vec<&str> = ended
        .out
        .lines()
        .filter(|l| l.starts_with("@by["))
        .collect();
    assert_eq!(rows.len(), 4, "{}", ended.out);
    assert!(
        rows.iter().all(|row| row.ends_with(", family]: 500")),
        "{rows:?}"
    );
    assert!(
        rows.iter()
            .any(|row| row.starts_with(&format!("@by[{pid}, "))),
        "{rows:?}"
    );
}

#[test]
fn probes_are_listed_as_they_are_meant() {
    let file = calls();
    let listed = lancet(&["-l", &format!("uprobe:{file}:?")]);
    assert_eq!(listed.status.code(), Some(1), "{listed:?}");
    let program = format!("uprobe:{file}:f,uprobe:{file}:g {{ @++; }} BEGIN {{ exit(); }}");
    let expected = format!("uprobe:{file}:f\nuprobe:{file}:g\n");
    let listed = lancet(&["-l", "-e", &program]);
    assert_eq!((listed.status.code(), &listed.out), (Some(0), &expected));
    let folder = std::path::Path::new(&file).parent().expect("a folder");
    let listed = lancet(&["-l", &format!("uprobe:{}/cal*:[fg]", folder.display())]);
    assert_eq!(listed.status.code(), Some(1), "{listed:?}");
    let listed = lancet(&["-l", &format!("uprobe:{}/cal*:f", folder.display())]);
    assert!(
        listed.out.contains(&format!("uprobe:{file}:f\n")),
        "{listed:?}"
    );
    let wrong = lancet(&["-l", "kprobe:f"]);
    assert_eq!(wrong.status.code(), Some(1));
    assert!(wrong.err.contains("uprobe:FILE:FUNCTION"), "{wrong:?}");
}

#[test]
fn wildcards_in_the_file_reach_every_file_with_the_function() {
    let (folder, file) = private_copy("calls");
    let other = folder.path().join("calls-not");
    std::fs::write(&other, "no program").expect("there is room");
    let mut calls = start(&file);
    let script = format!(
        "uprobe:{}/cal*:f {{ @[probe] = count(); }}",
        folder.path().display()
    );
    let session = Lancet::start(&["-p", &calls.pid().to_string(), "-e", &script]);
    calls.ask("go");
    let ended = session.stop();
    let _ = calls.finish_ok();
    assert!(ended.out.contains("/calls:f]: 2000"), "{ended:?}");
}

#[test]
fn the_environment_wins_over_the_config_block() {
    let script = "config = { max_map_keys = 5; } BEGIN { @[1] = 1; @[2] = 2; @[3] = 3; exit(); }";
    let run = |value: &str| {
        let out = Command::new(env!("CARGO_BIN_EXE_lancet"))
            .args(["-e", script])
            .env("BPFTRACE_MAX_MAP_KEYS", value)
            .output()
            .expect("it starts");
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        (out.status.code(), text.matches("@[").count())
    };
    assert_eq!(run("2"), (Some(0), 2));
    assert_eq!(run("9"), (Some(0), 3));
    assert_eq!(run("none"), (Some(1), 0));
}

#[test]
fn called_by_the_other_name_it_takes_scripts_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let name = folder.path().join("bpftrace");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_lancet"), &name).expect("a link");
    let script = folder.path().join("list");
    std::fs::write(
        &script,
        "BEGIN { printf(\"%s %d\\n\", str($1), $#); exit(); }",
    )
    .expect("room");
    let out = Command::new(&name)
        .current_dir(folder.path())
        .args(["-q", "-B", "line", "list", "word"])
        .env("__BPFTRACE_NOTIFY_PROBES_ATTACHED", "1")
        .output()
        .expect("it starts");
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{out:?}");
    assert!(text.starts_with("word 1\n"), "{text}");
    let version = Command::new(&name).arg("-V").output().expect("it starts");
    let text = String::from_utf8_lossy(&version.stdout);
    assert!(text.starts_with("bpftrace v0.26"), "{text}");
    let wrong = Command::new(&name)
        .arg("--nonsense")
        .output()
        .expect("it starts");
    assert_eq!(wrong.status.code(), Some(1));
}

/// The benchmark of scripts checks itself; without a path there is no bpftrace beside it.
#[test]
fn bench_script_accounts_for_every_hit() {
    let out = Command::new(env!("CARGO_BIN_EXE_lancet"))
        .args(["bench", "script", "--quick", "--json"])
        .env("PATH", "")
        .output()
        .expect("it starts");
    assert!(out.status.success(), "{out:?}");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let rows: Vec<serde_json::Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("an object"))
        .filter(|row: &serde_json::Value| row["tool"] == "lancet")
        .collect();
    assert_eq!(rows.len(), 10, "{text}");
    for row in rows {
        assert!(row["calls"].as_u64() > Some(1000), "{row}");
        assert_eq!(row["calls"], row["told"], "{row}");
    }
}

/// A text is cut at the configured length, and marked.
#[test]
fn b133_long_texts_are_cut_and_marked() {
    for (most, shown) in [("64", 64), ("1024", 1024), ("4096", 4096)] {
        let mut texts = Running::start("texts", &[]);
        let script = format!(
            "uprobe:{}:lengthy {{ printf(\"[%s]\\n\", str(arg0)); @[str(arg0, 8)] = count(); }}",
            target("texts").display()
        );
        let mut command = Command::new(env!("CARGO_BIN_EXE_lancet"));
        command.args(["-p", &texts.pid().to_string(), "-e", &script]);
        command.env("BPFTRACE_MAX_STRLEN", most);
        let mut session = Lancet::of(command);
        assert!(session.says("Attached "), "it does not attach");
        texts.ask("go");
        let ended = session.stop();
        let _ = texts.finish_ok();
        let said = ended
            .out
            .lines()
            .find(|line| line.starts_with('['))
            .expect("a text");
        let text = said.trim_matches(['[', ']']);
        let kept = text.trim_end_matches('.');
        assert!(kept.bytes().all(|byte| byte == b'x'), "{said}");
        assert!(
            kept.len() + 1 >= shown && kept.len() <= shown,
            "{} of {shown}",
            kept.len()
        );
        assert!(text.ends_with(".."), "{} of {shown}", text.len());
        assert!(ended.out.contains("@[xxxxxxxx]: 1"), "{}", ended.out);
    }
}

/// `exit()` and `clear()` come through a flood of lines.
#[test]
fn b135_what_a_script_asks_for_is_not_lost_behind_a_flood() {
    let mut calls = Running::start("calls", &["2", "100000"]);
    let script = format!(
        "uprobe:{}:f {{ @n++; printf(\"%d a line of a flood that fills every ring in no time\\n\", arg0); @[arg0 % 3] = count();
            if (@n >= 150000) {{ clear(@); exit(); }} }}",
        target("calls").display()
    );
    let session = Lancet::start(&["-p", &calls.pid().to_string(), "-e", &script]);
    assert_eq!(calls.ask("go"), "calls 200000 200000 200000");
    // It ends by itself.
    let ended = session.end();
    let _ = calls.finish_ok();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.err);
    assert!(counted(&ended.out, "@n") >= 150_000);
}

/// Numbered events of eight threads: each thread's come in order, and what is missing is told.
#[test]
fn b136_events_keep_their_order_and_losses_are_told() {
    let each = rounds(20_000);
    let mut calls = Running::start("calls", &["8", &each.to_string()]);
    let script = format!(
        "uprobe:{}:f {{ printf(\"%d %d\\n\", tid, arg0); }}",
        target("calls").display()
    );
    let session = Lancet::start(&["-p", &calls.pid().to_string(), "-e", &script]);
    calls.ask("go");
    let ended = session.stop();
    let _ = calls.finish_ok();
    let mut last = std::collections::HashMap::new();
    let mut lines = 0;
    for line in ended.out.lines().filter(|line| !line.is_empty()) {
        let (tid, number) = line.split_once(' ').expect("two numbers");
        let number: i64 = number.parse().expect("a number");
        if let Some(before) = last.insert(tid.to_owned(), number) {
            assert!(before < number, "{tid}: {number} after {before}");
        }
        lines += 1;
    }
    let lost: u64 = ended
        .err
        .lines()
        .find_map(|line| {
            line.strip_prefix("Lost ")?
                .strip_suffix(" events")?
                .parse()
                .ok()
        })
        .unwrap_or(0);
    assert_eq!(lines + lost, 8 * each, "{}", ended.err);
    assert!(lines > 0);
}

/// Where every block asks for one process, no other gets a probe.
#[test]
fn b144_a_predicate_on_the_process_chooses_it() {
    let (_folder, file) = private_copy("calls");
    let (mut wanted, mut other) = (start(&file), start(&file));
    let script = format!(
        "uprobe:{0}:f /pid == {1}/ {{ @ = count(); }} uprobe:{0}:g /pid == {1} && arg0 > 5/ {{ @big = count(); }}",
        file.display(),
        wanted.pid()
    );
    let session = Lancet::start(&["-e", &script]);
    let maps = |pid| std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("maps");
    assert!(maps(wanted.pid()).contains("lancet") && !maps(other.pid()).contains("lancet"));
    wanted.ask("go");
    other.ask("go");
    let ended = session.stop();
    let _ = (wanted.finish_ok(), other.finish_ok());
    assert_eq!(counted(&ended.out, "@"), 2000, "{}", ended.out);
}

/// Names of attach point and function are texts like others.
#[test]
fn names_are_compared_as_texts() {
    let file = calls();
    let script = format!(
        "uprobe:{file}:f,uprobe:{file}:g {{ if (func == \"g\") {{ @g = count(); }} @n[func == \"f\"] = count();
            @p[strcontains(probe, \":f\")] = count(); $s = func; @last[$s] = count(); }}"
    );
    let out = on_calls(&[], &script).out;
    for row in [
        "@g: 2000",
        "@n[true]: 2000",
        "@n[false]: 2000",
        "@p[true]: 2000",
        "@last[f]: 2000",
        "@last[g]: 2000",
    ] {
        assert!(out.contains(row), "{row}: {out}");
    }
}

/// The clocks of hits are those of the machine, never run backwards in a thread, and start with the
/// program where they are to.
#[test]
fn hits_tell_the_time_of_the_tracer() {
    let script = format!(
        "BEGIN {{ @begin = nsecs; @mono = nsecs(monotonic); @tai = nsecs(tai); }}
         uprobe:{}:f {{ $now = nsecs; if ($now + 20000 < @last[tid]) {{ @back++; }} @last[tid] = $now; @n = count();
            if (@begin > $now || @mono > nsecs(monotonic) || @tai > nsecs(tai)) {{ @early++; }}
            @elapsed = max(elapsed); @now = max($now); }}
         END {{ if (@now > nsecs) {{ @late++; }} if (@elapsed > elapsed) {{ @late++; }} clear(@last); }}",
        calls()
    );
    let mut calls = Running::start("calls", &["2", "20000"]);
    let session = Lancet::start(&["-p", &calls.pid().to_string(), "-e", &script]);
    // Over several changes of the tracer's factors. A hit in the moment of a change asks the kernel, of
    // whose clock the line may be some microseconds short.
    let end = std::time::Instant::now() + std::time::Duration::from_millis(1800);
    let mut rounds = 0;
    while std::time::Instant::now() < end {
        calls.ask("go");
        rounds += 1;
    }
    let out = session.stop().out;
    let _ = calls.finish_ok();
    assert_eq!(counted(&out, "@n"), rounds * 40_000);
    for wrong in ["@back", "@early", "@late"] {
        assert!(!out.contains(wrong), "{out}");
    }
}

#[test]
fn what_is_not_there_yet_is_refused_by_name_before_anything_starts() {
    let folder = tempfile::tempdir().expect("a folder");
    let trace = folder.path().join("trace");
    let script = format!(
        "let @x = lruhash(5); uprobe:{}:f {{ @x[tid] = 1; }}",
        calls()
    );
    let command = format!("touch {}", trace.display());
    let ended = lancet(&["-e", &script, "-c", &command]);
    assert_eq!(ended.status.code(), Some(1), "{script}: {ended:?}");
    assert!(ended.err.contains("not yet: @x"), "{script}: {}", ended.err);
    assert!(!trace.exists(), "{script}");
}

#[test]
fn a_missing_function_starts_nothing_unless_the_program_says_so() {
    let folder = tempfile::tempdir().expect("a folder");
    let trace = folder.path().join("trace");
    let command = format!("touch {}", trace.display());
    let script = format!(
        "BEGIN {{ printf(\"begun\\n\"); }} uprobe:{}:nothing {{ @ = count(); }}",
        calls()
    );
    let ended = lancet(&["-e", &script, "-c", &command]);
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert!(ended.err.contains("no function `nothing`"), "{}", ended.err);
    assert!(!trace.exists() && ended.out.is_empty(), "{ended:?}");
    let script = format!(
        "config = {{ missing_probes = warn }} {script} uprobe:libc:malloc {{ @m = count(); }}"
    );
    let ended = lancet(&["-e", &script, "-c", &command]);
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    assert!(ended.err.contains("no function `nothing`"), "{}", ended.err);
    assert!(
        trace.exists() && ended.out.contains("@m: ") && ended.out.starts_with("begun"),
        "{ended:?}"
    );
}

#[test]
fn files_parameters_standard_input_and_output_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("a.bt");
    std::fs::write(
        &file,
        "#!/usr/bin/env lancet\nBEGIN { printf(\"%d %s %d\\n\", $1, str($2), $#); exit(7); }",
    )
    .expect("a file");
    let ended = lancet(&[file.to_str().expect("a path"), "42", "word"]);
    assert_eq!(
        (ended.status.code(), lines(&ended.out)),
        (Some(7), vec!["42 word 2"]),
        "{ended:?}"
    );

    let report = folder.path().join("report");
    let ended = lancet(&[
        "-q",
        "-o",
        report.to_str().expect("a path"),
        "-e",
        "BEGIN { @x = 5; exit(); }",
    ]);
    assert!(
        ended.status.success() && ended.out.is_empty() && ended.err.is_empty(),
        "{ended:?}"
    );
    assert_eq!(
        std::fs::read_to_string(report).expect("a report"),
        "\n\n@x: 5\n"
    );

    let mut child = Command::new(env!("CARGO_BIN_EXE_lancet"))
        .arg("-")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("lancet starts");
    let mut input = child.stdin.take().expect("a pipe");
    input
        .write_all(b"BEGIN { print(1 + 1); exit(); }")
        .expect("it reads");
    drop(input);
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "2\n\n\n");

    let ended = lancet(&["-d", "-e", "u:libc:malloc { @[arg0] = count(); }"]);
    assert!(
        ended.status.success() && ended.out.contains("aggregate map0[%0], Count 1"),
        "{ended:?}"
    );
    assert_eq!(lancet(&["--unknown"]).status.code(), Some(1));
}

#[test]
fn intervals_run_until_the_command_ends_or_ctrl_c() {
    let ended = lancet(&[
        "-e",
        "interval:ms:20 { @i++; } END { printf(\"ticked %d\\n\", @i > 2); }",
        "-c",
        "sleep 0.5",
    ]);
    assert!(
        ended.status.success() && ended.out.starts_with("ticked 1\n"),
        "{ended:?}"
    );
    let session = Lancet::start(&["-e", "interval:s:100 { @i++; } END { printf(\"end\\n\"); }"]);
    assert_eq!(session.stop().out, "end\n\n\n");
}

/// What bpftrace writes otherwise in this version: its own first line, blanks behind a histogram's title and between its buckets, empty lines.
fn normal(text: &str) -> Vec<String> {
    lines(text)
        .into_iter()
        .map(|line| line.trim_end().replace("}, {", "},{"))
        .filter(|line| !line.starts_with("Attaching ") && !line.contains("attached_probes"))
        .collect()
}

#[test]
fn blocks_of_the_tracer_print_what_bpftrace_prints() {
    if let Some(why) = Bpftrace::missing() {
        println!("skipped: {why}");
        return;
    }
    for body in [
        "@x[1] = 50; @x[2] = 30; @x[3] = 40; print(@x); print(@x, 1); print(@x, 2, 3); print(@x, 1, 2); clear(@x); print((1, \"a\")); print(\"s\");",
        "printf(\"%-5d|%5s|%x|%c|%p|%05d|%u|%lx|%5d|%-8s|\\n\", -3, \"ab\", 255, 65, 16, 42, 7, -1, 12, \"q\");",
        "@s = \"abc\"; @t[1, \"b\"] = \"x\"; @t[0, \"c\"] = \"y\"; @t[1, \"a\"] = \"z\"; printf(\"%s\\n\", @s);",
        "@h = hist(5); @h = hist(6); @h = hist(900); @h = hist(0); @h = hist(-1); @k[\"b\"] = hist(1); @k[\"a\"] = hist(70000);",
        "@c = count(); @c = count(); @s = sum(5); @s = sum(-9); @mi = min(7); @mi = min(3); @ma = max(3); @ma = max(9);",
        "$i = 0; while ($i < 4) { @q[$i] = $i * $i; $i++; } delete(@q[2]); print(@q[3] + 8); @n = 7 / 2; @m = 7 % 3;",
        "@a[1] = 1; zero(@a); print(@a); @t = (1, (2, \"x\")); time(\"%Y\\n\");",
        "if (1 > 2) { print(1); } else { print(\"no\"); } @b = 1 << 40; @c = 5 > 3 ? 10 : 20; @d = strncmp(\"abc\", \"abd\", 2);",
    ] {
        for format in ["text", "json"] {
            let script = format!("BEGIN {{ {body} exit(); }}");
            let ours = lancet(&["-q", "-f", format, "-e", &script]);
            assert!(ours.status.success(), "{script}: {ours:?}");
            let theirs = Command::new("bpftrace")
                .args(["-f", format, "-e", &script])
                .stdin(Stdio::null())
                .output()
                .expect("bpftrace runs");
            assert!(theirs.status.success(), "{script}: {theirs:?}");
            let theirs = String::from_utf8_lossy(&theirs.stdout);
            assert_eq!(normal(&ours.out), normal(&theirs), "{format} {script}");
        }
    }
}

#[test]
fn uprobe_blocks_count_what_bpftrace_counts() {
    if let Some(why) = Bpftrace::missing() {
        println!("skipped: {why}");
        return;
    }
    let (_folder, file) = private_copy("calls");
    let action = "@n = count(); @by[func] = count(); @s = sum(arg0); @h = hist(arg0); @k[arg0] = count(); @r = hist(reg(\"di\"));";
    let sites = [
        format!("{}:f", file.display()),
        format!("{}:g", file.display()),
    ];
    let mut theirs_on = start(&file);
    let theirs = Bpftrace::start_at(theirs_on.pid(), &sites, action);
    theirs_on.ask("go");
    let theirs = theirs.stop().join("\n");
    let _ = theirs_on.finish_ok();

    let mut ours_on = start(&file);
    let script = format!("uprobe:{},uprobe:{} {{ {action} }}", sites[0], sites[1]);
    let ours = Lancet::start(&["-p", &ours_on.pid().to_string(), "-e", &script]);
    ours_on.ask("go");
    let ours = ours.stop();
    let _ = ours_on.finish_ok();
    assert!(ours.out.contains("@n: 4000"), "{}", ours.out);
    // Rows of equal values are in no order there.
    let sorted = |text: &str| {
        let mut lines = normal(text);
        lines.sort();
        lines
    };
    assert_eq!(sorted(&ours.out), sorted(&theirs));
}

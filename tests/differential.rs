//! The same programs run by lancet and by bpftrace, and what both print compared.
//!
//! `differential/tracer.txt` has blocks that run in BEGIN, `differential/target.txt` programs for a
//! target. Many go into one run: maps and variables are renamed by case.

#[path = "support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::process::Command;

use lancet_testkit::Bpftrace;
use serde_json::Value;
use support::{Lancet, lancet, private_copy, start};

/// Cases of one run: a program of the kernel has 512 bytes of stack and a bounded length.
const TOGETHER: usize = 8;

fn cases(text: &'static str) -> Vec<(usize, &'static str)> {
    let lines = text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.enumerate().collect()
}

/// The case with names of its own.
fn renamed(number: usize, text: &str) -> String {
    let mut out = String::new();
    let mut quoted = false;
    let mut last = ' ';
    for c in text.chars() {
        out.push(c);
        quoted ^= c == '"' && last != '\\';
        if !quoted && (c == '@' || c == '$') {
            out.push_str(&format!("c{number}_"));
        }
        last = c;
    }
    out
}

/// Known differences of the two formats, taken away from both: blanks at the end of a line, empty
/// lines, the banner, the mark of the last event, and that truth values were 1 and 0 in the oracle's release.
fn normal(text: &str) -> Vec<String> {
    let lines = text.lines().map(str::trim_end);
    lines
        .filter(|line| !line.is_empty() && !line.starts_with("Attach") && *line != "last")
        .map(|line| line.replace("[true]", "[1]").replace("[false]", "[0]"))
        .map(|line| match line.rsplit_once(": ") {
            Some((name, "true")) => format!("{name}: 1"),
            Some((name, "false")) => format!("{name}: 0"),
            _ => line,
        })
        .collect()
}

/// The rows of every case's maps, those of equal values in one order, each with its histogram.
fn maps(lines: &[String]) -> BTreeMap<usize, Vec<String>> {
    let mut all: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    let mut case = None;
    for line in lines {
        let named = line
            .strip_prefix("@c")
            .and_then(|rest| rest.split_once('_'));
        match named.and_then(|(number, _)| number.parse().ok()) {
            Some(number) => {
                case = Some(number);
                all.entry(number).or_default().push(line.clone());
            }
            None => {
                if let Some(row) = case.and_then(|case| all.get_mut(&case)?.last_mut()) {
                    row.push('\n');
                    row.push_str(line);
                }
            }
        }
    }
    all.values_mut().for_each(|rows| rows.sort());
    all
}

fn compare(cases: &[(usize, &str)], ours: &[String], theirs: &[String], what: &str) -> Vec<String> {
    let (ours, theirs) = (maps(ours), maps(theirs));
    let mut wrong = Vec::new();
    for (number, text) in cases {
        let (ours, theirs) = (ours.get(number), theirs.get(number));
        if ours != theirs {
            wrong.push(format!(
                "{what}: {text}\n ours: {ours:?}\n theirs: {theirs:?}"
            ));
        }
    }
    wrong
}

/// What each case prints lies between its mark and the next.
fn printed(lines: &[String]) -> (BTreeMap<usize, Vec<String>>, Vec<String>) {
    let mut all: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    let mut case = None;
    let mut rest = Vec::new();
    for line in lines {
        if let Some(number) = line.strip_prefix("== ") {
            case = number.parse().ok();
        } else if let Some(case) = case {
            all.entry(case).or_default().push(line.clone());
        } else {
            rest.push(line.clone());
        }
    }
    // Rows of equal values are in no order there.
    all.values_mut().for_each(|lines| lines.sort());
    (all, rest)
}

#[test]
fn blocks_of_the_tracer_print_what_bpftrace_prints() {
    if let Some(why) = Bpftrace::missing() {
        println!("skipped: {why}");
        return;
    }
    let all = cases(include_str!("differential/tracer.txt"));
    assert!(all.len() >= 80, "{} cases", all.len());
    let mut wrong = Vec::new();
    for some in all.chunks(TOGETHER) {
        let bodies: String = some
            .iter()
            .map(|(number, text)| {
                format!("printf(\"== {number}\\n\"); {}\n", renamed(*number, text))
            })
            .collect();
        let program = format!("BEGIN {{ {bodies} printf(\"== end\\n\"); exit(); }}");
        let theirs = Command::new("bpftrace").args(["-e", &program]).output();
        let theirs = theirs.expect("bpftrace is there");
        let error = String::from_utf8_lossy(&theirs.stderr).into_owned();
        if !theirs.status.success() {
            wrong.push(format!("bpftrace refuses: {error}"));
            continue;
        }
        let theirs = normal(&String::from_utf8_lossy(&theirs.stdout));
        let ours = lancet(&["-e", &program]);
        if !ours.status.success() {
            wrong.push(format!("{}\n{program}", ours.err));
            continue;
        }
        let ours = normal(&ours.out);
        let ((ours_printed, ours), (theirs_printed, theirs)) = (printed(&ours), printed(&theirs));
        for (number, text) in some {
            let (ours, theirs) = (ours_printed.get(number), theirs_printed.get(number));
            if ours != theirs {
                wrong.push(format!("{text}\n ours: {ours:?}\n theirs: {theirs:?}"));
            }
        }
        wrong.extend(compare(some, &ours, &theirs, "maps"));
    }
    assert!(
        wrong.is_empty(),
        "{} differ:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// What a JSON report says: the last value of each map with its kind, and everything else in order.
fn said(text: &str) -> (BTreeMap<String, Value>, Vec<Value>) {
    let (mut maps, mut events) = (BTreeMap::new(), Vec::new());
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let object: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"));
        let kind = object["type"].as_str().unwrap_or_default().to_owned();
        match (&*kind, object["data"].as_object()) {
            ("map" | "hist" | "stats", Some(data)) => {
                for (name, value) in data {
                    maps.insert(
                        name.clone(),
                        Value::from(vec![kind.clone().into(), plain(value)]),
                    );
                }
            }
            ("attached_probes", _) => {}
            _ => events.push(plain(&object)),
        }
    }
    (maps, events)
}

/// Known differences: truth values were 1 and 0, and integers that a double can't hold were no
/// texts in the oracle's release.
fn plain(value: &Value) -> Value {
    match value {
        Value::Bool(truth) => u8::from(*truth).into(),
        Value::String(text) => match text.parse::<i64>() {
            Ok(number) if number.unsigned_abs() > 1 << 53 => number.into(),
            _ => value.clone(),
        },
        Value::Array(all) => all.iter().map(plain).collect(),
        Value::Object(all) => all.iter().map(|(k, v)| (k.clone(), plain(v))).collect(),
        _ => value.clone(),
    }
}

#[test]
fn json_of_the_tracers_blocks_is_that_of_bpftrace() {
    if let Some(why) = Bpftrace::missing() {
        println!("skipped: {why}");
        return;
    }
    let mut wrong = Vec::new();
    for some in cases(include_str!("differential/tracer.txt")).chunks(TOGETHER) {
        let bodies: String = some
            .iter()
            .map(|(n, text)| renamed(*n, text) + "\n")
            .collect();
        let program = format!("BEGIN {{ {bodies} exit(); }}");
        let words = ["-f", "json", "-e", &program];
        let theirs = Command::new("bpftrace").args(words).output();
        let theirs = said(&String::from_utf8_lossy(
            &theirs.expect("bpftrace is there").stdout,
        ));
        let ours = said(&lancet(&words).out);
        if ours != theirs {
            wrong.push(format!("{program}\n ours: {ours:?}\n theirs: {theirs:?}"));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} differ:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[test]
fn blocks_of_a_target_print_what_bpftrace_prints() {
    if let Some(why) = Bpftrace::missing() {
        println!("skipped: {why}");
        return;
    }
    let all = cases(include_str!("differential/target.txt"));
    assert!(all.len() >= 50, "{} cases", all.len());
    let (_folder, file) = private_copy("texts");
    let mut wrong = Vec::new();
    for some in all.chunks(TOGETHER) {
        let program = || -> String {
            let one = |(number, text): &(usize, &str)| {
                let text = renamed(*number, text).replace("FILE", &file.display().to_string());
                text.replace("printf(\"", &format!("printf(\"@c{number}_said: ")) + "\n"
            };
            let last = format!(
                "uprobe:{}:lengthy {{ printf(\"last\\n\"); }}",
                file.display()
            );
            some.iter().map(one).collect::<String>() + &last
        };
        let mut target = start(&file);
        let mut oracle = Bpftrace::start_program(target.pid(), &program());
        assert_eq!(target.ask("go"), "rounds 1");
        oracle.wait_for("last");
        let theirs = normal(&oracle.stop().join("\n"));
        let _ = target.finish_ok();

        let mut target = start(&file);
        let pid = target.pid().to_string();
        let session = Lancet::start(&["-p", &pid, "-e", &program()]);
        assert_eq!(target.ask("go"), "rounds 1");
        let ended = session.stop();
        let _ = target.finish_ok();
        assert!(ended.status.success(), "{ended:?}");
        wrong.extend(compare(some, &normal(&ended.out), &theirs, &ended.err));
    }
    assert!(
        wrong.is_empty(),
        "{} differ:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

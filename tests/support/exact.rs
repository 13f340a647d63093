//! What the suite about exact counts asks of targets, compilers and other tracers.

// Each suite is a program of its own and uses a part of this.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use lancet_abi::units::Pid;
use lancet_testkit::{Bpftrace, Running, have, text_equals_file};

use crate::support::{Ended, Lancet, PATIENCE, counting, probe};

/// Sends an order and returns its answer, which may take long.
pub(crate) fn answer(target: &mut Running, order: &str) -> String {
    target.order(order);
    let long = PATIENCE * 2;
    target.line_within(long).unwrap_or_else(|e| panic!("{e}"))
}

/// The number that is a line's word of this index.
pub(crate) fn value(line: &str, index: usize) -> u64 {
    let word = line.split(' ').nth(index);
    word.and_then(|w| w.parse().ok())
        .unwrap_or_else(|| panic!("word {index} of {line:?} is no number"))
}

/// All numbers in a text.
pub(crate) fn numbers(text: &str) -> Vec<u64> {
    text.split(|c: char| !c.is_ascii_digit())
        .filter_map(|word| word.parse().ok())
        .collect()
}

/// The buckets of a text with one histogram: lower bounds, counts of those that are not zero.
pub(crate) fn bucket_rows(text: &str) -> BTreeMap<u64, u64> {
    text.lines()
        .filter_map(|line| {
            let (range, rest) = line.strip_prefix('[')?.split_once([']', ')'])?;
            let low = range.split(',').next()?.trim();
            let (number, unit) = low.split_at(low.trim_end_matches(['K', 'M', 'G']).len());
            let power = match unit {
                "" => 0,
                "K" => 10,
                "M" => 20,
                _ => 30,
            };
            let count = rest.split_whitespace().next()?.parse().ok()?;
            Some((number.parse::<u64>().ok()? << power, count))
        })
        .filter(|&(_, count)| count != 0)
        .collect()
}

/// A program that lancet starts, which hears its orders on standard input.
pub(crate) struct Outside<'a> {
    probes: &'a [String],
    pub(crate) words: Vec<String>,
}

impl<'a> Outside<'a> {
    pub(crate) fn new(probes: &'a [String]) -> Self {
        Self {
            probes,
            words: Vec::new(),
        }
    }

    /// Counts in the program from its start to its end; the report, and its answers to the
    /// orders.
    pub(crate) fn run(&self, file: &Path, orders: &[&str]) -> (Ended, Vec<String>) {
        let mut input = tempfile::tempfile().expect("a file");
        let text = orders.join("\n") + "\n";
        input.write_all(text.as_bytes()).expect("it takes orders");
        std::io::Seek::rewind(&mut input).expect("a file can be read again");
        let program = [&[file.display().to_string()], &self.words[..]].concat();
        let mut command = Command::new(env!("CARGO_BIN_EXE_lancet"));
        command.arg("count").args(self.probes);
        command
            .args(["-c", &program.join(" ")])
            .stdin(Stdio::from(input));
        let ended = Lancet::with_input(command).end();
        assert!(ended.status.success(), "{ended:?}");
        let lines: Vec<String> = ended.out.lines().map(str::to_owned).collect();
        assert!(
            lines.last().is_some_and(|line| line.starts_with("ok ")),
            "{ended:?}"
        );
        (ended, lines[1..].to_vec())
    }
}

/// A target built by this compiler, with flags beyond its own; none where that is not possible
/// here.
pub(crate) fn built(
    name: &str,
    compiler: &str,
    flags: &[&str],
) -> Option<(tempfile::TempDir, PathBuf)> {
    if !have(compiler) {
        return None;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/targets")
        .join(name)
        .with_extension("c");
    let built = Command::new(compiler)
        .args(["-O2", "-g", "-pthread"])
        .args(flags)
        .arg("-o")
        .arg(&file)
        .arg(source)
        .stderr(Stdio::null())
        .status();
    built.is_ok_and(|s| s.success()).then_some((folder, file))
}

/// Probes on those of the functions that a file has.
pub(crate) fn existing(file: &str, functions: &[&str]) -> Vec<String> {
    let probes = functions.iter().map(|f| format!("{file}:{f}"));
    probes
        .filter(|probe| {
            let mut list = Command::new(env!("CARGO_BIN_EXE_lancet"));
            let listed = list.args(["list", probe]).output();
            listed.is_ok_and(|output| output.status.success())
        })
        .collect()
}

/// What bpftrace prints of `@[func] = ACTION` at these probes in one process, over what happens
/// while `run` runs.
pub(crate) fn bpftrace(pid: Pid, probes: &[String], action: &str, run: impl FnOnce()) -> String {
    let tracer = Bpftrace::start_at(pid, probes, &format!("@[func] = {action};"));
    run();
    tracer.stop().join("\n")
}

/// The maps' parts of a report, each with its lines, without empty lines; sorted, since rows of
/// the same value have no order.
pub(crate) fn normal(text: &str) -> Vec<Vec<&str>> {
    let lines = text.lines().map(str::trim_end).filter(|l| !l.is_empty());
    let mut parts: Vec<Vec<&str>> = Vec::new();
    for line in lines {
        match parts.last_mut() {
            Some(part) if !line.starts_with('@') => part.push(line),
            _ => parts.push(vec![line]),
        }
    }
    parts.sort();
    parts
}

/// Runs a lancet with these words and probes beside one order to a target; its report.
pub(crate) fn beside(
    target: &mut Running,
    verb: &str,
    probes: &[String],
    more: &[&str],
    order: &str,
) -> Ended {
    let pid = target.pid().to_string();
    let mut words = vec![verb, "-v"];
    words.extend(probes.iter().map(String::as_str));
    words.extend(more);
    words.extend(["-p", &pid]);
    let lancet = Lancet::start(&words);
    answer(target, order);
    let ended = lancet.stop();
    text_equals_file(target.pid(), "").unwrap();
    ended
}

/// What [`form`] says where nothing is per CPU.
pub(crate) const LOCKED: &str = "counters by locked additions";

/// How a session counted, by its own words.
pub(crate) fn form(ended: &Ended) -> &str {
    let at = ended.err.find("counters ").expect("-v tells");
    ended.err[at..].lines().next().unwrap_or_default()
}

/// How a program with nothing odd is counted on this machine.
pub(crate) fn usual_form() -> String {
    let target = Running::start("sleeper", &["1"]);
    let file = lancet_testkit::target("sleeper");
    let lancet = counting(&target, &[probe(&file, "sleeper_function")]);
    form(&lancet.stop()).to_owned()
}

//! The trigger as a real child process, and the kernel's engine on it.
//!
//! Without the test harness, because this binary is its own trigger.

use std::cell::Cell;
use std::env;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;

use lancet_abi::units::Pid;
use lancet_bench::attach;
use lancet_bench::fork;
use lancet_bench::hit::{self, Options};
use lancet_bench::trigger::{TRIGGER_ARGUMENT, targets};
use lancet_bench::{Attachment, Bare, Engine, Error, Kernel, Method, Trigger, run_trigger};
use lancet_testkit::harness;

/// A test, given this binary.
type Test = fn(&Path);

fn main() -> ExitCode {
    let mut args = env::args_os().skip(1);
    if args.next().is_some_and(|first| first == TRIGGER_ARGUMENT) {
        return run_trigger(args);
    }
    let exe = env::current_exe().expect("the running test has a path");
    let tests: [(&str, Test); 10] = [
        ("trigger_calls_in_threads", trigger_calls_in_threads),
        ("unknown_functions_are_named", unknown_functions_are_named),
        (
            "other_programs_are_no_trigger",
            other_programs_are_no_trigger,
        ),
        ("kernel_hits_equal_calls", kernel_hits_equal_calls),
        ("missing_symbols_are_named", missing_symbols_are_named),
        ("table_has_every_row", table_has_every_row),
        ("a_run_that_fails_detaches", a_run_that_fails_detaches),
        ("a_crowd_calls_together", a_crowd_calls_together),
        ("attach_counts_for_itself", attach_counts_for_itself),
        ("forks_beside_engines", forks_beside_engines),
    ];
    let args: Vec<String> = env::args().skip(1).collect();
    let wanted = harness::wanted(&tests.map(|(name, _)| name), &args);
    for (name, test) in tests.iter().filter(|(name, _)| wanted.contains(name)) {
        println!("test {name}");
        test(&exe);
    }
    ExitCode::SUCCESS
}

fn trigger_calls_in_threads(exe: &Path) {
    let mut trigger = Trigger::spawn(exe).unwrap();
    for (function, _) in targets::NAMED {
        let samples = trigger.measure(function, 3, 5).unwrap();
        assert_eq!(samples.len(), 3);
        assert!(
            samples.iter().any(|sample| sample.calls > 1000),
            "{samples:?}"
        );
        assert!(
            samples
                .iter()
                .all(|sample| sample.cpu_ns <= 2 * sample.wall_ns),
            "{samples:?}"
        );
    }
    let samples = trigger.call(targets::MANY, 2, 5000).unwrap();
    assert_eq!(
        samples
            .iter()
            .map(|sample| sample.calls)
            .collect::<Vec<_>>(),
        [5000, 5000]
    );
}

fn unknown_functions_are_named(exe: &Path) {
    let mut trigger = Trigger::spawn(exe).unwrap();
    let error = trigger.measure("uprobe_target_none", 1, 1).unwrap_err();
    assert!(error.to_string().contains("uprobe_target_none"), "{error}");
    assert!(error.to_string().contains("uprobe_target_nop5"), "{error}");
    trigger
        .call("uprobe_target_nop", 1, 1)
        .expect("the trigger goes on after an error");
}

fn other_programs_are_no_trigger(_: &Path) {
    let error = Trigger::spawn(Path::new("/bin/echo")).unwrap_err();
    assert!(matches!(error, Error::Protocol { .. }), "{error}");
    let error = Trigger::spawn(Path::new("/nonexistent/lancet")).unwrap_err();
    assert!(error.to_string().contains("/nonexistent/lancet"), "{error}");
}

fn kernel_hits_equal_calls(exe: &Path) {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: not root");
        return;
    }
    for method in [Method::Perf, Method::Multi] {
        let mut engine = Kernel::new(method);
        let mut trigger = Trigger::spawn(exe).unwrap();
        // Another process of the same file must not be counted.
        let mut bystander = Trigger::spawn(exe).unwrap();
        match engine.attach(
            &[trigger.pid()],
            exe,
            &["uprobe_target_nop", "uprobe_target_push"],
        ) {
            Ok(_) => {}
            Err(error) if left_out(&error) => {
                println!("skipped {}: {error}", engine.name());
                continue;
            }
            Err(error) => panic!("{error:?}"),
        }
        assert_eq!(engine.hits().unwrap(), 0);
        let mut calls = 0;
        for function in ["uprobe_target_nop", "uprobe_target_push"] {
            bystander.call(function, 1, 1000).unwrap();
            let samples = trigger.measure(function, 2, 5).unwrap();
            calls += samples.iter().map(|sample| sample.calls).sum::<u64>();
            assert_eq!(
                engine.hits().unwrap(),
                calls,
                "{} on {function}",
                engine.name()
            );
        }
        trigger.call("uprobe_target_ret", 1, 1000).unwrap();
        assert_eq!(
            engine.hits().unwrap(),
            calls,
            "a function without a probe was counted"
        );
        engine.detach().unwrap();
        trigger
            .call("uprobe_target_nop", 1, 1000)
            .expect("the trigger lives on");
        assert!(engine.hits().is_err(), "nothing is attached any more");
    }
}

fn missing_symbols_are_named(exe: &Path) {
    let trigger = Trigger::spawn(exe).unwrap();
    let error = Kernel::new(Method::Perf)
        .attach(&[trigger.pid()], exe, &["not_there"])
        .unwrap_err();
    assert!(
        matches!(error.downcast_ref(), Some(Error::NoSymbol { .. })),
        "{error:?}"
    );
    let text = error.to_string();
    assert!(
        text.contains("not_there") && text.contains(&exe.display().to_string()),
        "{text}"
    );
}

fn table_has_every_row(exe: &Path) {
    let options = Options {
        threads: vec![1, 3],
        rounds: 2,
        milliseconds: 2,
        functions: vec!["uprobe_target_nop5".to_owned()],
        ..Options::quick(PathBuf::from(exe))
    };
    let mut engines: Vec<Box<dyn Engine>> =
        vec![Box::new(Bare), Box::new(Counted), Box::new(Refused)];
    let mut text = Vec::new();
    let rows = hit::run(&mut engines, &options, &mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    let seen: Vec<_> = rows
        .iter()
        .map(|row| (row.test.as_str(), row.threads, row.engine.as_str(), row.off))
        .collect();
    assert_eq!(
        seen,
        [
            ("uprobe-nop5", 1, "bare", false),
            ("uprobe-nop5", 1, "counted", false),
            ("uprobe-nop5", 3, "bare", false),
            ("uprobe-nop5", 3, "counted", false),
            ("uprobe-nop5", 1, "bare", false),
            ("uprobe-nop5", 1, "counted", true),
            ("1000 functions in turn", 1, "bare", false),
            ("1000 functions in turn", 1, "counted", false),
        ]
    );
    assert!(
        text.contains("# refused is left out: no such luck"),
        "{text}"
    );
    // The stand-in counts nothing, so every row of it that is on must be called wrong.
    for row in rows.iter().filter(|row| row.engine == "counted") {
        assert_eq!(row.exact(), row.off, "{}", row.text());
        assert!(row.added_ns.is_some());
    }
    let json = Options {
        json: true,
        many: false,
        ..options
    };
    let mut text = Vec::new();
    hit::run(&mut engines, &json, &mut text).unwrap();
    for line in String::from_utf8(text).unwrap().lines() {
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(value["engine"].is_string(), "{line}");
    }
}

fn a_run_that_fails_detaches(exe: &Path) {
    let attached = Rc::new(Cell::new(false));
    let mut engines: Vec<Box<dyn Engine>> = vec![
        Box::new(Bare),
        Box::new(Broken {
            attached: Rc::clone(&attached),
        }),
    ];
    let error = hit::run(
        &mut engines,
        &Options::quick(exe.to_owned()),
        &mut Vec::new(),
    )
    .unwrap_err();
    assert_eq!(error.to_string(), "the count is lost");
    assert!(!attached.get(), "probes stay behind");
}

fn a_crowd_calls_together(exe: &Path) {
    let mut trigger = Trigger::spawn(exe).unwrap();
    let members = trigger.crowd(5).unwrap();
    assert_eq!(members.len(), 5);
    for member in &members {
        assert_eq!(
            std::fs::read_link(format!("/proc/{member}/exe")).unwrap(),
            std::fs::read_link(format!("/proc/{}/exe", trigger.pid())).unwrap()
        );
    }
    trigger.each("uprobe_target_nop", 3).unwrap();
    let again = trigger.crowd(2).unwrap();
    for member in members {
        assert!(!Path::new(&format!("/proc/{member}")).exists());
    }
    assert_eq!(again.len(), 2);
    assert!(trigger.each("uprobe_target_none", 1).is_err());
}

/// The kernel's columns are right in every scenario, one that counts nothing is called wrong, and
/// the private copy is gone in the end.
fn attach_counts_for_itself(exe: &Path) {
    let options = attach::Options {
        scenarios: vec![
            attach::Scenario::Processes(3),
            attach::Scenario::Probes(2),
            attach::Scenario::Threads {
                count: 2,
                running: true,
            },
        ],
        rounds: 2,
        ..attach::Options::quick(exe.to_owned())
    };
    let mut engines: Vec<Box<dyn Engine>> = vec![
        Box::new(Bare),
        Box::new(Counted),
        Box::new(Refused),
        Box::new(Kernel::new(Method::Perf)),
        Box::new(Kernel::new(Method::Multi)),
    ];
    let mut text = Vec::new();
    let rows = attach::run(&mut engines, &options, &mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    assert!(
        text.contains("# refused is left out of 2 probes: no such luck"),
        "{text}"
    );
    let stand_in: Vec<_> = rows.iter().filter(|row| row.engine == "counted").collect();
    assert_eq!(stand_in.len(), 4, "first, again, probes, threads: {text}");
    // Three processes, three calls each, two rounds; two functions, two rounds.
    assert_eq!(
        stand_in.iter().map(|row| row.calls).collect::<Vec<_>>(),
        [18, 18, 4, 6]
    );
    for row in &rows {
        assert_eq!(row.exact(), row.engine != "counted", "{}", row.text());
    }
    if rustix::process::geteuid().is_root() && !text.contains("is left out of 2 probes: the kernel")
    {
        assert!(rows.len() >= 11, "{text}");
    }
    let name = format!("lancet-bench-{}-", std::process::id());
    for entry in std::fs::read_dir(std::env::temp_dir()).unwrap() {
        let entry = entry.unwrap().file_name();
        assert!(!entry.to_string_lossy().starts_with(&name), "{entry:?}");
    }
}

/// Forks are timed in every scenario, with and without an engine; one that counts nothing is called
/// wrong where the calls are known, and left out where the target calls by itself.
fn forks_beside_engines(exe: &Path) {
    let scenario = |target, probes| fork::Scenario { target, probes };
    let options = fork::Options {
        scenarios: vec![
            scenario(fork::Target::Idle, 2),
            scenario(fork::Target::Mapping(1 << 20), 1),
            scenario(fork::Target::Forking, 1),
        ],
        rounds: 1,
        window: std::time::Duration::from_millis(20),
        ..fork::Options::quick(exe.to_owned())
    };
    let mut engines: Vec<Box<dyn Engine>> = vec![
        Box::new(Bare),
        Box::new(Counted),
        Box::new(Kernel::new(Method::Perf)),
    ];
    let mut text = Vec::new();
    let rows = fork::run(&mut engines, &options, &mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    assert!(
        text.contains("# counted is left out of forking, 1 probe: nothing is counted"),
        "{text}"
    );
    let of = |engine: &str| rows.iter().filter(|row| row.engine == engine).count();
    assert_eq!((of("bare"), of("counted")), (3, 2), "{text}");
    let kernel_is_there = rustix::process::geteuid().is_root() && !text.contains("# kernel-perf");
    assert_eq!(
        of("kernel-perf"),
        if kernel_is_there { 3 } else { 0 },
        "{text}"
    );
    for row in &rows {
        assert!(row.forks > 0 && row.p999_us.median > 0.0, "{}", row.text());
        assert!(row.longest_us.most >= row.p999_us.most, "{}", row.text());
        assert_eq!(row.own_p999_us.is_some(), row.test.starts_with("forking"));
        assert_eq!(row.exact(), row.engine != "counted", "{}", row.text());
        assert_eq!(row.attaches > 0, row.engine != "bare", "{}", row.text());
        assert_eq!(row.times_idle.is_some(), row.engine != "bare");
    }
}

/// Whether this machine just can't do it.
fn left_out(error: &anyhow::Error) -> bool {
    matches!(
        error.downcast_ref(),
        Some(Error::NotPermitted { .. } | Error::Unsupported { .. })
    )
}

/// An engine that never counts, to see that the table says so.
struct Counted;

impl Engine for Counted {
    fn name(&self) -> &str {
        "counted"
    }
    fn attach(&mut self, _: &[Pid], _: &Path, _: &[&str]) -> anyhow::Result<Attachment> {
        Ok(Attachment::default())
    }
    fn set_off(&mut self) -> anyhow::Result<bool> {
        Ok(true)
    }
    fn hits(&mut self) -> anyhow::Result<u64> {
        Ok(0)
    }
    fn detach(&mut self) -> anyhow::Result<()> {
        Ok(())
    }
}

/// An engine that can't attach.
struct Refused;

impl Engine for Refused {
    fn name(&self) -> &str {
        "refused"
    }
    fn attach(&mut self, _: &[Pid], _: &Path, _: &[&str]) -> anyhow::Result<Attachment> {
        anyhow::bail!("no such luck")
    }
    fn set_off(&mut self) -> anyhow::Result<bool> {
        Ok(false)
    }
    fn hits(&mut self) -> anyhow::Result<u64> {
        anyhow::bail!("not attached")
    }
    fn detach(&mut self) -> anyhow::Result<()> {
        Ok(())
    }
}

/// An engine that attaches and then fails.
struct Broken {
    attached: Rc<Cell<bool>>,
}

impl Engine for Broken {
    fn name(&self) -> &str {
        "broken"
    }
    fn attach(&mut self, _: &[Pid], _: &Path, _: &[&str]) -> anyhow::Result<Attachment> {
        self.attached.set(true);
        Ok(Attachment::default())
    }
    fn set_off(&mut self) -> anyhow::Result<bool> {
        Ok(false)
    }
    fn hits(&mut self) -> anyhow::Result<u64> {
        anyhow::bail!("the count is lost")
    }
    fn detach(&mut self) -> anyhow::Result<()> {
        self.attached.set(false);
        Ok(())
    }
}

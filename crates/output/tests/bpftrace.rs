//! The same maps written by bpftrace itself. Skipped where it can't run.

use std::{
    io::{self, Write},
    process::Command,
    sync::{Arc, Mutex},
};

use lancet_output::{BUCKETS, KeyPart, Map, Row, Value, bucket_of, json, text_and_notes};

#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<u8>>>);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

const PROGRAM: &str = r#"BEGIN { @a = count(); @c["x", 3] = sum(-5); @c["y", -4] = sum(9);
    @h = hist(-3); @h = hist(0); @h = hist(1); @h = hist(1024); @h = hist(70000); @h = hist(70000); @h = hist(70000);
    @k["f"] = hist(5); @k["g"] = hist(1); @k["g"] = hist(2); exit() }"#;

fn maps() -> Vec<Map> {
    let hist = |values: &[i64]| {
        let mut buckets = Box::new([0; BUCKETS]);
        for &value in values {
            buckets[bucket_of(value)] += 1;
        }
        Value::Hist(buckets)
    };
    let name = |name: &str| KeyPart::Name(name.into());
    let row = |key, value| Row { key, value };
    let map = |name: &str, rows| Map {
        name: name.into(),
        rows,
    };
    vec![
        map("a", vec![row(vec![], Value::Count(1))]),
        map(
            "c",
            vec![
                row(vec![name("y"), KeyPart::Int(-4)], Value::Sum(9)),
                row(vec![name("x"), KeyPart::Int(3)], Value::Sum(-5)),
            ],
        ),
        map(
            "h",
            vec![row(vec![], hist(&[-3, 0, 1, 1024, 70000, 70000, 70000]))],
        ),
        map(
            "k",
            vec![
                row(vec![name("g")], hist(&[1, 2])),
                row(vec![name("f")], hist(&[5])),
            ],
        ),
    ]
}

/// What bpftrace writes, or nothing where it can't run.
fn bpftrace(format: &str) -> Option<String> {
    let output = Command::new("bpftrace")
        .args(["-f", format, "-e", PROGRAM])
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output
        .status
        .success()
        .then_some(text)
        .filter(|text| text.contains("@a"))
}

/// Version differences only: the blank behind titles, the banner, empty lines, and the blank between array members.
fn plain(text: &str) -> Vec<String> {
    let lines = text
        .lines()
        .filter(|line| !line.starts_with("Attach") && !line.contains("attached_probes"));
    lines
        .map(|line| line.trim_end().replace("}, {", "},{"))
        .filter(|line| !line.is_empty())
        .collect()
}

fn compare(format: &str) {
    let Some(theirs) = bpftrace(format) else {
        println!("skipped: no bpftrace");
        return;
    };
    let sink = Sink::default();
    let data = Box::new(sink.clone());
    let mut report = if format == "json" {
        json(data)
    } else {
        text_and_notes(data, Box::new(io::sink()))
    };
    for map in maps() {
        report.map(&map).unwrap();
    }
    assert_eq!(
        plain(&String::from_utf8(sink.0.lock().unwrap().clone()).unwrap()),
        plain(&theirs)
    );
}

#[test]
fn text_is_the_same() {
    compare("text");
}

#[test]
fn json_is_the_same() {
    compare("json");
}

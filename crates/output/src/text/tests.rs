use std::sync::{Arc, Mutex};

use super::*;
use crate::{KeyPart, Row, bucket_of};

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

fn hist_of(values: &[i64]) -> Value {
    let mut buckets = Box::new([0; hist::BUCKETS]);
    for &value in values {
        buckets[bucket_of(value)] += 1;
    }
    Value::Hist(buckets)
}

fn map(name: &str, rows: Vec<(Vec<KeyPart>, Value)>) -> Map {
    Map {
        name: name.into(),
        rows: rows
            .into_iter()
            .map(|(key, value)| Row { key, value })
            .collect(),
    }
}

#[test]
fn scalars_and_keys() {
    assert_eq!(
        map_text(&map("", vec![(vec![], Value::Count(7))])),
        "@: 7\n"
    );
    let name = |s: &str| KeyPart::Name(s.into());
    let rows = vec![
        (vec![name("b"), KeyPart::Int(-2)], Value::Sum(5)),
        (vec![name("a"), KeyPart::Uint(3)], Value::Sum(5)),
        (vec![name("c"), KeyPart::Int(1)], Value::Sum(-5)),
    ];
    assert_eq!(
        map_text(&map("c", rows)),
        "@c[c, 1]: -5\n@c[a, 3]: 5\n@c[b, -2]: 5\n"
    );
    assert_eq!(map_text(&map("none", vec![])), "");
}

#[test]
fn a_histogram() {
    let expected = "\
@h[x]:
(..., 0)               2 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|
[0]                    1 |@@@@@@@@@@@@@@@@@@@@@@@@@@                          |
[1]                    0 |                                                    |
[2, 4)                 1 |@@@@@@@@@@@@@@@@@@@@@@@@@@                          |

";
    assert_eq!(
        map_text(&map(
            "h",
            vec![(vec![KeyPart::Name("x".into())], hist_of(&[-1, -9, 0, 3]))]
        )),
        expected
    );
    assert_eq!(map_text(&map("e", vec![(vec![], hist_of(&[]))])), "@e:\n\n");
}

#[test]
fn notes_are_apart_from_data() {
    let (data, notes) = (Sink::default(), Sink::default());
    let mut report = text_and_notes(Box::new(data.clone()), Box::new(notes.clone()));
    report.attached(1).unwrap();
    report.attached(2).unwrap();
    report.printf("hi\n").unwrap();
    report.detached().unwrap();
    let loss = ProbeLoss {
        probe: "uprobe:/x:f".into(),
        hits: 6,
        recorded: 3,
        lost: 2,
        skipped: 1,
    };
    report.lost(&loss).unwrap();
    report
        .lost(&ProbeLoss {
            hits: 3,
            recorded: 3,
            ..ProbeLoss::default()
        })
        .unwrap();
    report.finish().unwrap();
    assert_eq!(*data.0.lock().unwrap(), b"hi\n\n\n");
    let expected = "Attached 1 probe\nAttached 2 probes\nLost 2 events\n\
                    uprobe:/x:f: 6 hits = 3 recorded + 2 lost + 1 skipped\n";
    assert_eq!(
        String::from_utf8(notes.0.lock().unwrap().clone()).unwrap(),
        expected
    );
}

struct Full;

impl Write for Full {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::StorageFull.into())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_is_told_at_once() {
    let mut report = text_and_notes(Box::new(Full), Box::new(io::sink()));
    let told = report
        .map(&map("", vec![(vec![], Value::Count(7))]))
        .unwrap_err();
    assert_eq!(told.kind(), io::ErrorKind::StorageFull);
}

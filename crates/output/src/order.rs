//! The order of rows: the largest value last, where a reader of a terminal looks; equal values by key.

use std::cmp::Ordering;

use crate::{KeyPart, Map, Row, Value};

pub(crate) fn sorted(map: &Map) -> Vec<&Row> {
    let mut rows: Vec<&Row> = map.rows.iter().collect();
    rows.sort_by(|a, b| {
        weight(&a.value)
            .cmp(&weight(&b.value))
            .then_with(|| keys(&a.key, &b.key))
    });
    rows
}

/// A histogram weighs as much as the values it counted.
fn weight(value: &Value) -> i128 {
    match value {
        Value::Count(count) => i128::from(*count),
        Value::Sum(sum) => i128::from(*sum),
        Value::Hist(buckets) => buckets.iter().map(|&count| i128::from(count)).sum(),
        Value::Buckets(buckets) => buckets.iter().map(|b| i128::from(b.count)).sum(),
        Value::Average(average) | Value::Stats { average, .. } => *average,
        Value::Shown { .. } => 0,
    }
}

/// By the first part, then by the second, and so on.
fn keys(a: &[KeyPart], b: &[KeyPart]) -> Ordering {
    let differing = a
        .iter()
        .zip(b)
        .map(|(a, b)| part(a, b))
        .find(|order| order.is_ne());
    differing.unwrap_or_else(|| a.len().cmp(&b.len()))
}

/// Numbers by their value, whichever sign their type has, and before names.
fn part(a: &KeyPart, b: &KeyPart) -> Ordering {
    match (a, b) {
        (KeyPart::Name(a), KeyPart::Name(b)) => a.cmp(b),
        (KeyPart::Name(_), _) => Ordering::Greater,
        (_, KeyPart::Name(_)) => Ordering::Less,
        (a, b) => number(a).cmp(&number(b)),
    }
}

fn number(part: &KeyPart) -> i128 {
    match part {
        KeyPart::Int(number) => i128::from(*number),
        KeyPart::Uint(number) => i128::from(*number),
        KeyPart::Name(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(key: KeyPart, value: Value) -> Row {
        Row {
            key: vec![key],
            value,
        }
    }

    #[test]
    fn numbers_of_either_sign_come_before_names() {
        let rows = [
            row(KeyPart::Name("a".into()), Value::Sum(1)),
            row(KeyPart::Uint(u64::MAX), Value::Sum(1)),
            row(KeyPart::Int(-1), Value::Sum(1)),
            row(KeyPart::Int(9), Value::Sum(-9)),
            row(KeyPart::Uint(10), Value::Sum(1)),
            row(KeyPart::Int(9), Value::Sum(1)),
        ];
        let map = Map {
            name: String::new(),
            rows: rows.to_vec(),
        };
        let keys: Vec<String> = sorted(&map)
            .iter()
            .map(|r| format!("{}={:?}", r.key[0], r.value))
            .collect();
        assert_eq!(
            keys,
            [
                "9=Sum(-9)",
                "-1=Sum(1)",
                "9=Sum(1)",
                "10=Sum(1)",
                "18446744073709551615=Sum(1)",
                "a=Sum(1)"
            ]
        );
    }

    #[test]
    fn full_histograms_do_not_overflow() {
        let full = || Value::Hist(Box::new([u64::MAX; 66]));
        assert!(weight(&full()) > i128::from(u64::MAX));
    }
}

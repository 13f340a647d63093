//! Values of maps: the words that a table keeps, and how they read.

use std::collections::BTreeMap;

use lancet_engine::Total;
use lancet_engine::scripts::hist_buckets;
use lancet_output::{BUCKETS, Bucket, Map, Row, Value};
use lancet_script::ir::{self, Agg, FieldType, MapValue};

use super::maps::{Key, bytes};
use super::show::Names;

/// Adds what hits counted to the words of an entry.
pub(super) fn add(words: &mut Vec<u64>, more: &Total) {
    let mut put = |at: usize, count: u64| {
        if words.len() <= at {
            words.resize(at + 1, 0);
        }
        words[at] = words[at].wrapping_add(count);
    };
    match more {
        Total::Count(count) => put(0, *count),
        Total::Sum(sum) => put(0, *sum as u64),
        Total::Hist(buckets) => buckets
            .iter()
            .enumerate()
            .for_each(|(at, count)| put(at, *count)),
    }
}

/// Least and greatest are kept as the greatest of words in unsigned order, which 0 is below of.
pub(super) fn encode(agg: Agg, signed: bool, value: i64) -> u64 {
    let flipped = value as u64 ^ if signed { 1 << 63 } else { 0 };
    if agg == Agg::Min { !flipped } else { flipped }
}

fn decode(agg: Agg, signed: bool, word: u64) -> i64 {
    let flipped = if agg == Agg::Min { !word } else { word };
    (flipped ^ if signed { 1 << 63 } else { 0 }) as i64
}

/// The bucket of a value by powers of two, each cut into `2^bits`.
pub(super) fn power_bucket(value: i64, bits: u8) -> u32 {
    let parts = 1i64 << bits;
    match value {
        ..0 => 0,
        _ if value < parts => 1 + value as u32,
        _ => {
            let shift = value.ilog2() - u32::from(bits);
            let part = (value >> shift) & (parts - 1);
            1 + parts as u32 + (shift << bits) + part as u32
        }
    }
}

/// The bucket of a value by equal steps; the first is below them, the last above.
pub(super) fn linear_bucket(value: i64, (min, max, step): (i64, i64, i64)) -> u32 {
    let index = if value < min {
        0
    } else if value >= max {
        1 + (max - min) / step
    } else {
        1 + (value - min) / step
    };
    index as u32
}

/// The number that a value counts for in expressions and in the order of rows.
pub(super) fn amounts_to(of: &MapValue, words: &[u64]) -> i64 {
    let first = words.first().copied().unwrap_or(0);
    match of {
        MapValue::Field(_) => first as i64,
        MapValue::Agg { agg, signed } => match agg {
            Agg::Count | Agg::Sum => first as i64,
            Agg::Avg | Agg::Stats => average(words, *signed) as i64,
            Agg::Min | Agg::Max => decode(*agg, *signed, first),
            Agg::Hist { .. } | Agg::Lhist { .. } => 0,
        },
    }
}

/// The sum of an average, by its signedness.
fn total(words: &[u64], signed: bool) -> i128 {
    let sum = words.first().copied().unwrap_or(0);
    if signed {
        i128::from(sum as i64)
    } else {
        i128::from(sum)
    }
}

fn average(words: &[u64], signed: bool) -> i128 {
    let number = words.get(1).copied().unwrap_or(0);
    total(words, signed)
        .checked_div(i128::from(number))
        .unwrap_or(0)
}

fn integer(value: i64, signed: bool) -> Value {
    match signed {
        true => Value::Sum(value),
        false => Value::Count(value as u64),
    }
}

pub(super) fn value(of: &MapValue, words: &[u64], names: &Names<'_>) -> Value {
    let first = words.first().copied().unwrap_or(0);
    match of {
        MapValue::Field(field) => match field.ty {
            FieldType::Int { signed, .. } => integer(first as i64, signed),
            _ => {
                let bytes = bytes(words);
                Value::Shown {
                    text: names.text(&field.ty, &bytes),
                    json: names.json(&field.ty, &bytes),
                }
            }
        },
        MapValue::Agg { agg, signed } => match agg {
            Agg::Count => Value::Count(first),
            Agg::Sum | Agg::Min | Agg::Max => integer(amounts_to(of, words), *signed),
            Agg::Avg => Value::Average(average(words, *signed)),
            Agg::Stats => Value::Stats {
                count: words.get(1).copied().unwrap_or(0),
                average: average(words, *signed),
                total: total(words, *signed),
            },
            Agg::Hist { bits: 0 } => {
                let mut buckets = Box::new([0; BUCKETS]);
                for (bucket, count) in buckets.iter_mut().zip(words) {
                    *bucket = *count;
                }
                Value::Hist(buckets)
            }
            Agg::Hist { bits } => Value::Buckets(power_buckets(words, *bits)),
            Agg::Lhist { min, max, step } => {
                Value::Buckets(linear_buckets(words, (*min, *max, *step)))
            }
        },
    }
}

/// From the first bucket that counted anything to the last.
fn used(words: &[u64]) -> impl Iterator<Item = (usize, u64)> {
    let first = words.iter().position(|count| *count > 0).unwrap_or(0);
    let last = words.iter().rposition(|count| *count > 0);
    let end = last.map_or(0, |last| last + 1);
    words[first.min(end)..end]
        .iter()
        .enumerate()
        .map(move |(at, count)| (first + at, *count))
}

fn power_buckets(words: &[u64], bits: u8) -> Vec<Bucket> {
    let parts = 1usize << bits;
    let bounds = |at: usize| match at {
        0 => (None, Some(-1)),
        _ if at <= parts => (Some(at as i128 - 1), Some(at as i128 - 1)),
        _ => {
            let (shift, part) = ((at - 1 - parts) >> bits, (at - 1 - parts) & (parts - 1));
            let least = ((parts + part) as i128) << shift;
            (Some(least), Some(least + (1 << shift) - 1))
        }
    };
    let words = &words[..words.len().min(hist_buckets(bits) as usize)];
    let bucket = |(at, count)| {
        let (min, max) = bounds(at);
        Bucket { min, max, count }
    };
    used(words).map(bucket).collect()
}

fn linear_buckets(words: &[u64], (min, max, step): (i64, i64, i64)) -> Vec<Bucket> {
    let last = 1 + (max - min) / step;
    let bucket = |(at, count): (usize, u64)| {
        let begin = i128::from(min) + (at as i128 - 1) * i128::from(step);
        let (min, max) = match at as i64 {
            0 => (None, Some(i128::from(min) - 1)),
            at if at >= last => (Some(i128::from(max)), None),
            _ => (Some(begin), Some(begin + i128::from(step) - 1)),
        };
        Bucket { min, max, count }
    };
    used(words).map(bucket).collect()
}

fn divide(value: &mut Value, by: u32) {
    match value {
        Value::Count(count) => *count /= u64::from(by),
        Value::Sum(sum) => *sum /= i64::from(by),
        Value::Hist(buckets) => buckets.iter_mut().for_each(|count| *count /= u64::from(by)),
        Value::Buckets(buckets) => buckets
            .iter_mut()
            .for_each(|bucket| bucket.count /= u64::from(by)),
        Value::Average(average) => *average /= i128::from(by),
        Value::Stats {
            count,
            average,
            total,
        } => {
            *count /= u64::from(by);
            *average /= i128::from(by);
            *total /= i128::from(by);
        }
        Value::Shown { .. } => {}
    }
}

/// The map as a report takes it; at most `top` rows unless 0, values divided unless by 0.
pub(super) fn shown(
    map: &ir::Map,
    cells: &BTreeMap<Key, Vec<u64>>,
    names: &Names<'_>,
    top: u32,
    div: u32,
) -> Map {
    let rows = cells.iter().map(|(key, words)| Row {
        key: names.key(&map.key, key),
        value: value(&map.value, words, names),
    });
    let mut shown = Map {
        name: map.name.trim_start_matches('@').to_owned(),
        rows: rows.collect(),
    };
    if top > 0 {
        shown.keep_last(top as usize);
    }
    for row in shown.rows.iter_mut().filter(|_| div > 1) {
        divide(&mut row.value, div);
    }
    shown
}

/// How many hits an entry stands for, where that can be told.
pub(super) fn hits(of: &MapValue, words: &[u64]) -> u64 {
    match of {
        MapValue::Agg { agg, .. } => match agg {
            Agg::Count => words.first().copied().unwrap_or(0),
            Agg::Avg | Agg::Stats => words.get(1).copied().unwrap_or(0),
            Agg::Hist { .. } | Agg::Lhist { .. } => words.iter().sum(),
            Agg::Sum | Agg::Min | Agg::Max => 0,
        },
        MapValue::Field(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_falls_into_the_bucket_that_says_so() {
        let edges = (0..63).flat_map(|power| [(1_i64 << power) - 1, 1 << power, (1 << power) + 1]);
        for value in edges.chain([i64::MIN, -1, i64::MAX]) {
            for bits in 0..=5 {
                let at = power_bucket(value, bits);
                let mut words = vec![0; hist_buckets(bits) as usize];
                words[at as usize] = 1;
                let [bucket] = &power_buckets(&words, bits)[..] else {
                    panic!("one bucket");
                };
                let value = i128::from(value);
                assert!(bucket.min.is_none_or(|min| min <= value), "{value} {bits}");
                assert!(bucket.max.is_none_or(|max| value <= max), "{value} {bits}");
            }
        }
        for value in -5..30 {
            let shape = (0, 21, 3);
            let mut words = vec![0; 9];
            words[linear_bucket(value, shape) as usize] = 1;
            let [bucket] = &linear_buckets(&words, shape)[..] else {
                panic!("one bucket");
            };
            let value = i128::from(value);
            assert!(bucket.min.is_none_or(|min| min <= value), "{value}");
            assert!(bucket.max.is_none_or(|max| value <= max), "{value}");
        }
    }

    #[test]
    fn least_and_greatest_are_kept_in_one_order() {
        for signed in [false, true] {
            for agg in [Agg::Min, Agg::Max] {
                for value in [0, 1, -1, i64::MIN, i64::MAX] {
                    assert_eq!(decode(agg, signed, encode(agg, signed, value)), value);
                }
            }
        }
        assert!(encode(Agg::Min, true, -5) > encode(Agg::Min, true, 3));
        assert!(encode(Agg::Max, false, -5) > encode(Agg::Max, false, 3));
    }
}

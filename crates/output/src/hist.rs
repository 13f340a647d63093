//! Buckets by powers of two: their bounds and labels.

use std::ops::Range;

/// Number of buckets: negatives, zero, and one for each power of two that 64 bits hold.
pub const BUCKETS: usize = 66;

/// The bucket that counts a value.
#[must_use]
pub const fn bucket_of(value: i64) -> usize {
    match value {
        ..0 => 0,
        0 => 1,
        _ => 2 + value.ilog2() as usize,
    }
}

/// What a bucket counts. The bounds are inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bucket {
    Negative,
    One(u64),
    /// `[2^power, 2^(power+1))`
    Power(u32),
}

impl Bucket {
    pub(crate) fn at(index: usize) -> Self {
        match index {
            0 => Self::Negative,
            1 => Self::One(0),
            2 => Self::One(1),
            _ => Self::Power(index as u32 - 2),
        }
    }

    /// As shown to people.
    pub(crate) fn label(self) -> String {
        match self {
            Self::Negative => "(..., 0)".into(),
            Self::One(value) => format!("[{value}]"),
            Self::Power(power) => format!("[{}, {})", short(power), short(power + 1)),
        }
    }

    /// The smallest value, if there is one.
    pub(crate) fn min(self) -> Option<u64> {
        match self {
            Self::Negative => None,
            Self::One(value) => Some(value),
            Self::Power(power) => Some(1 << power),
        }
    }

    /// The largest value.
    pub(crate) fn max(self) -> i128 {
        match self {
            Self::Negative => -1,
            Self::One(value) => i128::from(value),
            Self::Power(power) => (1 << (power + 1)) - 1,
        }
    }
}

/// A power of two with the suffix of the power of 1024 in it: 10 is `1K`, 25 is `32M`.
fn short(power: u32) -> String {
    const SUFFIXES: [&str; 7] = ["", "K", "M", "G", "T", "P", "E"];
    format!("{}{}", 1 << (power % 10), SUFFIXES[(power / 10) as usize])
}

/// From the first bucket that counted anything to the last.
pub(crate) fn used(buckets: &[u64; BUCKETS]) -> Range<usize> {
    let first = buckets.iter().position(|&count| count > 0).unwrap_or(0);
    let end = buckets
        .iter()
        .rposition(|&count| count > 0)
        .map_or(0, |last| last + 1);
    first..end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_falls_into_the_bucket_that_says_so() {
        let edges = (0..63).flat_map(|power| [(1_i64 << power) - 1, 1 << power, (1 << power) + 1]);
        for value in edges.chain([i64::MIN, -1, i64::MAX]) {
            let bucket = Bucket::at(bucket_of(value));
            assert!(
                bucket
                    .min()
                    .is_none_or(|min| i128::from(min) <= i128::from(value)),
                "{value}"
            );
            assert!(bucket.min().is_some() == (value >= 0), "{value}");
            assert!(i128::from(value) <= bucket.max(), "{value}");
        }
    }

    #[test]
    fn labels() {
        let label = |index| Bucket::at(index).label();
        assert_eq!(
            [0, 1, 2, 3, 4].map(label),
            ["(..., 0)", "[0]", "[1]", "[2, 4)", "[4, 8)"]
        );
        assert_eq!(
            [11, 12, 21, 22, 32].map(label),
            [
                "[512, 1K)",
                "[1K, 2K)",
                "[512K, 1M)",
                "[1M, 2M)",
                "[1G, 2G)"
            ]
        );
        assert_eq!(
            [42, 52, 62, 65].map(label),
            ["[1T, 2T)", "[1P, 2P)", "[1E, 2E)", "[8E, 16E)"]
        );
    }

    #[test]
    fn the_last_bucket_ends_with_64_bits() {
        assert_eq!(Bucket::at(BUCKETS - 1).min(), Some(1 << 63));
        assert_eq!(Bucket::at(BUCKETS - 1).max(), i128::from(u64::MAX));
    }

    #[test]
    fn used_buckets() {
        let mut buckets = [0; BUCKETS];
        assert_eq!(used(&buckets), 0..0);
        buckets[65] = 1;
        assert_eq!(used(&buckets), 65..66);
        buckets[0] = 1;
        assert_eq!(used(&buckets), 0..66);
    }
}

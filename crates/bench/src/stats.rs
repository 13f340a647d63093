//! Median and spread of a few measurements.

/// The middle of `values`; of an even number the mean of the two in the middle; NaN of none.
#[must_use]
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

/// How far the values typically lie from their median: the median of the absolute distances.
///
/// Unlike a standard deviation it does not follow one round that was disturbed.
#[must_use]
pub fn spread(values: &[f64]) -> f64 {
    let centre = median(values);
    let distances: Vec<f64> = values.iter().map(|value| (value - centre).abs()).collect();
    median(&distances)
}

/// A median with its spread, as the tables show it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Summary {
    /// [`median`] of the rounds.
    pub median: f64,
    /// [`spread`] of the rounds.
    pub spread: f64,
}

impl Summary {
    /// Summarises one value a round.
    #[must_use]
    pub fn of(values: &[f64]) -> Self {
        Self {
            median: median(values),
            spread: spread(values),
        }
    }
}

/// A median with the least and the most, for what happens once a round.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Range {
    /// [`median`] of the rounds.
    pub median: f64,
    /// The least of the rounds.
    pub least: f64,
    /// The most of the rounds.
    pub most: f64,
}

impl Range {
    /// Summarises one value a round.
    #[must_use]
    pub fn of(values: &[f64]) -> Self {
        let most = |a: f64, b: &f64| a.max(*b);
        let least = |a: f64, b: &f64| a.min(*b);
        Self {
            median: median(values),
            least: values.iter().fold(f64::INFINITY, least),
            most: values.iter().fold(f64::NEG_INFINITY, most),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_odd_and_even_counts() {
        assert_eq!(median(&[9.0, 1.0, 5.0]), 5.0);
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), 2.5);
        assert_eq!(median(&[7.0]), 7.0);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn one_disturbed_round_moves_neither_median_nor_spread() {
        let quiet = Summary::of(&[10.0, 11.0, 12.0, 13.0, 14.0]);
        let disturbed = Summary::of(&[10.0, 11.0, 12.0, 13.0, 9_000.0]);
        assert_eq!(
            quiet,
            Summary {
                median: 12.0,
                spread: 1.0
            }
        );
        assert_eq!(disturbed, quiet);
    }

    #[test]
    fn a_range_shows_every_disturbance() {
        assert_eq!(
            Range::of(&[3.0, 1.0, 200.0]),
            Range {
                median: 3.0,
                least: 1.0,
                most: 200.0
            }
        );
    }

    #[test]
    fn equal_values_have_no_spread() {
        assert_eq!(spread(&[3.5; 8]), 0.0);
    }
}

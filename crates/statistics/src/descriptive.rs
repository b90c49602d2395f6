//! Order statistics and means of samples.

use crate::limits::MIN_ROUNDS;
use crate::mean::{mean, variance};
use crate::normal::student_critical;

/// Quantile by linear interpolation between order statistics (type 7 of Hyndman & Fan 1996). `None` without
/// values.
pub fn quantile(values: &[f64], share: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let position = share * sorted.len().checked_sub(1)? as f64;
    let (below, above) = (sorted[position.floor() as usize], sorted[position.ceil() as usize]);
    Some(below + position.fract() * (above - below))
}

/// The median: for an even number of values, the mean of the middle two.
pub fn median(values: &[f64]) -> Option<f64> {
    quantile(values, 0.5)
}

/// Interval that covers the median with at least 95 % of confidence, whatever the distribution: the narrowest
/// pair of order statistics, symmetric in rank, that does (the sign test's, Thompson 1936). `None` below six
/// values: not even the smallest and the largest of them do.
pub fn median_interval(values: &[f64]) -> Option<(f64, f64)> {
    let count = values.len();
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    // P(fewer than `rank` of `count` values are below the median), with binomial weights of 1/2.
    let (mut weight, mut below, mut found) = (0.5f64.powi(count as i32), 0.0, None);
    for rank in 0..count / 2 {
        below += weight;
        if 2.0 * below > 0.05 {
            break;
        }
        found = Some(rank);
        weight *= (count - rank) as f64 / (rank + 1) as f64;
    }
    found.map(|rank| (sorted[rank], sorted[count - 1 - rank]))
}

/// The geometric mean. `None` without values, or with a value that is not positive and finite.
pub fn geometric_mean(values: &[f64]) -> Option<f64> {
    let is_sound = |value: &f64| *value > 0.0 && value.is_finite();
    if values.is_empty() || !values.iter().all(is_sound) {
        return None;
    }
    let logarithms: Vec<f64> = values.iter().map(|value| value.ln()).collect();
    Some(mean(&logarithms).exp())
}

/// 95 % interval of the geometric mean, from Student's t on the log scale. `None` below six values, too few
/// to judge their distribution, and for values without a geometric mean.
pub fn geometric_interval(values: &[f64]) -> Option<(f64, f64)> {
    let centre = geometric_mean(values).filter(|_| values.len() >= MIN_ROUNDS)?.ln();
    let logarithms: Vec<f64> = values.iter().map(|value| value.ln()).collect();
    let count = values.len() as f64;
    let error = (variance(&logarithms, centre) / count).sqrt();
    let half = student_critical(0.025, count - 1.0) * error;
    Some(((centre - half).exp(), (centre + half).exp()))
}

/// Arithmetic mean and standard deviation of a sample, which reporting guides ask for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Moments {
    pub mean: f64,
    /// With n − 1; 0 for a single value.
    pub standard_deviation: f64,
}

impl Moments {
    /// `None` without values.
    pub fn new(values: &[f64]) -> Option<Moments> {
        (!values.is_empty()).then(|| {
            let mean = mean(values);
            Moments { mean, standard_deviation: variance(values, mean).sqrt() }
        })
    }

    /// Standard deviation ÷ mean; `None` where the mean is zero.
    pub fn coefficient_of_variation(self) -> Option<f64> {
        Some(self.standard_deviation / self.mean.abs()).filter(|share| share.is_finite())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_interpolate() {
        assert_eq!(quantile(&[4.0, 1.0, 2.0, 3.0], 0.5), Some(2.5));
        assert_eq!(quantile(&(0..=100).map(f64::from).collect::<Vec<_>>(), 0.99), Some(99.0));
        assert_eq!(quantile(&[1.0, 2.0], 0.75), Some(1.75));
        assert_eq!(quantile(&[], 0.5), None);
        assert_eq!(median(&[4.0, 1.0, 2.0]), Some(2.0));
    }

    #[test]
    fn a_median_has_an_interval_from_six_values_on() {
        let first = |count: u32| (1..=count).map(f64::from).rev().collect::<Vec<_>>();
        assert_eq!(median_interval(&first(5)), None);
        assert_eq!(median_interval(&first(6)), Some((1.0, 6.0)));
        // From tables of the sign test: of 9 values drop one on each side, of 20 drop five.
        assert_eq!(median_interval(&first(9)), Some((2.0, 8.0)));
        assert_eq!(median_interval(&first(20)), Some((6.0, 15.0)));
    }
    #[test]
    fn a_geometric_mean_treats_twice_and_half_alike() {
        assert_eq!(geometric_mean(&[1.0, 4.0]), Some(2.0));
        assert_eq!([&[][..], &[1.0, 0.0], &[f64::NAN]].map(geometric_mean), [None; 3]);
        let values = [9.0, 10.0, 11.0, 9.5, 10.5, 10.0];
        let inverse = values.map(|value: f64| 1.0 / value);
        let (mean, of_inverse) = (geometric_mean(&values).unwrap(), geometric_mean(&inverse).unwrap());
        assert!(
            (mean * of_inverse - 1.0).abs() < 1e-12,
            "the mean of reciprocals is the reciprocal of the mean"
        );
        let (low, high) = geometric_interval(&values).unwrap();
        // By hand: the logarithms have mean 2.30049 and standard deviation 0.07095, and t is 2.5706.
        assert!((low - 9.2631).abs() < 1e-3 && (high - 10.7505).abs() < 1e-3, "{low} {high}");
        assert_eq!(geometric_interval(&values[..5]), None);
    }

    #[test]
    fn the_moments_are_those_of_textbooks() {
        let moments = Moments::new(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]).unwrap();
        assert_eq!(moments.mean, 5.0);
        assert!((moments.standard_deviation - (32.0f64 / 7.0).sqrt()).abs() < 1e-12);
        assert_eq!(Moments::new(&[3.0]).unwrap().coefficient_of_variation(), Some(0.0));
        assert_eq!(Moments::new(&[]), None);
    }
}

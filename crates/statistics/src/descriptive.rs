//! Order statistics and means of samples.

use std::cmp::Ordering;
use std::f64::consts::{FRAC_1_SQRT_2, PI};

use statrs::distribution::{Binomial, ContinuousCDF, DiscreteCDF, Normal, StudentsT};
use statrs::function::beta::beta_reg;
use statrs::function::erf::erfc;

use crate::limits::MIN_ROUNDS;

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

/// Interval that covers a quantile with at least 95 % of confidence, whatever the distribution: order statistics, by
/// binomial tails of 2.5 % each (Wilks 1948, *Order statistics*; LoadGen of MLPerf bounds a percentile so). Values are taken as independent.
/// `None` if they are too few: the 99th percentile takes 368.
pub fn quantile_interval(values: &[f64], share: f64) -> Option<(f64, f64)> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let below = Binomial::new(share, sorted.len() as u64).ok()?;
    let low = (0..sorted.len()).take_while(|&rank| below.cdf(rank as u64) <= 0.025).last()?;
    let high = (0..sorted.len()).find(|&rank| below.sf(rank as u64) <= 0.025)?;
    Some((sorted[low], sorted[high]))
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
    /// With n − 1; `None` for a single value.
    pub standard_deviation: Option<f64>,
}

impl Moments {
    /// `None` without values.
    pub fn new(values: &[f64]) -> Option<Moments> {
        (!values.is_empty()).then(|| {
            let mean = mean(values);
            let standard_deviation = (values.len() > 1).then(|| variance(values, mean).sqrt());
            Moments { mean, standard_deviation }
        })
    }

    /// Standard deviation ÷ mean; `None` for a single value, and where the mean is zero.
    pub fn coefficient_of_variation(self) -> Option<f64> {
        Some(self.standard_deviation? / self.mean.abs()).filter(|share| share.is_finite())
    }
}

// Mean and variance.

pub(crate) fn mean(x: &[f64]) -> f64 {
    x.iter().sum::<f64>() / x.len() as f64
}

/// Unbiased. 0 for fewer than two.
pub(crate) fn variance(x: &[f64], mean: f64) -> f64 {
    x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / x.len().saturating_sub(1).max(1) as f64
}

// The standard normal and Student's t distribution, accurate far out in the tails.

/// φ(z).
pub(crate) fn density(z: f64) -> f64 {
    (-0.5 * z * z).exp() / (2.0 * PI).sqrt()
}

/// P(Z > z).
pub(crate) fn upper_tail(z: f64) -> f64 {
    0.5 * erfc(z * FRAC_1_SQRT_2)
}

/// The z that P(Z ≤ z) = p.
pub(crate) fn normal_quantile(p: f64) -> f64 {
    Normal::standard().inverse_cdf(p)
}

/// P(T > t) with `freedom` degrees of freedom, by the incomplete beta function: `1 - cdf` would lose small
/// tails.
pub(crate) fn student_upper_tail(t: f64, freedom: f64) -> f64 {
    if t.is_infinite() {
        return if t > 0.0 { 0.0 } else { 1.0 };
    }
    let tail = 0.5 * beta_reg(0.5 * freedom, 0.5, freedom / (freedom + t * t));
    if t > 0.0 { tail } else { 1.0 - tail }
}

/// The t that P(T > t) = `tail`.
pub(crate) fn student_critical(tail: f64, freedom: f64) -> f64 {
    StudentsT::new(0.0, 1.0, freedom).map_or(f64::INFINITY, |t| -t.inverse_cdf(tail))
}

// The similarity of two orders.

/// Kendall's τ-b (Kendall 1945, *The treatment of ties in ranking problems*) between the orders of two lists of numbers:
/// 1 for the same order, −1 for the opposite one. `None` if the lists have different lengths, a list does not order
/// anything, or a number is NaN.
pub fn kendall_tau(a: &[f64], b: &[f64]) -> Option<f64> {
    if a.len() != b.len() {
        return None;
    }
    // Pairs that both order alike, less those that they order differently; pairs that each list orders at
    // all.
    let (mut alike, mut ordered) = (0_i64, [0_i64; 2]);
    for (second, (x, y)) in a.iter().zip(b).enumerate() {
        for (other_x, other_y) in a.iter().zip(b).take(second) {
            let signs = [sign(x.partial_cmp(other_x)?), sign(y.partial_cmp(other_y)?)];
            alike += signs[0] * signs[1];
            ordered.iter_mut().zip(signs).for_each(|(sum, sign)| *sum += sign.abs());
        }
    }
    let scale = (ordered[0] as f64 * ordered[1] as f64).sqrt();
    (scale > 0.0).then(|| alike as f64 / scale)
}

fn sign(order: Ordering) -> i64 {
    match order {
        Ordering::Less => -1,
        Ordering::Equal => 0,
        Ordering::Greater => 1,
    }
}

// How one figure depends on another.

/// A straight line through points by least squares, with the interval of its slope.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Slope {
    pub slope: f64,
    pub interval: (f64, f64),
    /// That the slope is 0, two-sided.
    pub p: f64,
    /// The means of x and y, which the line goes through.
    pub centre: (f64, f64),
}

impl Slope {
    /// y on the line.
    pub fn at(&self, x: f64) -> f64 {
        self.centre.1 + self.slope * (x - self.centre.0)
    }
}

/// The slope of y over x: β = Sxy/Sxx with the standard error s/√Sxx, s² being the sum of squared residuals
/// over n − 2, and Student's t with n − 2 degrees of freedom (Montgomery, Peck & Vining 2012, *Introduction
/// to Linear Regression Analysis*, section 2.3). `level`: error rate of the interval.
///
/// `None` for fewer than four points, for x that are all alike, and for values that are not finite.
pub fn slope(x: &[f64], y: &[f64], level: f64) -> Option<Slope> {
    let is_finite = |values: &[f64]| values.iter().all(|value| value.is_finite());
    if x.len() < 4 || x.len() != y.len() || !is_finite(x) || !is_finite(y) {
        return None;
    }
    let centre = (mean(x), mean(y));
    let squares: f64 = x.iter().map(|x| (x - centre.0).powi(2)).sum();
    let largest = x.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
    // A spread from rounding of the mean alone is none.
    if squares.sqrt() <= 1e-13 * largest * (x.len() as f64).sqrt() {
        return None;
    }
    let products: f64 = x.iter().zip(y).map(|(x, y)| (x - centre.0) * (y - centre.1)).sum();
    let slope = products / squares;
    let residuals: f64 = x.iter().zip(y).map(|(x, y)| (y - centre.1 - slope * (x - centre.0)).powi(2)).sum();
    let freedom = x.len() as f64 - 2.0;
    let error = (residuals / freedom / squares).sqrt();
    let reach = student_critical(level / 2.0, freedom) * error;
    let p = if error > 0.0 { 2.0 * student_upper_tail((slope / error).abs(), freedom) } else { 0.0 };
    Some(Slope { slope, interval: (slope - reach, slope + reach), p, centre })
}

// The state of the machine in a round, from the contenders outside of a pair.

/// The mean logarithm of the figures of all contenders but `a` and `b`, by round: the machine affects them
/// and the pair alike, and their own noise is independent of the pair's. `figures`: `[contender][round]`.
/// `None` where one of them has no positive figure; empty if there are no others.
pub fn state(figures: &[Vec<Option<f64>>], a: usize, b: usize) -> Vec<Option<f64>> {
    let others: Vec<&Vec<Option<f64>>> =
        (0..figures.len()).filter(|&place| place != a && place != b).map(|place| &figures[place]).collect();
    let rounds = others.iter().map(|figures| figures.len()).min().unwrap_or(0);
    let of_round = |round: usize| {
        let logs = others.iter().map(|figures| figures[round].map(f64::ln).filter(|log| log.is_finite()));
        Some(mean(&logs.collect::<Option<Vec<f64>>>()?))
    };
    (0..rounds).map(of_round).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_between_order_statistics_that_binomial_tails_leave_out() {
        let values = |count: usize| (1..=count).map(|value| value as f64).collect::<Vec<_>>();
        assert_eq!(quantile_interval(&values(367), 0.99), None);
        // Of 368 the largest is below the percentile in 0.99^368 = 2.48 %.
        assert_eq!(quantile_interval(&values(368), 0.99).map(|it| it.1), Some(368.0));
        assert_eq!(quantile_interval(&values(6), 0.5), Some((1.0, 6.0)), "as the median's");
        assert_eq!(quantile_interval(&values(1000), 0.5), median_interval(&values(1000)));
    }

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
        assert!((moments.standard_deviation.unwrap() - (32.0f64 / 7.0).sqrt()).abs() < 1e-12);
        let single = Moments::new(&[3.0]).unwrap();
        assert_eq!((single.standard_deviation, single.coefficient_of_variation()), (None, None));
        assert_eq!(Moments::new(&[]), None);
    }

    fn close(found: f64, expected: f64) {
        assert!((found / expected - 1.0).abs() < 1e-6, "{found} is not {expected}");
    }

    /// Expected values: scipy.stats 1.17 (norm.sf, t.sf, t.isf, norm.ppf).
    #[test]
    fn tails_agree_with_tables() {
        close(upper_tail(1.959_963_985), 0.025);
        close(upper_tail(7.0), 1.279_812_543_9e-12);
        close(student_upper_tail(4.582_575_695, 5.0), 0.002_966_772_259);
        close(student_upper_tail(-1.0, 3.0), 0.804_498_890_522);
        close(student_critical(0.025, 5.0), 2.570_581_835_6);
        close(student_critical(0.025, 23.0), 2.068_657_610_4);
        close(normal_quantile(0.8), 0.841_621_233_573);
    }

    #[test]
    fn infinite_statistics_have_certain_tails() {
        assert_eq!(student_upper_tail(f64::INFINITY, 5.0), 0.0);
        assert_eq!(student_upper_tail(f64::NEG_INFINITY, 5.0), 1.0);
    }

    #[test]
    fn orders_are_alike_opposite_or_between() {
        assert_eq!(kendall_tau(&[1.0, 2.0, 3.0], &[10.0, 20.0, 30.0]), Some(1.0));
        assert_eq!(kendall_tau(&[1.0, 2.0, 3.0], &[3.0, 2.0, 1.0]), Some(-1.0));
        // Five of six pairs alike, one not.
        let found = kendall_tau(&[1.0, 2.0, 3.0, 4.0], &[1.0, 2.0, 4.0, 3.0]).unwrap();
        assert!((found - 4.0 / 6.0).abs() < 1e-12, "{found}");
    }

    #[test]
    fn a_tie_orders_nothing() {
        // Of six pairs the second list orders five, all as the first does: 5 / √(6 · 5).
        let found = kendall_tau(&[1.0, 2.0, 3.0, 4.0], &[1.0, 2.0, 2.0, 3.0]).unwrap();
        assert!((found - 5.0 / 30f64.sqrt()).abs() < 1e-12, "{found}");
        assert_eq!(kendall_tau(&[1.0, 1.0], &[1.0, 2.0]), None);
    }

    #[test]
    fn what_has_no_order_has_no_likeness() {
        assert_eq!(kendall_tau(&[1.0, 2.0], &[1.0]), None);
        assert_eq!(kendall_tau(&[1.0, f64::NAN], &[1.0, 2.0]), None);
    }

    #[test]
    fn a_line_agrees_with_a_worked_example() {
        // Sxx = 10, Sxy = 6, β = 0.6; residuals −0.8, 0.6, 1, −0.6, −0.2: 2.4/3 = 0.8; √(0.8/10) = 0.2828; t₀.₀₂₅,₃ = 3.182.
        let found = slope(&[1.0, 2.0, 3.0, 4.0, 5.0], &[2.0, 4.0, 5.0, 4.0, 5.0], 0.05).unwrap();
        let close = |found: f64, asked: f64| assert!((found - asked).abs() < 1e-3, "{found} is not {asked}");
        close(found.slope, 0.6);
        close(found.interval.0, -0.3001);
        close(found.interval.1, 1.5001);
        close(found.p, 0.1240);
        close(found.at(5.0), 5.2);
    }

    #[test]
    fn what_has_no_slope_says_so() {
        assert_eq!(slope(&[1.0; 5], &[1.0, 2.0, 3.0, 4.0, 5.0], 0.05), None);
        // The mean of ten times 0.1 is not exactly 0.1.
        let ramp: Vec<f64> = (0..10).map(f64::from).collect();
        assert_eq!(slope(&[0.1; 10], &ramp, 0.05), None);
        assert_eq!(slope(&[1.0, 2.0, 3.0], &[1.0, 2.0, 3.0], 0.05), None);
        assert_eq!(slope(&[1.0, 2.0, 3.0, f64::NAN], &[1.0; 4], 0.05), None);
        assert_eq!(slope(&[1.0, 2.0, 3.0, 4.0], &[2.0; 4], 0.05).map(|found| found.slope), Some(0.0));
    }

    #[test]
    fn the_others_show_the_state() {
        let figures =
            [vec![Some(9.0); 3], vec![Some(1.0), Some(4.0), None], vec![Some(7.0); 3], vec![Some(4.0); 3]];
        let found = state(&figures, 0, 2);
        assert!(found[0].is_some_and(|x| (x - 2_f64.ln()).abs() < 1e-12), "{found:?}");
        assert!(found[1].is_some_and(|x| (x - 4_f64.ln()).abs() < 1e-12) && found[2].is_none(), "{found:?}");
        assert_eq!(state(&figures[..2], 0, 1), []);
    }
}

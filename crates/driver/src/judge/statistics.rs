//! Tests on paired ratios. Pure functions of numbers.
//!
//! The unit of evidence is a process. A round runs every contender once, so ratios are paired by round,
//! which takes out what a round has in common (temperature, neighbours). On the log scale the ratio a/b
//! and its inverse are treated alike.

use statrs::distribution::{ContinuousCDF, StudentsT};

/// Fewest rounds that can support a verdict. A sign-flip test on five pairs cannot go below p = 0.0625;
/// asking six of every test keeps verdicts from resting on a t distribution's assumptions alone.
pub(crate) const MIN_ROUNDS: usize = 6;
pub(crate) const SIGNIFICANCE: f64 = 0.05;
/// Differences within 2 % are taken for none, where the interval shows that they are within.
pub(crate) const EQUIVALENCE_MARGIN: f64 = 0.02;

/// A paired comparison of a against b.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Paired {
    pub(crate) rounds: usize,
    /// Geometric mean of a/b.
    pub(crate) ratio: f64,
    /// 95 % interval of the ratio.
    pub(crate) interval: (f64, f64),
    /// Two-sided p of "the ratio is 1".
    pub(crate) p: f64,
    /// 90 % interval: inside the margin, it is two one-sided tests at 5 % (Schuirmann 1987).
    pub(crate) equivalence_interval: (f64, f64),
}

/// Paired t test on log ratios (Student 1908). `None` with fewer than two pairs, or figures that have no
/// logarithm.
pub(crate) fn paired(a: &[f64], b: &[f64]) -> Option<Paired> {
    let n = a.len();
    if n != b.len() || n < 2 || a.iter().chain(b).any(|&value| value <= 0.0 || !value.is_finite()) {
        return None;
    }
    let logs: Vec<f64> = a.iter().zip(b).map(|(a, b)| (a / b).ln()).collect();
    let mean = logs.iter().sum::<f64>() / n as f64;
    let variance = logs.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n - 1) as f64;
    let error = (variance / n as f64).sqrt();
    let t = StudentsT::new(0.0, 1.0, (n - 1) as f64).expect("positive degrees of freedom");
    let interval = |tail: f64| {
        let reach = t.inverse_cdf(1.0 - tail) * error;
        ((mean - reach).exp(), (mean + reach).exp())
    };
    let p = match (error > 0.0, mean == 0.0) {
        (true, _) => 2.0 * t.sf((mean / error).abs()),
        // Every round gave exactly the same ratio: certain, if there is a difference at all.
        (false, true) => 1.0,
        (false, false) => 0.0,
    };
    Some(Paired {
        rounds: n,
        ratio: mean.exp(),
        interval: interval(0.025),
        p,
        equivalence_interval: interval(0.05),
    })
}

/// Holm's step-down adjustment of a family of p values (Holm 1979).
pub(crate) fn holm(p: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|&i, &j| p[i].total_cmp(&p[j]));
    let mut adjusted = vec![0.0; p.len()];
    let mut largest: f64 = 0.0;
    for (rank, &index) in order.iter().enumerate() {
        largest = largest.max(p[index] * (p.len() - rank) as f64).min(1.0);
        adjusted[index] = largest;
    }
    adjusted
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_t_test_agrees_with_a_worked_example() {
        // Ratios e^0.1 … e^0.6: mean 0.35, s = 0.18708, t(5) = 4.5826, two-sided p = 0.005934.
        let a: Vec<f64> = (1..=6).map(|i| (f64::from(i) / 10.0).exp()).collect();
        let result = paired(&a, &[1.0; 6]).unwrap();
        assert!((result.ratio.ln() - 0.35).abs() < 1e-12);
        assert!((result.p - 0.005_934).abs() < 1e-5, "p = {}", result.p);
        // t(5) quantile 0.975 = 2.570582; standard error 0.0763763.
        assert!((result.interval.0.ln() - (0.35 - 2.570_582 * 0.076_376_3)).abs() < 1e-5);
    }

    #[test]
    fn swapping_the_two_inverts_the_ratio() {
        let (a, b) = ([1.0, 2.0, 3.0], [2.0, 2.5, 2.0]);
        let (ab, ba) = (paired(&a, &b).unwrap(), paired(&b, &a).unwrap());
        assert!((ab.ratio * ba.ratio - 1.0).abs() < 1e-12 && (ab.p - ba.p).abs() < 1e-12);
        assert!((ab.interval.0 * ba.interval.1 - 1.0).abs() < 1e-12);
    }

    #[test]
    fn figures_without_a_logarithm_are_not_compared() {
        assert_eq!(paired(&[0.0, 1.0], &[1.0, 1.0]), None);
        assert_eq!(paired(&[1.0], &[1.0]), None);
        assert_eq!(paired(&[f64::NAN, 1.0], &[1.0, 1.0]), None);
    }

    #[test]
    fn identical_samples_have_no_difference() {
        let same = paired(&[1.0, 2.0], &[1.0, 2.0]).unwrap();
        assert_eq!((same.ratio, same.p), (1.0, 1.0));
    }

    #[test]
    fn holm_agrees_with_a_worked_example() {
        let adjusted = holm(&[0.01, 0.04, 0.03, 0.005]);
        let expected = [0.03, 0.06, 0.06, 0.02];
        assert!(adjusted.iter().zip(expected).all(|(a, e)| (a - e).abs() < 1e-12), "{adjusted:?}");
    }

    proptest! {
        #[test]
        fn holm_never_lowers_a_p_value(p in proptest::collection::vec(0.0..1.0f64, 1..20)) {
            for (adjusted, raw) in holm(&p).iter().zip(&p) {
                prop_assert!(adjusted >= raw && *adjusted <= 1.0);
            }
        }
    }
}

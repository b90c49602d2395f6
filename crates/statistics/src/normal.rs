//! The standard normal and Student's t distribution, accurate far out in the tails.

use std::f64::consts::{FRAC_1_SQRT_2, PI};

use statrs::distribution::{ContinuousCDF, Normal, StudentsT};
use statrs::function::beta::beta_reg;
use statrs::function::erf::erfc;

/// φ(z).
pub(crate) fn density(z: f64) -> f64 {
    (-0.5 * z * z).exp() / (2.0 * PI).sqrt()
}

/// P(Z > z).
pub(crate) fn upper_tail(z: f64) -> f64 {
    0.5 * erfc(z * FRAC_1_SQRT_2)
}

/// The z that P(Z ≤ z) = p.
pub(crate) fn quantile(p: f64) -> f64 {
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

#[cfg(test)]
mod tests {
    use super::*;

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
        close(quantile(0.8), 0.841_621_233_573);
    }

    #[test]
    fn infinite_statistics_have_certain_tails() {
        assert_eq!(student_upper_tail(f64::INFINITY, 5.0), 0.0);
        assert_eq!(student_upper_tail(f64::NEG_INFINITY, 5.0), 1.0);
    }
}

//! The power guard: the difference that this noise and this number of rounds could find.

use crate::normal::{quantile, student_critical};

/// Smallest mean difference, in standard deviations of the differences, that a two-sided paired t test at
/// `level` finds with probability `power` in `rounds` pairs. `freedom`: degrees of freedom of the deviation.
/// The noncentral t distribution is approximated as by Johnson & Welch (1940): T′ ≤ t where Z ≤ (t·(1 − 1/4ν)
/// − δ)/√(1 + t²/2ν). Infinite without a degree of freedom.
pub fn detectable_shift(rounds: usize, freedom: f64, level: f64, power: f64) -> f64 {
    if freedom < 1.0 || level <= 0.0 {
        return f64::INFINITY;
    }
    noncentrality(freedom, level, power) / (rounds as f64).sqrt()
}

/// The difference, in standard errors, that a two-sided t test at `level` finds with probability `power`,
/// by the same approximation.
pub(crate) fn noncentrality(freedom: f64, level: f64, power: f64) -> f64 {
    let critical = student_critical(level / 2.0, freedom);
    critical * (1.0 - 0.25 / freedom) + quantile(power) * (1.0 + critical * critical / (2.0 * freedom)).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_approximation_agrees_with_the_noncentral_t() {
        // Roots of scipy.stats.nct.sf(critical, n - 1, d·√n) = 0.8.
        let exact = [
            (6, 0.05, 1.434_545),
            (6, 0.01, 2.109_349),
            (12, 0.0033, 1.361_973),
            (24, 0.05, 0.597_185),
            (24, 0.0033, 0.852_370),
        ];
        for (rounds, level, shift) in exact {
            let found = detectable_shift(rounds, (rounds - 1) as f64, level, 0.8);
            assert!((found / shift - 1.0).abs() < 0.02, "{rounds} rounds at {level}: {found}, not {shift}");
        }
    }

    #[test]
    fn one_round_finds_nothing() {
        assert_eq!(detectable_shift(1, 0.0, 0.05, 0.8), f64::INFINITY);
    }
}

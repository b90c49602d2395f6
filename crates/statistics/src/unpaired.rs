//! Tests that ignore the pairing, shown next to the paired ones: where they disagree, the rounds had
//! something in common.

use crate::mean::{mean, variance};
use crate::normal::{student_critical, student_upper_tail, upper_tail};

/// Sample size up to which the Mann–Whitney test is exact where there are no ties.
const EXACT_UP_TO: usize = 8;

/// Two-sided p of Welch's t test (Welch 1947), with the degrees of freedom of Satterthwaite (1946).
/// 1 for samples too small to have a variance.
pub fn welch(a: &[f64], b: &[f64]) -> f64 {
    Welch::estimate(a, b).map_or(1.0, |welch| welch.two_sided())
}

/// The difference of two means, a − b, and its precision.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Welch {
    pub(crate) difference: f64,
    /// Standard error of the difference.
    pub(crate) error: f64,
    /// Satterthwaite's degrees of freedom; infinite without any noise.
    pub(crate) freedom: f64,
}

impl Welch {
    /// Estimates it. `None` for samples too small to have a variance.
    pub(crate) fn estimate(a: &[f64], b: &[f64]) -> Option<Welch> {
        if a.len() < 2 || b.len() < 2 {
            return None;
        }
        let (mean_a, mean_b) = (mean(a), mean(b));
        let part_a = variance(a, mean_a) / a.len() as f64;
        let part_b = variance(b, mean_b) / b.len() as f64;
        let (difference, squared_error) = (mean_a - mean_b, part_a + part_b);
        if squared_error == 0.0 {
            return Some(Welch { difference, error: 0.0, freedom: f64::INFINITY });
        }
        // Shares of the error, so that tiny variances do not underflow when squared.
        let (share_a, share_b) = (part_a / squared_error, part_b / squared_error);
        let freedom =
            1.0 / (share_a * share_a / (a.len() - 1) as f64 + share_b * share_b / (b.len() - 1) as f64);
        Some(Welch { difference, error: squared_error.sqrt(), freedom })
    }

    /// p of "no difference".
    pub(crate) fn two_sided(&self) -> f64 {
        if self.difference == 0.0 {
            return 1.0;
        }
        if self.error == 0.0 {
            return 0.0;
        }
        (2.0 * student_upper_tail(self.difference.abs() / self.error, self.freedom)).min(1.0)
    }

    /// The interval of the difference that misses with probability `level`: the differences that the test
    /// would not reject at that level.
    pub(crate) fn interval(&self, level: f64) -> (f64, f64) {
        if self.error == 0.0 {
            return (self.difference, self.difference);
        }
        let reach = student_critical(level / 2.0, self.freedom) * self.error;
        (self.difference - reach, self.difference + reach)
    }
}

/// Two-sided p of the Mann–Whitney U test (Mann & Whitney 1947): exact up to eight in the smaller sample
/// where there are no ties, else the normal approximation with corrections for ties and continuity.
/// 1 for an empty sample.
pub fn mann_whitney(a: &[f64], b: &[f64]) -> f64 {
    if a.is_empty() || b.is_empty() {
        return 1.0;
    }
    let (count_a, count_b) = (a.len() as f64, b.len() as f64);
    let (ranks_a, tie_sum) = rank_sum(a, b);
    let u = ranks_a - count_a * (count_a + 1.0) / 2.0;
    let u = u.max(count_a * count_b - u);
    if tie_sum == 0.0 && a.len().min(b.len()) <= EXACT_UP_TO {
        return exact(a.len(), b.len(), u as usize);
    }
    let count = count_a + count_b;
    let spread = count_a * count_b / 12.0 * (count + 1.0 - tie_sum / (count * (count - 1.0)));
    if spread <= 0.0 {
        return 1.0;
    }
    let z = (u - count_a * count_b / 2.0 - 0.5) / spread.sqrt();
    (2.0 * upper_tail(z)).min(1.0)
}

/// Sum of the ranks of `a` in both samples together, ties sharing their mean rank; and Σ(t³ − t) over ties.
fn rank_sum(a: &[f64], b: &[f64]) -> (f64, f64) {
    let mut all: Vec<(f64, bool)> =
        a.iter().map(|&x| (x, true)).chain(b.iter().map(|&x| (x, false))).collect();
    all.sort_by(|x, y| x.0.total_cmp(&y.0));
    let (mut before, mut ranks, mut tie_sum) = (0, 0.0, 0.0);
    for tied in all.chunk_by(|x, y| x.0 == y.0) {
        let size = tied.len() as f64;
        let rank = before as f64 + (size + 1.0) / 2.0;
        ranks += rank * tied.iter().filter(|(_, of_a)| *of_a).count() as f64;
        tie_sum += size.powi(3) - size;
        before += tied.len();
    }
    (ranks, tie_sum)
}

/// 2·P(U ≥ u): the number of ways to reach each U is that of partitions in a box, the coefficients of the
/// Gaussian binomial ∏ (1 − q^(b+i))/(1 − q^i).
fn exact(a: usize, b: usize, u: usize) -> f64 {
    let (a, b) = (a.min(b), a.max(b));
    let mut ways = vec![0.0; a * b + 1];
    ways[0] = 1.0;
    for i in 1..=a {
        for j in (b + i..ways.len()).rev() {
            ways[j] -= ways[j - b - i];
        }
        for j in i..ways.len() {
            ways[j] += ways[j - i];
        }
    }
    let total: f64 = ways.iter().sum();
    (2.0 * ways.iter().skip(u).sum::<f64>() / total).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: [f64; 6] = [10.1, 9.7, 10.4, 10.0, 9.9, 10.6];
    const B: [f64; 6] = [10.9, 11.2, 10.3, 11.0, 11.4, 10.7];

    fn close(found: f64, expected: f64) {
        assert!((found / expected - 1.0).abs() < 1e-9, "{found} is not {expected}");
    }

    /// Expected values of this module: scipy.stats 1.17.
    #[test]
    fn welch_agrees_with_worked_examples() {
        close(welch(&A, &B), 0.003_365_348_046_994_562);
        close(welch(&[3.0, 1.0, 4.0], &[1.5, 9.0, 2.6, 5.2, 5.0]), 0.250_122_681_709_599_5);
    }

    #[test]
    fn mann_whitney_agrees_with_worked_examples() {
        close(mann_whitney(&A, &B), 0.008_658_008_658_008_658);
        close(mann_whitney(&[3.0, 1.0, 4.0], &[1.5, 9.0, 2.6, 5.2, 5.0]), 0.392_857_142_857_142_85);
        let twelve: Vec<f64> = (1..=12).map(f64::from).collect();
        let shifted: Vec<f64> = twelve.iter().map(|x| x + 3.5).collect();
        close(mann_whitney(&twelve, &shifted), 0.040_404_119_588_223_694);
        let (a, b) = ([1, 2, 2, 3, 5, 6, 6, 7, 9], [2, 4, 6, 6, 8, 9, 10, 11, 12]);
        close(mann_whitney(&a.map(f64::from), &b.map(f64::from)), 0.068_096_183_907_867_58);
    }

    #[test]
    fn the_interval_is_what_the_test_does_not_reject() {
        let welch = Welch::estimate(&A, &B).unwrap();
        // By numerical integration of the density, independently of this crate.
        close(welch.freedom, 9.767_623_498_428_23);
        let (low, high) = welch.interval(0.05);
        close(low, -1.264_727_220_149);
        close(high, -0.335_272_779_851);
        let (_, end) = welch.interval(welch.two_sided());
        assert!(end.abs() < 1e-6, "at the level of its own p it ends at 0, not {end}");
    }

    #[test]
    fn samples_that_say_nothing_have_p_one() {
        assert_eq!((welch(&[2.0; 4], &[2.0; 4]), mann_whitney(&[2.0; 4], &[2.0; 4])), (1.0, 1.0));
        assert_eq!((welch(&[1.0], &[2.0]), mann_whitney(&[], &[2.0])), (1.0, 1.0));
    }

    #[test]
    fn a_difference_without_noise_is_certain_for_welch() {
        assert_eq!(welch(&[1.0; 6], &[2.0; 6]), 0.0);
    }
}

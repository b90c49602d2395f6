//! Tests on paired log ratios.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::descriptive::{mean, student_critical, student_upper_tail, upper_tail, variance};

/// Pairs up to which the sign-flip test goes through every assignment of signs (65,536).
pub const EXACT_UP_TO: usize = 16;

/// Random assignments beyond.
pub const FLIPS: usize = 9_999;

/// Rounding of logarithms, relative to their size: figures closer than this are equal.
const ROUNDING: f64 = 1e-13;

/// Pairs per table of signed sums.
const CHUNK: usize = 8;

/// Figures of two contenders in the same rounds, on the log scale.
#[derive(Debug, Clone, PartialEq)]
pub struct LogRatios {
    a: Vec<f64>,
    b: Vec<f64>,
    /// ln(aᵣ/bᵣ).
    differences: Vec<f64>,
    mean: f64,
    /// Standard deviation of the differences; exactly 0 where they differ by rounding alone.
    deviation: f64,
}

impl LogRatios {
    /// Pairs the rounds in which both have a figure. `None` with fewer than two pairs, or with a figure
    /// that has no logarithm.
    pub fn new(a: &[Option<f64>], b: &[Option<f64>]) -> Option<Self> {
        let pairs = a.iter().zip(b).filter_map(|(a, b)| Some(((*a)?, (*b)?)));
        let (a, b): (Vec<f64>, Vec<f64>) = pairs.map(|(a, b)| (a.ln(), b.ln())).unzip();
        if a.len() < 2 || !a.iter().chain(&b).all(|figure| figure.is_finite()) {
            return None;
        }
        let mut differences: Vec<f64> = a.iter().zip(&b).map(|(a, b)| a - b).collect();
        let size = a.iter().chain(&b).fold(1.0, |size: f64, figure| size.max(figure.abs()));
        let mut mean = mean(&differences);
        if mean.abs() <= ROUNDING * size {
            mean = 0.0;
        }
        let mut deviation = variance(&differences, mean).sqrt();
        if differences.iter().all(|difference| (difference - mean).abs() <= ROUNDING * size) {
            deviation = 0.0;
            differences.fill(mean);
        }
        Some(Self { a, b, differences, mean, deviation })
    }

    /// Pairs used.
    pub fn rounds(&self) -> usize {
        self.differences.len()
    }

    /// Mean log ratio.
    pub fn mean(&self) -> f64 {
        self.mean
    }

    /// Standard deviation of the log ratios.
    pub fn deviation(&self) -> f64 {
        self.deviation
    }

    /// The log ratio of each round.
    pub fn differences(&self) -> &[f64] {
        &self.differences
    }

    /// Student's interval of the mean log ratio that misses it with probability `level`.
    pub fn interval(&self, level: f64) -> (f64, f64) {
        let error = self.deviation / (self.rounds() as f64).sqrt();
        let reach = if error > 0.0 { student_critical(level / 2.0, self.freedom()) * error } else { 0.0 };
        (self.mean - reach, self.mean + reach)
    }

    /// Logarithms of the figures of the two contenders.
    pub(crate) fn logarithms(&self) -> (&[f64], &[f64]) {
        (&self.a, &self.b)
    }

    /// Two-sided p of "the mean log ratio is 0": the paired t test (Student 1908).
    pub fn p_t(&self) -> f64 {
        if self.mean == 0.0 {
            return 1.0;
        }
        (2.0 * student_upper_tail(self.statistic(self.mean.abs()), self.freedom())).min(1.0)
    }

    /// The larger p of the two one-sided tests that show the mean log ratio within ±`margin` (Schuirmann
    /// 1987).
    pub fn p_equivalence(&self, margin: f64) -> f64 {
        student_upper_tail(self.statistic(margin - self.mean.abs()), self.freedom())
    }

    /// Distance in standard errors. Without noise, any distance is infinite, and a distance of 0 is no
    /// evidence.
    fn statistic(&self, distance: f64) -> f64 {
        let error = self.deviation / (self.rounds() as f64).sqrt();
        match (error > 0.0, distance > 0.0) {
            (true, _) => distance / error,
            (false, true) => f64::INFINITY,
            (false, false) => f64::NEG_INFINITY,
        }
    }

    /// Degrees of freedom of the deviation.
    pub fn freedom(&self) -> f64 {
        (self.rounds() - 1) as f64
    }

    /// Two-sided p of the sign-flip permutation test on the mean (Fisher 1935): which contender is called
    /// `a` is arbitrary in each round if they do not differ. Exact up to [`EXACT_UP_TO`] pairs; beyond,
    /// [`FLIPS`] random assignments, counting the observed one (Phipson & Smyth 2010).
    pub fn p_sign_flip(&self, seed: u64) -> f64 {
        let tables: Vec<Vec<f64>> = self.differences.chunks(CHUNK).map(signed_sums).collect();
        let sum: f64 = self.differences.iter().sum();
        let size: f64 = self.differences.iter().map(|difference| difference.abs()).sum();
        // Sums that differ by rounding alone are ties.
        let threshold = sum.abs() - 1e-12 * size;
        if self.rounds() <= EXACT_UP_TO {
            let high = tables.get(1).map_or(&[0.0][..], Vec::as_slice);
            let hits: usize = high
                .iter()
                .map(|high| tables[0].iter().filter(|low| (*low + high).abs() >= threshold).count())
                .sum();
            return hits as f64 / (tables[0].len() * high.len()) as f64;
        }
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut signs = vec![0; FLIPS * tables.len()];
        random.fill_bytes(&mut signs);
        let flipped = signs.chunks_exact(tables.len()).filter(|signs| {
            let sum: f64 = signs
                .iter()
                .zip(&tables)
                .map(|(&signs, table)| table[usize::from(signs) & (table.len() - 1)])
                .sum();
            sum.abs() >= threshold
        });
        (1 + flipped.count()) as f64 / (1 + FLIPS) as f64
    }
}

/// Σ ±xᵢ for each assignment of signs; bit i of the index is the sign of xᵢ.
fn signed_sums(x: &[f64]) -> Vec<f64> {
    let mut sums = vec![0.0];
    for x in x {
        let negative: Vec<f64> = sums.iter().map(|sum| sum - x).collect();
        sums.iter_mut().for_each(|sum| *sum += x);
        sums.extend(negative);
    }
    sums
}

// Tests that ignore the pairing, shown next to the paired ones: where they disagree, the rounds had
// something in common.

/// Sample size up to which the Mann–Whitney test is exact where there are no ties.
const UNPAIRED_EXACT_UP_TO: usize = 8;

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
    if tie_sum == 0.0 && a.len().min(b.len()) <= UNPAIRED_EXACT_UP_TO {
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

    fn ratios(differences: &[f64]) -> LogRatios {
        let a: Vec<_> = differences.iter().map(|x| Some(x.exp())).collect();
        LogRatios::new(&a, &vec![Some(1.0); a.len()]).unwrap()
    }

    fn close(found: f64, expected: f64) {
        assert!((found / expected - 1.0).abs() < 1e-6, "{found} is not {expected}");
    }

    #[test]
    fn the_t_test_agrees_with_a_worked_example() {
        // Mean 0.35, s = 0.18708, t(5) = 4.582576.
        close(ratios(&[0.1, 0.2, 0.3, 0.4, 0.5, 0.6]).p_t(), 0.005_933_544_5);
        // Student's own data (1908, the soporific drugs): t(9) = 4.0621, p = 0.002833.
        let sleep = [1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4];
        close(ratios(&sleep).p_t(), 0.002_832_890_2);
    }

    #[test]
    fn the_sign_flip_test_agrees_with_counting() {
        // Of 2⁶ assignments, only the two with all signs alike reach the observed sum.
        assert_eq!(ratios(&[0.1, 0.2, 0.3, 0.4, 0.5, 0.6]).p_sign_flip(0), 2.0 / 64.0);
        // |±1 ±3 ±2| is 0, 2, 4 or 6, each in two of eight assignments.
        assert_eq!(ratios(&[-1.0, 3.0, 2.0]).p_sign_flip(0), 4.0 / 8.0);
        assert_eq!(ratios(&[1.0, 3.0, -2.0]).p_sign_flip(0), 6.0 / 8.0);
    }

    #[test]
    fn darwins_maize_gives_fishers_p() {
        // Fisher 1935, The Design of Experiments, §21: 1,726 of 32,768 assignments.
        let maize = [49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48];
        let differences: Vec<f64> = maize.iter().map(|&x| f64::from(x) / 100.0).collect();
        assert_eq!(ratios(&differences).p_sign_flip(0), 1_726.0 / 32_768.0);
    }

    #[test]
    fn random_flips_agree_with_the_exact_count() {
        // Sixteen pairs exactly, and a seventeenth that changes nothing.
        let mut differences: Vec<f64> = (0..16).map(|i| f64::from(i) / 10.0 - 0.3).collect();
        let exact = ratios(&differences).p_sign_flip(0);
        differences.push(1e-9);
        let random = ratios(&differences).p_sign_flip(0);
        assert!((random - exact).abs() < 4.0 * (exact / FLIPS as f64).sqrt(), "{random} is not {exact}");
    }

    #[test]
    fn certain_differences_have_p_zero_and_none_at_all_has_one() {
        let twice = LogRatios::new(&[Some(0.2), Some(6.0), Some(0.6)], &[Some(0.1), Some(3.0), Some(0.3)]);
        let twice = twice.unwrap();
        assert_eq!((twice.p_t(), twice.p_equivalence(0.02), twice.deviation()), (0.0, 1.0, 0.0));
        let same = ratios(&[0.0; 6]);
        assert_eq!((same.p_t(), same.p_equivalence(0.02), same.p_sign_flip(0)), (1.0, 0.0, 1.0));
    }

    #[test]
    fn equivalence_is_the_worse_of_two_one_sided_tests() {
        // The mean is 0.01, so the nearer bound is the upper one, 0.01 away.
        let x = ratios(&[0.0, 0.02, 0.0, 0.02, 0.0, 0.02]);
        let t = 0.01 / (x.deviation() / 6f64.sqrt());
        close(x.p_equivalence(0.02), student_upper_tail(t, 5.0));
        assert!(ratios(&[0.03; 6]).p_equivalence(0.02) > 0.999);
    }

    #[test]
    fn the_interval_is_students() {
        // Mean 0.35, s/√6 = 0.076376, t₀.₀₂₅,₅ = 2.570582.
        let (low, high) = ratios(&[0.1, 0.2, 0.3, 0.4, 0.5, 0.6]).interval(0.05);
        close(low, 0.35 - 2.570_582 * 0.076_376_26);
        close(high, 0.35 + 2.570_582 * 0.076_376_26);
        assert_eq!(ratios(&[0.5; 6]).interval(0.05), (0.5, 0.5));
    }

    #[test]
    fn rounds_without_a_pair_are_left_out() {
        let x = LogRatios::new(&[Some(1.0), None, Some(3.0)], &[Some(2.0), Some(9.0), Some(6.0)]).unwrap();
        assert_eq!(x.rounds(), 2);
        assert_eq!(LogRatios::new(&[Some(1.0), None], &[None, Some(1.0)]), None);
        assert_eq!(LogRatios::new(&[Some(0.0), Some(1.0)], &[Some(1.0); 2]), None);
        assert_eq!(LogRatios::new(&[Some(f64::NAN), Some(1.0)], &[Some(1.0); 2]), None);
    }

    // Unpaired.

    const A: [f64; 6] = [10.1, 9.7, 10.4, 10.0, 9.9, 10.6];

    const B: [f64; 6] = [10.9, 11.2, 10.3, 11.0, 11.4, 10.7];

    fn exact(found: f64, expected: f64) {
        assert!((found / expected - 1.0).abs() < 1e-9, "{found} is not {expected}");
    }

    /// Expected values of this test and the next: scipy.stats 1.17.
    #[test]
    fn welch_agrees_with_worked_examples() {
        exact(welch(&A, &B), 0.003_365_348_046_994_562);
        exact(welch(&[3.0, 1.0, 4.0], &[1.5, 9.0, 2.6, 5.2, 5.0]), 0.250_122_681_709_599_5);
    }

    #[test]
    fn mann_whitney_agrees_with_worked_examples() {
        exact(mann_whitney(&A, &B), 0.008_658_008_658_008_658);
        exact(mann_whitney(&[3.0, 1.0, 4.0], &[1.5, 9.0, 2.6, 5.2, 5.0]), 0.392_857_142_857_142_85);
        let twelve: Vec<f64> = (1..=12).map(f64::from).collect();
        let shifted: Vec<f64> = twelve.iter().map(|x| x + 3.5).collect();
        exact(mann_whitney(&twelve, &shifted), 0.040_404_119_588_223_694);
        let (a, b) = ([1, 2, 2, 3, 5, 6, 6, 7, 9], [2, 4, 6, 6, 8, 9, 10, 11, 12]);
        exact(mann_whitney(&a.map(f64::from), &b.map(f64::from)), 0.068_096_183_907_867_58);
    }

    #[test]
    fn the_interval_is_what_the_test_does_not_reject() {
        let welch = Welch::estimate(&A, &B).unwrap();
        // By numerical integration of the density, independently of this crate.
        exact(welch.freedom, 9.767_623_498_428_23);
        let (low, high) = welch.interval(0.05);
        exact(low, -1.264_727_220_149);
        exact(high, -0.335_272_779_851);
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

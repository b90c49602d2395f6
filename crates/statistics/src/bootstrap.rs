//! Intervals by resampling rounds.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::mean::mean;
use crate::normal::{quantile, student_critical};

/// Bootstrap resamples of an interval.
pub const RESAMPLES: usize = 4_000;

/// Resamples of so many rounds, drawn once and shared by all series of a table.
#[derive(Debug, Clone)]
pub struct Resamples {
    rounds: usize,
    /// `[RESAMPLES, rounds]` indices.
    indices: Vec<u32>,
}

impl Resamples {
    /// Draws them; `rounds` is at least 1.
    pub fn new(rounds: usize, seed: u64) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        // Multiply and shift (Lemire 2019), without its rejection: the bias is below rounds/2³².
        let index = |word: u32| ((u64::from(word) * rounds as u64) >> 32) as u32;
        let indices = (0..RESAMPLES * rounds).map(|_| index(random.next_u32())).collect();
        Self { rounds, indices }
    }

    /// Percentile bootstrap interval of the mean (Efron 1979) at `confidence`, stretched about the mean by
    /// t/z·√(n/(n−1)), t having the variance's degrees of `freedom`: resamples have (n−1)/n of the sample's variance, and
    /// that variance is an estimate.
    /// On a normal sample that is Student's interval; asymmetry stays. The factor is Hesterberg's (2015,
    /// "What Teachers Should Know About the Bootstrap", §5.3), who applies it to the tail probability
    /// instead; with six values that asks for resamples rarer than they can show, and covers too little
    /// where the noise has two modes. BCa corrects skewness, not narrowness.
    ///
    /// `x` has as many values as the resamples have rounds.
    pub fn interval(&self, x: &[f64], freedom: f64, confidence: f64) -> (f64, f64) {
        assert_eq!(x.len(), self.rounds, "resamples of another number of rounds");
        let rounds = x.len() as f64;
        if x.len() < 2 {
            return (f64::NEG_INFINITY, f64::INFINITY);
        }
        let tail = 0.5 * (1.0 - confidence);
        let stretch = stretch(rounds, freedom, tail);
        // About the centre, so that the sums of large logarithms lose nothing.
        let centre = mean(x);
        let centred: Vec<f64> = x.iter().map(|x| x - centre).collect();
        let mut means: Vec<f64> = self
            .indices
            .chunks_exact(self.rounds)
            .map(|resample| resample.iter().map(|&index| centred[index as usize]).sum::<f64>() / rounds)
            .collect();
        let (low, high) = tails(&mut means, tail);
        (centre + stretch * low, centre + stretch * high)
    }
}

fn stretch(rounds: f64, freedom: f64, tail: f64) -> f64 {
    (rounds / (rounds - 1.0)).sqrt() * student_critical(tail, freedom) / -quantile(tail)
}

/// The two values that a share `tail` is beyond on either side: order statistics (B + 1)·tail (Davison &
/// Hinkley 1997), with linear interpolation.
fn tails(values: &mut [f64], tail: f64) -> (f64, f64) {
    let count = values.len();
    let position = (tail * (count + 1) as f64 - 1.0).clamp(0.0, (count - 1) as f64);
    let (below, share) = (position as usize, position.fract());
    let above = (below + 1).min(count - 1);
    let mut order_statistic = |rank: usize| *values.select_nth_unstable_by(rank, f64::total_cmp).1;
    let mut between = |near: usize, far: usize| {
        let (near, far) = (order_statistic(near), order_statistic(far));
        near + share * (far - near)
    };
    (between(below, above), between(count - 1 - below, count - 1 - above))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn six_rounds_stretch_by_what_student_and_bessel_say() {
        // √(6/5)·2.570582/1.959964.
        assert!((stretch(6.0, 5.0, 0.025) - 1.436_726).abs() < 1e-6, "{}", stretch(6.0, 5.0, 0.025));
    }

    #[test]
    fn order_statistics_are_interpolated() {
        let mut values: Vec<f64> = (1..=99).rev().map(f64::from).collect();
        assert_eq!(tails(&mut values, 0.05), (5.0, 95.0));
        let (low, high) = tails(&mut values, 0.025);
        assert!((low - 2.5).abs() < 1e-9 && (high - 97.5).abs() < 1e-9);
        assert_eq!(tails(&mut values, 0.0), (1.0, 99.0));
    }

    #[test]
    fn the_interval_of_normal_data_is_nearly_that_of_the_t_distribution() {
        // Normal scores of 24 values: mean 0, and hardly any skewness.
        let x: Vec<f64> = (1..=24).map(|i| crate::normal::quantile(f64::from(i) / 25.0)).collect();
        let deviation = crate::mean::variance(&x, 0.0).sqrt();
        let reach = student_critical(0.025, 23.0) * deviation / 24f64.sqrt();
        let (low, high) = Resamples::new(24, 1).interval(&x, 23.0, 0.95);
        assert!((high / reach - 1.0).abs() < 0.08 && (-low / reach - 1.0).abs() < 0.08, "{low} {high}");
    }

    #[test]
    fn no_noise_leaves_a_point() {
        assert_eq!(Resamples::new(6, 1).interval(&[0.5; 6], 5.0, 0.95), (0.5, 0.5));
    }
}

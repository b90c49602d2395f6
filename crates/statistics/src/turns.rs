//! The figure of a round for contenders that took turns, robust against a disturbance of one turn.

use crate::descriptive::median;
use crate::mean::mean;

/// Share of whole requests that is left out at either end: of 8 blocks the middle two count, of 4 the middle
/// two.
pub const TRIMMED_REQUESTS: f64 = 0.375;
/// Share of slices that is left out at either end. Each request has ten or more, so that a small share
/// suffices to leave out disturbed ones. A larger share would leave out slow slices that the contender itself
/// causes: `docs/evidence/calibration.md` has widths of intervals and shifts of ratios, from recorded
/// comparisons.
pub const TRIMMED_SLICES: f64 = 0.125;

/// Logarithms of the contenders' figures in a round, from those of their turns: `[block][contender]`.
///
/// A block has a level, the median over its contenders: it includes everything that slowed the whole block. A
/// contender's effect is the mean of its distances from the levels, without this share of the lowest and of
/// the highest (the trimmed mean; Tukey 1962, *The Future of Data Analysis*): that leaves out the disturbance
/// of a single turn. Its figure is the mean level plus its effect, so that two contenders differ by their
/// effects. Machines with a bandwidth that drops to half for tenths of a second disturb single turns often,
/// and a plain mean is as unsteady as the worst of them (`docs/evidence/calibration.md`).
///
/// A figure outside the range of the contender's own turns is moved to the nearest of them: where half of its
/// turns are disturbed, level plus effect need not be a possible figure.
///
/// Empty without a block. Every block has all contenders.
pub fn of_turns(blocks: &[Vec<f64>], trimmed: f64) -> Vec<f64> {
    let Some(first) = blocks.first() else { return Vec::new() };
    let levels: Vec<f64> = blocks.iter().filter_map(|block| median(block)).collect();
    let level = mean(&levels);
    let effect = |contender: usize| {
        let distances = blocks.iter().zip(&levels).map(|(block, level)| block[contender] - level);
        trimmed_mean(&distances.collect::<Vec<_>>(), trimmed)
    };
    let within = |contender: usize| {
        let own = blocks.iter().map(|block| block[contender]);
        let (least, most) = own.fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), turn| {
            (least.min(turn), most.max(turn))
        });
        (level + effect(contender)).max(least).min(most)
    };
    (0..first.len()).map(within).collect()
}

/// The mean without this share of the values at either end, rounded down. The share is below a half.
pub fn trimmed_mean(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let cut = (share * sorted.len() as f64) as usize;
    mean(&sorted[cut..sorted.len() - cut])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64) {
        assert!((a - b).abs() < 1e-12, "{a} {b}");
    }

    #[test]
    fn what_slows_a_whole_block_slows_nobody_and_what_slows_one_turn_does_not_count() {
        let quiet = vec![vec![0.0, 0.1, 0.3]; 8];
        let mut disturbed = quiet.clone();
        disturbed[2].iter_mut().for_each(|turn| *turn += 0.7);
        disturbed[5][0] += 0.7;
        for blocks in [quiet, disturbed] {
            let figures = of_turns(&blocks, TRIMMED_REQUESTS);
            close(figures[1] - figures[0], 0.1);
            close(figures[2] - figures[0], 0.3);
        }
    }

    #[test]
    fn two_contenders_differ_by_the_trimmed_mean_of_their_differences() {
        let blocks = [[0.0, 0.1], [0.5, 0.8], [0.2, 0.4], [0.9, 0.2]].map(|block| block.to_vec());
        let figures = of_turns(&blocks, TRIMMED_REQUESTS);
        close(figures[1] - figures[0], (0.1 + 0.2) / 2.0);
        close((figures[1] + figures[0]) / 2.0, (0.05 + 0.65 + 0.3 + 0.55) / 4.0);
    }

    #[test]
    fn a_figure_is_one_that_a_turn_can_have_had() {
        // The slow turns of the first contender are in the fast blocks.
        let blocks =
            vec![vec![-1.0, -1.0, -1.0], vec![-1.0, 1.0, 1.0], vec![-1.0, 1.0, 1.0], vec![-1.0, -1.0, -1.0]];
        let figures = of_turns(&blocks, TRIMMED_REQUESTS);
        close(figures[0], -1.0);
    }

    #[test]
    fn reciprocal_figures_have_reciprocal_results() {
        let blocks = vec![vec![0.3, -0.1, 0.2], vec![1.0, 0.4, 0.1], vec![0.1, 0.2, 0.3]];
        let inverse: Vec<Vec<f64>> =
            blocks.iter().map(|block| block.iter().map(|log| -log).collect()).collect();
        let of = |blocks: &[Vec<f64>]| of_turns(blocks, TRIMMED_REQUESTS);
        of(&blocks).into_iter().zip(of(&inverse)).for_each(|(a, b)| close(a, -b));
        assert_eq!(of(&[]), Vec::<f64>::new());
    }
}

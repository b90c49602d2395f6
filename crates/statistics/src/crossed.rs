//! The effects of several switches that were measured on and off in every combination (crossed).
//!
//! A subset of the switches is a number with bit *i* set if switch *i* is on, and v(S) is the figure with the
//! switches in S on. A contrast is a coefficient for each subset; the coefficients add up to 0. It denotes Σ
//! c(S)·ln v(S), the logarithm of a ratio of weighted geometric means. In each round it is a ratio of two
//! figures, so that [`crate::decide`] judges it like any pair.
//!
//! The effect of a switch depends on which others are on, so there is no single answer: [`alone`] is its gain
//! if it is switched on first, [`left_out`] the loss if it alone is switched off, and [`share`] the mean over
//! all orders in which the switches can be switched on (Shapley 1953, *A value for n-person games*). The
//! shares of all switches multiply to the [`whole`], in every round and therefore on average; the other two
//! need not.

/// All on against all off.
pub fn whole(count: usize) -> Vec<f64> {
    difference(count, full(count), 0)
}

/// This switch on and all others off, against all off.
pub fn alone(count: usize, switch: usize) -> Vec<f64> {
    difference(count, 1 << switch, 0)
}

/// All on against all on but this switch.
pub fn left_out(count: usize, switch: usize) -> Vec<f64> {
    difference(count, full(count), full(count) & !(1 << switch))
}

/// The Shapley value of this switch: its effect on every set of the others, each weighted by the share of
/// orders in which exactly that set precedes it, |S|!·(n − |S| − 1)!/n!.
pub fn share(count: usize, switch: usize) -> Vec<f64> {
    let mut contrast = vec![0.0; 1 << count];
    for before in (0..1_usize << count).filter(|set| set & (1 << switch) == 0) {
        let size = before.count_ones() as usize;
        let weight = factorial(size) * factorial(count - size - 1) / factorial(count);
        contrast[before | 1 << switch] += weight;
        contrast[before] -= weight;
    }
    contrast
}

/// The product of several contrasts.
pub fn product(contrasts: &[Vec<f64>]) -> Vec<f64> {
    let length = contrasts.first().map_or(0, Vec::len);
    (0..length).map(|subset| contrasts.iter().map(|contrast| contrast[subset]).sum()).collect()
}

/// The numerator and the denominator of the contrast in each round: the weighted geometric mean of the
/// subsets with positive coefficients, and of those with negative ones. `figures` are given by subset and
/// round. A side is `None` in a round where one of its figures is missing, or is not positive and finite.
pub fn sides(contrast: &[f64], figures: &[Vec<Option<f64>>]) -> [Vec<Option<f64>>; 2] {
    let taking_part = || contrast.iter().zip(figures).filter(|(weight, _)| **weight != 0.0);
    let rounds = taking_part().map(|(_, figures)| figures.len()).min().unwrap_or(0);
    let mean = |round: usize, sign: f64| -> Option<f64> {
        let logarithm = |(weight, figures): (&f64, &Vec<Option<f64>>)| {
            let figure = figures[round].filter(|figure| *figure > 0.0 && figure.is_finite())?;
            Some(sign * weight * figure.ln())
        };
        let of_side = taking_part().filter(|(weight, _)| sign * **weight > 0.0);
        of_side.map(logarithm).sum::<Option<f64>>().map(f64::exp)
    };
    [1.0, -1.0].map(|sign| (0..rounds).map(|round| mean(round, sign)).collect())
}

fn full(count: usize) -> usize {
    (1 << count) - 1
}

/// One subset against another.
fn difference(count: usize, with: usize, without: usize) -> Vec<f64> {
    let mut contrast = vec![0.0; 1 << count];
    contrast[with] += 1.0;
    contrast[without] -= 1.0;
    contrast
}

fn factorial(n: usize) -> f64 {
    (1..=n).map(|k| k as f64).product()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Looks, Series, Settings, decide};

    /// The ratio that a contrast denotes.
    fn ratio(contrast: &[f64], figures: &[f64]) -> f64 {
        let figures: Vec<Vec<Option<f64>>> = figures.iter().map(|&figure| vec![Some(figure)]).collect();
        let [a, b] = sides(contrast, &figures);
        a[0].unwrap() / b[0].unwrap()
    }

    fn close(found: f64, expected: f64) {
        assert!((found / expected - 1.0).abs() < 1e-12, "{found} is not {expected}");
    }

    #[test]
    fn two_switches_agree_with_a_worked_example() {
        // Figures: neither, the first, the second, both. The first gives 6x alone; without it, 8x is lost.
        let figures = [1.0, 6.0, 1.5, 12.0];
        close(ratio(&whole(2), &figures), 12.0);
        close(ratio(&alone(2, 0), &figures), 6.0);
        close(ratio(&left_out(2, 0), &figures), 8.0);
        close(ratio(&share(2, 0), &figures), 48f64.sqrt());
        close(ratio(&share(2, 1), &figures), 3f64.sqrt());
    }

    #[test]
    fn the_shares_of_three_are_the_mean_over_their_six_orders() {
        let figures: [f64; 8] = [2.0, 3.0, 5.0, 7.0, 11.0, 13.0, 17.0, 19.0];
        let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
        for switch in 0..3 {
            let gains = orders.map(|order: [usize; 3]| {
                let place = order.iter().position(|&other| other == switch).unwrap();
                let before = order[..place].iter().fold(0, |set, other| set | 1 << other);
                (figures[before | 1 << switch] / figures[before]).ln()
            });
            close(ratio(&share(3, switch), &figures), (gains.iter().sum::<f64>() / 6.0).exp());
        }
    }

    #[test]
    fn a_single_switch_is_the_whole_whichever_way_it_is_looked_at() {
        for contrast in [alone(1, 0), left_out(1, 0), share(1, 0)] {
            assert_eq!(contrast, whole(1));
        }
    }

    #[test]
    fn switches_that_do_not_touch_each_other_have_one_worth() {
        // 2x and 5x, whatever else is on.
        let figures = [1.0, 2.0, 5.0, 10.0];
        for contrast in [alone(2, 1), left_out(2, 1), share(2, 1)] {
            close(ratio(&contrast, &figures), 5.0);
        }
    }

    #[test]
    fn a_round_without_a_figure_that_takes_part_has_none() {
        let figures = [vec![Some(1.0), Some(2.0)], vec![Some(3.0), None], vec![], vec![Some(0.0), Some(4.0)]];
        let has = |contrast: Vec<f64>| {
            sides(&contrast, &figures).map(|side| side.iter().map(Option::is_some).collect::<Vec<_>>())
        };
        assert_eq!(has(alone(2, 0)), [[true, false], [true, true]]);
        assert_eq!(has(whole(2)), [[false, true], [true, true]], "zero is no figure");
        assert_eq!(sides(&alone(2, 1), &figures), [vec![], vec![]], "the second was never measured");
    }

    fn rounds(count: usize) -> impl Strategy<Value = Vec<Vec<Option<f64>>>> {
        proptest::collection::vec(proptest::collection::vec((0.1..100.0f64).prop_map(Some), 7), 1 << count)
    }

    fn measured() -> impl Strategy<Value = (usize, Vec<Vec<Option<f64>>>)> {
        (1..=4usize).prop_flat_map(|count| rounds(count).prop_map(move |figures| (count, figures)))
    }

    proptest! {
        #[test]
        fn shares_multiply_to_the_whole((count, figures) in measured()) {
            let shares: Vec<Vec<f64>> = (0..count).map(|switch| share(count, switch)).collect();
            let family: Vec<[Vec<Option<f64>>; 2]> =
                shares.iter().chain([&whole(count)]).map(|contrast| sides(contrast, &figures)).collect();
            let series: Vec<Series<'_>> =
                family.iter().map(|[a, b]| Series::new(a, b, 1.0)).collect();
            let decided = decide(&series, &Looks::fixed(7), true, &Settings::default());
            let ratios: Vec<f64> = decided.into_iter().map(|decision| decision.unwrap().ratio).collect();
            let (whole, parts) = ratios.split_last().unwrap();
            prop_assert!((parts.iter().product::<f64>() / whole - 1.0).abs() < 1e-9, "{ratios:?}");
        }

        #[test]
        fn the_product_of_the_shares_is_the_whole_by_its_coefficients(count in 1..=4usize) {
            let shares: Vec<Vec<f64>> = (0..count).map(|switch| share(count, switch)).collect();
            for (found, expected) in product(&shares).iter().zip(whole(count)) {
                prop_assert!((found - expected).abs() < 1e-12);
            }
        }
    }
}

//! The state of the machine in a round, from the contenders outside of a pair.

use crate::mean::mean;

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
    fn the_others_show_the_state() {
        let figures =
            [vec![Some(9.0); 3], vec![Some(1.0), Some(4.0), None], vec![Some(7.0); 3], vec![Some(4.0); 3]];
        let found = state(&figures, 0, 2);
        assert!(found[0].is_some_and(|x| (x - 2_f64.ln()).abs() < 1e-12), "{found:?}");
        assert!(found[1].is_some_and(|x| (x - 4_f64.ln()).abs() < 1e-12) && found[2].is_none(), "{found:?}");
        assert_eq!(state(&figures[..2], 0, 1), []);
    }
}

//! The order in which contenders run.

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

/// A balanced random order: rounds are grouped into Williams designs (Williams 1949): a square of as many rounds as
/// there are contenders, followed by its mirror if that number is odd. In each square every contender is in every place
/// once, so that drift within rounds affects all alike. In each design every other contender is directly before it
/// equally often, so that what one leaves behind does too. Rows of a square are shuffled and contenders relabelled at
/// random by the seed.
///
/// Yields the order of one round after another, without end.
#[derive(Debug, Clone)]
pub struct BalancedOrder {
    random: ChaCha8Rng,
    labels: Vec<usize>,
    /// Rows of the design still to come; those from the number of contenders on are of the mirror.
    rows: Vec<usize>,
}

impl BalancedOrder {
    /// Orders of the contenders `0..contenders`.
    pub fn new(contenders: usize, seed: u64) -> Self {
        let random = ChaCha8Rng::seed_from_u64(seed);
        Self { random, labels: (0..contenders).collect(), rows: Vec::new() }
    }
}

impl Iterator for BalancedOrder {
    type Item = Vec<usize>;

    fn next(&mut self) -> Option<Vec<usize>> {
        let contenders = self.labels.len();
        if self.rows.is_empty() {
            self.labels.shuffle(&mut self.random);
            self.rows.extend(0..contenders * squares(contenders));
            for square in self.rows.chunks_mut(contenders.max(1)) {
                square.shuffle(&mut self.random);
            }
        }
        let row = self.rows.pop().unwrap_or_default();
        // 0, 1, k−1, 2, k−2 …: each difference between neighbours occurs once, or with the mirror twice.
        let first = |place: usize| if place % 2 == 1 { place.div_ceil(2) } else { contenders - place / 2 };
        let mut order: Vec<usize> =
            (0..contenders).map(|place| self.labels[(first(place) + row) % contenders]).collect();
        if row >= contenders {
            order.reverse();
        }
        Some(order)
    }
}

/// Squares of a design.
fn squares(contenders: usize) -> usize {
    1 + contenders % 2
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_contender_has_every_place_once_in_a_square() {
        for contenders in 1..=7 {
            let rounds: Vec<_> = BalancedOrder::new(contenders, 7).take(6 * contenders).collect();
            for square in rounds.chunks(contenders) {
                for place in 0..contenders {
                    let taken: BTreeSet<_> = square.iter().map(|round| round[place]).collect();
                    assert_eq!(taken.len(), contenders);
                }
            }
        }
    }

    #[test]
    fn every_contender_comes_directly_after_every_other_equally_often() {
        for contenders in 2..=7 {
            let rounds: Vec<_> = BalancedOrder::new(contenders, 7).take(6 * contenders).collect();
            for design in rounds.chunks(squares(contenders) * contenders) {
                let mut pairs: Vec<&[usize]> = design.iter().flat_map(|round| round.windows(2)).collect();
                pairs.sort_unstable();
                let each: Vec<usize> = pairs.chunk_by(|a, b| a == b).map(<[_]>::len).collect();
                assert_eq!(each, vec![squares(contenders); contenders * (contenders - 1)]);
            }
        }
    }

    #[test]
    fn the_seed_decides_and_orders_vary() {
        let orders = |seed| BalancedOrder::new(3, seed).take(60).collect::<Vec<_>>();
        assert_eq!(orders(1), orders(1));
        assert_ne!(orders(1), orders(2));
        assert_eq!(orders(1).into_iter().collect::<BTreeSet<_>>().len(), 6, "all orders of three occur");
    }

    #[test]
    fn nobody_has_an_order_too() {
        assert_eq!(BalancedOrder::new(0, 1).next(), Some(vec![]));
    }
}

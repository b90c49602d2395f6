//! The order in which contenders run.

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

/// A balanced random order: rounds are grouped into squares of as many rounds as there are contenders. Each
/// is a cyclic Latin square (Fisher 1935) with its rows shuffled and its contenders relabelled at random. In
/// every square every contender is in every position once, so that drift within rounds affects all alike; the
/// seed decides the rest.
///
/// Yields the order of one round after another, without end.
#[derive(Debug, Clone)]
pub struct BalancedOrder {
    random: ChaCha8Rng,
    labels: Vec<usize>,
    /// Rows of the square still to come.
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
            self.rows.extend(0..contenders);
            self.rows.shuffle(&mut self.random);
        }
        let row = self.rows.pop().unwrap_or_default();
        Some((0..contenders).map(|position| self.labels[(row + position) % contenders]).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_contender_takes_every_position_once_in_a_square() {
        for contenders in 1..=5 {
            let rounds: Vec<_> = BalancedOrder::new(contenders, 7).take(3 * contenders).collect();
            for square in rounds.chunks(contenders) {
                for position in 0..contenders {
                    let taken: BTreeSet<_> = square.iter().map(|round| round[position]).collect();
                    assert_eq!(taken.len(), contenders);
                }
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

//! Weather that affects contenders differently although in the long run they are equally fast: the mean log ratio of any
//! two is 0, unless it says otherwise. Noise that is the same for all is symmetric in a pair's log ratio, and the tests
//! rely on that; this is not.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal, StudentT};

/// Change in the logarithm of the speed of memory.
const RANGE: f64 = 0.35;
/// Chance that a state of the machine ends with a round. The machine of 24 November was slow for six rounds.
const ENDS: f64 = 0.2;
/// How much the second contender's time follows memory; the others' follow it fully.
const FOLLOWS: f64 = 0.5;
/// By how much a disturbed contender is slower.
const CONTENTION: f64 = 0.2;

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Uneven {
    /// This share of the first contender's processes is slower by a factor.
    Speeds { share: f64, factor: f64 },
    /// Memory has two speeds, each of which lasts for rounds.
    Memory,
    /// The same, while the third contender has much noise of its own (σ), so that it hardly shows the speed.
    HiddenMemory { noise: f64 },
    /// From some round on, the first is slower or faster by this, with equal chances.
    Change { by: f64 },
    /// The level of each contender follows its level in the round before: AR(1) with this correlation and σ.
    Correlated { rho: f64, sigma: f64 },
    /// Directly after the first contender, others are slower by this.
    CarryOver { by: f64 },
    /// The same, while the others are as much faster otherwise that all are equal in the mean over all orders.
    EvenCarryOver { by: f64 },
    /// For some rounds at a time all but the last contender are slower.
    Contention,
    /// Each process varies by t with two degrees of freedom, times this.
    HeavyTails { scale: f64 },
    /// In one round, the first takes as many times as long. Its mean over all rounds is higher by that.
    BadRound { factor: f64 },
}

impl Uneven {
    /// Whether so many contenders can have it.
    pub fn fits(self, contenders: usize) -> bool {
        contenders > 2 || !matches!(self, Uneven::HiddenMemory { .. } | Uneven::Contention)
    }

    /// Whether the ratio of two contenders has this weather.
    pub fn affects(self, a: usize, b: usize, contenders: usize) -> bool {
        let includes = |one: usize| a == one || b == one;
        match self {
            Uneven::Memory | Uneven::HiddenMemory { .. } => includes(1),
            Uneven::Contention => includes(contenders - 1),
            Uneven::Speeds { .. } | Uneven::Change { .. } | Uneven::BadRound { .. } => includes(0),
            Uneven::Correlated { .. }
            | Uneven::CarryOver { .. }
            | Uneven::EvenCarryOver { .. }
            | Uneven::HeavyTails { .. } => true,
        }
    }
}

/// The weather in the course of one comparison.
pub(crate) struct Sky {
    uneven: Uneven,
    /// The round in which something happens once.
    moment: usize,
    /// Whether what may happen either way goes up; of two states, whether the slow one holds.
    up: bool,
    levels: Vec<f64>,
    /// Rounds so far.
    rounds: usize,
    random: ChaCha8Rng,
}

impl Sky {
    pub(crate) fn new(uneven: Uneven, contenders: usize, most: usize, seed: u64) -> Sky {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let moment = match uneven {
            Uneven::BadRound { .. } => random.random_range(0..most),
            _ => random.random_range(1..most.max(2)),
        };
        let up = random.random();
        let levels = (0..contenders).map(|_| normal(&mut random)).collect();
        Sky { uneven, moment, up, levels, rounds: 0, random }
    }

    /// How many times as long as usual each contender takes in the next round, which has this order.
    pub(crate) fn round(&mut self, order: &[usize]) -> Vec<f64> {
        let contenders = self.levels.len();
        let round = self.rounds;
        self.rounds += 1;
        if round > 0 && self.random.random_bool(ENDS) && self.has_states() {
            self.up = !self.up;
        }
        let state = if self.up { 0.5 } else { -0.5 };
        let mut logs = vec![0.0; contenders];
        match self.uneven {
            Uneven::Speeds { share, factor } => {
                let is_slow = f64::from(u8::from(self.random.random_bool(share)));
                logs[0] = factor.ln() * (is_slow - share);
            }
            Uneven::Memory => logs = self.memory(state),
            Uneven::HiddenMemory { noise } => {
                logs = self.memory(state);
                logs[contenders - 1] += noise * normal(&mut self.random);
            }
            Uneven::Change { by } if round >= self.moment => logs[0] = 2.0 * state * by,
            Uneven::Change { .. } => {}
            Uneven::Correlated { rho, sigma } => {
                for (log, level) in logs.iter_mut().zip(&mut self.levels) {
                    if round > 0 {
                        *level = rho * *level + (1.0 - rho * rho).sqrt() * normal(&mut self.random);
                    }
                    *log = sigma * *level;
                }
            }
            Uneven::CarryOver { by } => after_first(order, by, &mut logs),
            Uneven::EvenCarryOver { by } => {
                after_first(order, by, &mut logs);
                // Over all orders, one directly precedes another in one of as many as there are contenders.
                logs[1..].iter_mut().for_each(|log| *log -= by / contenders as f64);
            }
            Uneven::Contention => logs[..contenders - 1].fill(state * CONTENTION.ln_1p()),
            Uneven::HeavyTails { scale } => {
                let tails = StudentT::new(2.0).expect("two degrees of freedom");
                logs.iter_mut().for_each(|log| *log = scale * tails.sample(&mut self.random));
            }
            Uneven::BadRound { factor } if round == self.moment => logs[0] = factor.ln(),
            Uneven::BadRound { .. } => {}
        }
        logs.into_iter().map(f64::exp).collect()
    }

    fn has_states(&self) -> bool {
        matches!(self.uneven, Uneven::Memory | Uneven::HiddenMemory { .. } | Uneven::Contention)
    }

    fn memory(&self, state: f64) -> Vec<f64> {
        (0..self.levels.len()).map(|it| if it == 1 { FOLLOWS } else { 1.0 } * RANGE * state).collect()
    }
}

/// Makes the one that comes directly after the first contender slower.
fn after_first(order: &[usize], by: f64, logs: &mut [f64]) {
    for pair in order.windows(2).filter(|pair| pair[0] == 0) {
        logs[pair[1]] = by;
    }
}

fn normal(random: &mut ChaCha8Rng) -> f64 {
    StandardNormal.sample(random)
}

#[cfg(test)]
mod tests {
    use statistics::BalancedOrder;

    use super::*;

    #[test]
    fn in_the_long_run_contenders_are_equally_fast() {
        let all = [
            Uneven::Speeds { share: 0.15, factor: 1.2 },
            Uneven::Memory,
            Uneven::HiddenMemory { noise: 0.1 },
            Uneven::Change { by: 0.04 },
            Uneven::Correlated { rho: 0.6, sigma: 0.02 },
            Uneven::EvenCarryOver { by: 0.03 },
            Uneven::Contention,
        ];
        for uneven in all {
            let mut sums = [0.0; 3];
            for seed in 0..1000 {
                let mut sky = Sky::new(uneven, 3, 30, seed);
                for order in BalancedOrder::new(3, seed).take(30) {
                    let round = sky.round(&order);
                    sums.iter_mut().zip(round).for_each(|(sum, factor)| *sum += factor.ln() / 30_000.0);
                }
            }
            let most = sums.into_iter().fold(0.0, |most: f64, sum| most.max((sum - sums[2]).abs()));
            assert!(most < 0.004, "{uneven:?} {sums:?}");
        }
    }

    #[test]
    fn only_the_one_directly_after_the_first_is_slower() {
        let mut sky = Sky::new(Uneven::CarryOver { by: 0.03 }, 3, 10, 1);
        assert_eq!(sky.round(&[2, 0, 1]), [1.0, 0.03_f64.exp(), 1.0]);
        assert_eq!(sky.round(&[2, 1, 0]), [1.0; 3]);
    }
}

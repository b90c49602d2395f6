//! One simulated comparison: processes with the noise of the mock, rounds in the driver's order, and the
//! loop by which the driver asks for more.

use std::fmt;
use std::sync::{Arc, LazyLock};

use engine_mock::Noise;
use judge::Metric;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use statistics::{
    BalancedOrder, DEFAULT_MARGIN, DEFAULT_MAX_ROUNDS, Decision, Looks, Series, Settings, decide, settled,
};

/// The metrics of the table.
pub const METRICS: [Metric; 5] = Metric::TABLE;
/// The one that decides whether rounds go on.
pub const DECIDING: usize = 3;
/// Decode steps of a process.
const STEPS: usize = 64;
/// σ of peak memory between processes.
const MEMORY_NOISE: f64 = 0.001;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rounds {
    Automatic,
    Fixed(usize),
}

impl Rounds {
    /// Shared, as their boundaries take a moment to compute.
    pub fn looks(self) -> Arc<Looks> {
        static AUTOMATIC: LazyLock<Arc<Looks>> =
            LazyLock::new(|| Arc::new(Looks::automatic(DEFAULT_MAX_ROUNDS)));
        match self {
            Rounds::Automatic => Arc::clone(&AUTOMATIC),
            Rounds::Fixed(rounds) => Arc::new(Looks::fixed(rounds)),
        }
    }
}

impl fmt::Display for Rounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rounds::Automatic => f.write_str("automatic"),
            Rounds::Fixed(rounds) => write!(f, "{rounds}"),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// The driver's.
    Balanced,
    /// All rounds of one contender come before all rounds of the next. What drift does to that must be caught.
    OneByOne,
}

/// What is true, and how it is looked at.
#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    /// How long each contender's decode steps take relative to the others'. Load, cold start and memory
    /// are alike.
    pub decode: Vec<f64>,
    pub noise: Noise,
    pub rounds: Rounds,
    pub order: Order,
}

/// How one ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    pub rounds: usize,
    /// By metric, then by pair of contenders: `[METRICS][pairs]`.
    pub table: Vec<Option<Decision>>,
}

impl Comparison {
    /// The decisions on the deciding metric, by pair.
    pub fn deciding(&self) -> &[Option<Decision>] {
        deciding(&self.table)
    }
}

impl Scenario {
    /// Pairs of contenders, the first named first.
    pub fn pairs(&self) -> Vec<(usize, usize)> {
        let contenders = self.decode.len();
        (0..contenders).flat_map(|a| (a + 1..contenders).map(move |b| (a, b))).collect()
    }

    /// Simulates one comparison as the driver runs it. `looks` are those of the scenario's rounds.
    pub fn compare(&self, looks: &Looks, seed: u64) -> Comparison {
        let settings = Settings { seed, ..Settings::default() };
        let mut table = Vec::new();
        let rounds = self.observe(looks, seed, |family, last| {
            table = decide(family, looks, last, &settings);
            settled(deciding(&table), DEFAULT_MARGIN)
        });
        Comparison { rounds, table }
    }

    /// Adds rounds and shows the table's series at each look, with whether it is the last, until `enough`
    /// says so. Returns the rounds that there were.
    pub fn observe(
        &self,
        looks: &Looks,
        seed: u64,
        mut enough: impl FnMut(&[Series<'_>], bool) -> bool,
    ) -> usize {
        let contenders = self.decode.len();
        let (pairs, most) = (self.pairs(), looks.max_rounds());
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        // Of each metric, each contender's figures by round.
        let mut figures = vec![vec![Vec::with_capacity(most); contenders]; METRICS.len()];
        for (round, order) in (1..=most).zip(BalancedOrder::new(contenders, seed)) {
            for (position, contender) in order.into_iter().enumerate() {
                let started = match self.order {
                    Order::Balanced => (round - 1) * contenders + position,
                    Order::OneByOne => contender * most + round - 1,
                };
                let started = started as f64 / (most * contenders) as f64;
                let process = self.process(contender, started, &mut random);
                for (figures, figure) in figures.iter_mut().zip(process) {
                    figures[contender].push(Some(figure));
                }
            }
            if looks.is_look(round) {
                let family: Vec<Series<'_>> = figures
                    .iter()
                    .flat_map(|of_metric| {
                        pairs.iter().map(|&(a, b)| Series { a: &of_metric[a], b: &of_metric[b] })
                    })
                    .collect();
                if enough(&family, round == most) {
                    return round;
                }
            }
        }
        most
    }

    /// The figures of one process, in the order of [`METRICS`]; `started` at this share of the longest run.
    fn process(&self, contender: usize, started: f64, random: &mut impl Rng) -> [f64; METRICS.len()] {
        let load = self.noise.of_process(started, random).factor();
        let cold = self.noise.of_process(started, random).factor();
        let memory = Noise { process: MEMORY_NOISE, ..Noise::default() }.of_process(0.0, random).factor();
        let decode = self.noise.of_process(started, random);
        let mut gaps = [0.0; STEPS];
        for (step, gap) in (1..).zip(&mut gaps) {
            *gap = self.decode[contender] * decode.of_step(step, random);
        }
        let throughput = STEPS as f64 / gaps.iter().sum::<f64>();
        let (below, upper, _) = gaps.select_nth_unstable_by(STEPS / 2, f64::total_cmp);
        let lower = below.iter().copied().fold(0.0, f64::max);
        [load, cold, 0.5 * (lower + *upper), throughput, memory]
    }
}

fn deciding(table: &[Option<Decision>]) -> &[Option<Decision>] {
    let pairs = table.len() / METRICS.len();
    &table[DECIDING * pairs..(DECIDING + 1) * pairs]
}

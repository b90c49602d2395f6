//! Weather that affects contenders differently although in the long run they are equally fast: the mean log ratio of any
//! two is 0, unless it says otherwise. Noise that is the same for all is symmetric in a pair's log ratio, and the tests
//! rely on that; this is not.

use std::collections::VecDeque;

use engine_mock::Noise;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal, StudentT};
use statistics::steady::{SteadyState, classify};

use crate::calibrate::page::{Limit, Options, Share, Table, repeat, seed_of};

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

// Memory bandwidth that changes with time, independent of the processes.

/// Two states of bandwidth.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Climate {
    /// The speed of work in each, relative to full bandwidth.
    pub speeds: [f64; 2],
    /// Seconds that each holds, at least and at most; drawn log-uniformly between.
    pub holds_s: [(f64, f64); 2],
}

/// Half of the bandwidth, half of the time.
pub const HARSH: Climate = Climate { speeds: [1.0, 0.5], holds_s: [(0.1, 20.0); 2] };

/// As measured: of 31 tokens of candle, ort and tch each in 20 blocks of 7 rounds on a two-core virtual machine (EPYC), a
/// quarter were made in a fast state that held for 0.04 to 7 s, half of the stretches for less than 0.8 s, and the rest
/// in a slow one that held for 0.07 to 10 s or to the end of the blocks, half of the stretches for more than 1.9 s. A token of tch or candle
/// took 1.33 times as long in the slow state.
pub const PLAYED: Climate = Climate { speeds: [1.0, 0.75], holds_s: [(0.05, 7.0), (0.1, 20.0)] };

/// Two states of bandwidth that alternate.
#[derive(Debug, Clone)]
pub struct Weather {
    climate: Climate,
    random: ChaCha8Rng,
    /// Stretches that may still be needed.
    stretches: VecDeque<Stretch>,
    /// The state of the next stretch, and when it begins.
    state: usize,
    begins: f64,
}

/// A time of one state.
#[derive(Debug, Clone, Copy)]
struct Stretch {
    end: f64,
    speed: f64,
}

impl Weather {
    /// Weather as it is found at any moment. A state is found as often as it holds in the mean, and a long stretch more
    /// often than a short one: the length of the one that is found has the density of all lengths times itself, which
    /// for log-uniform ones is level.
    pub fn new(climate: Climate, seed: u64) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let [first, second] =
            climate.holds_s.map(|(least, most): (f64, f64)| (most - least) / (most / least).ln());
        let state = usize::from(random.random::<f64>() * (first + second) >= first);
        let (least, most) = climate.holds_s[state];
        let whole: f64 = random.random_range(least..most);
        let left = whole * random.random::<f64>();
        let mut weather = Self { climate, random, stretches: VecDeque::new(), state, begins: 0.0 };
        weather.add(left);
        weather
    }

    /// Seconds for work that begins at the time `from` and takes `work` seconds at full bandwidth. `from`
    /// never decreases from call to call. `sensitivity`: the power of the state's speed at which this work is
    /// done; 0 for work that does not depend on bandwidth.
    pub fn takes(&mut self, from: f64, work: f64, sensitivity: f64) -> f64 {
        while self.stretch(0).end <= from {
            self.stretches.pop_front();
        }
        let (mut at, mut left, mut index) = (from, work, 0);
        loop {
            let Stretch { end, speed } = self.stretch(index);
            let speed = speed.powf(sensitivity);
            let done = (end - at) * speed;
            if done >= left {
                return at + left / speed - from;
            }
            left -= done;
            at = end;
            index += 1;
        }
    }

    fn stretch(&mut self, index: usize) -> Stretch {
        while self.stretches.len() <= index {
            let (least, most) = self.climate.holds_s[self.state];
            let holds = least * (most / least).powf(self.random.random());
            self.add(holds);
        }
        self.stretches[index]
    }

    fn add(&mut self, holds: f64) {
        self.begins += holds;
        self.stretches.push_back(Stretch { end: self.begins, speed: self.climate.speeds[self.state] });
        self.state = 1 - self.state;
    }
}

// Series of iterations with a known course.

/// Iterations of a series.
const ITERATIONS: usize = 120;

/// 2 % between iterations, and one in a hundred three times as long.
const NOISE: Noise = Noise {
    process: 0.02,
    step: 0.02,
    bimodal: 0.0,
    bimodal_factor: 1.0,
    spike_share: 0.01,
    spike: 3.0,
    drift: 0.0,
    ramp: 1.0,
    ramp_steps: 0,
};

/// The course of a series without noise: a ramp at its start, and a level that changes once.
#[derive(Debug, Clone, Copy)]
pub struct Course {
    ramp: (f64, usize),
    /// From which iteration, to which level.
    step: (usize, f64),
}

/// Courses, with their names and their true classes.
pub const COURSES: [(&str, Course, SteadyState); 5] = [
    ("level throughout", Course { ramp: (1.0, 0), step: (0, 1.0) }, SteadyState::Flat),
    (
        "first iterations 1.5x, falling over 30",
        Course { ramp: (1.5, 30), step: (0, 1.0) },
        SteadyState::WarmUp,
    ),
    ("20 % faster from iteration 40", Course { ramp: (1.0, 0), step: (40, 0.8) }, SteadyState::WarmUp),
    ("10 % slower from iteration 40", Course { ramp: (1.0, 0), step: (40, 1.1) }, SteadyState::Slowdown),
    (
        "10 % slower from iteration 100",
        Course { ramp: (1.0, 0), step: (100, 1.1) },
        SteadyState::NoSteadyState,
    ),
];

impl Course {
    /// Durations of iterations with the noise of the mock.
    pub fn series(self, seed: u64) -> Vec<f64> {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let noise = Noise { ramp: self.ramp.0, ramp_steps: self.ramp.1, ..NOISE };
        let process = noise.of_process(0.0, &mut random);
        let level = |index| if index >= self.step.0 { self.step.1 } else { 1.0 };
        (0..ITERATIONS).map(|index| level(index) * process.of_step(index + 1, &mut random)).collect()
    }
}

pub(crate) fn table(options: &Options) -> Table {
    let mut table = Table::new(
        "Steady state",
        "Series of 120 iterations of one process with 2 % noise, one in a hundred three times as long; how \
         often they are classified as what they are.",
        &["course", "is", "classified so"],
    );
    for (index, (name, course, state)) in (0..).zip(COURSES) {
        let found = repeat(options.comparisons, seed_of(options.seed, index), |seed| {
            classify(&course.series(seed)).map(|classification| classification.state)
        });
        let word = match state {
            SteadyState::Flat => "flat",
            SteadyState::WarmUp => "warm-up",
            SteadyState::Slowdown => "slowdown",
            SteadyState::NoSteadyState => "no steady state",
        };
        let right = Share::count(&found, |found| *found == Some(state));
        table.row([name.into(), word.into()], right, Limit::AtLeast(0.95));
    }
    table
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

    /// Full bandwidth for two seconds, half of it for one, and full for a hundred.
    fn known() -> Weather {
        let mut weather = Weather::new(HARSH, 1);
        (weather.stretches, weather.state, weather.begins) = (VecDeque::new(), 0, 0.0);
        [2.0, 1.0, 100.0].into_iter().for_each(|holds| weather.add(holds));
        weather
    }

    #[test]
    fn work_progresses_at_the_speed_of_the_moment() {
        assert_eq!(known().takes(0.0, 1.5, 1.0), 1.5);
        assert_eq!(known().takes(0.0, 2.25, 1.0), 2.5);
        assert_eq!(known().takes(1.0, 2.0, 1.0), 2.5, "one second, half a second in one, half a second");
        assert_eq!(known().takes(2.0, 0.5, 1.0), 1.0);
        assert_eq!(known().takes(3.0, 0.5, 1.0), 0.5);
    }

    #[test]
    fn work_that_follows_work_takes_as_long_as_both_together() {
        let (mut whole, mut parts) = (Weather::new(HARSH, 3), Weather::new(HARSH, 3));
        let mut now = 0.0;
        for _ in 0..1000 {
            now += parts.takes(now, 0.7, 1.0);
        }
        assert!((now - whole.takes(0.0, 700.0, 1.0)).abs() < 1e-6, "{now}");
        // Half of the time at half the speed: 700/0.75.
        assert!((840.0..1030.0).contains(&now), "{now}");
    }

    #[test]
    fn work_that_depends_less_on_bandwidth_slows_down_less() {
        assert_eq!(known().takes(2.0, 0.5, 0.0), 0.5);
        assert!((known().takes(2.0, 0.5, 0.5) - 0.5 * 2_f64.sqrt()).abs() < 1e-12);
    }

    #[test]
    fn states_are_found_at_the_start_as_often_as_they_hold() {
        for (climate, share) in [(HARSH, 0.5), (PLAYED, 0.27)] {
            let is_fast = |seed: &u64| Weather::new(climate, *seed).takes(0.0, 1e-9, 1.0) < 1.2e-9;
            let fast = (0..4000).filter(is_fast).count() as f64 / 4000.0;
            assert!((fast - share).abs() < 0.03, "{fast}");
        }
    }
}

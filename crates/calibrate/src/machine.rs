//! The machine that simulated processes run on.

use engine_mock::Noise;
use statistics::{SEQUENTIAL_SIGNIFICANCE, SIGNIFICANCE};

use crate::bandwidth_drift::Climate;
use crate::figures::Figures;
use crate::processes::{Order, Processes};
use crate::recorded::{Estimator, Half, Replay};
use crate::turns::{Schedule, Turns};
use crate::uneven::Uneven;

/// The origin of the noise.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Machine {
    /// Processes vary as those of the mock do, and time does not matter but for drift and uneven weather. There is no
    /// clock.
    Even { noise: Noise, order: Order, uneven: Option<Uneven> },
    /// Memory bandwidth changes with time, and processes vary on top of that: `process` is σ of log-normal noise
    /// between processes. `last_depends`: how much the last contender's requests depend on bandwidth, as a power of the
    /// state's speed; those of the others do so fully.
    Changing { climate: Climate, last_depends: f64, process: f64, schedule: Schedule },
    /// A measured one: its rounds are replayed. There is no clock.
    Recorded { estimator: Estimator, half: Half },
}

/// A machine in the course of one comparison.
pub(crate) enum Running<'a> {
    Even(Box<Processes<'a>>),
    Changing(Box<Turns<'a>>),
    Recorded(Box<Replay<'a>>),
}

impl Machine {
    /// Whether contenders take turns, so that the others' figures show the state of the machine during a pair's requests.
    pub(crate) fn takes_turns(&self) -> bool {
        !matches!(self, Machine::Changing { schedule: Schedule::Sequential, .. })
    }

    /// The error rate of a table, as the product sets it.
    pub(crate) fn significance(&self) -> f64 {
        match self {
            Machine::Changing { schedule: Schedule::Sequential, .. } => SEQUENTIAL_SIGNIFICANCE,
            _ => SIGNIFICANCE,
        }
    }

    /// `decode` says how long each contender's requests take relative to the others', `most` how many rounds there may
    /// be.
    pub(crate) fn start<'a>(&self, decode: &'a [f64], most: usize, seed: u64) -> Running<'a> {
        match *self {
            Machine::Even { noise, order, uneven } => {
                Running::Even(Box::new(Processes::new(decode, noise, order, uneven, most, seed)))
            }
            Machine::Changing { climate, last_depends, process, schedule } => Running::Changing(Box::new(
                Turns::new(decode, (climate, last_depends), process, schedule, seed),
            )),
            Machine::Recorded { estimator, half } => {
                Running::Recorded(Box::new(Replay::new(decode, estimator, half, seed)))
            }
        }
    }
}

impl Running<'_> {
    /// Runs a round with its contenders in this order. Returns the figures of each contender.
    pub(crate) fn round(&mut self, order: &[usize]) -> Vec<Figures> {
        match self {
            Running::Even(processes) => processes.round(order),
            Running::Changing(turns) => turns.round(order),
            Running::Recorded(replay) => replay.round(),
        }
    }

    /// Simulated seconds so far; 0 without a clock.
    pub(crate) fn seconds(&self) -> f64 {
        match self {
            Running::Even(_) | Running::Recorded(_) => 0.0,
            Running::Changing(turns) => turns.seconds(),
        }
    }
}

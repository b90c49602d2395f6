//! Processes that vary as those of the mock do.

use engine_mock::Noise;

use crate::comparison::{Rounds, Scenario};
use crate::machine::Machine;
use crate::processes::Order;

/// 2 % between processes, and between the steps of one.
pub const NORMAL: Noise = Noise {
    process: 0.02,
    step: 0.02,
    bimodal: 0.0,
    bimodal_factor: 1.0,
    spike_share: 0.0,
    spike: 1.0,
    drift: 0.0,
    ramp: 1.0,
    ramp_steps: 0,
};
/// A third of the processes is 20 % slower.
pub const BIMODAL: Noise = Noise { bimodal: 1.0 / 3.0, bimodal_factor: 1.2, ..NORMAL };
/// The machine slows down by 10 % in the course of the longest run.
pub const DRIFT: Noise = Noise { drift: 0.1, ..NORMAL };
/// One step in fifty takes three times as long.
pub(super) const SPIKES: Noise = Noise { spike_share: 0.02, spike: 3.0, ..NORMAL };
/// One process in twenty is half as slow again.
pub(super) const OUTLIERS: Noise = Noise { bimodal: 0.05, bimodal_factor: 1.5, ..NORMAL };
/// A quiet machine.
pub(super) const QUIET: Noise = Noise { process: 0.005, ..NORMAL };

/// Contenders of which the last takes `ratio` times as long to decode as the others, in the driver's order.
pub fn scenario(contenders: usize, ratio: f64, noise: Noise, rounds: Rounds) -> Scenario {
    let machine = Machine::Even { noise, order: Order::Balanced, uneven: None };
    Scenario::new(contenders, ratio, machine, rounds)
}

//! A machine with a clock, and memory bandwidth that changes during the comparison.

use crate::bandwidth_drift::{HARSH, PLAYED};
use crate::comparison::{Rounds, Scenario};
use crate::machine::Machine;
use crate::turns::Schedule;

/// Simulated seconds that a comparison may take.
pub const BUDGET_S: f64 = 180.0;
/// All processes of a round at once, with turns of whole requests.
pub const INTERLEAVED: Schedule = Schedule::Interleaved { blocks: 8, slices: 1 };
/// The same with turns within requests, as many as 31 tokens in slices of 8 make.
pub const SLICED: Schedule = Schedule::Interleaved { blocks: 8, slices: 4 };
/// Slices, in as many blocks as are chosen at the costs of the measured machine.
const AS_MEASURED: Schedule = Schedule::Interleaved { blocks: 2, slices: 8 };
/// σ between processes: as measured of candle, and of tch without huge pages.
pub const PROCESSES: [f64; 2] = [0.015, 0.03];
/// σ between processes on the measured machine.
pub(super) const MEASURED: f64 = 0.02;

/// Contenders of which the last takes `ratio` times as long for a request as the others; `process` is σ between
/// processes.
pub fn scenario(contenders: usize, ratio: f64, process: f64, schedule: Schedule) -> Scenario {
    let machine = Machine::Changing { climate: HARSH, last_depends: 1.0, process, schedule };
    Scenario::new(contenders, ratio, machine, Rounds::Within(BUDGET_S))
}

/// The same in the weather that was measured. `last_depends`: how much the last contender depends on bandwidth.
pub(super) fn measured(contenders: usize, ratio: f64, last_depends: f64, process: f64) -> Scenario {
    let machine = Machine::Changing { climate: PLAYED, last_depends, process, schedule: AS_MEASURED };
    Scenario::new(contenders, ratio, machine, Rounds::Within(BUDGET_S))
}

//! The simulations, and the limits for their results.

pub mod bandwidth;
mod equal;
mod kept;
pub mod noise;
mod recorded;
mod unequal;
pub mod uneven;

use crate::kept::Kept;
use crate::page::Table;
use crate::steady;
use crate::study::Options;

/// Every study, in the order of the page. `kept`: comparisons whose rounds are drawn from.
pub fn all(options: &Options, kept: &[Kept]) -> Vec<Table> {
    let simulated = [
        equal::table,
        uneven::table,
        unequal::power,
        unequal::intervals,
        unequal::equivalence,
        recorded::estimators,
        steady::table,
    ];
    let mut tables: Vec<Table> =
        (0..).zip(simulated).map(|(index, study)| study(&options.fork(index))).collect();
    // Measured noise comes before the details of simulated noise.
    let measured = [kept::equals(&options.fork(100), kept), kept::power(&options.fork(101), kept)];
    tables.splice(2..2, measured);
    tables
}

//! The simulations, and the limits for their results.

pub mod bandwidth;
pub mod noise;
mod played;
mod recorded;

use crate::page::Table;
use crate::steady;
use crate::study::Options;

/// Every study, in the order of the page.
pub fn all(options: &Options) -> Vec<Table> {
    let studies = [
        noise::false_positives,
        noise::power,
        noise::intervals,
        noise::equivalence,
        steady::table,
        bandwidth::false_positives,
        bandwidth::intervals,
        bandwidth::power,
        played::false_positives,
        played::intervals,
        played::at_state,
        played::power,
        recorded::estimators,
        recorded::false_positives,
        recorded::power,
    ];
    (0..).zip(studies).map(|(index, study)| study(&options.fork(index))).collect()
}

//! Verdicts that say when the data do not support one. Pure functions of numbers: no I/O, no clock; a random
//! choice is a function of a seed.
//!
//! The unit of evidence is a process. A round runs every contender once, so figures are paired by round,
//! which removes the effects common to a round (temperature, neighbours). All computation is on the log
//! scale, where a/b and its inverse are treated alike. Iterations inside a process are already one figure: rounds are
//! the outer level of the hierarchy, and the level of the verdict (Kalibera & Jones 2013).
//!
//! Two runs made at different times have no rounds in common: [`contrast`] compares them unpaired, and
//! [`classify`] says whether a change is a regression. Several runs of one comparison are [`Combined`].
//!
//! [`decide`] is a whole comparison: a table of paired series in, verdicts out. A series has its weight in
//! the error rate; [`Looks`] says how often the evidence was looked at, [`settled`] whether to stop looking,
//! [`BalancedOrder`] gives the order of the contenders, [`blocks()`] how many requests each process of a
//! round answers, and [`steady::classify`] whether one process has reached a steady state.

mod changes;
mod combined;
pub mod contrast;
mod decision;
mod descriptive;
mod limits;
pub mod order;
mod paired;
mod sequential;
mod split;
pub mod steady;

pub use changes::changes;
pub use combined::Combined;
pub use contrast::{Contrast, Samples, contrast, detectable_shift};
pub use decision::{Change, Decision, Outcome, Series, Settings, Undecided, classify, decide, holm, settled};
pub use descriptive::{
    Moments, Slope, geometric_interval, geometric_mean, kendall_tau, median, median_interval, quantile,
    quantile_interval, slope, state,
};
pub use limits::{DEFAULT_MARGIN, DEFAULT_MAX_ROUNDS, MIN_ROUNDS, SEQUENTIAL_SIGNIFICANCE, SIGNIFICANCE};
pub use order::{
    BalancedOrder, Components, Costs, Prior, TRIMMED_REQUESTS, TRIMMED_SLICES, blocks, components, of_turns,
    pooled, trimmed_mean,
};
pub use paired::{EXACT_UP_TO, FLIPS, LogRatios, mann_whitney, welch};
pub use sequential::{Boundaries, Looks};
pub use split::{Cause, Split};

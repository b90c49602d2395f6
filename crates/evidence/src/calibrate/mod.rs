//! Tests the statistics on simulated comparisons with known ratios: how often they see a difference where
//! there is none, miss one that exists, and how often their intervals contain the true ratio.
//! The noise is `engine-mock`'s, alone or with memory bandwidth that changes; the loop is the driver's, and
//! the code under test is `statistics` itself.

pub mod kept;
pub mod page;
pub mod recorded;
pub mod rules;
pub mod simulated;
pub mod studies;
pub mod uneven;

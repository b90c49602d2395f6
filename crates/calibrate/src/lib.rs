//! Holds the statistics against simulated comparisons whose truth is known: how often they see a
//! difference where there is none, miss one that is there, and how often their intervals hold the truth.
//! The noise is that of `engine-mock`, the loop that of the driver, the code under test `statistics` itself.

pub mod comparison;
pub mod page;
pub mod steady;
pub mod studies;
pub mod study;

//! Holds the statistics against simulated comparisons whose truth is known: how often they see a
//! difference where there is none, miss one that is there, and how often their intervals hold the truth.
//! The noise is `engine-mock`'s, alone or with memory bandwidth that changes; the loop is the driver's, and
//! the code under test is `statistics` itself.

pub mod bandwidth_drift;
pub mod comparison;
pub mod figures;
pub mod machine;
pub mod outcomes;
pub mod page;
pub mod processes;
pub mod recorded;
pub mod steady;
pub mod studies;
pub mod study;
pub mod turns;

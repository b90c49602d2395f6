//! What verdicts are worth. [`calibrate`] plays comparisons whose truth is known and counts how often the shipped
//! procedure is wrong.

pub mod calibrate;

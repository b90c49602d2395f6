//! What verdicts are worth. [`calibrate`] plays comparisons whose truth is known and counts how often the shipped
//! procedure is wrong; [`claims`] runs published claims as users would and decides whether they hold.

pub mod calibrate;
pub mod claims;

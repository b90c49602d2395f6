//! A comparison as data: what was asked for ([`plan`]), what was observed ([`facts`]), what follows from both
//! ([`judge`]), and what is kept of it ([`history`]).
//!
//! Nothing here opens a file, reads a clock or starts a process (`clippy.toml`): what a rule needs is in its
//! arguments, so that every verdict can be drawn again from the journal.

pub mod facts;
pub mod history;
pub mod judge;
pub mod plan;

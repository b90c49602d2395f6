//! From facts to judgements: metrics, parity, fairness, statistics. Nothing here runs a process or
//! reads a clock.

pub(crate) mod fairness;
pub(crate) mod metrics;
pub(crate) mod parity;
pub(crate) mod statistics;
pub(crate) mod verdicts;

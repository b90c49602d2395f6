//! From facts to judgements: metrics, parity, fairness, sanity, verdicts. Nothing here runs a process or
//! reads a clock.

pub(crate) mod continuation;
pub(crate) mod curve;
pub(crate) mod fairness;
pub(crate) mod floor;
pub(crate) mod layers;
pub(crate) mod limit;
pub(crate) mod logits;
pub(crate) mod memory;
pub(crate) mod metrics;
pub(crate) mod parity;
pub(crate) mod sanity;
pub(crate) mod steady;
#[cfg(test)]
pub(crate) mod testing;
pub(crate) mod text;
pub(crate) mod threads;
pub(crate) mod variation;
pub(crate) mod verdicts;

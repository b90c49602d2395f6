//! Turns facts into judgements: metrics, parity, fairness, sanity, verdicts, and the report that holds them.
//!
//! The input is [`Facts`], the output [`Report`]; serde reads and writes both. Nothing here opens a file, reads a clock
//! or starts a process: `measure` has noted everything that a rule needs.

pub mod case;
pub mod collection;
pub mod components;
pub mod continuation;
pub mod crossed;
pub mod curve;
pub mod dependence;
pub mod enough;
pub mod fairness;
pub mod first_runs;
pub mod floor;
pub mod found;
pub mod gaps;
mod gpu_work;
pub mod layers;
pub mod limit;
pub mod logits;
pub mod memory;
mod metric;
pub mod metrics;
pub mod parity;
pub mod records;
pub mod regression;
pub mod report;
pub mod retrieval;
pub mod sanity;
pub mod steady;
pub mod study;
mod sums;
pub mod text;
pub mod threads;
pub mod variation;
pub mod verdicts;
pub mod work;

pub use metric::Metric;
pub use plan::WorkKind;
pub use report::{Facts, Report, Row, State};

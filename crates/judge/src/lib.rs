//! Turns facts into judgements: metrics, parity, fairness, sanity, verdicts, and the report with all of them.
//!
//! The input is [`report::Facts`], the output [`Report`]; serde reads and writes both. Nothing here opens a
//! file, reads a clock or starts a process: `measure` has recorded everything that a rule needs.

mod metric;
pub mod metrics;
pub mod parity;
pub mod records;
pub mod regression;
pub mod report;
pub mod stopping;
pub mod study;
pub mod work;

pub use metric::Metric;
pub use plan::WorkKind;
pub use report::Report;

//! The summary of a study's cells. Each cell is a complete comparison with its own reference, parity gate,
//! fairness rules and verdicts; a study only shows them together.

pub mod ab;
pub mod cell;
pub mod columns;
pub mod compiled;
pub mod report;
pub mod scaling;
mod work;

pub use ab::{Outcome, Side};
pub use cell::{Cell, CellRow, Origin};
pub use report::{StudyReport, read};
pub use work::{Crossing, crossings};

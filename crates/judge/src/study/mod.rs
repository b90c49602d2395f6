//! What the cells of a study say together. Each cell is a whole comparison, with its own reference, parity gate,
//! fairness rules and verdicts; a study only lays them side by side.

pub mod ab;
pub mod cell;
pub mod columns;
pub mod report;
pub mod scaling;

pub use ab::{Outcome, Side};
pub use cell::{Cell, CellRow, CellVerdict};
pub use report::{StudyReport, read};

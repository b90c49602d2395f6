//! The history of all runs: as a list, as trends, and in the layout that other scripts read.

mod export;
mod flat;
mod list;
#[cfg(test)]
mod tests;
mod trend;

pub use export::{export, is_exported};
pub use list::list;
pub use trend::trend;

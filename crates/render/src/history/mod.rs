//! The history of all runs: as a list, as trends, and in the layout that other scripts read.

mod export;
pub(crate) mod flat;
pub(crate) mod list;
mod optimised;
mod strip;
#[cfg(test)]
mod tests;
mod trend;
mod work;

pub use export::{export, is_exported};
pub use list::{kept_apart, list};
pub use trend::trend;

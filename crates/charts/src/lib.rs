//! Charts of plain series, as SVG and PNG.
//!
//! A [`Figure`] is one or several [`Panel`]s with a title. Panels know labels, values, intervals and units, and
//! nothing of where those come from. A value that is absent or not finite is marked as such, never drawn as zero.
//! Text is laid out and rasterised with a font that this crate brings, so a machine without fonts draws the same.

mod bars;
mod export;
mod figure;
mod font;
mod heatmap;
mod legend;
mod lines;
mod palette;
mod pen;
mod scale;
mod spread;
mod stack;

pub use bars::{Bar, Bars, Group};
pub use export::{Arm, Estimate, Optimised, optimisation_comparison};
pub use figure::{Error, Figure, Panel, Size};
pub use heatmap::Heatmap;
pub use lines::{Line, LineAxis, Lines, Point};
pub use palette::{Colour, assign};
pub use scale::number;
pub use spread::{Ecdf, Sample, Spread};
pub use stack::{Stack, StackRow};

//! Charts of plain series, as SVG and PNG.
//!
//! A [`Figure`] is one or several [`Panel`]s with a title. Panels contain labels, values, intervals and
//! units, but not their origin. A value that is absent or not finite is marked as such, never drawn as zero.
//! Text is laid out and rasterised with a font in this crate, so that all machines draw the same.

mod bars;
mod dots;
mod export;
mod figure;
mod font;
mod forest;
mod heatmap;
mod legend;
mod lines;
mod palette;
mod panel;
mod pen;
mod rows;
mod scale;
mod stack;
mod strands;
mod survival;

pub use bars::{Bar, Bars, Group};
pub use dots::{Dots, DotsGroup, DotsRow};
pub use export::{Arm, Estimate, Optimised, optimisation_comparison};
pub use figure::{Error, Figure, Size};
pub use forest::{Forest, ForestGroup, Pair};
pub use heatmap::Heatmap;
pub use lines::{Line, LineAxis, Lines, Point};
pub use palette::{Colour, GREY, INK, Theme, assign, variables};
pub use panel::Panel;
pub use scale::number;
pub use stack::{Stack, StackRow};
pub use strands::{Strand, Strands};
pub use survival::{Sample, Survival};

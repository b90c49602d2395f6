//! A study's parts for one kind of work.

mod denoise;

pub use denoise::{Crossing, crossings};

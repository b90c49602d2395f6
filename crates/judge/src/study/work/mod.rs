//! What a study says of one kind of work alone.

mod denoise;

pub use denoise::{Crossing, crossings};

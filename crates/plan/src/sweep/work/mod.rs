//! The axes that a sweep varies by default, for each kind of work.

pub(super) mod denoise;
pub(super) mod encode;
pub(super) mod generate;

//! Settings of one kind of work alone.

mod cache;
mod denoise;
mod generate;

pub use cache::{CacheAsked, KvPrecision};
pub use denoise::DenoiseAsked;
pub use generate::{DecodeAsked, SamplingAsked};

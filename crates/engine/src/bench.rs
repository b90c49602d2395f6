//! Fixed work on a GPU to measure its limits.

use crate::{Device, EngineError, Precision};

/// Buffers on a GPU and work with them. Each call returns when the GPU has finished.
pub trait Bench {
    /// The GPU, observed from the buffers.
    fn device(&self) -> Device;

    /// The element type of the products.
    fn precision(&self) -> Precision;

    /// Copies a buffer to another on the GPU, so many times. Returns the bytes read and written, all
    /// together.
    fn copies(&mut self, times: usize) -> Result<u64, EngineError>;

    /// Multiplies two large square matrices, so many times. Returns the floating-point operations, two for each
    /// multiply-add.
    fn products(&mut self, times: usize) -> Result<u64, EngineError>;
}

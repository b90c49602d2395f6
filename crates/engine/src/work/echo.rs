//! A toy capability, of the mock engine alone.

use crate::EngineError;

/// Returns its input.
pub trait Echo {
    fn echo(&mut self, bytes: &[u8]) -> Result<Vec<u8>, EngineError>;
}

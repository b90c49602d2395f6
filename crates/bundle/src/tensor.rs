//! A tensor in a mapped file.

use crate::precision::Element;

/// One tensor, row-major, little-endian.
#[derive(Debug, Clone)]
pub struct TensorView<'a> {
    pub shape: Vec<usize>,
    pub element: Element,
    pub bytes: &'a [u8],
    /// Offset of `bytes` in the file: ONNX Runtime's offset of an external initialiser.
    pub file_offset: u64,
}

impl TensorView<'_> {
    /// As [`Weights::touch`](crate::Weights::touch), for this tensor alone.
    pub fn touch(&self) -> u64 {
        touch(self.bytes)
    }
}

/// Reads a byte of every page, so that all of them are resident. Returning the sum keeps the reads.
pub(crate) fn touch(bytes: &[u8]) -> u64 {
    bytes.iter().step_by(4096).map(|&byte| u64::from(byte)).sum()
}

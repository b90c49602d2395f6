//! A tensor in a mapped file.

use crate::precision::Element;

/// One tensor, row-major, little-endian.
#[derive(Debug, Clone)]
pub struct TensorView<'a> {
    pub shape: Vec<usize>,
    pub element: Element,
    pub bytes: &'a [u8],
    /// Where `bytes` begins in the file: what ONNX Runtime calls an external initialiser's offset.
    pub file_offset: u64,
}

impl TensorView<'_> {
    /// As [`Weights::touch`](crate::Weights::touch), of this tensor alone.
    pub fn touch(&self) -> u64 {
        touch(self.bytes)
    }
}

/// Reads a byte of every page, so that all of them are resident. The sum is there to keep the reads.
pub(crate) fn touch(bytes: &[u8]) -> u64 {
    bytes.iter().step_by(4096).map(|&byte| u64::from(byte)).sum()
}

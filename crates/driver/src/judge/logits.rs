//! Logits as workers hand them over: safetensors files, a tensor for each case.

use std::path::Path;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensorError, SafeTensors};

/// Logits of one case, `[batch, positions, vocabulary]`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Logits {
    pub(crate) batch: usize,
    pub(crate) positions: usize,
    pub(crate) vocabulary: usize,
    pub(crate) values: Vec<f32>,
}

impl Logits {
    pub(crate) fn row(&self, sequence: usize, position: usize) -> &[f32] {
        let at = (sequence * self.positions + position) * self.vocabulary;
        &self.values[at..at + self.vocabulary]
    }
}

impl Logits {
    /// Those of the last `positions` alone, where there are more.
    pub(crate) fn last(self, positions: usize) -> Logits {
        if positions >= self.positions {
            return self;
        }
        let from = self.positions - positions;
        let rows = (0..self.batch).flat_map(|sequence| (from..self.positions).map(move |at| (sequence, at)));
        let values = rows.flat_map(|(sequence, at)| self.row(sequence, at).iter().copied()).collect();
        Logits { positions, values, ..self }
    }
}

/// Reads the file of a [`protocol::ParityTask`].
pub(crate) fn read_parity(path: &Path) -> Result<Vec<Logits>, String> {
    let bytes = std::fs::read(path).map_err(|e| format!("cannot read its logits: {e}"))?;
    let file = SafeTensors::deserialize(&bytes).map_err(malformed)?;
    let mut cases = Vec::new();
    while let Ok(tensor) = file.tensor(&format!("case.{}", cases.len())) {
        cases.push(logits(&tensor)?);
    }
    Ok(cases)
}

/// Reads the file of a [`protocol::Score`].
pub(crate) fn read_score(path: &Path) -> Result<Logits, String> {
    read_states(path, |_, _| Ok(()))
}

/// Reads the file of a [`protocol::Score`] with hidden states: hands each to `each`, by its number, one at a
/// time, for together they may be large; the last dimension is then the hidden size. Returns the logits.
pub(crate) fn read_states(
    path: &Path,
    mut each: impl FnMut(usize, Logits) -> Result<(), String>,
) -> Result<Logits, String> {
    let bytes = std::fs::read(path).map_err(|e| format!("cannot read its logits: {e}"))?;
    let file = SafeTensors::deserialize(&bytes).map_err(malformed)?;
    let mut layer = 0;
    while let Ok(tensor) = file.tensor(&format!("hidden.{layer}")) {
        each(layer, logits(&tensor)?)?;
        layer += 1;
    }
    logits(&file.tensor("logits").map_err(malformed)?)
}

/// log Σ exp(x) of a row of logits, in f64, without overflow.
pub(crate) fn log_sum_exp(row: &[f32]) -> f64 {
    let largest = f64::from(row.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    largest + row.iter().map(|&x| (f64::from(x) - largest).exp()).sum::<f64>().ln()
}

fn malformed(error: SafeTensorError) -> String {
    format!("its logits are malformed: {error}")
}

fn logits(tensor: &TensorView<'_>) -> Result<Logits, String> {
    let &[batch, positions, vocabulary] = tensor.shape() else {
        return Err(format!("its logits have shape {:?}", tensor.shape()));
    };
    if tensor.dtype() != Dtype::F32 {
        return Err(format!("its logits are {:?}, not F32", tensor.dtype()));
    }
    let (numbers, _) = tensor.data().as_chunks::<4>();
    let values = numbers.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    Ok(Logits { batch, positions, vocabulary, values })
}

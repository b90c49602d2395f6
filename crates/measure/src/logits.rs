//! Reads the logits that workers write: safetensors files with a tensor for each case.

use std::path::Path;

use judge::logits::Logits;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensorError, SafeTensors};

/// Reads the file of a [`protocol::ParityTask`].
pub fn read_parity(path: &Path) -> Result<Vec<Logits>, String> {
    let bytes = std::fs::read(path).map_err(|e| format!("cannot read its logits: {e}"))?;
    let file = SafeTensors::deserialize(&bytes).map_err(malformed)?;
    let mut cases = Vec::new();
    while let Ok(tensor) = file.tensor(&format!("case.{}", cases.len())) {
        cases.push(logits(&tensor)?);
    }
    Ok(cases)
}

/// Reads the file of a [`protocol::Score`].
pub fn read_score(path: &Path) -> Result<Logits, String> {
    read_states(path, |_, _| Ok(()))
}

/// Reads the file of a [`protocol::Score`] with hidden states, and returns the logits. Each hidden state goes to `each`
/// with its number, one at a time, because all together may be large. Its last dimension is the hidden size.
pub fn read_states(
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

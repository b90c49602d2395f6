//! Logits: searches of one row of them, and their way to the safetensors file from which parity is judged.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::Dtype;
use safetensors::tensor::TensorView;

use crate::ServeError;
use crate::engine::{self, EngineError};

/// The first of the largest. NaN is ignored; if nothing else than NaN and −∞ is there, the request fails. This runs inside
/// the timed loop, where a plain search of a large vocabulary would add most of a percent to a token of 2 ms
/// (`benches/overhead.rs`): the largest of each block is found by vector instructions, and one block alone is searched
/// for its place.
pub(crate) fn argmax(logits: &[f32]) -> engine::Result<u32> {
    const BLOCK: usize = 1024;
    let (mut largest, mut start) = (f32::NEG_INFINITY, 0);
    for (index, block) in logits.chunks(BLOCK).enumerate() {
        let candidate = maximum(block);
        if candidate > largest {
            (largest, start) = (candidate, index * BLOCK);
        }
    }
    let within = logits[start..].iter().position(|&value| value == largest);
    match within {
        Some(within) if largest > f32::NEG_INFINITY => Ok((start + within) as u32),
        _ => Err(EngineError::Framework(format!(
            "each of a token's {} logits is NaN or −∞, so none is the most likely: the model's numbers may be too large \
             for its precision, so take f32 or bf16",
            logits.len()
        ))),
    }
}

/// The largest value; NaN is ignored.
pub(crate) fn maximum(values: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let mut lanes = [f32::NEG_INFINITY; 32];
    let (chunks, rest) = values.as_chunks::<32>();
    for chunk in chunks {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane = larger(*lane, value);
        }
    }
    lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |a, &b| larger(a, b))
}

/// f32 tensors by name, on their way to a file.
#[derive(Default)]
pub(crate) struct Tensors(BTreeMap<String, (Vec<usize>, Vec<u8>)>);

impl Tensors {
    pub(crate) fn add(&mut self, name: String, shape: &[usize], values: &[f32]) {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.0.insert(name, (shape.to_vec(), bytes));
    }

    /// `[batch, positions, width]`
    pub(crate) fn add_rows(&mut self, name: String, batch: usize, rows: &Rows) {
        self.add(name, &[batch, rows.positions, rows.width], &rows.values);
    }

    pub(crate) fn write(&self, path: &str) -> Result<(), ServeError> {
        let views = self.0.iter().map(|(name, (shape, bytes))| {
            let view = TensorView::new(Dtype::F32, shape.clone(), bytes);
            view.map(|view| (name, view)).map_err(|e| ServeError::File(format!("tensor {name}: {e}")))
        });
        let views = views.collect::<Result<Vec<_>, _>>()?;
        safetensors::serialize_to_file(views, None, Path::new(path))
            .map_err(|e| ServeError::File(format!("cannot write {path}: {e}")))
    }
}

/// `[batch, positions, width]`, filled by ranges of positions.
pub(crate) struct Rows {
    positions: usize,
    width: usize,
    values: Vec<f32>,
}

impl Rows {
    pub(crate) fn new(batch: usize, positions: usize, width: usize) -> Rows {
        Rows { positions, width, values: vec![0.0; batch * positions * width] }
    }

    /// Appends sequences with the same number of positions.
    pub(crate) fn extend(&mut self, more: Rows) {
        self.values.extend(more.values);
    }

    pub(crate) fn put_row(&mut self, sequence: usize, position: usize, row: &[f32]) {
        let at = (sequence * self.positions + position) * self.width;
        self.values[at..at + self.width].copy_from_slice(row);
    }

    /// `values` are `[batch, end - start, width]`; of each sequence they are kept from another position on.
    pub(crate) fn put_kept(&mut self, (start, end): (usize, usize), from: &[usize], values: &[f32]) {
        let rows = values.chunks_exact((end - start) * self.width);
        for (sequence, (rows, &from)) in rows.zip(from).enumerate() {
            for (position, row) in (start..end).zip(rows.chunks_exact(self.width)) {
                if (from..from + self.positions).contains(&position) {
                    self.put_row(sequence, position - from, row);
                }
            }
        }
    }

    /// Those of the first sequences.
    pub(crate) fn first(mut self, sequences: usize) -> Rows {
        self.values.truncate(sequences * self.positions * self.width);
        self
    }

    /// `values` are `[batch, end - start, width]`. Further sequences are left out.
    pub(crate) fn put(&mut self, start: usize, end: usize, values: &[f32]) {
        let batch = self.values.len() / (self.positions * self.width);
        for (sequence, rows) in values.chunks_exact((end - start) * self.width).take(batch).enumerate() {
            let at = (sequence * self.positions + start) * self.width;
            self.values[at..at + rows.len()].copy_from_slice(rows);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn argmax_is_the_first_of_the_largest() {
        for length in [1, 63, 64, 65, 100, 1023, 1024, 1025, 5000] {
            let logits: Vec<f32> = (0..length).map(|i| ((i * 37) % 2311) as f32).collect();
            let plain = (0..length).fold(0, |best, i| if logits[i] > logits[best] { i } else { best });
            assert_eq!(argmax(&logits).unwrap(), plain as u32, "{length} logits");
        }
        assert_eq!(argmax(&[f32::NAN, 1.0, 1.0]).unwrap(), 1);
        assert_eq!(argmax(&[0.0, f32::INFINITY]).unwrap(), 1);
        for nothing in [f32::NAN, f32::NEG_INFINITY] {
            assert!(argmax(&[nothing; 1500]).unwrap_err().to_string().contains("a token's 1500 logits"));
        }
        let mut late = vec![0.0; 3000];
        (late[1500], late[2500]) = (1.0, 1.0);
        assert_eq!(argmax(&late).unwrap(), 1500);
    }
}

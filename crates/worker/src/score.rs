//! Logits of given sequences, written to a safetensors file, from which parity is judged.

use std::collections::BTreeMap;
use std::path::Path;

use bundle::{ModelConfig, Pooling};
use engine::{EncodeTask, InferenceEngine, Texts, Want};
use protocol::{Kept, Score, Scored};
use safetensors::{Dtype, tensor::TensorView};

use crate::error::ServeError;

/// f32 tensors by name, on their way to a file.
#[derive(Default)]
pub(crate) struct Tensors(BTreeMap<String, (Vec<usize>, Vec<u8>)>);

impl Tensors {
    fn add(&mut self, name: String, shape: &[usize], values: &[f32]) {
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

pub(crate) fn score<E: InferenceEngine>(
    engine: &mut E,
    task: &Score,
    config: &ModelConfig,
    hidden_states: bool,
) -> Result<Scored, ServeError> {
    if config.encoder.is_some() {
        return texts(engine, task, config, hidden_states);
    }
    let (batch, positions) = (task.sequences.len(), task.sequences.first().map_or(0, Vec::len));
    let piece = if task.piece == 0 { positions } else { task.piece };
    let kept = task.kept.clone().unwrap_or_else(|| Kept { from: vec![0; batch], count: positions });
    let fits = |from: &usize| from.checked_add(kept.count).is_some_and(|end| end <= positions);
    if kept.from.len() != batch || !kept.from.iter().all(fits) {
        let reason = "the positions with logits to keep are not those of the sequences";
        return Err(ServeError::Job(reason.into()));
    }
    let first = kept.from.iter().copied().min().unwrap_or(0);
    let mut logits = Rows::new(batch, kept.count, config.vocab_size);
    let mut hidden: Vec<Rows> = Vec::new();
    let decoder = engine.decode()?;
    decoder.begin(batch, positions)?;
    let mut start = 0;
    while start < positions {
        // Before the first that is kept, logits are not computed.
        let end = (start + piece).min(if start < first { first } else { positions });
        let tokens: Vec<u32> =
            task.sequences.iter().flat_map(|row| row[start..end].iter().copied()).collect();
        if end <= first {
            decoder.append(&tokens, Want::Last)?;
        } else {
            logits.put_kept((start, end), &kept.from, decoder.append(&tokens, Want::All)?);
        }
        if hidden_states {
            for (layer, values) in decoder.hidden_states()?.layers.iter().enumerate() {
                if layer == hidden.len() {
                    hidden.push(Rows::new(batch, positions, config.hidden_size));
                }
                hidden[layer].put(start, end, values);
            }
        }
        start = end;
    }
    let mut tensors = Tensors::default();
    tensors.add_rows("logits".into(), batch, &logits);
    for (layer, rows) in hidden.iter().enumerate() {
        tensors.add(format!("hidden.{layer}"), &[batch, positions, config.hidden_size], &rows.values);
    }
    tensors.write(&task.file)?;
    Ok(Scored { file: task.file.as_str().into() })
}

/// Hidden states of texts, one after the other.
fn texts<E: InferenceEngine>(
    engine: &mut E,
    task: &Score,
    config: &ModelConfig,
    hidden_states: bool,
) -> Result<Scored, ServeError> {
    if !hidden_states {
        return Err(ServeError::Job(
            "an encoder has no logits, and its hidden states are not asked for".into(),
        ));
    }
    let lengths: Vec<usize> = task.sequences.iter().map(Vec::len).collect();
    let (tokens, types) = (task.sequences.concat(), task.types.concat());
    let encoder = engine.encode()?;
    // Hidden states do not depend on the pooling of the last one.
    let pooled = EncodeTask::Embed { pooling: Pooling::Mean, normalise: false };
    encoder.encode(Texts { tokens: &tokens, types: &types, lengths: &lengths }, pooled)?;
    let mut tensors = Tensors::default();
    for (layer, values) in encoder.hidden_states()?.layers.iter().enumerate() {
        tensors.add(format!("hidden.{layer}"), &[1, tokens.len(), config.hidden_size], values);
    }
    tensors.write(&task.file)?;
    Ok(Scored { file: task.file.as_str().into() })
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
    fn put_kept(&mut self, (start, end): (usize, usize), from: &[usize], values: &[f32]) {
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

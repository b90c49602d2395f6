//! Logits of given sequences, to a safetensors file: what parity is judged from.

use std::collections::BTreeMap;
use std::path::Path;

use bundle::ModelConfig;
use engine::{InferenceEngine, Want};
use protocol::{Case, Denoise, ParityTask, Score, Scored};
use safetensors::{Dtype, tensor::TensorView};

use crate::denoise::Denoiser;
use crate::error::ServeError;

/// f32 tensors by name, on their way to a file.
#[derive(Default)]
struct Tensors(BTreeMap<String, (Vec<usize>, Vec<u8>)>);

impl Tensors {
    fn add(&mut self, name: String, shape: &[usize], values: &[f32]) {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.0.insert(name, (shape.to_vec(), bytes));
    }

    fn write(&self, path: &str) -> Result<(), ServeError> {
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
    let (batch, positions) = (task.sequences.len(), task.sequences.first().map_or(0, Vec::len));
    let piece = if task.piece == 0 { positions } else { task.piece };
    let mut logits = Rows::new(batch, positions, config.vocab_size);
    let mut hidden: Vec<Rows> = Vec::new();
    engine.begin(batch, positions)?;
    let mut start = 0;
    while start < positions {
        let end = (start + piece).min(positions);
        let tokens: Vec<u32> =
            task.sequences.iter().flat_map(|row| row[start..end].iter().copied()).collect();
        logits.put(start, end, engine.append(&tokens, Want::All)?);
        if hidden_states {
            for (layer, values) in engine.hidden_states()?.layers.iter().enumerate() {
                if layer == hidden.len() {
                    hidden.push(Rows::new(batch, positions, config.hidden_size));
                }
                hidden[layer].put(start, end, values);
            }
        }
        start = end;
    }
    let mut tensors = Tensors::default();
    tensors.add("logits".into(), &[batch, positions, config.vocab_size], &logits.values);
    for (layer, rows) in hidden.iter().enumerate() {
        tensors.add(format!("hidden.{layer}"), &[batch, positions, config.hidden_size], &rows.values);
    }
    tensors.write(&task.file)?;
    Ok(Scored { file: task.file.as_str().into() })
}

/// Teacher-forced logits of `cases`: see [`protocol::ParityTask`].
pub(crate) fn along_trace<E: InferenceEngine>(
    engine: &mut E,
    cases: &[Case],
    task: &ParityTask,
    (vocabulary, denoise): (usize, Option<(Denoise, u32)>),
) -> Result<(), ServeError> {
    let mut tensors = Tensors::default();
    for (index, case) in cases.iter().enumerate() {
        if let Some((denoise, mask)) = &denoise {
            let (batch, rows) = (case.trace.len(), 1 + case.trace[0].len());
            let mut logits = Rows::new(batch, rows, vocabulary);
            let denoiser = Denoiser::new(denoise, *mask, vocabulary);
            denoiser
                .along_trace(engine, case, |sequence, row, values| logits.put_row(sequence, row, values))?;
            tensors.add(format!("case.{index}"), &[batch, rows, vocabulary], &logits.values);
            continue;
        }
        let prefixes = case.prefixes();
        let (batch, prefix, trace) = (prefixes.len(), prefixes[0].len(), case.trace[0].len());
        // Positions of context and prompt whose logits are kept.
        let (kept, want) = if task.prompt_last_only { (1, Want::Last) } else { (prefix, Want::All) };
        let mut logits = Rows::new(batch, kept + trace, vocabulary);
        engine.begin(batch, prefix + trace)?;
        logits.put(0, kept, engine.append(&prefixes.concat(), want)?);
        let steps = task.steps.min(trace);
        let pieces = (0..steps).map(|step| (step, step + 1)).chain([(steps, trace)]);
        for (start, end) in pieces.filter(|(start, end)| start < end) {
            let tokens: Vec<u32> =
                case.trace.iter().flat_map(|row| row[start..end].iter().copied()).collect();
            logits.put(kept + start, kept + end, engine.append(&tokens, Want::All)?);
        }
        tensors.add(format!("case.{index}"), &[batch, kept + trace, vocabulary], &logits.values);
    }
    tensors.write(&task.file)
}

/// `[batch, positions, width]`, filled by ranges of positions.
struct Rows {
    positions: usize,
    width: usize,
    values: Vec<f32>,
}

impl Rows {
    fn new(batch: usize, positions: usize, width: usize) -> Rows {
        Rows { positions, width, values: vec![0.0; batch * positions * width] }
    }

    fn put_row(&mut self, sequence: usize, position: usize, row: &[f32]) {
        let at = (sequence * self.positions + position) * self.width;
        self.values[at..at + self.width].copy_from_slice(row);
    }

    /// `values` are `[batch, end - start, width]`.
    fn put(&mut self, start: usize, end: usize, values: &[f32]) {
        for (sequence, rows) in values.chunks_exact((end - start) * self.width).enumerate() {
            let at = (sequence * self.positions + start) * self.width;
            self.values[at..at + rows.len()].copy_from_slice(rows);
        }
    }
}

//! A batch of sequences: tract's state of the plan, in which the KV cache is.

use bundle::rotary;
use onnx::graph::{COS, POSITIONS, ROWS, SIN, TOKENS};
use tract_onnx::prelude::*;
use tract_onnx::tract_hir::internal::format_err;
use worker::engine::{EngineError, Want};

use crate::model::{Model, framework};

#[derive(Debug)]
pub(crate) struct Sequences {
    pub(crate) batch: usize,
    pub(crate) capacity: usize,
    /// Positions that are taken.
    pub(crate) filled: usize,
    state: TypedSimpleState,
    /// cos and sin, `[capacity, head_dim / 2]`.
    rotary: Option<[TValue; 2]>,
    logits: Option<TValue>,
    hidden: Vec<TValue>,
}

impl Sequences {
    pub(crate) fn new(model: &Model, batch: usize, capacity: usize) -> Result<Sequences, EngineError> {
        let rotary = match model.config.rotations.first() {
            None => None,
            Some(rotary) => {
                let (cos, sin) = rotary::cos_sin(rotary, model.config.head_dim, capacity);
                let shape = [capacity, model.config.head_dim / 2];
                Some([tensor(&shape, &cos).map_err(framework)?, tensor(&shape, &sin).map_err(framework)?])
            }
        };
        let state = model.loaded.plan.spawn().map_err(framework)?;
        Ok(Sequences { batch, capacity, filled: 0, state, rotary, logits: None, hidden: Vec::new() })
    }

    /// Appends `tokens`, `[batch, count]`, to the sequences.
    pub(crate) fn append(&mut self, model: &Model, tokens: &[u32], want: Want) -> Result<(), EngineError> {
        let count = tokens.len() / self.batch;
        let inputs = self.inputs(model, tokens, count, want).map_err(framework)?;
        let state = &mut self.state;
        let outputs = model.loaded.pool.install(|| state.run(inputs)).map_err(framework)?;
        self.logits = outputs.get(model.logits).cloned();
        self.hidden = model.hidden.iter().filter_map(|&place| outputs.get(place).cloned()).collect();
        self.filled += count;
        Ok(())
    }

    /// Logits of the last append.
    pub(crate) fn logits(&self) -> Result<&[f32], EngineError> {
        let logits =
            self.logits.as_ref().map_or(Ok(&[][..]), |logits| logits.try_as_plain_ram()?.as_slice::<f32>());
        logits.map_err(framework)
    }

    /// Hidden states of the last append.
    pub(crate) fn hidden_states(&self) -> Result<Vec<Vec<f32>>, EngineError> {
        let states =
            self.hidden.iter().map(|state| Ok(state.try_as_plain_ram()?.as_slice::<f32>()?.to_vec()));
        states.collect::<TractResult<_>>().map_err(framework)
    }

    fn inputs(&self, model: &Model, tokens: &[u32], count: usize, want: Want) -> TractResult<TVec<TValue>> {
        let batch = self.batch;
        let rows: Vec<i64> = match want {
            Want::Last => (1..=batch).map(|sequence| (sequence * count) as i64 - 1).collect(),
            Want::All => (0..(batch * count) as i64).collect(),
        };
        let ids: Vec<i64> = tokens.iter().map(|&token| i64::from(token)).collect();
        let row: Vec<i64> = (self.filled..self.filled + count).map(|position| position as i64).collect();
        let value = |name: &String| match (name.as_str(), &self.rotary) {
            (TOKENS, _) => tensor(&[batch, count], &ids),
            (ROWS, _) => tensor(&[rows.len()], &rows),
            (POSITIONS, _) => tensor(&[batch, count], &row.repeat(batch)),
            (COS, Some([cos, _])) => Ok(cos.clone()),
            (SIN, Some([_, sin])) => Ok(sin.clone()),
            (other, _) => Err(format_err!("tract asks for the input {other}, which the graph does not have")),
        };
        model.loaded.inputs.iter().map(value).collect()
    }
}

pub(crate) fn tensor<T: Datum + Copy>(shape: &[usize], values: &[T]) -> TractResult<TValue> {
    Ok(Tensor::from_shape(shape, values)?.into_tvalue())
}

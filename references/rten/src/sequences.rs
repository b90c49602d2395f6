//! A batch of sequences and their KV cache.

use bundle::{ModelConfig, rotary};
use rten::{NodeId, Value, ValueOrView};
use rten_tensor::prelude::*;
use rten_tensor::{NdTensor, Storage};
use worker::engine::{EngineError, Want};

use crate::model::Model;

/// The axis along which a cache grows: `[batch, kv_heads, positions, head_dim]`.
const POSITIONS: usize = 2;

#[derive(Debug)]
pub(crate) struct Sequences {
    pub(crate) batch: usize,
    pub(crate) capacity: usize,
    /// Positions that are taken.
    pub(crate) filled: usize,
    /// Keys and values of each layer in turn, with room for `capacity` positions. rten owns them while it computes; if
    /// that fails they are gone, and so is what follows from them until the next `begin`.
    cache: Vec<NdTensor<f32, 4>>,
    /// cos and sin, `[capacity, head_dim / 2]`.
    rotary: Option<[NdTensor<f32, 2>; 2]>,
    /// What the last append gave: `[batch, rows, vocabulary]`.
    pub(crate) logits: Vec<f32>,
    /// Its hidden states, if the graph puts them out, `[batch, positions, hidden]` each.
    pub(crate) hidden: Vec<Vec<f32>>,
}

impl Sequences {
    pub(crate) fn new(config: &ModelConfig, batch: usize, capacity: usize) -> Sequences {
        let shape = [batch, config.kv_heads, capacity, config.head_dim];
        let rotary = match config.rotations.first() {
            None => None,
            Some(rotary) => {
                let (cos, sin) = rotary::cos_sin(rotary, config.head_dim, capacity);
                Some([cos, sin].map(|table| NdTensor::from_data([capacity, config.head_dim / 2], table)))
            }
        };
        Sequences {
            batch,
            capacity,
            filled: 0,
            cache: (0..2 * config.layers.len()).map(|_| NdTensor::with_capacity(shape, POSITIONS)).collect(),
            rotary,
            logits: Vec::new(),
            hidden: Vec::new(),
        }
    }

    /// Bytes of keys and values for which there is room.
    pub(crate) fn cache_bytes(&self) -> Option<u64> {
        let bytes = self.cache.iter().map(|cache| {
            let [batch, heads, _, size] = cache.shape();
            let room = (0..=self.capacity).rev().find(|&rows| cache.has_capacity(POSITIONS, rows))?;
            Some((batch * heads * room * size * size_of::<f32>()) as u64)
        });
        bytes.sum()
    }

    /// Appends `tokens`, `[batch, count]`, to the sequences.
    pub(crate) fn append(&mut self, model: &Model, tokens: &[u32], want: Want) -> Result<(), EngineError> {
        let count = tokens.len() / self.batch;
        // GroupQueryAttention refuses several new tokens behind old ones in a batch.
        if self.batch == 1 || count == 1 || self.filled == 0 {
            return self.run(model, tokens, want);
        }
        let (batch, config) = (self.batch, &model.config);
        let rows = if want == Want::All { count } else { 1 };
        let mut logits = vec![0.0; batch * rows * config.vocab_size];
        let mut hidden = Vec::new();
        for position in 0..count {
            let column: Vec<u32> = tokens.iter().skip(position).step_by(count).copied().collect();
            self.run(model, &column, Want::Last)?;
            place(&self.logits, &mut logits, batch, if want == Want::All { position } else { 0 });
            hidden.resize_with(self.hidden.len(), || vec![0.0; batch * count * config.hidden_size]);
            for (state, whole) in self.hidden.iter().zip(&mut hidden) {
                place(state, whole, batch, position);
            }
        }
        (self.logits, self.hidden) = (logits, hidden);
        Ok(())
    }

    fn run(&mut self, model: &Model, tokens: &[u32], want: Want) -> Result<(), EngineError> {
        let count = tokens.len() / self.batch;
        let before: Vec<_> = self.cache.iter().map(address).collect();
        if before.is_empty() {
            return Err(EngineError::Framework("the KV cache was lost in an earlier error".into()));
        }
        let cache = std::mem::take(&mut self.cache);
        let inputs = self.inputs(model, tokens, count, want, cache);
        let framework = |error: String| EngineError::Framework(error);
        let outputs = model.loaded.model.run(inputs, &model.nodes.outputs, Some(model.loaded.run_options()));
        let mut outputs = outputs.map_err(|error| framework(error.to_string()))?.into_iter();
        self.logits = numbers(outputs.next())?;
        for _ in 0..before.len() {
            let present = outputs.next().ok_or_else(absent)?;
            self.cache
                .push(present.try_into().map_err(|_| framework("a KV cache has another shape".into()))?);
        }
        if !self.cache.iter().map(address).eq(before) {
            let text = "rten copies the KV cache instead of writing into it in place";
            return Err(framework(text.into()));
        }
        self.hidden = outputs.map(|state| numbers(Some(state))).collect::<Result<_, EngineError>>()?;
        self.filled += count;
        Ok(())
    }

    fn inputs<'a>(
        &'a self,
        model: &Model,
        tokens: &[u32],
        count: usize,
        want: Want,
        cache: Vec<NdTensor<f32, 4>>,
    ) -> Vec<(NodeId, ValueOrView<'a>)> {
        let (batch, nodes, total) = (self.batch, &model.nodes, (self.filled + count) as i32);
        let tokens = tokens.iter().map(|&token| token as i32).collect::<Vec<_>>();
        let rows: Vec<i32> = match want {
            Want::Last => (1..=batch).map(|sequence| (sequence * count) as i32 - 1).collect(),
            Want::All => (0..(batch * count) as i32).collect(),
        };
        let mut inputs: Vec<(NodeId, ValueOrView)> = vec![
            (nodes.tokens, NdTensor::from_data([batch, count], tokens).into()),
            (nodes.rows, NdTensor::from_data([rows.len()], rows).into()),
            (nodes.last_positions, NdTensor::from_data([batch], vec![total - 1; batch]).into()),
            (nodes.total, NdTensor::from_data([], vec![total]).into()),
        ];
        if let Some(node) = nodes.positions {
            let row = (self.filled..self.filled + count).map(|position| position as i32);
            let positions: Vec<i32> = (0..batch).flat_map(|_| row.clone()).collect();
            inputs.push((node, NdTensor::from_data([batch, count], positions).into()));
        }
        for (node, table) in nodes.rotary.iter().flatten().zip(self.rotary.iter().flatten()) {
            inputs.push((*node, table.into()));
        }
        inputs.extend(nodes.past.iter().zip(cache).map(|(node, cache)| (*node, cache.into())));
        inputs
    }
}

/// The numbers of an output.
pub(crate) fn numbers(value: Option<Value>) -> Result<Vec<f32>, EngineError> {
    let value = value.ok_or_else(absent)?.into_tensor::<f32>();
    let of_another_type = || EngineError::Framework("an output of rten's is not in f32".into());
    Ok(value.ok_or_else(of_another_type)?.into_data())
}

fn absent() -> EngineError {
    EngineError::Framework("rten gave fewer outputs than it was asked for".into())
}

/// Where a cache is.
fn address(cache: &NdTensor<f32, 4>) -> *const f32 {
    cache.view().storage().as_ptr()
}

/// Copies `rows`, `[batch, width]`, to `position` of `whole`, `[batch, positions, width]`.
fn place(rows: &[f32], whole: &mut [f32], batch: usize, position: usize) {
    let (width, stride) = (rows.len() / batch, whole.len() / batch);
    for (row, sequence) in rows.chunks_exact(width).zip(whole.chunks_exact_mut(stride)) {
        sequence[position * width..(position + 1) * width].copy_from_slice(row);
    }
}

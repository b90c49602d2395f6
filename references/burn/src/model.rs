//! The whole decoder, from token ids to logits.

use bundle::{Bundle, ModelConfig, Precision};
use burn_backend::ops::FloatTensorOps;
use burn_backend::{DType, TensorData};
use burn_flex::Flex;
use worker::engine::{EngineError, Want};

use crate::layer::Layer;
use crate::linear::Linear;
use crate::norm::Norm;
use crate::reader::Reader;
use crate::sequences::Sequences;
use crate::tensor::{Tensor, add, into_data, narrow, reshape};

#[derive(Debug)]
pub(crate) struct Model {
    config: ModelConfig,
    /// `[vocabulary, hidden]`
    embedding: Tensor,
    /// `[positions, hidden]`
    positions: Option<Tensor>,
    layers: Vec<Layer>,
    norm: Norm,
    head: Linear,
}

impl Model {
    /// Maps the weights at `precision`, which is not a quantised one.
    pub(crate) fn read(bundle: &Bundle, precision: Precision) -> Result<Model, EngineError> {
        let config = bundle.config().clone();
        let reader = Reader::new(bundle.weights(precision)?);
        let embedding = reader.one(&config.embedding())?;
        let positions = config.position_embedding().map(|name| reader.one(&name)).transpose()?;
        let layers =
            (0..config.layers.len()).map(|index| Layer::read(&reader, &config, &config.layer(index)));
        let layers = layers.collect::<Result<_, _>>()?;
        let norm = Norm::read(&reader, &config.final_norm(), config.norm_epsilon)?;
        let head = Linear::head(reader.one(&config.lm_head())?);
        Ok(Model { config, embedding, positions, layers, norm, head })
    }

    pub(crate) fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Element type of the weights as they are held, and so of what is computed from them.
    pub(crate) fn dtype(&self) -> DType {
        self.embedding.dtype()
    }

    pub(crate) fn storage(&self) -> &'static str {
        match self.dtype() {
            DType::F32 => {
                "embeddings and head mapped; the layers' in one copy, transposed to burn's [in, out]"
            }
            _ => "mapped",
        }
    }

    /// How many products of a step of decoding use several threads, and how many there are.
    pub(crate) fn parallel_products(&self) -> (usize, usize) {
        let products = self.layers.iter().flat_map(Layer::products).chain([&self.head]);
        let all: Vec<_> = products.map(Linear::is_parallel).collect();
        (all.iter().filter(|parallel| **parallel).count(), all.len())
    }

    pub(crate) fn sequences(&self, batch: usize, capacity: usize) -> Sequences {
        Sequences::new(&self.config, batch, capacity, self.dtype())
    }

    /// f32 logits of `tokens` `[batch, n]`, as [`Want`] says. Hidden states are pushed to `hidden`, if given.
    pub(crate) fn forward(
        &self,
        sequences: &mut Sequences,
        tokens: &[u32],
        want: Want,
        mut hidden: Option<&mut Vec<Vec<f32>>>,
    ) -> Result<TensorData, EngineError> {
        let (batch, filled) = (sequences.batch, sequences.filled);
        let count = tokens.len() / batch;
        let mut x = self.embed(tokens, batch, filled);
        for (layer, cache) in self.layers.iter().zip(&mut sequences.caches) {
            keep(&mut hidden, &x)?;
            let rotation = sequences.rotation.as_ref();
            x = layer.forward(&self.config, x, batch, filled, cache, rotation);
        }
        sequences.filled += count;
        if hidden.is_some() {
            keep(&mut hidden, &self.norm.forward(x.clone()))?;
        }
        if want == Want::Last && count > 1 {
            let width = self.config.hidden_size;
            let last = narrow(&reshape(x, [batch, count, width]), 1, count - 1, 1);
            x = reshape(last, [batch, width]);
        }
        Ok(into_data(self.head.forward(self.norm.forward(x))))
    }

    /// `[batch · n, hidden]`
    fn embed(&self, tokens: &[u32], batch: usize, filled: usize) -> Tensor {
        let ids: Vec<i32> = tokens.iter().map(|&token| token as i32).collect();
        let ids = Tensor::from_data(TensorData::new(ids, [tokens.len()]));
        let x = Flex::float_select(self.embedding.clone(), 0, ids);
        let Some(positions) = &self.positions else { return x };
        let (count, width) = (tokens.len() / batch, self.config.hidden_size);
        let positions = reshape(narrow(positions, 0, filled, count), [1, count, width]);
        reshape(add(reshape(x, [batch, count, width]), positions), [tokens.len(), width])
    }
}

/// Adds `x` to the hidden states, where they are asked for.
fn keep(hidden: &mut Option<&mut Vec<Vec<f32>>>, x: &Tensor) -> Result<(), EngineError> {
    if let Some(hidden) = hidden {
        hidden.push(floats(&into_data(x.clone()))?.to_vec());
    }
    Ok(())
}

/// The numbers of an f32 tensor.
pub(crate) fn floats(data: &TensorData) -> Result<&[f32], EngineError> {
    data.as_slice().map_err(|error| EngineError::Framework(format!("{error:?}")))
}

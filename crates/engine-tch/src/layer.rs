//! The common parts of the three implementations of a layer.

use bundle::{Activation, ModelConfig, Weights};
use tch::{Device, TchError, Tensor};
use worker::engine::Result;

use crate::cross::Cross;
use crate::linear::Linear;
use crate::norm::{Residual, SublayerNorms};
use crate::reader::Reader;
use crate::sequences::Step;

/// One layer, in one of the three implementations.
pub(crate) trait Layer {
    /// Adds the layer's output to `residual`, and its keys and values to the cache.
    fn forward(&self, residual: &mut Residual, step: &mut Step, index: usize) -> Result<(), TchError>;
}

/// Both blocks of a layer: one after the other, with the attention to audio between them in a model that hears, or both
/// on the same stream, where a second block without a norm of its own takes the first one's input.
pub(crate) fn blocks(
    residual: &mut Residual,
    norms: [&SublayerNorms; 2],
    parallel: bool,
    attention: impl FnOnce(&Tensor) -> Result<Tensor, TchError>,
    cross: Option<&Cross>,
    feed: impl FnOnce(&Tensor) -> Result<Tensor, TchError>,
) -> Result<(), TchError> {
    let [first, second] = norms;
    let entered = first.enter(residual)?;
    let beside = match (parallel, &second.before) {
        (false, _) => None,
        (true, None) => Some(entered.shallow_clone()),
        (true, Some(norm)) => Some(norm.forward(residual)?),
    };
    first.leave(residual, attention(&entered)?)?;
    if let Some(cross) = cross {
        cross.forward(residual)?;
    }
    let entered = beside.map_or_else(|| second.enter(residual), Ok)?;
    second.leave(residual, feed(&entered)?)
}

pub(crate) fn activate(x: &Tensor, activation: Activation) -> Result<Tensor, TchError> {
    match activation {
        Activation::Silu => x.f_silu(),
        Activation::GeluTanh => x.f_gelu("tanh"),
        Activation::GeluErf => x.f_gelu("none"),
        Activation::Relu => x.f_relu(),
    }
}

// The table of embeddings.

/// `[vocabulary, hidden]`
pub(crate) enum Embedding {
    Table(Tensor),
    /// Rows are dequantised at lookup.
    Quantised {
        names: [String; 1],
        device: Device,
    },
}

impl Embedding {
    pub(crate) fn read(reader: &Reader, config: &ModelConfig, head: &Linear) -> Result<Embedding> {
        let name = config.embedding();
        if reader.is_quantised(&name) {
            return Ok(Embedding::Quantised { names: [name], device: reader.device() });
        }
        if let (true, Some(weight)) = (config.tied_embeddings, head.unpacked()) {
            return Ok(Embedding::Table(weight.shallow_clone()));
        }
        let table = reader.matrix(&name)?;
        if config.tied_embeddings {
            // The head has its own copy. Few rows of the table are looked up, and those come back from the
            // page cache.
            reader.release(&name)?;
        }
        Ok(Embedding::Table(table))
    }

    /// `[tokens, hidden]`. `weights`: the source of the table.
    pub(crate) fn look_up(&self, weights: &Weights, tokens: &[u32]) -> Result<Tensor, TchError> {
        match self {
            Embedding::Table(table) => {
                let ids: Vec<i64> = tokens.iter().map(|&token| i64::from(token)).collect();
                let ids = Tensor::f_from_slice(&ids)?.f_to_device(table.device())?;
                Tensor::f_embedding(table, &ids, -1, false, false)
            }
            Embedding::Quantised { names, device } => {
                let table = weights.quantised(names).expect("it was read from these weights");
                let mut rows = vec![0.0; tokens.len() * table.columns];
                for (&token, row) in tokens.iter().zip(rows.chunks_exact_mut(table.columns)) {
                    table.row(token as usize, row);
                }
                let shape = [tokens.len() as i64, table.columns as i64];
                Tensor::f_from_slice(&rows)?.f_view(shape)?.f_to_device(*device)
            }
        }
    }
}

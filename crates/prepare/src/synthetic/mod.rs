//! Models of published shapes with random weights: the cost of a size without its download.
//!
//! Weights are those of a model before its training: normal with the published `initializer_range`, norms 1,
//! biases 0; in gpt2, projections onto the residual stream narrower by √(2 · layers) (Radford and others,
//! "Language Models are Unsupervised Multitask Learners", 2019, section 2.3). The output of such a model is
//! meaningless; its cost is that of the trained one.

mod shapes;

use std::ops::Range;
use std::path::{Path, PathBuf};

use bundle::{Architecture, ModelConfig, TensorSpec};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::error::PrepareError;
use crate::model::{Document, Model, Tensors, matrix};
use crate::pooling;
use shapes::{SHAPES, Shape};

/// As people write it before a name of [`names`].
pub(crate) const PREFIX: &str = "synthetic:";
/// The seed of all weights. One is enough: the weights represent no model in particular.
const SEED: u64 = 0;
/// Values that are drawn one after another, from a stream of their own, so that they do not depend on the
/// number of threads.
const BLOCK: usize = 1 << 16;

/// Names of all synthetic models, by size.
pub fn names() -> String {
    SHAPES.map(|Shape { name, .. }| name).join(", ")
}

pub(crate) fn open(name: &str) -> Result<Model, PrepareError> {
    let Some(shape) = SHAPES.iter().find(|shape| shape.name == name) else {
        let names = names();
        return Err(PrepareError::Request(format!("unknown synthetic model {name:?}; there are {names}")));
    };
    let path = PathBuf::from(format!("{PREFIX}{name}"));
    let json = (shape.config)();
    let config =
        ModelConfig::from_json(&json).map_err(|source| PrepareError::Model { path: path.clone(), source })?;
    let weights = Weights::new(path, &config, &json);
    let deviation = weights.deviation;
    let mut bytes = serde_json::to_vec_pretty(&json).expect("a value is valid JSON");
    bytes.push(b'\n');
    let of = shape.published.map_or(String::new(), |repository| format!(" of {repository}"));
    let pooling = config.encoder.as_ref().map(|_| pooling::usual());
    Ok(Model {
        name: format!("synthetic-{name}"),
        kind: "synthetic",
        files: Vec::new(),
        seed: Some(SEED),
        config,
        config_json: Document { bytes, derived: format!("the shape{of}") },
        tokenizer: Err("a synthetic model has none".into()),
        chat: None,
        pooling,
        tensors: Box::new(weights),
        verbatim: Vec::new(),
        derived: format!("drawn by ChaCha8 with seed {SEED}, normal with standard deviation {deviation}"),
    })
}

struct Weights {
    /// Replaces a file's path in errors.
    path: PathBuf,
    /// Standard deviation of embeddings and linear layers.
    deviation: f64,
    /// That of projections onto the residual stream.
    residual: f64,
}

impl Weights {
    fn new(path: PathBuf, config: &ModelConfig, json: &Value) -> Weights {
        let deviation = json["initializer_range"].as_f64().expect("every shape has one");
        let residual = match config.architecture {
            Architecture::Gpt2 => deviation / (2.0 * config.layers as f64).sqrt(),
            _ => deviation,
        };
        Weights { path, deviation, residual }
    }
}

impl Tensors for Weights {
    fn read(&self, spec: &TensorSpec, rows: Range<usize>) -> Result<Vec<f32>, PrepareError> {
        let (_, columns) = matrix(spec);
        let elements = rows.start * columns..rows.end * columns;
        Ok(match &spec.shape[..] {
            [_] if spec.name.ends_with(".bias") => vec![0.0; elements.len()],
            [_] => vec![1.0; elements.len()],
            _ if spec.name.ends_with("c_proj.weight") => draw(elements, &spec.name, self.residual),
            _ => draw(elements, &spec.name, self.deviation),
        })
    }

    fn path_of(&self, _: &str) -> &Path {
        &self.path
    }
}

/// Normal values from the streams of this tensor; they are the same for any division into pieces.
fn draw(elements: Range<usize>, tensor: &str, deviation: f64) -> Vec<f32> {
    let key: [u8; 32] = Sha256::digest(format!("synthetic {SEED} {tensor}")).into();
    let first = elements.start / BLOCK;
    let mut values = vec![0.0; elements.end - first * BLOCK];
    values.par_chunks_mut(BLOCK).enumerate().for_each(|(index, block)| {
        let mut random = ChaCha8Rng::from_seed(key);
        random.set_stream((first + index) as u64);
        for pair in block.chunks_mut(2) {
            let both = normal(random.next_u64());
            for (value, drawn) in pair.iter_mut().zip(both) {
                *value = (drawn * deviation) as f32;
            }
        }
    });
    // A stream is drawn from its beginning.
    values.drain(..elements.start - first * BLOCK);
    values
}

/// Two independent standard normal values (Box and Muller, "A Note on the Generation of Random Normal
/// Deviates", 1958). With `libm`, because its functions give the same bits everywhere; with those of the
/// system's library the hash of a bundle would depend on the machine.
fn normal(bits: u64) -> [f64; 2] {
    const STEP: f64 = 1.0 / (1u64 << 32) as f64;
    let radius = (-2.0 * libm::log(((bits >> 32) + 1) as f64 * STEP)).sqrt();
    let (sine, cosine) = libm::sincos(std::f64::consts::TAU * (bits as u32 as f64 * STEP));
    [radius * cosine, radius * sine]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(tensor: &str, count: usize) -> Vec<f32> {
        draw(0..count, tensor, 0.02)
    }

    #[test]
    fn weights_are_normal() {
        let values = drawn("a", 1 << 20);
        let moment =
            |power| values.iter().map(|&v| (f64::from(v) / 0.02).powi(power)).sum::<f64>() / (1 << 20) as f64;
        // Four standard errors of each moment.
        for (power, expected, variance) in [(1, 0.0, 1.0), (2, 1.0, 2.0), (3, 0.0, 15.0), (4, 3.0, 96.0)] {
            let error = 4.0 * f64::sqrt(variance) / 1024.0;
            assert!((moment(power) - expected).abs() < error, "moment {power} is {}", moment(power));
        }
    }

    #[test]
    fn tensors_and_their_blocks_are_unlike_each_other() {
        let (a, b) = (drawn("a", 2 * BLOCK), drawn("b", BLOCK));
        assert_ne!(a[..BLOCK], b[..]);
        assert_ne!(a[..BLOCK], a[BLOCK..]);
        assert_eq!(a[..BLOCK], drawn("a", BLOCK)[..], "the length of a tensor does not change its beginning");
    }

    #[test]
    fn a_piece_is_what_the_whole_holds_there() {
        let whole = drawn("a", 2 * BLOCK + 7);
        for piece in [1..2, 5..BLOCK, BLOCK - 1..BLOCK + 1, BLOCK..2 * BLOCK + 7, BLOCK + 3..BLOCK + 3] {
            assert_eq!(draw(piece.clone(), "a", 0.02), whole[piece]);
        }
    }

    #[test]
    fn gpt2_s_projections_onto_the_residual_stream_are_narrower() {
        let json = (SHAPES.iter().find(|shape| shape.name == "gpt2-124m").unwrap().config)();
        let config = ModelConfig::from_json(&json).unwrap();
        let weights = Weights::new(PathBuf::new(), &config, &json);
        assert_eq!(weights.residual, 0.02 / 24f64.sqrt());
        let deviation = |name: &str| {
            let values = weights.read(&TensorSpec { name: name.into(), shape: vec![64, 64] }, 0..64).unwrap();
            (values.iter().map(|v| f64::from(v * v)).sum::<f64>() / 4096.0).sqrt()
        };
        let ratio =
            deviation("transformer.h.0.mlp.c_fc.weight") / deviation("transformer.h.0.mlp.c_proj.weight");
        assert!((ratio / 24f64.sqrt() - 1.0).abs() < 0.1, "{ratio}");
    }
}

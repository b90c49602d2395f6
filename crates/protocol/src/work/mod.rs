//! Work as a value: the inputs and outputs of requests. Each kind of work has a file here. Turns, warm-up,
//! clock and journal read [`Marks`] and never name a token.

mod denoise;
mod echo;
mod encode;
mod generate;
mod graph;
mod marks;
mod sample;

use serde::{Deserialize, Serialize};

pub use denoise::{Algorithm, Denoise, DenoiseWork, MaskedCase, Steps, states};
pub use echo::EchoWork;
pub use encode::{EncodeTask, EncodeWork, Pooling, TextBatch, Vectors};
pub use generate::{
    CacheInEffect, CacheUsage, Case, Decode, DecoderSettings, GenerateWork, HandOver, Hybrid, KvCache,
    Padding, Sampling,
};
pub use graph::{Feed, GraphCase, GraphWork, Tensor, Values};
pub use marks::Marks;
pub use sample::{Iteration, Sample};

/// The requests of a job, by kind of work.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Work {
    /// Continue prompts token by token. A request's marks: its first token, and each further one.
    Generate(GenerateWork),
    /// Fill in masks after prompts, by masked diffusion. A request's marks: the end of each step.
    Denoise(DenoiseWork),
    /// Turn batches of texts into vectors. A request's mark: the end.
    Encode(EncodeWork),
    /// Run an ONNX file. A request's mark: the end.
    Graph(GraphWork),
    /// Return bytes. A request's mark: the end.
    Echo(EchoWork),
}

impl Work {
    /// Number of cases.
    pub fn cases(&self) -> usize {
        match self {
            Work::Generate(work) => work.cases.len(),
            Work::Denoise(work) => work.cases.len(),
            Work::Echo(work) => work.cases.len(),
            Work::Encode(work) => work.cases.len(),
            Work::Graph(work) => work.cases.len(),
        }
    }

    /// Whether keys and values are to be kept from one mark to the next, where the model has any.
    pub fn kv_cache(&self) -> KvCache {
        match self {
            Work::Generate(work) => work.kv_cache,
            Work::Denoise(_) | Work::Echo(_) | Work::Encode(_) | Work::Graph(_) => KvCache::On,
        }
    }

    /// This work with the outputs of requests, one for each case, as its traces: logits are then computed
    /// along them.
    pub fn along(mut self, outputs: &[Output]) -> Work {
        match &mut self {
            Work::Generate(work) => {
                for (case, output) in work.cases.iter_mut().zip(outputs) {
                    case.trace = output.tokens().to_vec();
                }
            }
            Work::Denoise(work) => {
                for (case, output) in work.cases.iter_mut().zip(outputs) {
                    case.trace = output.tokens().to_vec();
                    case.unmasked = output.unmasked().to_vec();
                }
            }
            Work::Echo(_) | Work::Encode(_) | Work::Graph(_) => {}
        }
        self
    }
}

/// The input of one request in place of its case's own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Input {
    /// `[batch][new tokens]`: the tokens fed in [`Decode::Forced`].
    Trace(Vec<Vec<u32>>),
    /// The token ids of each text of the batch, as long as the case's own.
    Texts(Vec<Vec<u32>>),
    /// Seed of a graph's drawn inputs.
    Seed(u64),
}

/// The output of a request, which parity reads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Output {
    /// `[batch][new tokens]`: the most likely token at each step, or the one drawn, chosen inside the timed loop.
    Tokens(Vec<Vec<u32>>),
    Steps(Steps),
    Bytes(Vec<u8>),
    Vectors(Vectors),
    /// In the order of the graph's outputs.
    Tensors(Vec<Tensor>),
}

impl Output {
    /// `[batch][new tokens]`
    pub fn tokens(&self) -> &[Vec<u32>] {
        match self {
            Output::Tokens(tokens) => tokens,
            Output::Steps(steps) => &steps.tokens,
            Output::Bytes(_) | Output::Vectors(_) | Output::Tensors(_) => &[],
        }
    }

    /// A vector for each text that was encoded, or its scores; empty for other work.
    pub fn into_vectors(self) -> Vec<Vec<f32>> {
        match self {
            Output::Vectors(output) => output.vectors,
            Output::Tokens(_) | Output::Steps(_) | Output::Bytes(_) | Output::Tensors(_) => Vec::new(),
        }
    }

    /// Number of numbers in its vectors or tensors; 0 for other work.
    pub fn numbers(&self) -> usize {
        match self {
            Output::Vectors(output) => output.vectors.iter().map(Vec::len).sum(),
            Output::Tensors(tensors) => {
                tensors.iter().map(|tensor| tensor.shape.iter().product::<usize>()).sum()
            }
            Output::Tokens(_) | Output::Steps(_) | Output::Bytes(_) => 0,
        }
    }

    /// Frees the numbers of vectors and tensors, which are large; other outputs stay.
    pub fn clear_numbers(&mut self) {
        match self {
            Output::Vectors(output) => output.vectors.clear(),
            Output::Tensors(tensors) => tensors.clear(),
            Output::Tokens(_) | Output::Steps(_) | Output::Bytes(_) => {}
        }
    }

    /// The step that unmasks each token, `[batch][new tokens]`; empty where nothing is masked.
    pub fn unmasked(&self) -> &[Vec<u32>] {
        match self {
            Output::Tokens(_) | Output::Bytes(_) | Output::Vectors(_) | Output::Tensors(_) => &[],
            Output::Steps(steps) => &steps.unmasked,
        }
    }
}

impl Default for Output {
    fn default() -> Output {
        Output::Tokens(Vec::new())
    }
}

//! `config.json` in Hugging Face's field names, resolved into the properties that an engine needs.
//!
//! An engine never asks which architecture it runs: it reads the properties here and the tensor names of
//! [`ModelConfig::layer`].

mod audio;
mod earlier;
mod encoder;
mod experts;
mod fields;
mod form;
mod model;
mod names;
mod read;
mod rope;

use std::collections::BTreeMap;
use std::ops::Range;

pub use audio::Audio;
use encoder::Class;
pub use encoder::Encoder;
pub use form::{Dense, Form, Head, HeadActivation, NormPlacement, RelativePositions, Scored};
pub use model::{Architecture, BLOCKS, Dtype, GRAPH_FILE, Graph, GraphInput, GraphOutput, ModelConfig, Size};
pub use names::{CrossNames, ExpertNames, HeadNames, LayerNames, LinearNames, NormNames, TensorSpec};
pub use read::StoredTensor;
use serde::{Deserialize, Serialize};

use crate::{BundleError, scale_name};

// Activations, and their names in a config.json.

/// Between the two linear layers of the feed-forward block.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// x · σ(x)
    Silu,
    /// tanh approximation of GELU (`gelu_new`, `gelu_pytorch_tanh`)
    GeluTanh,
    /// exact GELU, by the error function
    GeluErf,
    #[default]
    Relu,
}

/// For a configuration that makes no sense or is not supported.
fn refused<T>(reason: impl Into<String>) -> Result<T, BundleError> {
    Err(BundleError::Config(reason.into()))
}

fn activation(name: &str) -> Result<Activation, BundleError> {
    Ok(match name {
        "silu" | "swish" => Activation::Silu,
        "gelu_new" | "gelu_pytorch_tanh" | "gelu_python_tanh" | "gelu_fast" | "gelu_accurate" => {
            Activation::GeluTanh
        }
        "gelu" | "gelu_python" => Activation::GeluErf,
        "relu" => Activation::Relu,
        other => {
            return refused(format!(
                "activation {other:?} is not supported; supported are silu, gelu, gelu_new and relu"
            ));
        }
    })
}

// The layers: what differs among them. What all have is in [`Form`].

/// A layer: attention, and a feed-forward block.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Block {
    /// A query sees its own key and those less than so many positions away: earlier ones, and in a model that
    /// attends both ways later ones, too. All if `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<usize>,
    /// Index in [`ModelConfig::rotations`]; `None` if queries and keys are not rotated.
    pub rotation: Option<usize>,
    pub feed: Feed,
}

/// The feed-forward block of a layer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Feed {
    Mlp(Mlp),
    /// Several MLPs, of which a router chooses some for each token.
    Experts(Experts),
}

/// The numbers of [`Experts::clamped`].
pub const SWIGLU_LIMIT: f64 = 7.0;
pub const SWIGLU_ALPHA: f64 = 1.702;

/// A mixture of experts. A router, a linear layer of the input, gives each expert a logit. The outputs of the `top`
/// experts with the largest are added, each times its share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Experts {
    pub count: usize,
    /// Experts that a token goes through.
    pub top: usize,
    pub each: Mlp,
    /// Shares are of the softmax over the logits of the chosen experts; otherwise over all.
    pub normalised: bool,
    pub router_bias: bool,
    /// In place of act(gate) · up of each expert: g · σ(α g) · (u + 1), with g the gate, cut at the limit, and u the
    /// other half, cut at it on both sides ([`SWIGLU_ALPHA`], [`SWIGLU_LIMIT`]; gpt-oss).
    pub clamped: bool,
    /// An MLP that all tokens go through, too, times the sigmoid of one more linear layer of the input.
    pub shared: Option<Mlp>,
}

/// down(act(gate(x)) · up(x)) with a gate, and down(act(up(x))) without.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mlp {
    /// Outputs of `up`.
    pub width: usize,
    pub activation: Activation,
    pub gated: bool,
    pub bias: bool,
}

/// The attention of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerAttention {
    /// A query sees keys less than so many positions away; all if `None`.
    pub window: Option<usize>,
    /// A query sees no key after its own.
    pub causal: bool,
    /// Index in [`ModelConfig::rotations`] of the rotation of queries and keys.
    pub rotation: Option<usize>,
}

impl LayerAttention {
    pub fn first_key(&self, position: usize) -> usize {
        self.window.map_or(0, |window| (position + 1).saturating_sub(window))
    }

    /// The keys that the query at `position` sees, in a text of so many tokens.
    pub fn keys(&self, position: usize, length: usize) -> Range<usize> {
        let end =
            if self.causal { position + 1 } else { self.window.map_or(length, |window| position + window) };
        self.first_key(position)..end.min(length)
    }

    /// Whether every query sees every key, in a text of so many tokens.
    pub fn sees_all(&self, length: usize) -> bool {
        !(self.causal && length > 1) && self.window.is_none_or(|window| window >= length)
    }
}

impl ModelConfig {
    /// The MLP that all tokens of a layer go through; of a layer with experts and no such MLP, one of the experts.
    pub fn mlp(&self, index: usize) -> Mlp {
        match self.layers[index].feed {
            Feed::Mlp(mlp) => mlp,
            Feed::Experts(experts) => experts.shared.unwrap_or(experts.each),
        }
    }

    /// Whether a layer has experts.
    pub fn has_experts(&self) -> bool {
        self.layers.iter().any(|layer| matches!(layer.feed, Feed::Experts(_)))
    }

    pub fn experts(&self, index: usize) -> Option<Experts> {
        match self.layers[index].feed {
            Feed::Mlp(_) => None,
            Feed::Experts(experts) => Some(experts),
        }
    }

    /// The share of its layer's experts that a token goes through, by the name of each tensor of an expert and of its
    /// scales.
    pub fn expert_shares(&self) -> BTreeMap<String, f64> {
        let mut shares = BTreeMap::new();
        for index in 0..self.layers.len() {
            let (Some(experts), Some(names)) = (self.experts(index), self.layer(index).experts) else {
                continue;
            };
            let share = experts.top as f64 / experts.count as f64;
            let linears = names.each.into_iter().flatten();
            let tensors = linears.flat_map(|linear| linear.weights.into_iter().chain(linear.biases));
            shares.extend(tensors.flat_map(|name| [scale_name(&name), name]).map(|name| (name, share)));
        }
        shares
    }

    pub fn layer_attention(&self, index: usize) -> LayerAttention {
        let Block { window, rotation, .. } = self.layers[index];
        LayerAttention { window, causal: self.causal, rotation }
    }

    /// The window of those layers that have one: they have the same.
    pub fn window(&self) -> Option<usize> {
        self.layers.iter().find_map(|layer| layer.window)
    }

    /// Leading dimensions of a head that are rotated.
    pub fn rotary_dim(&self) -> usize {
        self.form.rotated.unwrap_or(self.head_dim)
    }
}

// Differences of a model from a plain layer, by name: an engine says which of them it knows, and rejects the
// rest rather than ignore it.

/// Features of some models that llama, qwen3 and gpt2 do not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Feature {
    NormsBehind,
    NormOffset,
    WholeNorms,
    AttentionScale,
    AttentionCap,
    Window,
    TwoRotations,
    UnrotatedLayers,
    PartialRotation,
    LongRope,
    Yarn,
    EmbeddingMultiplier,
    ResidualMultiplier,
    LogitsMultiplier,
    LogitsCap,
    FusedGateUp,
    RelativePositions,
    Encoder,
    ParallelBlocks,
    NormWithoutBias,
    HeadBias,
    Experts,
    Sinks,
    Audio,
}

impl Feature {
    /// The name in a model's description ([`ModelConfig::described`]).
    pub fn name(self) -> &'static str {
        self.told().0
    }

    /// For people, after "the model has".
    pub fn words(self) -> &'static str {
        self.told().1
    }

    fn told(self) -> (&'static str, &'static str) {
        match self {
            Feature::NormsBehind => ("norms_behind", "norms behind its blocks"),
            Feature::NormOffset => ("norm_offset", "norms whose weights are stored less 1"),
            Feature::WholeNorms => ("whole_norms", "norms over all heads of queries and keys together"),
            Feature::AttentionScale => ("attention_scale", "a scale of attention other than 1/√head_dim"),
            Feature::AttentionCap => ("attention_cap", "soft-capped attention scores"),
            Feature::Window => ("window", "a sliding window of attention"),
            Feature::TwoRotations => ("two_rotations", "two rotary bases"),
            Feature::UnrotatedLayers => ("unrotated_layers", "layers without rotary positions"),
            Feature::PartialRotation => ("partial_rotation", "heads of which a part is rotated"),
            Feature::LongRope => ("longrope", "LongRoPE scaling of rotary frequencies"),
            Feature::Yarn => ("yarn", "YaRN scaling of rotary frequencies"),
            Feature::EmbeddingMultiplier => ("embedding_multiplier", "a multiplier of embeddings"),
            Feature::ResidualMultiplier => ("residual_multiplier", "a multiplier of residuals"),
            Feature::LogitsMultiplier => ("logits_multiplier", "a multiplier of logits"),
            Feature::LogitsCap => ("logits_cap", "soft-capped logits"),
            Feature::FusedGateUp => ("fused_gate_up", "the gate and the other half of its MLP in one tensor"),
            Feature::RelativePositions => {
                ("relative_positions", "scores of attention that depend on how far apart tokens are")
            }
            Feature::ParallelBlocks => ("parallel_blocks", "an MLP beside attention, not behind it"),
            Feature::NormWithoutBias => ("norm_without_bias", "LayerNorms without biases"),
            Feature::HeadBias => ("head_bias", "a bias of its head"),
            Feature::Experts => ("experts", "a mixture of experts"),
            Feature::Sinks => ("sinks", "sinks of attention"),
            Feature::Audio => ("audio", "an encoder of audio"),
            Feature::Encoder => {
                ("encoder", "an encoder's embeddings and norms, and no head over a vocabulary")
            }
        }
    }
}

impl ModelConfig {
    pub fn features(&self) -> Vec<Feature> {
        let form = &self.form;
        let rotates = !self.rotations.is_empty();
        let has = [
            (Feature::NormsBehind, matches!(form.norms, NormPlacement::After | NormPlacement::Both)),
            (Feature::NormOffset, form.norm_offset != 0.0),
            (Feature::WholeNorms, self.qk_norm && form.whole_qk_norm),
            (Feature::AttentionScale, form.attention_scale.is_some()),
            (Feature::AttentionCap, form.attention_cap.is_some()),
            (Feature::Window, self.window().is_some()),
            (Feature::TwoRotations, self.rotations.len() > 1),
            (Feature::UnrotatedLayers, rotates && self.layers.iter().any(|layer| layer.rotation.is_none())),
            (Feature::PartialRotation, self.rotary_dim() != self.head_dim),
            (Feature::LongRope, self.rotations.iter().any(|rotary| rotary.longrope.is_some())),
            (Feature::Yarn, self.rotations.iter().any(|rotary| rotary.yarn.is_some())),
            (Feature::EmbeddingMultiplier, form.embedding_multiplier.is_some()),
            (Feature::ResidualMultiplier, form.residual_multiplier.is_some()),
            (Feature::LogitsMultiplier, form.logits_multiplier.is_some()),
            (Feature::LogitsCap, form.logits_cap.is_some()),
            (Feature::RelativePositions, self.relative_bias().is_some()),
            (Feature::Encoder, self.encodes()),
            (Feature::ParallelBlocks, form.parallel),
            // Every engine that encodes computes it.
            (Feature::NormWithoutBias, form.norm_without_bias && !self.encodes()),
            (Feature::HeadBias, self.head_bias),
            (Feature::Experts, self.has_experts()),
            (Feature::Sinks, form.sinks),
            (Feature::Audio, self.audio.is_some()),
            (Feature::FusedGateUp, (0..self.layers.len()).any(|index| self.has_fused_gate(index))),
        ];
        has.into_iter().filter_map(|(feature, has)| has.then_some(feature)).collect()
    }

    /// The words for those features of the model that are not `known`; `None` if all are.
    pub fn beyond(&self, known: &[Feature]) -> Option<String> {
        let unknown = self.features().into_iter().filter(|feature| !known.contains(feature));
        let words: Vec<&str> = unknown.map(Feature::words).collect();
        (!words.is_empty()).then(|| words.join(", "))
    }
}

// Values that configurations of several families share.

fn even_share(hidden_size: usize, heads: usize) -> Result<usize, BundleError> {
    if heads == 0 || !hidden_size.is_multiple_of(heads) {
        return refused(format!("hidden size {hidden_size} does not divide into {heads} heads"));
    }
    Ok(hidden_size / heads)
}

// How queries and keys are rotated by the position of a token, in the rotate-half convention.

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rotary {
    pub theta: f64,
    /// Frequencies are divided by this (`rope_type` "linear"); 1 without such scaling.
    pub linear_factor: f64,
    pub llama3: Option<Llama3Scaling>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub longrope: Option<LongRope>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub yarn: Option<Yarn>,
}

impl Rotary {
    /// Frequencies by `theta` alone, unscaled.
    pub fn plain(theta: f64) -> Rotary {
        Rotary { theta, linear_factor: 1.0, llama3: None, longrope: None, yarn: None }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Llama3Scaling {
    pub factor: f64,
    pub low_freq_factor: f64,
    pub high_freq_factor: f64,
    pub original_max_positions: usize,
}

/// Divisors of the frequencies, one list for short contexts and one for long ones (Ding and others, "LongRoPE", 2024,
/// arXiv:2402.13753).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LongRope {
    pub short: Vec<f64>,
    pub long: Vec<f64>,
    /// The longest context that counts as short.
    pub original_max_positions: usize,
    /// Factor of cosines and sines.
    pub scale: f64,
}

/// Short waves stay, long ones are divided by `factor`, those between are mixed (Peng and others, "YaRN", 2023,
/// arXiv:2309.00071).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Yarn {
    pub factor: f64,
    pub original_max_positions: usize,
    /// Turns within the original context from which a wave is a short one.
    pub beta_fast: f64,
    /// Turns up to which it is a long one.
    pub beta_slow: f64,
    /// Whether the bounds between them are rounded to whole frequencies.
    pub truncate: bool,
    /// Factor of cosines and sines.
    pub scale: f64,
}

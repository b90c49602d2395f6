//! `config.json` in Hugging Face's field names, resolved into the properties that an engine needs.
//!
//! An engine never asks which architecture it runs: it reads the properties here and the tensor names of
//! [`ModelConfig::layer`].

mod encoder;
mod fields;
mod form;
mod model;
mod read;
mod rope;

use std::ops::Range;

use encoder::Class;
use fields::Fields;
pub use form::{Dense, Encoder, Form, Head, HeadActivation, NormPlacement, RelativePositions, Scored};
pub use model::{
    Architecture, Dtype, GRAPH_FILE, Graph, GraphInput, GraphOutput, HeadNames, LayerNames, LinearNames,
    ModelConfig, NormNames, Size, TensorSpec,
};
pub use read::StoredTensor;
use serde::{Deserialize, Serialize};

use crate::{BundleError, Pooling};

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

fn activation(name: &str) -> Result<Activation, BundleError> {
    Ok(match name {
        "silu" | "swish" => Activation::Silu,
        "gelu_new" | "gelu_pytorch_tanh" | "gelu_python_tanh" | "gelu_fast" | "gelu_accurate" => {
            Activation::GeluTanh
        }
        "gelu" | "gelu_python" => Activation::GeluErf,
        "relu" => Activation::Relu,
        other => {
            let reason =
                format!("activation {other:?} is not supported; supported are silu, gelu, gelu_new and relu");
            return Err(BundleError::Config(reason));
        }
    })
}

// The attention of each layer.

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
    /// The first key that the query at `position` sees.
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
    /// The attention of layer `index`.
    pub fn layer_attention(&self, index: usize) -> LayerAttention {
        let form = &self.form;
        let listed = |list: &[bool], absent| list.get(index).copied().unwrap_or(absent);
        let slides = form.window.is_some() && listed(&form.sliding, true);
        let rotates = self.position != Position::Learned && !listed(&form.unrotated, false);
        let of_its_own = slides && form.sliding_rotary.is_some();
        LayerAttention {
            window: form.window.filter(|_| slides),
            causal: self.causal,
            rotation: rotates.then_some(usize::from(of_its_own)),
        }
    }

    /// Every rotation used by some layer, in the order of [`LayerAttention::rotation`].
    pub fn rotations(&self) -> Vec<&Rotary> {
        match &self.position {
            Position::Learned => Vec::new(),
            Position::Rotary(rotary) => [rotary].into_iter().chain(&self.form.sliding_rotary).collect(),
        }
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
}

impl Feature {
    /// The name in a model's description ([`ModelConfig::described`]).
    pub fn name(self) -> &'static str {
        match self {
            Feature::NormsBehind => "norms_behind",
            Feature::NormOffset => "norm_offset",
            Feature::WholeNorms => "whole_norms",
            Feature::AttentionScale => "attention_scale",
            Feature::AttentionCap => "attention_cap",
            Feature::Window => "window",
            Feature::TwoRotations => "two_rotations",
            Feature::UnrotatedLayers => "unrotated_layers",
            Feature::PartialRotation => "partial_rotation",
            Feature::LongRope => "longrope",
            Feature::Yarn => "yarn",
            Feature::EmbeddingMultiplier => "embedding_multiplier",
            Feature::ResidualMultiplier => "residual_multiplier",
            Feature::LogitsMultiplier => "logits_multiplier",
            Feature::LogitsCap => "logits_cap",
            Feature::FusedGateUp => "fused_gate_up",
            Feature::RelativePositions => "relative_positions",
            Feature::Encoder => "encoder",
        }
    }

    /// For people, after "the model has".
    pub fn words(self) -> &'static str {
        match self {
            Feature::NormsBehind => "norms behind its blocks",
            Feature::NormOffset => "norms whose weights are stored less 1",
            Feature::WholeNorms => "norms over all heads of queries and keys together",
            Feature::AttentionScale => "a scale of attention other than 1/√head_dim",
            Feature::AttentionCap => "soft-capped attention scores",
            Feature::Window => "a sliding window of attention",
            Feature::TwoRotations => "two rotary bases",
            Feature::UnrotatedLayers => "layers without rotary positions",
            Feature::PartialRotation => "heads of which a part is rotated",
            Feature::LongRope => "LongRoPE scaling of rotary frequencies",
            Feature::Yarn => "YaRN scaling of rotary frequencies",
            Feature::EmbeddingMultiplier => "a multiplier of embeddings",
            Feature::ResidualMultiplier => "a multiplier of residuals",
            Feature::LogitsMultiplier => "a multiplier of logits",
            Feature::LogitsCap => "soft-capped logits",
            Feature::FusedGateUp => "the gate and the other half of its MLP in one tensor",
            Feature::RelativePositions => "scores of attention that depend on how far apart tokens are",
            Feature::Encoder => "an encoder's embeddings and norms, and no head over a vocabulary",
        }
    }
}

impl ModelConfig {
    /// The features of this model beyond a plain layer.
    pub fn features(&self) -> Vec<Feature> {
        let form = &self.form;
        let layers = || (0..self.layers).map(|index| self.layer_attention(index));
        let rotates = !self.rotations().is_empty();
        let has = [
            (Feature::NormsBehind, matches!(form.norms, NormPlacement::After | NormPlacement::Both)),
            (Feature::NormOffset, form.norm_offset != 0.0),
            (Feature::WholeNorms, self.qk_norm && form.whole_qk_norm),
            (Feature::AttentionScale, form.attention_scale.is_some()),
            (Feature::AttentionCap, form.attention_cap.is_some()),
            (Feature::Window, layers().any(|layer| layer.window.is_some())),
            (Feature::TwoRotations, self.rotations().len() > 1),
            (Feature::UnrotatedLayers, rotates && layers().any(|layer| layer.rotation.is_none())),
            (Feature::PartialRotation, self.rotary_dim() != self.head_dim),
            (Feature::LongRope, self.rotations().iter().any(|rotary| rotary.longrope.is_some())),
            (Feature::Yarn, self.rotations().iter().any(|rotary| rotary.yarn.is_some())),
            (Feature::EmbeddingMultiplier, form.embedding_multiplier.is_some()),
            (Feature::ResidualMultiplier, form.residual_multiplier.is_some()),
            (Feature::LogitsMultiplier, form.logits_multiplier.is_some()),
            (Feature::LogitsCap, form.logits_cap.is_some()),
            (Feature::RelativePositions, self.relative_bias().is_some()),
            (Feature::Encoder, self.encoder.is_some()),
            (Feature::FusedGateUp, self.gated_mlp && self.layer(0).gate_up.weights.len() == 1),
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
        return Err(BundleError::Config(format!(
            "hidden size {hidden_size} does not divide into {heads} heads"
        )));
    }
    Ok(hidden_size / heads)
}

// How a model encodes the position of a token.

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Position {
    /// A learned embedding is added to the token's.
    #[default]
    Learned,
    /// Queries and keys are rotated, rotate-half convention.
    Rotary(Rotary),
}

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

// Heads of encoders: scores for a text, or for each of its tokens, instead of a vector.

/// More labels than any model has: the output of a head must not fill memory.
const MOST_LABELS: usize = 1 << 20;

/// The head of the model's class, if it is one.
fn head(
    architecture: Architecture,
    class: Option<Class>,
    fields: &Fields<'_>,
) -> Result<Option<Head>, BundleError> {
    use Architecture::{
        Bert, DistilBert, Llama, Mistral, ModernBert, Mpnet, NomicBert, Qwen2, Qwen3, Roberta,
    };
    if architecture == ModernBert {
        fields.ignore(&["classifier_activation", "classifier_bias", "classifier_pooling"]);
    }
    let of_texts = match class {
        Some(Class::ScoresTexts) => true,
        Some(Class::ScoresTokens) => false,
        _ => return Ok(None),
    };
    let plain = |activation| Some(Dense { activation, bias: true, norm: false });
    let dense = match (architecture, of_texts) {
        (Bert | NomicBert | Roberta | Mpnet, true) => plain(HeadActivation::Tanh),
        (DistilBert, true) => plain(HeadActivation::Of(Activation::Relu)),
        (ModernBert, _) => {
            let name = fields.optional_text("classifier_activation")?.unwrap_or("gelu");
            let activation = HeadActivation::Of(activation(name)?);
            Some(Dense { activation, bias: fields.flag("classifier_bias", false)?, norm: true })
        }
        _ => None,
    };
    let pooling = match architecture {
        Llama | Mistral | Qwen2 | Qwen3 => Pooling::Last,
        ModernBert => match fields.optional_text("classifier_pooling")?.unwrap_or("cls") {
            "cls" => Pooling::Cls,
            "mean" => Pooling::Mean,
            other => {
                let reason = format!("classifier_pooling is {other:?}; supported are cls and mean");
                return Err(BundleError::Config(reason));
            }
        },
        _ => Pooling::Cls,
    };
    let labels = labels(fields)?;
    let of = if of_texts { Scored::Texts(pooling) } else { Scored::Tokens };
    Ok(Some(Head { of, labels, dense, bias: !(of_texts && pooling == Pooling::Last) }))
}

/// transformers writes a name for each label, and assumes two labels without names.
fn labels(fields: &Fields<'_>) -> Result<usize, BundleError> {
    let counted = fields.optional_count("num_labels")?;
    let labels = fields.object("id2label")?.map(|names| names.len()).or(counted).unwrap_or(2);
    if (1..=MOST_LABELS).contains(&labels) {
        return Ok(labels);
    }
    Err(BundleError::Config(format!("its head has {labels} labels, which no model has")))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn llama() -> Value {
        json!({
            "model_type": "llama", "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 320,
            "max_position_embeddings": 256, "tie_word_embeddings": true
        })
    }

    fn with(name: &str, value: Value) -> Value {
        let mut config = llama();
        config[name] = value;
        config
    }

    fn error(config: Value) -> String {
        ModelConfig::from_json(&config).unwrap_err().to_string()
    }

    #[test]
    fn fused_tensors_lie_side_by_side() {
        let names: Vec<_> =
            ModelConfig::from_json(&llama()).unwrap().tensors().into_iter().map(|t| t.name).collect();
        let at = |part: &str| names.iter().position(|n| n.ends_with(part)).unwrap();
        assert_eq!(at("k_proj.weight"), at("q_proj.weight") + 1);
        assert_eq!(at("v_proj.weight"), at("q_proj.weight") + 2);
        assert_eq!(at("up_proj.weight"), at("gate_proj.weight") + 1);
    }

    #[test]
    fn an_unknown_architecture_is_named_with_those_supported_and_the_nearest() {
        let text = error(with("model_type", json!("granit")));
        assert!(text.contains("\"granit\"") && text.contains("qwen3"), "{text}");
        assert!(text.ends_with("the nearest is granite"), "{text}");
        let text = error(with("model_type", json!("xyz")));
        assert!(!text.contains("nearest"), "{text}");
    }

    #[test]
    fn errors_name_the_field() {
        assert!(error(with("hidden_size", json!("big"))).contains("hidden_size"));
        assert!(error(with("vocab_size", Value::Null)).contains("vocab_size"));
        assert!(error(with("hidden_act", json!("mish"))).contains("mish"));
        assert!(error(with("num_key_value_heads", json!(3))).contains('3'));
        assert!(error(with("rope_scaling", json!({"rope_type": "mrope", "factor": 4.0}))).contains("mrope"));
        assert!(error(with("num_hidden_layers", json!(1u64 << 40))).contains("layers"));
    }

    #[test]
    fn what_a_message_quotes_is_cut() {
        let text = error(with("hidden_size", json!("x".repeat(100_000))));
        assert!(text.contains("… (cut), not a whole number") && text.len() < 200, "{text}");
    }

    #[test]
    fn sizes_that_no_disk_holds_are_refused_before_anything_is_computed_from_them() {
        let largest = json!((1u64 << 28) - 1);
        let mut config = with("intermediate_size", largest.clone());
        config["hidden_size"] = largest;
        config["head_dim"] = json!(16);
        assert!(error(config).contains("weights, which no disk holds"));
        assert!(error(with("head_dim", json!(1 << 20))).contains("head dimension is 1048576"));
        assert!(error(with("num_hidden_layers", json!(5000))).contains("number of layers is 5000"));
    }

    #[test]
    fn a_rotation_is_scaled_by_numbers_that_leave_it_finite() {
        for factor in [json!(0.0), json!(-1.0), json!(1e300)] {
            let scaling = json!({"rope_type": "linear", "factor": factor});
            let text = error(with("rope_scaling", scaling));
            assert!(text.contains("\"factor\"") && text.contains("between"), "{text}");
        }
    }

    #[test]
    fn rope_is_read_in_the_old_and_the_new_spelling() {
        let old = with("rope_theta", json!(5e5));
        let new = with("rope_parameters", json!({"rope_type": "default", "rope_theta": 5e5}));
        assert_eq!(ModelConfig::from_json(&old).unwrap(), ModelConfig::from_json(&new).unwrap());
    }

    #[test]
    fn a_resolved_configuration_is_read_back_as_it_was() {
        let gpt2 = json!({"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 256,
            "vocab_size": 320});
        let llama3 = with(
            "rope_scaling",
            json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192}),
        );
        let others = ["mistral", "qwen2", "qwen3", "Dream"].map(|name| {
            let mut config = with("mask_token_id", json!(5));
            config["model_type"] = json!(name);
            config
        });
        for config in [llama(), llama3, gpt2].into_iter().chain(others) {
            let resolved = ModelConfig::from_json(&config).unwrap();
            let written = serde_json::to_string(&resolved).unwrap();
            assert_eq!(serde_json::from_str::<ModelConfig>(&written).unwrap(), resolved, "{written}");
        }
    }

    #[test]
    fn a_description_names_every_tensor_and_frequency() {
        let encoder = |architecture: &str, class: &str| {
            json!({"model_type": architecture, "architectures": [class], "hidden_size": 64, "intermediate_size": 96,
                "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 320})
        };
        let bert = encoder("bert", "BertForSequenceClassification");
        let (mpnet, modernbert) =
            (encoder("mpnet", "MPNetModel"), encoder("modernbert", "ModernBertForTokenClassification"));
        for (json, rotations) in [(llama(), 1), (bert, 0), (mpnet, 0), (modernbert, 2)] {
            let config = ModelConfig::from_json(&json).unwrap();
            let described = config.described();
            assert_eq!(described["hidden_size"], 64);
            let frequencies =
                ["inverse_frequencies", "sliding_inverse_frequencies"].map(|name| &described[name]);
            let counts = frequencies.iter().filter_map(|list| list.as_array()).map(Vec::len);
            assert_eq!(counts.collect::<Vec<_>>(), vec![config.head_dim / 2; rotations]);
            let text = described["tensors"].to_string();
            let is_named = |name: &str| text.contains(&format!("{name:?}"));
            assert!(config.tensors().iter().all(|tensor| is_named(&tensor.name)), "{text}");
        }
    }

    #[test]
    fn a_masked_diffusion_model_attends_both_ways_and_has_a_mask_in_its_vocabulary() {
        let dream = |mask: Value| {
            let mut config = with("mask_token_id", mask);
            config["model_type"] = json!("Dream");
            config
        };
        let config = ModelConfig::from_json(&dream(json!(319))).unwrap();
        assert_eq!((config.causal, config.mask_token, config.qkv_bias), (false, Some(319), true));
        let body = config.clone().autoregressive();
        assert_eq!((body.causal, body.mask_token, body.tensors()), (true, None, config.tensors()));
        let outside = error(dream(json!(320)));
        assert_eq!(
            outside.split(": ").last().unwrap(),
            "mask_token_id 320 is outside the vocabulary of 320 tokens"
        );
        assert!(error(dream(Value::Null)).contains("mask_token_id"));
        assert!(ModelConfig::from_json(&llama()).unwrap().causal);
    }

    #[test]
    fn a_query_sees_as_many_keys_as_its_window_and_itself_among_them() {
        let attention = LayerAttention { window: Some(4), causal: true, rotation: None };
        assert_eq!([0, 3, 4, 9].map(|position| attention.first_key(position)), [0, 0, 1, 6]);
        assert_eq!(LayerAttention { window: None, ..attention }.first_key(9), 0);
        assert_eq!([attention.keys(9, 20), attention.keys(1, 20)], [6..10, 0..2]);
        let both = LayerAttention { causal: false, ..attention };
        assert_eq!([both.keys(9, 20), both.keys(1, 20), both.keys(19, 20)], [6..13, 0..5, 16..20]);
        assert_eq!([4, 5].map(|length| both.sees_all(length)), [true, false]);
        assert_eq!([1, 2].map(|length| attention.sees_all(length)), [true, false]);
    }
}

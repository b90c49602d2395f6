//! Differences of a model from llama: norms, windows, rotations, multipliers, caps.

use serde::{Deserialize, Serialize};

use super::fields::Fields;
use super::model::{Architecture, ModelConfig};
use super::{Activation, Block, Rotary, refused};
use crate::{BundleError, Pooling};

/// Where the norms of a block are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NormPlacement {
    /// x + block(norm(x))
    #[default]
    Before,
    /// x + norm(block(x))
    After,
    /// x + norm(block(norm(x)))
    Both,
    /// norm(x + block(x))
    OfSum,
}

/// What all layers of a model share, beside its sizes. The default of every field is llama's.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Form {
    pub norms: NormPlacement,
    /// x + attention(norm(x)) + mlp(norm(x)). Without a norm of its own the MLP takes what attention takes.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub parallel: bool,
    /// LayerNorms have no biases, like RMSNorms.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub norm_without_bias: bool,
    /// Added to the weights of every RMSNorm: gemma's files store them less 1.
    #[serde(skip_serializing_if = "is_zero")]
    pub norm_offset: f32,
    /// The norms of q and k, if any, go over all heads together.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub whole_qk_norm: bool,
    /// Factor of the scores; 1/√head_dim if `None`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attention_scale: Option<f64>,
    /// Scores are c · tanh(score / c).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attention_cap: Option<f64>,
    /// Each head has a number beside the scores of its keys, of which the softmax takes the exponential, too.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub sinks: bool,
    /// Leading dimensions of a head that are rotated; all if `None`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rotated: Option<usize>,
    /// Factor of the embeddings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub embedding_multiplier: Option<f64>,
    /// Factor of a block's result before it is added.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub residual_multiplier: Option<f64>,
    /// Factor of the logits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logits_multiplier: Option<f64>,
    /// Logits are c · tanh(logit / c).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logits_cap: Option<f64>,
}

/// Turns the vectors of tokens into scores.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    pub of: Scored,
    /// Numbers per score, one for each label.
    pub labels: usize,
    /// A linear layer, an activation and a norm before the scores; without it the vector itself is scored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dense: Option<Dense>,
    /// Whether a bias is added to the scores.
    pub bias: bool,
}

impl Head {
    /// Number of numbers for a text of so many tokens.
    pub fn numbers(&self, tokens: usize) -> usize {
        match self.of {
            Scored::Texts(_) => self.labels,
            Scored::Tokens => self.labels * tokens,
        }
    }
}

/// The unit that a head scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scored {
    /// Each text, by this vector of it.
    Texts(Pooling),
    /// Each token of a text.
    Tokens,
}

/// A square linear layer, an activation, and an optional LayerNorm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dense {
    pub activation: HeadActivation,
    pub bias: bool,
    pub norm: bool,
}

/// The activation after the linear layer of a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeadActivation {
    Tanh,
    /// One of the MLP activations.
    Of(Activation),
}

/// Rows of a table that has, for each head, the bias added to the score of a query and a key, by their
/// distance. T5's formula (Raffel and others 2020), as in MPNet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelativePositions {
    /// Rows of the table.
    pub buckets: usize,
    /// Keys at least so far away share a row, on each side.
    pub distance: usize,
}

impl RelativePositions {
    /// The row of a key at position `key` for the query at position `query`.
    pub fn bucket(&self, query: usize, key: usize) -> usize {
        let half = self.buckets / 2;
        let side = if key > query { half } else { 0 };
        let (apart, exact) = (query.abs_diff(key), half / 2);
        if apart < exact {
            return side + apart;
        }
        // In f32, as PyTorch computes it.
        let share = (apart as f32 / exact as f32).ln() / (self.distance as f32 / exact as f32).ln();
        side + (exact + (share * (half - exact) as f32) as usize).min(half - 1)
    }
}

fn is_zero(number: &f32) -> bool {
    *number == 0.0
}

impl Form {
    /// Whether everything is as in llama.
    pub fn is_plain(&self) -> bool {
        *self == Form::default()
    }
}

// Differences of a model's layers from llama's, from the fields of a config.json.

/// The form of `config`. Its sizes have been checked.
pub(super) fn form(config: &ModelConfig, fields: &Fields<'_>) -> Result<Form, BundleError> {
    use Architecture::{Cohere, Gemma2, Gemma3, Glm4, GptNeox, GptOss, Granite, Olmo2, Phi, Stablelm};
    let architecture = config.architecture;
    let gemma = matches!(architecture, Gemma2 | Gemma3);
    if gemma && fields.flag("use_bidirectional_attention", false)? {
        return refused("use_bidirectional_attention is not supported");
    }
    let mut form = Form {
        norms: match architecture {
            Gemma2 | Gemma3 | Glm4 => NormPlacement::Both,
            Olmo2 => NormPlacement::After,
            _ => NormPlacement::Before,
        },
        norm_offset: if gemma { 1.0 } else { 0.0 },
        whole_qk_norm: architecture == Olmo2,
        norm_without_bias: architecture == Cohere,
        parallel: match architecture {
            Phi | Cohere => true,
            GptNeox => fields.flag("use_parallel_residual", true)?,
            Stablelm => fields.flag("use_parallel_residual", false)?,
            _ => false,
        },
        sinks: architecture == GptOss,
        ..Form::default()
    };
    if gemma {
        let of_gemma2 = |cap| Some(cap).filter(|_| architecture == Gemma2);
        let scalar = positive(fields, "query_pre_attn_scalar", 256.0)?;
        form.attention_scale = Some(scalar.sqrt().recip()).filter(|_| scalar != config.head_dim as f64);
        form.attention_cap = cap(fields, "attn_logit_softcapping", of_gemma2(50.0))?;
        form.logits_cap = cap(fields, "final_logit_softcapping", of_gemma2(30.0))?;
        form.embedding_multiplier = Some((config.hidden_size as f64).sqrt());
    }
    if architecture == Granite {
        let scale = positive(fields, "attention_multiplier", 1.0)?;
        let usual = (config.head_dim as f64).sqrt().recip();
        form.attention_scale = Some(scale).filter(|&scale| scale != usual);
        form.embedding_multiplier = multiplier(fields, "embedding_multiplier")?;
        form.residual_multiplier = multiplier(fields, "residual_multiplier")?;
        form.logits_multiplier = multiplier(fields, "logits_scaling")?.map(f64::recip);
    }
    if architecture == Cohere {
        form.logits_multiplier =
            Some(positive(fields, "logit_scale", 0.0625)?).filter(|&number| number != 1.0);
    }
    Ok(form)
}

fn positive(fields: &Fields<'_>, name: &str, default: f64) -> Result<f64, BundleError> {
    let number = fields.number(name, default)?;
    if number > 0.0 && number.is_finite() {
        return Ok(number);
    }
    refused(format!("field {name:?} is {number}; it must be above 0"))
}

fn multiplier(fields: &Fields<'_>, name: &str) -> Result<Option<f64>, BundleError> {
    Ok(Some(positive(fields, name, 1.0)?).filter(|&number| number != 1.0))
}

fn cap(fields: &Fields<'_>, name: &str, default: Option<f64>) -> Result<Option<f64>, BundleError> {
    match fields.number_unless_null(name, default)? {
        Some(cap) if cap <= 0.0 => refused(format!("field {name:?} is {cap}; it must be above 0")),
        cap => Ok(cap),
    }
}

// Differences among the layers of a decoder.

/// Gives each layer its window and its rotation, of which the main one is the first and that of sliding layers, if it
/// differs, the second.
pub(super) fn layers(
    config: &mut ModelConfig,
    fields: &Fields<'_>,
    of_sliding: Option<Rotary>,
) -> Result<(), BundleError> {
    if config.architecture == Architecture::Smollm3 {
        let rotated = rotated(config.layers.len(), fields)?;
        for (layer, rotates) in config.layers.iter_mut().zip(rotated) {
            layer.rotation = Some(0).filter(|_| rotates);
        }
    }
    windows(config, fields)?;
    if let Some(rotary) = of_sliding {
        rotate_sliding(config, rotary);
    }
    Ok(())
}

/// Gives sliding layers, if there are any, this rotation, if it differs from the main one.
pub(super) fn rotate_sliding(config: &mut ModelConfig, rotary: Rotary) {
    if config.window().is_none() || config.rotations[0] == rotary {
        return;
    }
    config.rotations.push(rotary);
    config
        .layers
        .iter_mut()
        .filter(|layer| layer.window.is_some())
        .for_each(|layer| layer.rotation = Some(1));
}

/// Whether each layer rotates: `no_rope_layers` has 1 where it does.
fn rotated(layers: usize, fields: &Fields<'_>) -> Result<Vec<bool>, BundleError> {
    let name = "no_rope_layers";
    let interval = fields.optional_count("no_rope_layer_interval")?.unwrap_or(4).max(1);
    match fields.optional_flags(name)?.filter(|list| !list.is_empty()) {
        Some(rotated) => one_for_each_layer(layers, name, rotated),
        None => Ok((1..=layers).map(|layer| !layer.is_multiple_of(interval)).collect()),
    }
}

fn one_for_each_layer<T>(layers: usize, name: &str, list: Vec<T>) -> Result<Vec<T>, BundleError> {
    if list.len() == layers {
        return Ok(list);
    }
    refused(format!("{name} has {} entries for {layers} layers", list.len()))
}

fn windows(config: &mut ModelConfig, fields: &Fields<'_>) -> Result<(), BundleError> {
    use Architecture::{
        Dream, Gemma2, Gemma3, GptOss, Mistral, Mixtral, Phi3, Qwen2, Qwen2Moe, Qwen3, Qwen3Moe, Smollm3,
        Starcoder2,
    };
    let (name, architecture) = ("sliding_window", config.architecture);
    let listed = layer_types(config.layers.len(), fields)?;
    let usual: Vec<bool> = usual_layers(config, fields)?;
    // 4096 is the default of the class, for an absent field.
    let window = match architecture {
        Mistral => fields.count_unless_null(name, Some(4096))?,
        Phi3 | Mixtral | Starcoder2 => fields.optional_count(name)?,
        GptOss => Some(fields.optional_count(name)?.unwrap_or(128)),
        Gemma2 | Gemma3 => match fields.count_unless_null(name, Some(4096))? {
            Some(window) => Some(window),
            None => return refused(format!("field {name:?} is null; it must be a number")),
        },
        Qwen2 | Qwen3 | Qwen2Moe | Qwen3Moe | Smollm3 | Dream => {
            let slides_at_all = fields.flag("use_sliding_window", false)?;
            let default = Some(4096).filter(|_| architecture != Smollm3);
            fields.count_unless_null(name, default)?.filter(|_| slides_at_all)
        }
        _ => None,
    };
    let lists = |kind: bool| listed.as_ref().is_some_and(|layers| layers.contains(&kind));
    let reason = match (architecture, window) {
        (_, None) if lists(true) => "layers of the type \"sliding_attention\" have no window here",
        (Mistral | Mixtral | Phi3 | Starcoder2, Some(window))
            if lists(false) && window < config.max_positions =>
        {
            "layers of the type \"full_attention\" are not supported: all layers have the sliding_window"
        }
        _ => "",
    };
    if !reason.is_empty() {
        return refused(format!("{reason} (field \"layer_types\")"));
    }
    let sliding = listed.unwrap_or(usual);
    let Some(window) = window.filter(|_| sliding.contains(&true)) else { return Ok(()) };
    if window == 0 {
        return refused(format!("field {name:?} is 0; it must be above 0, or null"));
    }
    // A window beyond the context hides nothing. Gemma3's sliding layers keep their own rotation.
    let context = config.max_positions;
    if window >= context && architecture != Gemma3 {
        return Ok(());
    }
    if !config.causal {
        return refused("a sliding window of a model that attends both ways is not supported");
    }
    config.slide(window.min(context), &sliding);
    Ok(())
}

impl ModelConfig {
    /// Gives this window to the layers that slide.
    pub(super) fn slide(&mut self, window: usize, sliding: &[bool]) {
        for (layer, slides) in self.layers.iter_mut().zip(sliding) {
            layer.window = Some(window).filter(|_| *slides);
        }
    }
}

/// Which layers slide, according to `layer_types`.
pub(super) fn layer_types(layers: usize, fields: &Fields<'_>) -> Result<Option<Vec<bool>>, BundleError> {
    let name = "layer_types";
    let Some(types) = fields.optional_texts(name)? else { return Ok(None) };
    let slides = |kind: &str| match kind {
        "full_attention" => Ok(false),
        "sliding_attention" => Ok(true),
        other => refused(format!(
            "layers of the type {other:?} are not supported; supported are full_attention and sliding_attention"
        )),
    };
    let types = types.into_iter().map(slides).collect::<Result<Vec<_>, _>>()?;
    one_for_each_layer(layers, name, types).map(Some)
}

/// Which layers slide without a list, by transformers' default for each architecture.
fn usual_layers(config: &ModelConfig, fields: &Fields<'_>) -> Result<Vec<bool>, BundleError> {
    let names = ["sliding_window_pattern", "_sliding_window_pattern"];
    let [pattern, hidden] = names.map(|name| fields.optional_count(name));
    let pattern = pattern?.or(hidden?).unwrap_or(6).max(1);
    if config.architecture == Architecture::Gemma2 {
        fields.ignore(&["sliding_window_size"]);
    }
    let full_layers = fields.optional_count("max_window_layers")?.unwrap_or(28);
    let slides = |(index, layer): (usize, &Block)| match config.architecture {
        Architecture::Gemma2 | Architecture::GptOss => index.is_multiple_of(2),
        Architecture::Gemma3 => !(index + 1).is_multiple_of(pattern),
        Architecture::Qwen2 | Architecture::Qwen2Moe | Architecture::Qwen3 | Architecture::Dream => {
            index >= full_layers
        }
        Architecture::Smollm3 => layer.rotation.is_none(),
        _ => true,
    };
    Ok(config.layers.iter().enumerate().map(slides).collect())
}

//! Differences of a model from llama: norms, windows, rotations, multipliers, caps.

use serde::{Deserialize, Serialize};

use super::model::{Architecture, ModelConfig};
use super::read::Fields;
use super::{Activation, Llama3Scaling, LongRope, Rotary};
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

/// The form of a model. The default of every field is llama's.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Form {
    pub norms: NormPlacement,
    /// LayerNorms have no biases, like RMSNorms.
    #[serde(skip_serializing_if = "is_false")]
    pub norm_without_bias: bool,
    /// Added to the weights of every RMSNorm: gemma's files store them less 1.
    #[serde(skip_serializing_if = "is_zero")]
    pub norm_offset: f32,
    /// The norms of q and k, if any, go over all heads together.
    #[serde(skip_serializing_if = "is_false")]
    pub whole_qk_norm: bool,
    /// Factor of the scores; 1/√head_dim if `None`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attention_scale: Option<f64>,
    /// Scores are c · tanh(score / c).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attention_cap: Option<f64>,
    /// A query of a sliding layer sees its own key and those less than so many positions away: earlier ones,
    /// and in a model that attends both ways later ones, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<usize>,
    /// Which layers have the window, one entry for each; all if empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sliding: Vec<bool>,
    /// The rotation of sliding layers, if it differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sliding_rotary: Option<Rotary>,
    /// Which layers do not rotate, one entry for each; all rotate if empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unrotated: Vec<bool>,
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

/// Parts that an encoder has and a decoder does not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Encoder {
    /// Rows of the table of token types, which is added to the embeddings; 0 without one.
    pub token_types: usize,
    /// Row of the first token of a text in the table of positions.
    pub first_position: usize,
    /// The token that pads texts to the length of the longest.
    pub pad_token: u32,
    /// Whether the sum of the embeddings is normed.
    pub embedding_norm: bool,
    /// Whether the vectors after the last layer are normed.
    pub final_norm: bool,
    /// Bias added to scores of attention by the distance of two tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relative: Option<RelativePositions>,
    /// Turns the vectors of tokens into scores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head: Option<Head>,
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

fn is_false(flag: &bool) -> bool {
    !flag
}

impl Form {
    /// Whether everything is as in llama.
    pub fn is_plain(&self) -> bool {
        *self == Form::default()
    }
}

// Differences of a model's layers from llama's, from the fields of a config.json.

/// Fields that change the computation unless they are 1, with the architectures that use them.
const MULTIPLIERS: [(&str, &[Architecture]); 6] = [
    ("attn_logit_softcapping", &[Architecture::Gemma2, Architecture::Gemma3]),
    ("final_logit_softcapping", &[Architecture::Gemma2, Architecture::Gemma3]),
    ("attention_multiplier", &[Architecture::Granite]),
    ("embedding_multiplier", &[Architecture::Granite]),
    ("residual_multiplier", &[Architecture::Granite]),
    ("logits_scaling", &[Architecture::Granite]),
];

/// The form of `config` without its rotations. The sizes of `config` have been checked.
pub(super) fn form(config: &ModelConfig, fields: &Fields<'_>) -> Result<Form, BundleError> {
    use Architecture::{Gemma2, Gemma3, Granite, Olmo2, Smollm3};
    let architecture = config.architecture;
    for (name, whose) in MULTIPLIERS {
        let given = fields.optional_number(name)?.filter(|&number| number != 1.0);
        if let (Some(number), false) = (given, whose.contains(&architecture)) {
            let reason = format!("field {name:?} is {number}, which is not supported for this architecture");
            return Err(BundleError::Config(reason));
        }
    }
    let gemma = matches!(architecture, Gemma2 | Gemma3);
    if gemma && fields.flag("use_bidirectional_attention", false)? {
        return Err(BundleError::Config("use_bidirectional_attention is not supported".into()));
    }
    let mut form = Form {
        norms: match architecture {
            Gemma2 | Gemma3 => NormPlacement::Both,
            Olmo2 => NormPlacement::After,
            _ => NormPlacement::Before,
        },
        norm_offset: if gemma { 1.0 } else { 0.0 },
        whole_qk_norm: architecture == Olmo2,
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
    if architecture == Smollm3 {
        form.unrotated = unrotated(config, fields)?;
    }
    (form.window, form.sliding) = windows(config, &form, fields)?;
    Ok(form)
}

fn positive(fields: &Fields<'_>, name: &str, default: f64) -> Result<f64, BundleError> {
    let number = fields.number(name, default)?;
    if number > 0.0 && number.is_finite() {
        return Ok(number);
    }
    Err(BundleError::Config(format!("field {name:?} is {number}; it must be above 0")))
}

fn multiplier(fields: &Fields<'_>, name: &str) -> Result<Option<f64>, BundleError> {
    Ok(Some(positive(fields, name, 1.0)?).filter(|&number| number != 1.0))
}

fn cap(fields: &Fields<'_>, name: &str, default: Option<f64>) -> Result<Option<f64>, BundleError> {
    match fields.number_unless_null(name, default)? {
        Some(cap) if cap <= 0.0 => {
            Err(BundleError::Config(format!("field {name:?} is {cap}; it must be above 0")))
        }
        cap => Ok(cap),
    }
}

/// `no_rope_layers` has 1 where a layer rotates.
fn unrotated(config: &ModelConfig, fields: &Fields<'_>) -> Result<Vec<bool>, BundleError> {
    let name = "no_rope_layers";
    let rotated = match fields.optional_flags(name)?.filter(|list| !list.is_empty()) {
        Some(rotated) => one_for_each_layer(config, name, rotated)?,
        None => {
            let interval = fields.optional_count("no_rope_layer_interval")?.unwrap_or(4).max(1);
            (1..=config.layers).map(|layer| !layer.is_multiple_of(interval)).collect()
        }
    };
    let unrotated: Vec<bool> = rotated.into_iter().map(|rotates| !rotates).collect();
    Ok(if unrotated.contains(&true) { unrotated } else { Vec::new() })
}

fn one_for_each_layer<T>(config: &ModelConfig, name: &str, list: Vec<T>) -> Result<Vec<T>, BundleError> {
    if list.len() == config.layers {
        return Ok(list);
    }
    let reason = format!("{name} has {} entries for {} layers", list.len(), config.layers);
    Err(BundleError::Config(reason))
}

/// The window, and which layers have it.
fn windows(
    config: &ModelConfig,
    form: &Form,
    fields: &Fields<'_>,
) -> Result<(Option<usize>, Vec<bool>), BundleError> {
    use Architecture::{Dream, Gemma2, Gemma3, Mistral, Phi3, Qwen2, Qwen3, Smollm3};
    let (given, listed) = (fields.optional_count("sliding_window")?, layer_types(config, fields)?);
    let slides_at_all = fields.flag("use_sliding_window", false)?;
    let window = match config.architecture {
        Mistral | Phi3 => given,
        Gemma2 | Gemma3 => Some(given.unwrap_or(4096)),
        Qwen2 | Qwen3 | Smollm3 | Dream => given.filter(|_| slides_at_all),
        _ if listed.as_ref().is_some_and(|layers| layers.contains(&true)) => {
            let reason = "layers of the type \"sliding_attention\" are not supported for this architecture";
            return Err(BundleError::Config(reason.into()));
        }
        _ => None,
    };
    let sliding = match listed {
        Some(sliding) => sliding,
        None => {
            let slides = usual_layers(config, form, fields)?;
            (0..config.layers).map(slides).collect()
        }
    };
    let Some(window) = window.filter(|_| sliding.contains(&true)) else { return Ok((None, Vec::new())) };
    if !config.causal {
        let reason = "a sliding window of a model that attends both ways is not supported";
        return Err(BundleError::Config(reason.into()));
    }
    let context = config.max_positions;
    // Published that way: Phi-3-mini-128k has a window of 262144 with 131072 positions. Then nothing slides.
    if config.architecture == Phi3 && window >= context {
        return Ok((None, Vec::new()));
    }
    if !(1..=context).contains(&window) {
        let reason = format!(
            "sliding_window is {window}, but the context is {context} tokens: it must be between 1 and the context"
        );
        return Err(BundleError::Config(reason));
    }
    Ok((Some(window), if sliding.contains(&false) { sliding } else { Vec::new() }))
}

/// Which layers slide, according to `layer_types`.
pub(super) fn layer_types(
    config: &ModelConfig,
    fields: &Fields<'_>,
) -> Result<Option<Vec<bool>>, BundleError> {
    let name = "layer_types";
    let Some(types) = fields.optional_texts(name)? else { return Ok(None) };
    let slides = |kind: &str| match kind {
        "full_attention" => Ok(false),
        "sliding_attention" => Ok(true),
        other => Err(BundleError::Config(format!(
            "layers of the type {other:?} are not supported; supported are full_attention and sliding_attention"
        ))),
    };
    let types = types.into_iter().map(slides).collect::<Result<Vec<_>, _>>()?;
    one_for_each_layer(config, name, types).map(Some)
}

/// Which layers slide without a list, by transformers' default for each architecture.
fn usual_layers<'a>(
    config: &ModelConfig,
    form: &'a Form,
    fields: &Fields<'_>,
) -> Result<impl FnMut(usize) -> bool + 'a, BundleError> {
    let pattern = match fields.optional_count("sliding_window_pattern")? {
        Some(pattern) => pattern,
        None => fields.optional_count("_sliding_window_pattern")?.unwrap_or(6),
    };
    let full_layers = fields.optional_count("max_window_layers")?.unwrap_or(28);
    let architecture = config.architecture;
    Ok(move |index: usize| match architecture {
        Architecture::Gemma2 => index.is_multiple_of(2),
        Architecture::Gemma3 => !(index + 1).is_multiple_of(pattern.max(1)),
        Architecture::Qwen2 | Architecture::Qwen3 | Architecture::Dream => index >= full_layers,
        Architecture::Smollm3 => form.unrotated.get(index).copied().unwrap_or(false),
        _ => true,
    })
}

// How positions are rotated, from the fields of a config.json.

/// Range of divisors and thresholds of frequencies. Frequencies are f32: outside it they would be zero or
/// infinite.
const FINITE: std::ops::RangeInclusive<f64> = 1e-6..=1e6;

/// The base of gemma3's sliding layers, if the configuration has none.
const LOCAL_THETA: f64 = 10_000.0;

/// The rotations of a model.
pub(super) struct Rotations {
    pub(super) main: Rotary,
    /// The rotation of sliding layers, if it differs.
    pub(super) sliding: Option<Rotary>,
    /// Leading dimensions of a head that are rotated, if not all.
    pub(super) rotated: Option<usize>,
}

/// transformers 5 writes `rope_parameters`, by kind of layer where they differ; before it, `rope_theta`,
/// `rope_local_base_freq` and `rope_scaling`.
pub(super) fn rotations(
    architecture: Architecture,
    fields: &Fields<'_>,
    (head_dim, max_positions): (usize, usize),
) -> Result<Rotations, BundleError> {
    let default_theta = match architecture {
        Architecture::Gemma3 => 1e6,
        Architecture::Smollm3 => 2e6,
        _ => 10_000.0,
    };
    let parameters = fields.object("rope_parameters")?;
    let by_kind = |kind: &str| parameters.map(|p| p.object(kind)).transpose().map(Option::flatten);
    let main_parameters = match by_kind("full_attention")? {
        Some(full) => Some(full),
        None => parameters,
    };
    let rotated = partial(architecture, fields, main_parameters, head_dim)?;
    let reader = Reader { fields, max_positions, dims: rotated.unwrap_or(head_dim) };
    let theta = match main_parameters.map(|p| p.optional_number("rope_theta")).transpose()?.flatten() {
        Some(theta) => theta,
        None => fields.number("rope_theta", default_theta)?,
    };
    let scaling = main_parameters.or(fields.object("rope_scaling")?);
    let main = reader.rotary(theta, scaling)?;
    let sliding = match (architecture, by_kind("sliding_attention")?) {
        (_, Some(own)) => Some(reader.rotary(own.number("rope_theta", LOCAL_THETA)?, Some(own))?),
        (Architecture::Gemma3, None) => {
            let theta = fields.number("rope_local_base_freq", LOCAL_THETA)?;
            Some(reader.rotary(theta, None)?)
        }
        _ => None,
    };
    // Dropped if it equals the main rotation.
    let sliding = sliding.filter(|own| *own != main);
    Ok(Rotations { main, sliding, rotated })
}

/// The rotations of ModernBERT's global layers and of its local ones. Before transformers 5, the bases were
/// separate fields.
pub(super) fn modernbert(
    fields: &Fields<'_>,
    (dims, max_positions): (usize, usize),
) -> Result<(Rotary, Rotary), BundleError> {
    let parameters = fields.object("rope_parameters")?;
    let reader = Reader { fields, max_positions, dims };
    let of_kind = |kind: &str, old: &str, theta: f64| {
        let own = parameters.map(|p| p.object(kind)).transpose()?.flatten();
        let given = own.map(|own| own.optional_number("rope_theta")).transpose()?.flatten();
        let theta = match given {
            Some(theta) => theta,
            None => fields.number(old, theta)?,
        };
        reader.rotary(theta, own.or(fields.object("rope_scaling")?))
    };
    Ok((
        of_kind("full_attention", "global_rope_theta", 160_000.0)?,
        of_kind("sliding_attention", "local_rope_theta", LOCAL_THETA)?,
    ))
}

/// The rotation of a model, with this base if its parameters have none.
pub(super) fn plain(
    fields: &Fields<'_>,
    theta: f64,
    (dims, max_positions): (usize, usize),
) -> Result<Rotary, BundleError> {
    let parameters = fields.object("rope_parameters")?;
    let given = parameters.map(|p| p.optional_number("rope_theta")).transpose()?.flatten();
    Reader { fields, max_positions, dims }.rotary(given.unwrap_or(theta), parameters)
}

fn partial(
    architecture: Architecture,
    fields: &Fields<'_>,
    parameters: Option<Fields<'_>>,
    head_dim: usize,
) -> Result<Option<usize>, BundleError> {
    let mut factor = 1.0;
    for place in [Some(Fields(fields.0)), parameters].into_iter().flatten() {
        factor = place.number("partial_rotary_factor", factor)?;
    }
    if factor == 1.0 {
        return Ok(None);
    }
    let rotated = (head_dim as f64 * factor) as usize;
    if architecture != Architecture::Phi3 {
        let reason = format!("partial_rotary_factor {factor} is not supported but for phi3");
        return Err(BundleError::Config(reason));
    }
    if !(0.0..1.0).contains(&factor) || rotated == 0 || !rotated.is_multiple_of(2) {
        let reason = format!(
            "partial_rotary_factor {factor} of heads of {head_dim} is {rotated}, not an even part of a head"
        );
        return Err(BundleError::Config(reason));
    }
    Ok(Some(rotated))
}

struct Reader<'a> {
    fields: &'a Fields<'a>,
    max_positions: usize,
    /// Dimensions that are rotated.
    dims: usize,
}

impl Reader<'_> {
    fn rotary(&self, theta: f64, scaling: Option<Fields<'_>>) -> Result<Rotary, BundleError> {
        if theta <= 1.0 {
            return Err(BundleError::Config(format!("rope_theta is {theta}; it must be above 1")));
        }
        let mut rotary = Rotary::plain(theta);
        let Some(scaling) = scaling else { return Ok(rotary) };
        let kind = match scaling.optional_text("rope_type")? {
            Some(kind) => kind,
            None => scaling.optional_text("type")?.unwrap_or("default"),
        };
        match kind {
            "default" => {}
            "linear" => rotary.linear_factor = rope_positive(&scaling, "factor")?,
            "llama3" => {
                rotary.llama3 = Some(Llama3Scaling {
                    factor: rope_positive(&scaling, "factor")?,
                    low_freq_factor: rope_positive(&scaling, "low_freq_factor")?,
                    high_freq_factor: rope_positive(&scaling, "high_freq_factor")?,
                    original_max_positions: scaling.count("original_max_position_embeddings")?,
                });
            }
            // `su` is its name in older configurations of phi3.
            "longrope" | "su" => rotary.longrope = Some(self.longrope(&scaling)?),
            other => {
                let reason = format!(
                    "rope scaling {other:?} is not supported; supported are default, linear, llama3 and longrope"
                );
                return Err(BundleError::Config(reason));
            }
        }
        Ok(rotary)
    }

    /// As in transformers' `_compute_longrope_parameters`.
    fn longrope(&self, scaling: &Fields<'_>) -> Result<LongRope, BundleError> {
        let original = "original_max_position_embeddings";
        let original_max_positions = match scaling.optional_count(original)? {
            Some(count) => count,
            None => self.fields.optional_count(original)?.unwrap_or(self.max_positions),
        };
        let divisors = |name: &str| {
            let divisors = scaling.numbers(name)?;
            let wanted = self.dims / 2;
            if divisors.len() == wanted && divisors.iter().all(|divisor| FINITE.contains(divisor)) {
                return Ok(divisors);
            }
            let held = divisors.len();
            let reason = format!(
                "{name} has {held} divisors; {} rotated dimensions need {wanted} between 1e-6 and 1e6",
                self.dims
            );
            Err(BundleError::Config(reason))
        };
        let (short, long) = (divisors("short_factor")?, divisors("long_factor")?);
        let factor = match scaling.optional_number("factor")? {
            Some(factor) => factor,
            None => self.max_positions as f64 / original_max_positions.max(1) as f64,
        };
        let scale = match scaling.optional_number("attention_factor")? {
            Some(scale) => scale,
            None if factor <= 1.0 || original_max_positions < 2 => 1.0,
            None => (1.0 + factor.ln() / (original_max_positions as f64).ln()).sqrt(),
        };
        Ok(LongRope { short, long, original_max_positions, scale })
    }
}

fn rope_positive(scaling: &Fields<'_>, name: &str) -> Result<f64, BundleError> {
    let number = scaling.required_number(name)?;
    if FINITE.contains(&number) {
        return Ok(number);
    }
    Err(BundleError::Config(format!("field {name:?} is {number}; it must be between 1e-6 and 1e6")))
}

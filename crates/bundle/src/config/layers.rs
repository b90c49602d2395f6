//! Differences of a model's layers from llama's, from the fields of a config.json.

use super::fields::Fields;
use super::form::{Form, NormPlacement};
use super::model::{Architecture, ModelConfig};
use crate::error::BundleError;

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

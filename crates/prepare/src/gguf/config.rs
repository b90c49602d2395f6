//! Metadata to config.json.

use bundle::BundleError;
use serde_json::{Value, json};

use super::family::Family;
use super::metadata::Metadata;
use super::reader::Header;
use super::rope;

/// Keys that change the computation if they are present, and the architectures for which it is implemented.
/// Other models are refused rather than run without it.
const TOLD: [(&str, &[&str]); 8] = [
    ("attention.clamp_kqv", &[]),
    ("attention.max_alibi_bias", &[]),
    ("attention.scale", &["gemma2", "gemma3", "granite"]),
    ("attn_logit_softcapping", &["gemma2", "gemma3"]),
    ("embedding_scale", &["granite"]),
    ("final_logit_softcapping", &["gemma2", "gemma3"]),
    ("logit_scale", &["granite"]),
    ("residual_scale", &["granite"]),
];

/// llama.cpp's names of the supported architectures.
const ARCHITECTURES: [&str; 10] =
    ["llama", "qwen2", "qwen3", "gpt2", "gemma2", "gemma3", "phi3", "olmo2", "smollm3", "granite"];

/// Tensors that are divisors of rotary frequencies.
pub(crate) struct RopeFactors {
    /// Llama 3's.
    pub(crate) llama3: Option<Vec<f32>>,
    /// LongRoPE's, short and long.
    pub(crate) longrope: Option<[Vec<f32>; 2]>,
}

/// Why there is no configuration.
pub(crate) enum Refusal {
    Architecture(BundleError),
    Damaged(String),
    Unsupported(String),
}

impl From<String> for Refusal {
    fn from(reason: String) -> Refusal {
        Refusal::Damaged(reason)
    }
}

/// A config.json in Hugging Face's field names. `rope_factors` are tensors of the model in addition to its
/// metadata.
pub(crate) fn config(
    metadata: &Metadata<'_>,
    header: &Header,
    rope_factors: RopeFactors,
) -> Result<Value, Refusal> {
    let architecture = metadata.text("general.architecture")?;
    let architecture = architecture.ok_or("metadata \"general.architecture\" is missing".to_owned())?;
    if !ARCHITECTURES.contains(&architecture) {
        let unknown = BundleError::unknown_architecture(architecture, &ARCHITECTURES);
        return Err(Refusal::Architecture(unknown));
    }
    if metadata.count("split.count")?.is_some_and(|count| count > 1) {
        return Err(Refusal::Unsupported(
            "this is one part of a split model; join the parts with `llama-gguf-split --merge`".into(),
        ));
    }
    let at = |key: &str| format!("{architecture}.{key}");
    let foreign =
        |(key, whose): &&(&str, &[&str])| metadata.contains(&at(key)) && !whose.contains(&architecture);
    if let Some((key, _)) = TOLD.iter().find(foreign) {
        return Err(Refusal::Unsupported(format!("metadata {:?} is not supported", at(key))));
    }
    if metadata.count(&at("expert_count"))?.is_some_and(|experts| experts > 0) {
        return Err(Refusal::Unsupported("mixtures of experts are not supported".into()));
    }
    if metadata.flag(&at("attention.causal"))? == Some(false) {
        return Err(Refusal::Unsupported("its attention is not causal, so it cannot decode".into()));
    }
    let mut config = match architecture {
        "gpt2" => gpt2(metadata, header)?,
        _ => llama_like(architecture, metadata, header, rope_factors)?,
    };
    let mistral = architecture == "llama" && config.get("sliding_window").is_some();
    config["model_type"] = json!(if mistral { "mistral" } else { architecture });
    config["tie_word_embeddings"] = json!(!header.tensors.contains_key("output.weight"));
    for (field, key) in [("bos_token_id", "bos"), ("eos_token_id", "eos")] {
        if let Some(id) = metadata.count(&format!("tokenizer.ggml.{key}_token_id"))? {
            config[field] = json!(id);
        }
    }
    Ok(config)
}

fn gpt2(metadata: &Metadata<'_>, header: &Header) -> Result<Value, Refusal> {
    Ok(json!({
        "activation_function": "gelu_new",
        "n_embd": metadata.required_count("gpt2.embedding_length")?,
        "n_inner": metadata.count("gpt2.feed_forward_length")?,
        "n_layer": metadata.required_count("gpt2.block_count")?,
        "n_head": metadata.required_count("gpt2.attention.head_count")?,
        "n_positions": rows(header, "position_embd.weight")?,
        "vocab_size": rows(header, "token_embd.weight")?,
        "layer_norm_epsilon": metadata.required_number("gpt2.attention.layer_norm_epsilon")?,
    }))
}

fn llama_like(
    architecture: &str,
    metadata: &Metadata<'_>,
    header: &Header,
    rope_factors: RopeFactors,
) -> Result<Value, Refusal> {
    let at = |key: &str| format!("{architecture}.{key}");
    let hidden = metadata.required_count(&at("embedding_length"))?;
    let heads = metadata.required_count(&at("attention.head_count"))?;
    let kv_heads = metadata.count(&at("attention.head_count_kv"))?.unwrap_or(heads);
    let head_dim = match metadata.count(&at("attention.key_length"))? {
        Some(length) => length,
        None if heads != 0 && hidden % heads == 0 => hidden / heads,
        None => return Err(format!("embedding length {hidden} does not divide into {heads} heads").into()),
    };
    check_heads(architecture, metadata, head_dim)?;
    let context = metadata.required_count(&at("context_length"))?;
    let window = metadata.count(&at("attention.sliding_window"))?.filter(|&window| window > 0);
    let biased = |tensor: &str| header.tensors.contains_key(&format!("blk.0.{tensor}.bias"));
    let theta = metadata.number(&at("rope.freq_base"))?.unwrap_or(10_000.0);
    let layers = metadata.required_count(&at("block_count"))?;
    // Mistral's models are llamas without biases to llama.cpp, all but their window.
    let mistral = architecture == "llama" && !biased("attn_q") && !biased("ffn_gate");
    let slides = mistral || matches!(architecture, "gemma2" | "gemma3" | "phi3");
    let mut config = json!({
        "attention_bias": biased("attn_q"),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": metadata.required_count(&at("feed_forward_length"))?,
        // Within the window, sliding and full attention are the same.
        "max_position_embeddings": window.filter(|_| !slides).map_or(context, |window| window.min(context)),
        "mlp_bias": biased("ffn_gate"),
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": kv_heads,
        "rms_norm_eps": metadata.required_number(&at("attention.layer_norm_rms_epsilon"))?,
        "rope_theta": theta,
        "vocab_size": rows(header, "token_embd.weight")?,
    });
    if let (Some(window), true) = (window, mistral) {
        config["sliding_window"] = json!(window.min(context));
    }
    let RopeFactors { llama3, longrope } = rope_factors;
    if let (None, Some(scaling)) = (&longrope, rope_scaling(architecture, metadata)?) {
        config["rope_scaling"] = scaling;
    }
    Family { architecture, metadata, head_dim, layers, longrope }.add_to(&mut config)?;
    if let Some(factors) = llama3 {
        add_llama3(&mut config, &factors, theta, head_dim)?;
    }
    Ok(config)
}

/// Refuses heads with parts of different lengths, except phi3's, which rotate only some dimensions.
fn check_heads(architecture: &str, metadata: &Metadata<'_>, head_dim: usize) -> Result<(), Refusal> {
    let at = |key: &str| format!("{architecture}.{key}");
    let value_length = metadata.count(&at("attention.value_length"))?.unwrap_or(head_dim);
    let rotated = metadata.count(&at("rope.dimension_count"))?.unwrap_or(head_dim);
    if value_length != head_dim || (rotated != head_dim && architecture != "phi3") {
        return Err(Refusal::Unsupported(format!(
            "heads of {head_dim} with values of {value_length}, of which {rotated} are rotated, are not supported"
        )));
    }
    Ok(())
}

/// Adds the scaling of rotary frequencies that `factors` divide by.
fn add_llama3(config: &mut Value, factors: &[f32], theta: f64, head_dim: usize) -> Result<(), Refusal> {
    if config.get("rope_scaling").is_some() {
        let reason = "its rope is scaled both by metadata and by rope_freqs.weight";
        return Err(Refusal::Unsupported(reason.into()));
    }
    if let Some(scaling) = rope::llama3(factors, theta, head_dim).map_err(Refusal::Unsupported)? {
        config["rope_scaling"] = scaling;
    }
    Ok(())
}

/// `rope.scaling.type` and `rope.scaling.factor`, or `rope.scale_linear` of older files. A type that is not
/// known here is passed on, to be refused by name with those that are supported.
fn rope_scaling(architecture: &str, metadata: &Metadata<'_>) -> Result<Option<Value>, Refusal> {
    let at = |key: &str| format!("{architecture}.rope.{key}");
    match metadata.text(&at("scaling.type"))? {
        Some("none") => Ok(None),
        Some(kind) => {
            let factor = metadata.number(&at("scaling.factor"))?;
            Ok(Some(json!({ "rope_type": kind, "factor": factor })))
        }
        None => {
            let key =
                if metadata.contains(&at("scaling.factor")) { "scaling.factor" } else { "scale_linear" };
            let factor = metadata.number(&at(key))?.filter(|&factor| factor != 1.0 && factor != 0.0);
            Ok(factor.map(|factor| json!({ "rope_type": "linear", "factor": factor })))
        }
    }
}

fn rows(header: &Header, tensor: &str) -> Result<usize, String> {
    match header.tensors.get(tensor) {
        Some(info) if info.shape.len() == 2 => Ok(info.shape[0]),
        Some(info) => Err(format!("tensor {tensor:?} has shape {:?}, not two dimensions", info.shape)),
        None => Err(format!("it has no tensor {tensor:?}")),
    }
}

//! A GGUF's metadata as a config.json in Hugging Face's field names, as llama.cpp reads them.

use bundle::rotary::inverse_frequencies;
use bundle::{BundleError, Llama3Scaling, Pooling, Rotary};
use serde_json::{Value, json};

use super::reader::{Header, Metadata, Refusal, missing};

/// Keys that nothing looks up and that change nothing.
const HARMLESS: [&str; 8] = [
    // Of the kind of norm that the architecture has not.
    "attention.layer_norm_epsilon",
    "attention.layer_norm_rms_epsilon",
    // gpt2's are the rows of a tensor.
    "context_length",
    "expert_used_count",
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
    "tensor_data_layout",
    "vocab_size",
];

/// llama.cpp's names of the supported architectures, and the class that is their body in transformers where that can
/// encode texts.
const ARCHITECTURES: [(&str, &str); 10] = [
    ("llama", "LlamaModel"),
    ("qwen2", "Qwen2Model"),
    ("qwen3", "Qwen3Model"),
    ("gpt2", ""),
    ("gemma2", ""),
    ("gemma3", ""),
    ("phi3", ""),
    ("olmo2", ""),
    ("smollm3", ""),
    ("granite", ""),
];

/// Tensors that are divisors of rotary frequencies.
pub(super) struct RopeFactors {
    /// Llama 3's.
    pub(super) llama3: Option<Vec<f32>>,
    /// LongRoPE's, short and long.
    pub(super) longrope: Option<[Vec<f32>; 2]>,
}

/// A config.json in Hugging Face's field names. `rope_factors` are tensors of the model in addition to its
/// metadata.
pub(super) fn config(
    metadata: &Metadata<'_>,
    header: &Header,
    rope_factors: RopeFactors,
) -> Result<Value, Refusal> {
    let unsupported = |reason: String| Err(Refusal::Unsupported(reason));
    let architecture = metadata.text("general.architecture")?;
    if let Some(reason) = other_kind(metadata, architecture)? {
        return unsupported(reason);
    }
    let architecture = architecture.ok_or("metadata \"general.architecture\" is missing".to_owned())?;
    let Some((_, body)) = ARCHITECTURES.iter().find(|(name, _)| *name == architecture) else {
        let unknown = BundleError::unknown_architecture(architecture, &ARCHITECTURES.map(|(name, _)| name));
        return Err(Refusal::Architecture(unknown));
    };
    let at = |key: &str| format!("{architecture}.{key}");
    if metadata.count(&at("expert_count"))?.is_some_and(|experts| experts > 0) {
        return unsupported("mixtures of experts are not supported".into());
    }
    let encodes = pooling(metadata)?.is_some() && !body.is_empty();
    let causal = metadata.flag(&at("attention.causal"))?.unwrap_or(true);
    if !causal && !encodes {
        return unsupported("its attention is not causal, so it cannot decode".into());
    }
    let mut config = match architecture {
        "gpt2" => gpt2(metadata, header)?,
        _ => llama_like(architecture, metadata, header, rope_factors)?,
    };
    let mistral = architecture == "llama" && config.get("sliding_window").is_some();
    config["model_type"] = json!(if mistral { "mistral" } else { architecture });
    config["tie_word_embeddings"] = json!(!header.tensors.contains_key("output.weight"));
    if encodes {
        config["architectures"] = json!([if mistral { "MistralModel" } else { body }]);
        config["is_causal"] = json!(causal);
    }
    for (field, key) in [("bos_token_id", "bos"), ("eos_token_id", "eos")] {
        if let Some(id) = metadata.count(&format!("tokenizer.ggml.{key}_token_id"))? {
            config[field] = json!(id);
        }
    }
    match metadata.left_over(&at(""), &HARMLESS) {
        None => Ok(config),
        Some(key) => unsupported(format!(
            "metadata {key:?} is not supported for {architecture}, and may change what the model computes"
        )),
    }
}

/// What a file is that holds no model of text; its type is one of llama.cpp's `gguf-py/gguf/constants.py`.
fn other_kind(metadata: &Metadata<'_>, architecture: Option<&str>) -> Result<Option<String>, String> {
    let kind = metadata.text("general.type")?;
    let base = metadata.text("general.base_model.0.name")?.unwrap_or("its base model");
    Ok(match (kind, architecture) {
        (Some("adapter"), _) => Some(format!(
            "it is an adapter (LoRA), which changes another model: merge it into {base} with llama.cpp's \
             llama-export-lora, and name the result"
        )),
        (Some("mmproj"), _) | (_, Some("clip")) => Some(
            "it is the part of a model that reads images or sound (mmproj): name the GGUF of its text part"
                .into(),
        ),
        (Some("imatrix"), _) => {
            Some("it holds the statistics of a quantisation (imatrix), and no model".into())
        }
        _ => None,
    })
}

/// How the vectors of a text's tokens become one: llama.cpp's `llama_pooling_type`. None of a model that continues texts.
pub(super) fn pooling(metadata: &Metadata<'_>) -> Result<Option<Pooling>, Refusal> {
    let Some(architecture) = metadata.text("general.architecture")? else { return Ok(None) };
    let key = format!("{architecture}.pooling_type");
    match metadata.count(&key)? {
        None | Some(0) => Ok(None),
        Some(1) => Ok(Some(Pooling::Mean)),
        Some(2) => Ok(Some(Pooling::Cls)),
        Some(3) => Ok(Some(Pooling::Last)),
        Some(4) => Err(Refusal::Unsupported(format!(
            "metadata {key:?} is 4: it is a reranker, which is not read from GGUF; name the folder that it was made from"
        ))),
        Some(other) => Err(Refusal::Unsupported(format!("metadata {key:?} is {other}; known are 0 to 4"))),
    }
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
    let scaling = rope_scaling(architecture, metadata, context)?;
    if let (None, Some(scaling)) = (&longrope, scaling) {
        // OLMo 3's, of which only the layers without a window are scaled.
        if architecture == "olmo2" && window.is_some() {
            let reason = "a window together with scaled rotary frequencies is not supported for olmo2";
            return Err(Refusal::Unsupported(reason.into()));
        }
        config["rope_scaling"] = scaling;
    }
    if !slides {
        // Read, and without a meaning within the window.
        let _ = metadata.contains(&at("attention.sliding_window_pattern"));
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
    if let Some(scaling) = llama3(factors, theta, head_dim).map_err(Refusal::Unsupported)? {
        config["rope_scaling"] = scaling;
    }
    Ok(())
}

/// `rope.scaling.type` and `rope.scaling.factor`, or `rope.scale_linear` of older files. A type that is not
/// known here is passed on, to be refused by name with those that are supported.
fn rope_scaling(
    architecture: &str,
    metadata: &Metadata<'_>,
    context: usize,
) -> Result<Option<Value>, Refusal> {
    let at = |key: &str| format!("{architecture}.rope.{key}");
    let number = |key: &str| metadata.number(&at(key));
    let kind = metadata.text(&at("scaling.type"))?;
    let scale = number("scaling.attn_factor")?.filter(|&scale| scale != 0.0 && scale != 1.0);
    if scale.is_some() && !(architecture == "phi3" || kind == Some("yarn")) {
        let key = at("scaling.attn_factor");
        return Err(Refusal::Unsupported(format!("metadata {key:?} is supported only with YaRN")));
    }
    match kind {
        Some("none") => Ok(None),
        Some("yarn") => yarn(architecture, metadata, (context, scale)).map(Some),
        Some(kind) => Ok(Some(json!({ "rope_type": kind, "factor": number("scaling.factor")? }))),
        None => {
            let key =
                if metadata.contains(&at("scaling.factor")) { "scaling.factor" } else { "scale_linear" };
            let factor = number(key)?.filter(|&factor| factor != 1.0 && factor != 0.0);
            Ok(factor.map(|factor| json!({ "rope_type": "linear", "factor": factor })))
        }
    }
}

/// YaRN in the fields of transformers. llama.cpp takes the usual parameters for these architectures, whatever the file
/// says (`rope_yarn` in ggml-cpu/ops.cpp, `llama_context` in llama-context.cpp), but its converter writes those of
/// transformers: where the two differ, there is no right value.
fn yarn(
    architecture: &str,
    metadata: &Metadata<'_>,
    (context, scale): (usize, Option<f64>),
) -> Result<Value, Refusal> {
    let at = |key: &str| format!("{architecture}.rope.scaling.{key}");
    let factor = metadata.required_number(&at("factor"))?;
    let usual_scale = 1.0 + 0.1 * factor.max(1.0).ln();
    for (key, usual) in [
        ("yarn_beta_fast", 32.0),
        ("yarn_beta_slow", 1.0),
        ("yarn_ext_factor", 1.0),
        ("yarn_attn_factor", usual_scale),
    ] {
        let given = metadata.number(&at(key))?.filter(|given| (given - usual).abs() > 1e-5 * usual);
        if let Some(given) = given {
            let key = at(key);
            return Err(Refusal::Unsupported(format!(
                "metadata {key:?} is {given}, which llama.cpp ignores and transformers does not; only {usual} is supported"
            )));
        }
    }
    let original = metadata.count(&at("original_context_length"))?.unwrap_or(context);
    let mut scaling =
        json!({ "rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original });
    if let Some(scale) = scale {
        scaling["attention_factor"] = json!(usual_scale * scale);
    }
    Ok(scaling)
}

fn rows(header: &Header, tensor: &str) -> Result<usize, String> {
    match header.tensors.get(tensor) {
        Some(info) if info.shape.len() == 2 => Ok(info.shape[0]),
        Some(info) => Err(format!("tensor {tensor:?} has shape {:?}, not two dimensions", info.shape)),
        None => Err(format!("it has no tensor {tensor:?}")),
    }
}

// Architectures beyond llama's.

/// Where sizes of a llama-like model are looked up.
struct Family<'a> {
    architecture: &'a str,
    metadata: &'a Metadata<'a>,
    head_dim: usize,
    layers: usize,
    /// The divisors of a LongRoPE, short and long.
    longrope: Option<[Vec<f32>; 2]>,
}

/// The base of gemma3's sliding layers, which no metadata named until lately.
const SLIDING_BASE: f64 = 10_000.0;
/// Every so many layers of gemma3 one does not slide.
const GEMMA3_PATTERN: usize = 6;

impl Family<'_> {
    fn at(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    fn number(&self, key: &str) -> Result<Option<f64>, String> {
        self.metadata.number(&self.at(key))
    }

    /// Adds the fields of a config.json that llama's has not.
    fn add_to(&self, config: &mut Value) -> Result<(), Refusal> {
        match self.architecture {
            "gemma2" | "gemma3" => self.gemma(config)?,
            "granite" => self.granite(config)?,
            "phi3" => self.phi3(config)?,
            _ => {}
        }
        Ok(())
    }

    fn window(&self) -> Result<Option<usize>, String> {
        Ok(self.metadata.count(&self.at("attention.sliding_window"))?.filter(|&window| window > 0))
    }

    fn gemma(&self, config: &mut Value) -> Result<(), String> {
        config["hidden_activation"] = json!("gelu_pytorch_tanh");
        config["query_pre_attn_scalar"] = json!(self.query_scalar(config)?);
        for (field, key) in [
            ("attn_logit_softcapping", "attn_logit_softcapping"),
            ("final_logit_softcapping", "final_logit_softcapping"),
        ] {
            if let Some(cap) = self.number(key)?.filter(|&cap| cap != 0.0) {
                config[field] = json!(cap);
            }
        }
        let window = self.window()?;
        match window {
            Some(window) => config["sliding_window"] = json!(window),
            None => {
                let key = self.at("attention.sliding_window");
                return Err(missing(&key));
            }
        }
        if self.architecture == "gemma3" {
            config["rope_local_base_freq"] =
                json!(self.number("rope.freq_base_swa")?.unwrap_or(SLIDING_BASE));
            self.pattern(config)?;
        }
        Ok(())
    }

    /// 1/scale² of attention, which most GGUFs leave out: llama.cpp takes the head's size, and for the models
    /// of 27 billion parameters, which it recognises by their layers, the hidden size divided by the heads.
    fn query_scalar(&self, config: &Value) -> Result<f64, String> {
        if let Some(scale) = self.number("attention.scale")?.filter(|&scale| scale > 0.0) {
            return Ok(1.0 / (scale * scale));
        }
        let of_27b = matches!((self.architecture, self.layers), ("gemma2", 46) | ("gemma3", 62));
        let number = |field: &str| config[field].as_f64().unwrap_or(1.0);
        Ok(match of_27b {
            true => number("hidden_size") / number("num_attention_heads"),
            false => self.head_dim as f64,
        })
    }

    /// Which layers slide: all but every n-th, or those that a list names.
    fn pattern(&self, config: &mut Value) -> Result<(), String> {
        let key = self.at("attention.sliding_window_pattern");
        if !self.metadata.is_list(&key) {
            let pattern = self.metadata.count(&key)?.unwrap_or(GEMMA3_PATTERN);
            config["sliding_window_pattern"] = json!(pattern);
            return Ok(());
        }
        let slides = self.metadata.flags(&key)?.unwrap_or_default();
        let kind = |&slides: &bool| if slides { "sliding_attention" } else { "full_attention" };
        config["layer_types"] = json!(slides.iter().map(kind).collect::<Vec<_>>());
        Ok(())
    }

    fn granite(&self, config: &mut Value) -> Result<(), Refusal> {
        // llama.cpp takes it for a switch.
        let rotates = self.at("rope.scaling.finetuned");
        if self.metadata.flag(&rotates)? == Some(false) {
            let reason =
                format!("metadata {rotates:?} is false: a granite without rotations is not supported");
            return Err(Refusal::Unsupported(reason));
        }
        for (field, key) in [
            ("attention_multiplier", "attention.scale"),
            ("embedding_multiplier", "embedding_scale"),
            ("residual_multiplier", "residual_scale"),
            ("logits_scaling", "logit_scale"),
        ] {
            // llama.cpp reads 0 as none.
            if let Some(number) = self.number(key)?.filter(|&number| number != 0.0) {
                config[field] = json!(number);
            } else if field == "attention_multiplier" {
                config[field] = json!((self.head_dim as f64).sqrt().recip());
            }
        }
        Ok(())
    }

    fn phi3(&self, config: &mut Value) -> Result<(), String> {
        if let Some(window) = self.window()? {
            config["sliding_window"] = json!(window);
        }
        let rotated = self.metadata.count(&self.at("rope.dimension_count"))?.unwrap_or(self.head_dim);
        if rotated != self.head_dim {
            config["partial_rotary_factor"] = json!(rotated as f64 / self.head_dim as f64);
        }
        let original = self.metadata.count(&self.at("rope.scaling.original_context_length"))?;
        let Some([short, long]) = &self.longrope else { return Ok(()) };
        let original = original.or(config["max_position_embeddings"].as_u64().map(|count| count as usize));
        let mut scaling = json!({ "rope_type": "longrope", "short_factor": short, "long_factor": long });
        if let Some(factor) = self.number("rope.scaling.attn_factor")?.filter(|&factor| factor != 0.0) {
            scaling["attention_factor"] = json!(factor);
        }
        config["original_max_position_embeddings"] = json!(original);
        config["rope_scaling"] = scaling;
        Ok(())
    }
}

// Llama 3's scaling of the rotary frequencies, recovered from the factors in a GGUF.

/// The factor of all models so far.
const LOW_FREQ_FACTOR: f64 = 1.0;

const HIGH_FREQ_FACTOR: f64 = 4.0;

/// The parameters that give `factors`, one divisor for each frequency; none where nothing is scaled.
///
/// A GGUF has the divisors alone. Its converters know three parameters besides the largest divisor: the
/// original context and two bounds, of which only ratios matter. So the bounds of every Llama 3 are assumed,
/// the context is searched among the powers of two, and it counts as found only if it gives every divisor.
fn llama3(factors: &[f32], theta: f64, head_dim: usize) -> Result<Option<Value>, String> {
    if factors.len() != head_dim / 2 {
        let count = factors.len();
        return Err(format!("rope_freqs.weight has {count} factors for heads of {head_dim}"));
    }
    if factors.iter().all(|&factor| factor == 1.0) {
        return Ok(None);
    }
    let factor = f64::from(factors.iter().copied().fold(1.0, f32::max));
    let plain = inverse_frequencies(&Rotary::plain(theta), head_dim);
    let gives_back = |original_max_positions: usize| {
        let llama3 = Some(Llama3Scaling {
            factor,
            low_freq_factor: LOW_FREQ_FACTOR,
            high_freq_factor: HIGH_FREQ_FACTOR,
            original_max_positions,
        });
        let scaled = inverse_frequencies(&Rotary { llama3, ..Rotary::plain(theta) }, head_dim);
        plain.iter().zip(scaled).zip(factors).all(|((&plain, scaled), &factor)| {
            let wanted = plain / factor;
            (scaled - wanted).abs() <= 1e-5 * wanted.abs()
        })
    };
    let contexts = (4..=24).map(|exponent| 1usize << exponent);
    // If several contexts give the same divisors, as for small heads, any of them is right.
    match contexts
        .clone()
        .find(|&context| context == 8192 && gives_back(context))
        .or_else(|| contexts.clone().find(|&context| gives_back(context)))
    {
        Some(context) => Ok(Some(json!({
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": LOW_FREQ_FACTOR,
            "high_freq_factor": HIGH_FREQ_FACTOR,
            "original_max_position_embeddings": context,
        }))),
        None => Err("rope_freqs.weight is not a llama-3 scaling of the rotary frequencies, \
                     which is the only kind supported"
            .into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As llama.cpp's converter computes them.
    fn factors(factor: f64, context: f64, theta: f64, head_dim: usize) -> Vec<f32> {
        let factors = (0..head_dim / 2).map(|i| {
            let frequency = theta.powf(-2.0 * i as f64 / head_dim as f64);
            let wavelength = 2.0 * std::f64::consts::PI / frequency;
            if wavelength < context / 4.0 {
                1.0
            } else if wavelength > context {
                factor as f32
            } else {
                let smooth = (context / wavelength - 1.0) / 3.0;
                (1.0 / ((1.0 - smooth) / factor + smooth)) as f32
            }
        });
        factors.collect()
    }

    #[test]
    fn published_llama_3_scalings_are_found_again() {
        for (factor, head_dim) in [(8.0, 128), (32.0, 64)] {
            let found = llama3(&factors(factor, 8192.0, 5e5, head_dim), 5e5, head_dim).unwrap().unwrap();
            assert_eq!(found["factor"], factor);
            assert_eq!(found["original_max_position_embeddings"], 8192);
        }
    }

    #[test]
    fn another_context_is_found_too() {
        let found = llama3(&factors(8.0, 512.0, 1e4, 64), 1e4, 64).unwrap().unwrap();
        assert_eq!(found["original_max_position_embeddings"], 512);
    }

    #[test]
    fn ones_scale_nothing() {
        assert_eq!(llama3(&[1.0; 32], 1e4, 64), Ok(None));
    }

    #[test]
    fn what_is_no_llama_3_scaling_is_refused() {
        let mut wrong = factors(8.0, 8192.0, 5e5, 64);
        wrong[0] = 2.0;
        assert!(llama3(&wrong, 5e5, 64).unwrap_err().contains("rope_freqs"));
        assert!(llama3(&wrong, 5e5, 128).unwrap_err().contains("32 factors"));
    }
}

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
const ARCHITECTURES: [(&str, &str); 11] = [
    ("llama", "LlamaModel"),
    ("qwen2", "Qwen2Model"),
    ("qwen3", "Qwen3Model"),
    ("qwen3moe", ""),
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

/// The metadata of one architecture, by the keys after its name.
struct Own<'a> {
    architecture: &'a str,
    metadata: &'a Metadata<'a>,
}

impl Own<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    fn required_count(&self, name: &str) -> Result<usize, String> {
        self.metadata.required_count(&self.key(name))
    }

    fn count(&self, name: &str) -> Result<Option<usize>, String> {
        self.metadata.count(&self.key(name))
    }

    fn required_number(&self, name: &str) -> Result<f64, String> {
        self.metadata.required_number(&self.key(name))
    }

    fn number(&self, name: &str) -> Result<Option<f64>, String> {
        self.metadata.number(&self.key(name))
    }

    /// llama.cpp reads 0 as none.
    fn number_but_0(&self, name: &str) -> Result<Option<f64>, String> {
        Ok(self.number(name)?.filter(|&number| number != 0.0))
    }

    fn window(&self) -> Result<Option<usize>, String> {
        Ok(self.count("attention.sliding_window")?.filter(|&window| window > 0))
    }
}

/// A config.json in Hugging Face's field names. `rope_factors` are tensors of the model in addition to its
/// metadata.
pub(super) fn config(
    metadata: &Metadata<'_>,
    header: &Header,
    rope_factors: RopeFactors,
) -> Result<Value, Refusal> {
    let architecture = metadata.text("general.architecture")?;
    if let Some(reason) = other_kind(metadata, architecture)? {
        return unsupported(reason);
    }
    let architecture = architecture.ok_or_else(|| missing("general.architecture"))?;
    let Some((_, body)) = ARCHITECTURES.iter().find(|(name, _)| *name == architecture) else {
        let unknown = BundleError::unknown_architecture(architecture, &ARCHITECTURES.map(|(name, _)| name));
        return Err(Refusal::Architecture(unknown));
    };
    let own = Own { architecture, metadata };
    let experts = own.count("expert_count")?.filter(|&experts| experts > 0);
    if experts.is_some() && !matches!(architecture, "llama" | "qwen3moe") {
        return unsupported(format!("a mixture of experts is not supported for {architecture}"));
    }
    let encodes = pooling(metadata)?.is_some() && !body.is_empty();
    let causal = metadata.flag(&own.key("attention.causal"))?.unwrap_or(true);
    if !causal && !encodes {
        return unsupported("its attention is not causal, so it cannot decode");
    }
    let mut config = match architecture {
        "gpt2" => gpt2(&own, header)?,
        _ => llama_like(&own, header, rope_factors)?,
    };
    let mistral = architecture == "llama" && config.get("sliding_window").is_some();
    config["model_type"] = json!(match architecture {
        "qwen3moe" => "qwen3_moe",
        "llama" if experts.is_some() => "mixtral",
        _ if mistral => "mistral",
        _ => architecture,
    });
    if let Some(experts) = experts {
        // llama.cpp takes the shares of the chosen experts for both (`build_moe_ffn` in llama-graph.cpp).
        config["num_local_experts"] = json!(experts);
        config["num_experts_per_tok"] = json!(own.required_count("expert_used_count")?);
        config["norm_topk_prob"] = json!(true);
        if let Some(width) = own.count("expert_feed_forward_length")? {
            config["moe_intermediate_size"] = json!(width);
        }
    }
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
    match metadata.left_over(&own.key(""), &HARMLESS) {
        None => Ok(config),
        Some(key) => unsupported(format!(
            "metadata {key:?} is not supported for {architecture}, and may change what the model computes"
        )),
    }
}

fn unsupported<T>(reason: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::Unsupported(reason.into()))
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
        Some(4) => unsupported(format!(
            "metadata {key:?} is 4: it is a reranker, which is not read from GGUF; name the folder that it was made from"
        )),
        Some(other) => unsupported(format!("metadata {key:?} is {other}; known are 0 to 4")),
    }
}

fn gpt2(own: &Own<'_>, header: &Header) -> Result<Value, Refusal> {
    Ok(json!({
        "activation_function": "gelu_new",
        "n_embd": own.required_count("embedding_length")?,
        "n_inner": own.count("feed_forward_length")?,
        "n_layer": own.required_count("block_count")?,
        "n_head": own.required_count("attention.head_count")?,
        "n_positions": rows(header, "position_embd.weight")?,
        "vocab_size": rows(header, "token_embd.weight")?,
        "layer_norm_epsilon": own.required_number("attention.layer_norm_epsilon")?,
    }))
}

fn llama_like(own: &Own<'_>, header: &Header, rope_factors: RopeFactors) -> Result<Value, Refusal> {
    let architecture = own.architecture;
    let hidden = own.required_count("embedding_length")?;
    let heads = own.required_count("attention.head_count")?;
    let kv_heads = own.count("attention.head_count_kv")?.unwrap_or(heads);
    let head_dim = match own.count("attention.key_length")? {
        Some(length) => length,
        None if heads != 0 && hidden % heads == 0 => hidden / heads,
        None => return Err(format!("embedding length {hidden} does not divide into {heads} heads").into()),
    };
    // Parts of a head are of one length, except that phi3 rotates only some dimensions.
    let value_length = own.count("attention.value_length")?.unwrap_or(head_dim);
    let rotated = own.count("rope.dimension_count")?.unwrap_or(head_dim);
    if value_length != head_dim || (rotated != head_dim && architecture != "phi3") {
        return unsupported(format!(
            "heads of {head_dim} with values of {value_length}, of which {rotated} are rotated, are not supported"
        ));
    }
    let context = own.required_count("context_length")?;
    let window = own.window()?;
    let biased = |tensor: &str| header.tensors.contains_key(&format!("blk.0.{tensor}.bias"));
    let theta = own.number("rope.freq_base")?.unwrap_or(10_000.0);
    let layers = own.required_count("block_count")?;
    // Mistral's models are llamas without biases to llama.cpp, all but their window.
    let mistral = architecture == "llama" && !biased("attn_q") && !biased("ffn_gate");
    let slides = mistral || matches!(architecture, "gemma2" | "gemma3" | "phi3");
    let mut config = json!({
        "attention_bias": biased("attn_q"),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": own.required_count("feed_forward_length")?,
        // Within the window, sliding and full attention are the same.
        "max_position_embeddings": window.filter(|_| !slides).map_or(context, |window| window.min(context)),
        "mlp_bias": biased("ffn_gate"),
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": kv_heads,
        "rms_norm_eps": own.required_number("attention.layer_norm_rms_epsilon")?,
        "rope_theta": theta,
        "vocab_size": rows(header, "token_embd.weight")?,
    });
    if let (Some(window), true) = (window, mistral) {
        config["sliding_window"] = json!(window.min(context));
    }
    let RopeFactors { llama3: factors, longrope } = rope_factors;
    let scaling = rope_scaling(own, context)?;
    if let (None, Some(scaling)) = (&longrope, scaling) {
        // OLMo 3's, of which only the layers without a window are scaled.
        if architecture == "olmo2" && window.is_some() {
            return unsupported(
                "a window together with scaled rotary frequencies is not supported for olmo2",
            );
        }
        config["rope_scaling"] = scaling;
    }
    if !slides {
        // Read, and without a meaning within the window.
        let _ = own.metadata.contains(&own.key("attention.sliding_window_pattern"));
    }
    match architecture {
        "gemma2" | "gemma3" => own.gemma(&mut config, head_dim, layers)?,
        "granite" => own.granite(&mut config, head_dim)?,
        "phi3" => own.phi3(&mut config, (rotated, head_dim), (context, longrope))?,
        _ => {}
    }
    let Some(factors) = factors else { return Ok(config) };
    if config.get("rope_scaling").is_some() {
        return unsupported("its rope is scaled both by metadata and by rope_freqs.weight");
    }
    if let Some(scaling) = llama3(&factors, theta, head_dim).map_err(Refusal::Unsupported)? {
        config["rope_scaling"] = scaling;
    }
    Ok(config)
}

/// `rope.scaling.type` and `rope.scaling.factor`, or `rope.scale_linear` of older files. A type that is not
/// known here is passed on, to be refused by name with those that are supported.
fn rope_scaling(own: &Own<'_>, context: usize) -> Result<Option<Value>, Refusal> {
    let kind = own.metadata.text(&own.key("rope.scaling.type"))?;
    let scale = own.number_but_0("rope.scaling.attn_factor")?.filter(|&scale| scale != 1.0);
    if scale.is_some() && !(own.architecture == "phi3" || kind == Some("yarn")) {
        let key = own.key("rope.scaling.attn_factor");
        return unsupported(format!("metadata {key:?} is supported only with YaRN"));
    }
    match kind {
        Some("none") => Ok(None),
        Some("yarn") => yarn(own, context, scale).map(Some),
        Some(kind) => Ok(Some(json!({ "rope_type": kind, "factor": own.number("rope.scaling.factor")? }))),
        None => {
            let is_new = own.metadata.contains(&own.key("rope.scaling.factor"));
            let key = if is_new { "rope.scaling.factor" } else { "rope.scale_linear" };
            let factor = own.number_but_0(key)?.filter(|&factor| factor != 1.0);
            Ok(factor.map(|factor| json!({ "rope_type": "linear", "factor": factor })))
        }
    }
}

/// YaRN in the fields of transformers. llama.cpp takes the usual parameters for these architectures, whatever the file
/// says (`rope_yarn` in ggml-cpu/ops.cpp, `llama_context` in llama-context.cpp), but its converter writes those of
/// transformers: where the two differ, there is no right value.
fn yarn(own: &Own<'_>, context: usize, scale: Option<f64>) -> Result<Value, Refusal> {
    let factor = own.required_number("rope.scaling.factor")?;
    let usual_scale = 1.0 + 0.1 * factor.max(1.0).ln();
    for (name, usual) in [
        ("rope.scaling.yarn_beta_fast", 32.0),
        ("rope.scaling.yarn_beta_slow", 1.0),
        ("rope.scaling.yarn_ext_factor", 1.0),
        ("rope.scaling.yarn_attn_factor", usual_scale),
    ] {
        let given = own.number(name)?.filter(|given| (given - usual).abs() > 1e-5 * usual);
        if let Some(given) = given {
            let key = own.key(name);
            return unsupported(format!(
                "metadata {key:?} is {given}, which llama.cpp ignores and transformers does not; only {usual} is supported"
            ));
        }
    }
    let original = own.count("rope.scaling.original_context_length")?.unwrap_or(context);
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

// The fields of a config.json that llama's has not.

/// The base of gemma3's sliding layers, which no metadata named until lately.
const SLIDING_BASE: f64 = 10_000.0;
/// Every so many layers of gemma3 one does not slide.
const GEMMA3_PATTERN: usize = 6;

impl Own<'_> {
    fn gemma(&self, config: &mut Value, head_dim: usize, layers: usize) -> Result<(), String> {
        config["hidden_activation"] = json!("gelu_pytorch_tanh");
        // 1/scale² of attention, which most GGUFs leave out: llama.cpp takes the head's size, and for the models of
        // 27 billion parameters, which it recognises by their layers, the hidden size divided by the heads.
        let scale = self.number("attention.scale")?.filter(|&scale| scale > 0.0);
        let of_27b = matches!((self.architecture, layers), ("gemma2", 46) | ("gemma3", 62));
        let number = |field: &str| config[field].as_f64().unwrap_or(1.0);
        config["query_pre_attn_scalar"] = json!(match scale {
            Some(scale) => 1.0 / (scale * scale),
            None if of_27b => number("hidden_size") / number("num_attention_heads"),
            None => head_dim as f64,
        });
        for name in ["attn_logit_softcapping", "final_logit_softcapping"] {
            if let Some(cap) = self.number_but_0(name)? {
                config[name] = json!(cap);
            }
        }
        let window = self.window()?.ok_or_else(|| missing(&self.key("attention.sliding_window")))?;
        config["sliding_window"] = json!(window);
        if self.architecture == "gemma2" {
            return Ok(());
        }
        config["rope_local_base_freq"] = json!(self.number("rope.freq_base_swa")?.unwrap_or(SLIDING_BASE));
        // Which layers slide: all but every n-th, or those that a list names.
        let key = self.key("attention.sliding_window_pattern");
        if !self.metadata.is_list(&key) {
            let pattern = self.metadata.count(&key)?.unwrap_or(GEMMA3_PATTERN);
            config["sliding_window_pattern"] = json!(pattern);
            return Ok(());
        }
        let slides = self.metadata.flags(&key)?.unwrap_or_default();
        let kind = |&slides: &bool| if slides { "sliding_attention" } else { "full_attention" };
        config["layer_types"] = slides.iter().map(kind).collect();
        Ok(())
    }

    fn granite(&self, config: &mut Value, head_dim: usize) -> Result<(), Refusal> {
        // llama.cpp takes it for a switch.
        let rotates = self.key("rope.scaling.finetuned");
        if self.metadata.flag(&rotates)? == Some(false) {
            return unsupported(format!(
                "metadata {rotates:?} is false: a granite without rotations is not supported"
            ));
        }
        config["attention_multiplier"] = json!((head_dim as f64).sqrt().recip());
        for (field, name) in [
            ("attention_multiplier", "attention.scale"),
            ("embedding_multiplier", "embedding_scale"),
            ("residual_multiplier", "residual_scale"),
            ("logits_scaling", "logit_scale"),
        ] {
            if let Some(number) = self.number_but_0(name)? {
                config[field] = json!(number);
            }
        }
        Ok(())
    }

    fn phi3(
        &self,
        config: &mut Value,
        (rotated, head_dim): (usize, usize),
        (context, longrope): (usize, Option<[Vec<f32>; 2]>),
    ) -> Result<(), String> {
        if let Some(window) = self.window()? {
            config["sliding_window"] = json!(window);
        }
        if rotated != head_dim {
            config["partial_rotary_factor"] = json!(rotated as f64 / head_dim as f64);
        }
        let original = self.count("rope.scaling.original_context_length")?;
        let Some([short, long]) = longrope else { return Ok(()) };
        let mut scaling = json!({ "rope_type": "longrope", "short_factor": short, "long_factor": long });
        if let Some(factor) = self.number_but_0("rope.scaling.attn_factor")? {
            scaling["attention_factor"] = json!(factor);
        }
        config["original_max_position_embeddings"] = json!(original.unwrap_or(context));
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
    // If several contexts give the same divisors, as for small heads, any of them is right.
    let mut contexts = [8192].into_iter().chain((4..=24).map(|exponent| 1usize << exponent));
    match contexts.find(|&context| gives_back(context)) {
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
    fn llama_3_s_scalings_are_found_again_and_others_are_refused() {
        for (factor, context, theta, head_dim) in
            [(8.0, 8192.0, 5e5, 128), (32.0, 8192.0, 5e5, 64), (8.0, 512.0, 1e4, 64)]
        {
            let factors = factors(factor, context, theta, head_dim);
            let found = llama3(&factors, theta, head_dim).unwrap().unwrap();
            assert_eq!(
                (&found["factor"], &found["original_max_position_embeddings"]),
                (&json!(factor), &json!(context as u64))
            );
        }
        assert_eq!(llama3(&[1.0; 32], 1e4, 64), Ok(None), "ones scale nothing");
        let mut wrong = factors(8.0, 8192.0, 5e5, 64);
        wrong[0] = 2.0;
        assert!(llama3(&wrong, 5e5, 64).unwrap_err().contains("rope_freqs"));
        assert!(llama3(&wrong, 5e5, 128).unwrap_err().contains("32 factors"));
    }
}

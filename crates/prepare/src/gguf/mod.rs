//! A GGUF file: one file that holds configuration, tokenizer and weights, these often quantised.

mod family;
mod reader;
mod tokenizer;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use bundle::rotary::inverse_frequencies;
use bundle::{BundleError, Element, Llama3Scaling, ModelConfig, NormPlacement, Rotary, TensorSpec};
use candle_core::CpuStorage;
use candle_core::quantized::GgmlDType;
use family::Family;
use reader::{Header, Metadata, TensorInfo};
use serde_json::{Value, json};

use crate::PrepareError;
use crate::model::{self, Document, Model, SourceFile, Tensors, check_layers, decode, matrix, most_common};

/// Divisors of the rotary frequencies, which go into config.json: Llama 3's, and LongRoPE's short and long ones.
const ROPE_FACTORS: [&str; 3] =
    ["rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight"];

pub(crate) fn open(path: &Path) -> Result<Model, PrepareError> {
    if path.is_dir() {
        let reason = "it is a directory, not a .gguf file".into();
        return Err(PrepareError::NotAModel { path: path.to_path_buf(), reason });
    }
    let file = SourceFile::open(path)?;
    let header = Header::parse(file.bytes()).map_err(|reason| PrepareError::damaged(path, reason))?;
    let metadata = Metadata::new(&header, file.bytes());

    let factors = |name: &str| {
        let info = header.tensors.get(name);
        let values = info.map(|info| dequantise(info.dtype, &file.bytes()[info.range.clone()])).transpose();
        values.map_err(|reason| PrepareError::tensor(path, name, reason))
    };
    let [llama3, short, long] = ROPE_FACTORS.map(factors);
    let rope_factors = RopeFactors { llama3: llama3?, longrope: short?.zip(long?).map(<[_; 2]>::from) };
    let json = self::config(&metadata, &header, rope_factors).map_err(|refusal| {
        let path = path.to_path_buf();
        match refusal {
            Refusal::Architecture(source) => PrepareError::Model { path, source },
            Refusal::Damaged(reason) => PrepareError::Damaged { path, reason },
            Refusal::Unsupported(reason) => PrepareError::Unsupported { path, reason },
        }
    })?;
    let config = ModelConfig::from_json(&json)
        .map_err(|source| PrepareError::Model { path: path.to_path_buf(), source })?;
    let mut bytes = serde_json::to_vec_pretty(&json).expect("a value is valid JSON");
    bytes.push(b'\n');
    let config_json = Document { bytes, derived: "built from the GGUF's metadata".into() };
    let architecture = metadata.text("general.architecture").ok().flatten();
    let tokenizer = tokenizer::build(&metadata, config.vocab_size);
    let chat = build(&metadata);

    let shared = file.share();
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let mut derived = format!("from {}, dequantised", file.name());
    // llama.cpp rotates neighbouring elements of these models' heads; Hugging Face rotates an element and the
    // one half a head further on. llama.cpp's converter reorders the rows of q and k accordingly. Other
    // architectures are left as they are.
    let permuted = matches!(architecture, Some("llama" | "granite" | "smollm3"));
    if permuted {
        derived.push_str(", q and k rows put back from GGUF's order for interleaved rotation");
    }
    if config.form.norm_offset != 0.0 {
        derived.push_str(", norms less the 1 that GGUF has added");
    }
    let tensors = Weights::open(file, header, &config, permuted)?;
    Ok(Model {
        name,
        kind: "gguf",
        files: vec![shared],
        seed: None,
        config,
        config_json,
        tokenizer,
        chat,
        pooling: None,
        tensors: Box::new(tensors),
        verbatim: Vec::new(),
        derived,
    })
}

struct Weights {
    file: SourceFile,
    /// By the bundle's name of the tensor.
    places: BTreeMap<String, Place>,
}

struct Place {
    info: TensorInfo,
    /// Heads with rows in GGUF's order, 0 for none.
    permuted_heads: usize,
    /// The number that GGUF has added to the weight of a norm.
    offset: f32,
}

impl Weights {
    fn open(
        file: SourceFile,
        header: Header,
        config: &ModelConfig,
        permuted: bool,
    ) -> Result<Weights, PrepareError> {
        let path = file.path().to_path_buf();
        let mut held = header.tensors;
        check_layers(config, &path, held.len())?;
        held.retain(|name, _| !ROPE_FACTORS.contains(&name.as_str()));
        let mut places = BTreeMap::new();
        for spec in config.tensors() {
            let name = gguf_name(&spec.name, config.form.norms)
                .expect("every tensor of these architectures has a name");
            let Some(info) = held.remove(&name) else {
                let reason = format!("is missing; the metadata call for one of shape {:?}", spec.shape);
                return Err(PrepareError::tensor(&path, &name, reason));
            };
            if info.shape != spec.shape {
                let reason =
                    format!("has shape {:?}, but the metadata call for {:?}", info.shape, spec.shape);
                return Err(PrepareError::tensor(&path, &name, reason));
            }
            if let Err(number) = info.dtype {
                return Err(PrepareError::tensor(&path, &name, cannot_dequantise(number)));
            }
            let permuted_heads = if permuted { permuted_heads(&spec.name, config) } else { 0 };
            let is_norm = spec.name.ends_with("norm.weight");
            let offset = if is_norm { config.form.norm_offset } else { 0.0 };
            places.insert(spec.name, Place { info, permuted_heads, offset });
        }
        if let Some(name) = held.keys().next() {
            let reason = "has no place in the model that the metadata describe";
            return Err(PrepareError::tensor(&path, name, reason));
        }
        Ok(Weights { file, places })
    }
}

impl Tensors for Weights {
    fn stored(&self) -> Option<String> {
        most_common(self.places.values().filter_map(|Place { info, .. }| {
            // candle calls them Q4K, everyone else Q4_K.
            let name = format!("{:?}", info.dtype.ok()?);
            let name = name.strip_suffix('K').map_or(name.clone(), |bits| format!("{bits}_K"));
            Some((name, info.shape.iter().product()))
        }))
    }

    fn read(&self, spec: &TensorSpec, rows: Range<usize>) -> Result<Vec<f32>, PrepareError> {
        let Place { info, permuted_heads, offset } = &self.places[&spec.name];
        let (all, columns) = matrix(spec);
        let read = |rows: Range<usize>| {
            let range = info.rows(rows, columns);
            let values = dequantise(info.dtype, &self.file.bytes()[range.clone()]);
            self.file.release(range);
            let mut values =
                values.map_err(|reason| PrepareError::tensor(self.file.path(), &spec.name, reason))?;
            if *offset != 0.0 {
                values.iter_mut().for_each(|value| *value -= offset);
            }
            Ok(values)
        };
        if *permuted_heads == 0 {
            return read(rows);
        }
        let mut values = Vec::with_capacity(rows.len() * columns);
        for row in rows {
            let from = permuted(row, all / permuted_heads);
            values.extend(read(from..from + 1)?);
        }
        Ok(values)
    }

    fn path_of(&self, _: &str) -> &Path {
        self.file.path()
    }
}

fn dequantise(dtype: Result<GgmlDType, u32>, bytes: &[u8]) -> Result<Vec<f32>, String> {
    let dtype = dtype.map_err(cannot_dequantise)?;
    let stored = match dtype {
        GgmlDType::F32 => Some(Element::F32),
        GgmlDType::F16 => Some(Element::F16),
        GgmlDType::BF16 => Some(Element::Bf16),
        _ => None,
    };
    if let Some(stored) = stored {
        return Ok(decode(bytes, stored));
    }
    let elements = bytes.len() / dtype.type_size() * dtype.block_size();
    match dtype.from_data(bytes.into()).dequantize(elements) {
        Ok(CpuStorage::F32(values)) => Ok(values),
        Ok(_) => Err(format!("was not dequantised to f32 from {dtype:?}")),
        Err(e) => Err(format!("cannot be dequantised: {e}")),
    }
}

fn cannot_dequantise(number: u32) -> String {
    format!(
        "is stored as {}, which cannot be dequantised; supported are F32, F16, BF16, Q4_0 to Q8_1 and Q2_K to Q8_K",
        reader::type_name(number)
    )
}

/// Heads of queries or of keys, depending on the tensor.
fn permuted_heads(name: &str, config: &ModelConfig) -> usize {
    match name {
        _ if name.contains(".q_proj.") => config.heads,
        _ if name.contains(".k_proj.") => config.kv_heads,
        _ => 0,
    }
}

/// The row of the GGUF that holds `row`: each head's rows go from (d/2, 2) to (2, d/2).
fn permuted(row: usize, head_dim: usize) -> usize {
    let (head, within) = (row / head_dim, row % head_dim);
    let (second, pair) = (within / (head_dim / 2), within % (head_dim / 2));
    head * head_dim + 2 * pair + second
}

// `tokenizer.chat_template` and the tokens that it may name.

/// The template's names for special tokens, and the metadata's.
const TOKENS: [(&str, &str); 4] =
    [("bos_token", "bos"), ("eos_token", "eos"), ("unk_token", "unknown"), ("pad_token", "padding")];

/// The document, where the file holds a template. One that is not text is none.
fn build(metadata: &Metadata<'_>) -> Option<Document> {
    let template = metadata.text("tokenizer.chat_template").ok()??;
    let vocabulary = metadata.texts("tokenizer.ggml.tokens").ok().flatten().unwrap_or_default();
    let token = |&(name, key): &(&'static str, &str)| {
        let id = metadata.count(&format!("tokenizer.ggml.{key}_token_id")).ok()??;
        Some((name, *vocabulary.get(id)?))
    };
    let tokens = TOKENS.iter().filter_map(token);
    Some(model::document(template, tokens, "built from the GGUF's chat template and special tokens".into()))
}

// GGUF's names of tensors where they differ from Hugging Face's.

/// Outside of the layers.
const GLOBAL: [(&str, &str); 6] = [
    ("lm_head", "output"),
    ("model.embed_tokens", "token_embd"),
    ("model.norm", "output_norm"),
    ("transformer.ln_f", "output_norm"),
    ("transformer.wpe", "position_embd"),
    ("transformer.wte", "token_embd"),
];

/// Names after `model.layers.N.` or `transformer.h.N.`, and after `blk.N.`.
const LAYER: [(&str, &str); 19] = [
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("self_attn.o_proj", "attn_output"),
    ("post_attention_layernorm", "ffn_norm"),
    ("self_attn.qkv_proj", "attn_qkv"),
    ("mlp.gate_up_proj", "ffn_up"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("ln_1", "attn_norm"),
    ("attn.c_attn", "attn_qkv"),
    ("attn.c_proj", "attn_output"),
    ("ln_2", "ffn_norm"),
    ("mlp.c_fc", "ffn_up"),
    ("mlp.c_proj", "ffn_down"),
];

/// The norms of a model that has some after its blocks, in place of those above.
const BEHIND: [(&str, &str); 3] = [
    ("post_attention_layernorm", "post_attention_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
];

/// `model.layers.3.self_attn.q_proj.weight` to `blk.3.attn_q.weight`.
fn gguf_name(name: &str, norms: NormPlacement) -> Option<String> {
    let (stem, kind) = name.rsplit_once('.')?;
    let layer = stem.strip_prefix("model.layers.").or_else(|| stem.strip_prefix("transformer.h."));
    let (prefix, stem, table) = match layer {
        Some(layer) => {
            let (index, part) = layer.split_once('.')?;
            (format!("blk.{index}."), part, &LAYER[..])
        }
        None => (String::new(), stem, &GLOBAL[..]),
    };
    let behind = if norms == NormPlacement::Before { &[][..] } else { &BEHIND };
    let (_, theirs) = behind.iter().chain(table).find(|(ours, _)| *ours == stem)?;
    Some(format!("{prefix}{theirs}.{kind}"))
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

// Metadata to config.json.

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
struct RopeFactors {
    /// Llama 3's.
    pub(crate) llama3: Option<Vec<f32>>,
    /// LongRoPE's, short and long.
    pub(crate) longrope: Option<[Vec<f32>; 2]>,
}

/// Why there is no configuration.
enum Refusal {
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
fn config(metadata: &Metadata<'_>, header: &Header, rope_factors: RopeFactors) -> Result<Value, Refusal> {
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
    if let Some(scaling) = llama3(factors, theta, head_dim).map_err(Refusal::Unsupported)? {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back_in_rotate_half_order() {
        // Heads of four rows: llama.cpp interleaves the halves (0, 1 | 2, 3) to 0, 2, 1, 3.
        let held = [0, 2, 1, 3, 10, 12, 11, 13];
        let rows: Vec<_> = (0..8).map(|row| held[permuted(row, 4)]).collect();
        assert_eq!(rows, [0, 1, 2, 3, 10, 11, 12, 13]);
    }

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

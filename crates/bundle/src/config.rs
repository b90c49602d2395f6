//! `config.json` in Hugging Face's field names, resolved into what an engine needs to know.
//!
//! An engine never asks which architecture it runs: it reads the properties here and the tensor
//! names of [`ModelConfig::layer`].

use std::path::Path;

use serde_json::Value;

use crate::BundleError;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Architecture {
    Llama,
    Mistral,
    Qwen2,
    Qwen3,
    Gpt2,
}

impl Architecture {
    /// From `model_type` of a config.json, or `general.architecture` of a GGUF.
    pub fn from_model_type(text: &str) -> Result<Architecture, BundleError> {
        Ok(match text {
            "llama" => Architecture::Llama,
            "mistral" => Architecture::Mistral,
            "qwen2" => Architecture::Qwen2,
            "qwen3" => Architecture::Qwen3,
            "gpt2" => Architecture::Gpt2,
            other => return Err(BundleError::UnsupportedArchitecture(other.to_owned())),
        })
    }
}

/// Between the two linear layers of the feed-forward block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// x · σ(x)
    Silu,
    /// tanh approximation of GELU (`gelu_new`, `gelu_pytorch_tanh`)
    GeluTanh,
    /// exact GELU, by the error function
    GeluErf,
    Relu,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Position {
    /// A learned embedding is added to the token's.
    Learned,
    /// Queries and keys are rotated, rotate-half convention.
    Rotary(Rotary),
}

#[derive(Debug, Clone, PartialEq)]
pub struct Rotary {
    pub theta: f64,
    /// Frequencies are divided by this (`rope_type` "linear"); 1 where there is no such scaling.
    pub linear_factor: f64,
    pub llama3: Option<Llama3Scaling>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Llama3Scaling {
    pub factor: f64,
    pub low_freq_factor: f64,
    pub high_freq_factor: f64,
    pub original_max_positions: usize,
}

/// A decoder-only transformer, as far as an engine must know it.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    pub architecture: Architecture,
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub vocab_size: usize,
    /// Longest context in tokens. Where the model slides a window over its keys, this is the
    /// window: within it, sliding and full attention are the same.
    pub max_positions: usize,
    /// RMSNorm without biases, or LayerNorm with them.
    pub rms_norm: bool,
    pub norm_epsilon: f64,
    pub activation: Activation,
    /// down(act(gate(x)) · up(x)) rather than down(act(up(x))).
    pub gated_mlp: bool,
    pub position: Position,
    pub qkv_bias: bool,
    pub output_bias: bool,
    pub mlp_bias: bool,
    /// RMSNorm over each head of q and k, before the rotation.
    pub qk_norm: bool,
    /// The output head shares the embedding's weight.
    pub tied_embeddings: bool,
}

/// Name and shape of one tensor of a bundle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    pub name: String,
    pub shape: Vec<usize>,
}

/// A linear layer: `weights` are `[out, in]`, to be stacked ([`crate::Weights::stacked`]) into one
/// or used one by one; `biases` are `[out]` each, or empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinearNames {
    pub weights: Vec<String>,
    pub biases: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NormNames {
    pub weight: String,
    pub bias: Option<String>,
}

/// The tensors of one layer, in the order in which they lie in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerNames {
    pub attention_norm: NormNames,
    /// `[q, k, v]`, or one already fused tensor of `[q + k + v, hidden]`.
    pub qkv: LinearNames,
    pub q_norm: Option<String>,
    pub k_norm: Option<String>,
    pub output: LinearNames,
    pub mlp_norm: NormNames,
    /// `[gate, up]` of a gated MLP, or `[up]`.
    pub gate_up: LinearNames,
    pub down: LinearNames,
}

impl ModelConfig {
    pub fn read(path: &Path) -> Result<ModelConfig, BundleError> {
        let text = std::fs::read_to_string(path).map_err(BundleError::io(path))?;
        let value = serde_json::from_str(&text)
            .map_err(|e| BundleError::Config(format!("{} does not parse: {e}", path.display())))?;
        ModelConfig::from_json(&value)
    }

    pub fn from_json(value: &Value) -> Result<ModelConfig, BundleError> {
        let fields = Fields(value);
        let architecture = Architecture::from_model_type(fields.text("model_type")?)?;
        let config = match architecture {
            Architecture::Gpt2 => gpt2(&fields)?,
            _ => llama_like(architecture, &fields)?,
        };
        config.check()?;
        Ok(config)
    }

    /// Rows of q, and of k (as many as of v).
    pub fn qkv_rows(&self) -> (usize, usize) {
        (self.heads * self.head_dim, self.kv_heads * self.head_dim)
    }

    /// Every tensor a bundle of this model holds, in file order.
    pub fn tensors(&self) -> Vec<TensorSpec> {
        let hidden = self.hidden_size;
        let (q_rows, kv_rows) = self.qkv_rows();
        let mut specs = Vec::new();
        let mut add = |name: &str, shape: &[usize]| {
            specs.push(TensorSpec { name: name.to_owned(), shape: shape.to_vec() });
        };
        let linear =
            |add: &mut dyn FnMut(&str, &[usize]), names: &LinearNames, rows: &[usize], columns: usize| {
                for (name, rows) in names.weights.iter().zip(rows) {
                    add(name, &[*rows, columns]);
                }
                for (name, rows) in names.biases.iter().zip(rows) {
                    add(name, &[*rows]);
                }
            };
        let norm = |add: &mut dyn FnMut(&str, &[usize]), names: &NormNames| {
            add(&names.weight, &[hidden]);
            if let Some(bias) = &names.bias {
                add(bias, &[hidden]);
            }
        };
        add(&self.embedding(), &[self.vocab_size, hidden]);
        if let Some(name) = self.position_embedding() {
            add(&name, &[self.max_positions, hidden]);
        }
        for index in 0..self.layers {
            let layer = self.layer(index);
            norm(&mut add, &layer.attention_norm);
            if layer.qkv.weights.len() == 3 {
                linear(&mut add, &layer.qkv, &[q_rows, kv_rows, kv_rows], hidden);
            } else {
                linear(&mut add, &layer.qkv, &[q_rows + 2 * kv_rows], hidden);
            }
            for name in layer.q_norm.iter().chain(&layer.k_norm) {
                add(name, &[self.head_dim]);
            }
            linear(&mut add, &layer.output, &[hidden], q_rows);
            norm(&mut add, &layer.mlp_norm);
            linear(&mut add, &layer.gate_up, &[self.intermediate_size, self.intermediate_size], hidden);
            linear(&mut add, &layer.down, &[hidden], self.intermediate_size);
        }
        norm(&mut add, &self.final_norm());
        if !self.tied_embeddings {
            add(&self.lm_head(), &[self.vocab_size, hidden]);
        }
        specs
    }

    pub fn embedding(&self) -> String {
        match self.architecture {
            Architecture::Gpt2 => "transformer.wte.weight".into(),
            _ => "model.embed_tokens.weight".into(),
        }
    }

    pub fn position_embedding(&self) -> Option<String> {
        (self.position == Position::Learned).then(|| "transformer.wpe.weight".into())
    }

    pub fn final_norm(&self) -> NormNames {
        match self.architecture {
            Architecture::Gpt2 => self.norm("transformer.ln_f"),
            _ => self.norm("model.norm"),
        }
    }

    /// The output head's weight, `[vocabulary, hidden]`: the embedding itself where they are tied.
    pub fn lm_head(&self) -> String {
        if self.tied_embeddings { self.embedding() } else { "lm_head.weight".into() }
    }

    pub fn layer(&self, index: usize) -> LayerNames {
        if self.architecture == Architecture::Gpt2 {
            let at = |part: &str| format!("transformer.h.{index}.{part}");
            let linear = |part: &str| LinearNames {
                weights: vec![at(&format!("{part}.weight"))],
                biases: vec![at(&format!("{part}.bias"))],
            };
            return LayerNames {
                attention_norm: self.norm(&at("ln_1")),
                qkv: linear("attn.c_attn"),
                q_norm: None,
                k_norm: None,
                output: linear("attn.c_proj"),
                mlp_norm: self.norm(&at("ln_2")),
                gate_up: linear("mlp.c_fc"),
                down: linear("mlp.c_proj"),
            };
        }
        let at = |part: &str| format!("model.layers.{index}.{part}");
        let linear = |parts: &[&str], bias: bool| {
            let named = |kind: &str| parts.iter().map(|part| at(&format!("{part}.{kind}"))).collect();
            LinearNames { weights: named("weight"), biases: if bias { named("bias") } else { Vec::new() } }
        };
        LayerNames {
            attention_norm: self.norm(&at("input_layernorm")),
            qkv: linear(&["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"], self.qkv_bias),
            q_norm: self.qk_norm.then(|| at("self_attn.q_norm.weight")),
            k_norm: self.qk_norm.then(|| at("self_attn.k_norm.weight")),
            output: linear(&["self_attn.o_proj"], self.output_bias),
            mlp_norm: self.norm(&at("post_attention_layernorm")),
            gate_up: linear(&["mlp.gate_proj", "mlp.up_proj"], self.mlp_bias),
            down: linear(&["mlp.down_proj"], self.mlp_bias),
        }
    }

    fn norm(&self, prefix: &str) -> NormNames {
        NormNames {
            weight: format!("{prefix}.weight"),
            bias: (!self.rms_norm).then(|| format!("{prefix}.bias")),
        }
    }

    fn check(&self) -> Result<(), BundleError> {
        let positive = [
            ("hidden size", self.hidden_size),
            ("intermediate size", self.intermediate_size),
            ("number of layers", self.layers),
            ("number of attention heads", self.heads),
            ("number of key/value heads", self.kv_heads),
            ("head dimension", self.head_dim),
            ("vocabulary size", self.vocab_size),
            ("number of positions", self.max_positions),
        ];
        // The products below, and those of every engine, must not overflow on a lying header.
        if let Some((what, value)) = positive.into_iter().find(|(_, value)| !(1..1 << 28).contains(value)) {
            return Err(BundleError::Config(format!("{what} is {value}, which no model has")));
        }
        if self.heads % self.kv_heads != 0 {
            let (heads, kv_heads) = (self.heads, self.kv_heads);
            let reason = format!("{heads} attention heads cannot share {kv_heads} key/value heads evenly");
            return Err(BundleError::Config(reason));
        }
        if self.head_dim % 2 != 0 && self.position != Position::Learned {
            let reason = format!("head dimension {} is odd and cannot be rotated", self.head_dim);
            return Err(BundleError::Config(reason));
        }
        Ok(())
    }
}

fn gpt2(fields: &Fields<'_>) -> Result<ModelConfig, BundleError> {
    let hidden_size = fields.count("n_embd")?;
    let heads = fields.count("n_head")?;
    if fields.flag("scale_attn_by_inverse_layer_idx", false)? || !fields.flag("scale_attn_weights", true)? {
        let reason = "gpt2 variants of attention scaling (scale_attn_by_inverse_layer_idx, scale_attn_weights=false) are not supported";
        return Err(BundleError::Config(reason.into()));
    }
    Ok(ModelConfig {
        architecture: Architecture::Gpt2,
        hidden_size,
        intermediate_size: fields.optional_count("n_inner")?.unwrap_or(4 * hidden_size),
        layers: fields.count("n_layer")?,
        heads,
        kv_heads: heads,
        head_dim: even_share(hidden_size, heads)?,
        vocab_size: fields.count("vocab_size")?,
        max_positions: fields.count("n_positions")?,
        rms_norm: false,
        norm_epsilon: fields.number("layer_norm_epsilon", 1e-5)?,
        activation: activation(fields.optional_text("activation_function")?.unwrap_or("gelu_new"))?,
        gated_mlp: false,
        position: Position::Learned,
        qkv_bias: true,
        output_bias: true,
        mlp_bias: true,
        qk_norm: false,
        tied_embeddings: fields.flag("tie_word_embeddings", true)?,
    })
}

fn llama_like(architecture: Architecture, fields: &Fields<'_>) -> Result<ModelConfig, BundleError> {
    let hidden_size = fields.count("hidden_size")?;
    let heads = fields.count("num_attention_heads")?;
    let head_dim = match (fields.optional_count("head_dim")?, architecture) {
        (Some(given), _) => given,
        (None, Architecture::Qwen3) => 128, // transformers' default for Qwen3Config
        (None, _) => even_share(hidden_size, heads)?,
    };
    let attention_bias = match architecture {
        Architecture::Qwen2 => true,
        Architecture::Mistral => false,
        _ => fields.flag("attention_bias", false)?,
    };
    let window = match architecture {
        Architecture::Mistral => fields.optional_count("sliding_window")?,
        Architecture::Qwen2 | Architecture::Qwen3 if fields.flag("use_sliding_window", false)? => {
            fields.optional_count("sliding_window")?
        }
        _ => None,
    };
    let max_positions = fields.count("max_position_embeddings")?;
    Ok(ModelConfig {
        architecture,
        hidden_size,
        intermediate_size: fields.count("intermediate_size")?,
        layers: fields.count("num_hidden_layers")?,
        heads,
        kv_heads: fields.optional_count("num_key_value_heads")?.unwrap_or(heads),
        head_dim,
        vocab_size: fields.count("vocab_size")?,
        max_positions: window.map_or(max_positions, |window| window.min(max_positions)),
        rms_norm: true,
        norm_epsilon: fields.number("rms_norm_eps", 1e-6)?,
        activation: activation(fields.optional_text("hidden_act")?.unwrap_or("silu"))?,
        gated_mlp: true,
        position: Position::Rotary(rotary(fields)?),
        qkv_bias: attention_bias,
        output_bias: attention_bias && architecture != Architecture::Qwen2,
        mlp_bias: architecture == Architecture::Llama && fields.flag("mlp_bias", false)?,
        qk_norm: architecture == Architecture::Qwen3,
        tied_embeddings: fields.flag("tie_word_embeddings", false)?,
    })
}

/// transformers 5 writes `rope_parameters`; before it, `rope_theta` and `rope_scaling`.
fn rotary(fields: &Fields<'_>) -> Result<Rotary, BundleError> {
    let parameters = fields.object("rope_parameters")?;
    let scaling = parameters.or(fields.object("rope_scaling")?);
    let theta = match parameters.map(|p| p.optional_number("rope_theta")).transpose()?.flatten() {
        Some(theta) => theta,
        None => fields.number("rope_theta", 10_000.0)?,
    };
    if theta <= 1.0 {
        return Err(BundleError::Config(format!("rope_theta is {theta}; it must be above 1")));
    }
    for place in [Some(Fields(fields.0)), parameters].into_iter().flatten() {
        if place.number("partial_rotary_factor", 1.0)? != 1.0 {
            return Err(BundleError::Config("partial_rotary_factor other than 1 is not supported".into()));
        }
    }
    let mut rotary = Rotary { theta, linear_factor: 1.0, llama3: None };
    let Some(scaling) = scaling else { return Ok(rotary) };
    let kind = match scaling.optional_text("rope_type")? {
        Some(kind) => kind,
        None => scaling.optional_text("type")?.unwrap_or("default"),
    };
    match kind {
        "default" => {}
        "linear" => rotary.linear_factor = scaling.required_number("factor")?,
        "llama3" => {
            rotary.llama3 = Some(Llama3Scaling {
                factor: scaling.required_number("factor")?,
                low_freq_factor: scaling.required_number("low_freq_factor")?,
                high_freq_factor: scaling.required_number("high_freq_factor")?,
                original_max_positions: scaling.count("original_max_position_embeddings")?,
            });
        }
        other => {
            let reason =
                format!("rope scaling {other:?} is not supported; supported are default, linear and llama3");
            return Err(BundleError::Config(reason));
        }
    }
    Ok(rotary)
}

fn activation(name: &str) -> Result<Activation, BundleError> {
    Ok(match name {
        "silu" | "swish" => Activation::Silu,
        "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" => Activation::GeluTanh,
        "gelu" => Activation::GeluErf,
        "relu" => Activation::Relu,
        other => {
            let reason =
                format!("activation {other:?} is not supported; supported are silu, gelu, gelu_new and relu");
            return Err(BundleError::Config(reason));
        }
    })
}

fn even_share(hidden_size: usize, heads: usize) -> Result<usize, BundleError> {
    if heads == 0 || hidden_size % heads != 0 {
        return Err(BundleError::Config(format!(
            "hidden size {hidden_size} does not divide into {heads} heads"
        )));
    }
    Ok(hidden_size / heads)
}

/// Typed access to the fields of one JSON object, with errors that name the field.
#[derive(Clone, Copy)]
struct Fields<'a>(&'a Value);

impl<'a> Fields<'a> {
    /// A field that is absent and one that is null mean the same in these files.
    fn get(&self, name: &str) -> Option<&'a Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    fn wrong(name: &str, value: &Value, wanted: &str) -> BundleError {
        BundleError::Config(format!("field {name:?} is {value}, not {wanted}"))
    }

    fn missing(name: &str) -> BundleError {
        BundleError::Config(format!("field {name:?} is missing"))
    }

    fn optional_text(&self, name: &str) -> Result<Option<&'a str>, BundleError> {
        let read = |value: &'a Value| value.as_str().ok_or_else(|| Self::wrong(name, value, "a string"));
        self.get(name).map(read).transpose()
    }

    fn text(&self, name: &str) -> Result<&'a str, BundleError> {
        self.optional_text(name)?.ok_or_else(|| Self::missing(name))
    }

    fn optional_count(&self, name: &str) -> Result<Option<usize>, BundleError> {
        let read = |value: &Value| {
            value.as_u64().map(|n| n as usize).ok_or_else(|| Self::wrong(name, value, "a whole number"))
        };
        self.get(name).map(read).transpose()
    }

    fn count(&self, name: &str) -> Result<usize, BundleError> {
        self.optional_count(name)?.ok_or_else(|| Self::missing(name))
    }

    fn optional_number(&self, name: &str) -> Result<Option<f64>, BundleError> {
        let read = |value: &Value| value.as_f64().ok_or_else(|| Self::wrong(name, value, "a number"));
        self.get(name).map(read).transpose()
    }

    fn required_number(&self, name: &str) -> Result<f64, BundleError> {
        self.optional_number(name)?.ok_or_else(|| Self::missing(name))
    }

    fn number(&self, name: &str, default: f64) -> Result<f64, BundleError> {
        Ok(self.optional_number(name)?.unwrap_or(default))
    }

    fn flag(&self, name: &str, default: bool) -> Result<bool, BundleError> {
        let read = |value: &Value| value.as_bool().ok_or_else(|| Self::wrong(name, value, "true or false"));
        Ok(self.get(name).map(read).transpose()?.unwrap_or(default))
    }

    fn object(&self, name: &str) -> Result<Option<Fields<'a>>, BundleError> {
        let read = |value: &'a Value| {
            if value.is_object() { Ok(Fields(value)) } else { Err(Self::wrong(name, value, "an object")) }
        };
        self.get(name).map(read).transpose()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

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
    fn an_unknown_architecture_is_named_with_those_supported() {
        let text = error(with("model_type", json!("mamba")));
        assert!(text.contains("mamba") && text.contains("qwen3"), "{text}");
    }

    #[test]
    fn errors_name_the_field() {
        assert!(error(with("hidden_size", json!("big"))).contains("hidden_size"));
        assert!(error(with("vocab_size", Value::Null)).contains("vocab_size"));
        assert!(error(with("hidden_act", json!("mish"))).contains("mish"));
        assert!(error(with("num_key_value_heads", json!(3))).contains('3'));
        assert!(error(with("rope_scaling", json!({"rope_type": "yarn", "factor": 4.0}))).contains("yarn"));
        assert!(error(with("num_hidden_layers", json!(1u64 << 40))).contains("layers"));
    }

    #[test]
    fn rope_is_read_in_the_old_and_the_new_spelling() {
        let old = with("rope_theta", json!(5e5));
        let new = with("rope_parameters", json!({"rope_type": "default", "rope_theta": 5e5}));
        assert_eq!(ModelConfig::from_json(&old).unwrap(), ModelConfig::from_json(&new).unwrap());
    }

    #[test]
    fn a_sliding_window_limits_the_context() {
        let mut mistral = with("sliding_window", json!(128));
        mistral["model_type"] = json!("mistral");
        assert_eq!(ModelConfig::from_json(&mistral).unwrap().max_positions, 128);
    }
}

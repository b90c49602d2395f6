//! From the fields of a config.json to a [`ModelConfig`].

use std::collections::BTreeSet;
use std::path::Path;

use protocol::untrusted;
use serde_json::Value;

use super::fields::{Fields, Read};
use super::model::{self, Architecture, BLOCKS, Graph, ModelConfig};
use super::{Block, Class, Feed, Mlp, activation, audio, even_share, experts, form, refused, rope};
use crate::quantised::{INT4_GROUP, NF4_BLOCK, scale_name, scale_shape};
use crate::{BlockKind, BundleError, Element, Precision};

/// The products of sizes, here and in every engine, must not overflow on a malicious header.
const MAX_SIZE: usize = (1 << 28) - 1;

/// The tensors of every layer are listed by name; a malicious config.json must not make that list fill
/// memory.
pub(super) const MAX_LAYERS: usize = 1 << 12;

/// Experts of all layers: each is listed by name, too.
const MAX_EXPERTS: usize = 1 << 16;

/// Numbers in all weights: a thousand times the largest model so far. In bytes, they can still be counted in 64 bits.
const MAX_NUMBERS: u128 = 1 << 50;

/// The frequencies of a rotation are computed before any weights are read.
const MAX_HEAD_DIM: usize = 1 << 16;

impl ModelConfig {
    pub fn read(path: &Path) -> Result<ModelConfig, BundleError> {
        let text =
            untrusted::file::read_text(path, untrusted::file::CONFIG).map_err(BundleError::io(path))?;
        let value = serde_json::from_str(&text)
            .map_err(|e| BundleError::Config(format!("{} does not parse: {e}", path.display())))?;
        ModelConfig::from_json(&value)
    }

    pub fn from_json(value: &Value) -> Result<ModelConfig, BundleError> {
        resolved(Fields::new(value, &Read::default()))
    }

    /// As [`ModelConfig::from_json`], but refuses a field that is not known. Only for configurations of others: a bundle
    /// is read as the version that wrote it meant it.
    pub fn checked(value: &Value) -> Result<ModelConfig, BundleError> {
        let read = Read::default();
        let fields = Fields::new(value, &read);
        let config = resolved(fields)?;
        let Some(name) = fields.left_over() else { return Ok(config) };
        refused(format!("field {name:?} is not supported; if it does not change the computation, remove it"))
    }

    pub(super) fn check(&self) -> Result<(), BundleError> {
        let sizes = [
            ("hidden size", self.hidden_size, MAX_SIZE),
            ("number of attention heads", self.heads, MAX_SIZE),
            ("number of key/value heads", self.kv_heads, MAX_SIZE),
            ("head dimension", self.head_dim, MAX_HEAD_DIM),
            ("vocabulary size", self.vocab_size, MAX_SIZE),
            ("number of positions", self.max_positions, MAX_SIZE),
        ];
        if let Some((what, value, _)) =
            sizes.into_iter().find(|(_, value, most)| !(1..=*most).contains(value))
        {
            return refused(format!("{what} is {value}, which no model has"));
        }
        check_layers(self.layers.len())?;
        let mut experts = 0usize;
        for Block { rotation, feed, .. } in &self.layers {
            let mlps = match feed {
                Feed::Mlp(mlp) => [Some(*mlp), None],
                Feed::Experts(of) => {
                    experts = experts.saturating_add(of.count);
                    if !(1..=of.count).contains(&of.top) {
                        let (count, top) = (of.count, of.top);
                        return refused(format!(
                            "of {count} experts each token goes through {top}, which no model has"
                        ));
                    }
                    [Some(of.each), of.shared]
                }
            };
            let width =
                mlps.into_iter().flatten().map(|mlp| mlp.width).find(|width| !(1..=MAX_SIZE).contains(width));
            if let Some(width) = width {
                return refused(format!("intermediate size is {width}, which no model has"));
            }
            if rotation.is_some_and(|rotation| !self.rotations.is_empty() && rotation >= self.rotations.len())
            {
                return refused("a layer has a rotation that is not there");
            }
        }
        if experts > MAX_EXPERTS {
            return refused(format!("its layers have {experts} experts, which no model has"));
        }
        if let Some(mask) = self.mask_token.filter(|&mask| mask as usize >= self.vocab_size) {
            let vocabulary = self.vocab_size;
            return refused(format!("mask_token_id {mask} is outside the vocabulary of {vocabulary} tokens"));
        }
        let numbers = self.numbers();
        if numbers > MAX_NUMBERS {
            return refused(format!("its sizes make {numbers} weights, which no disk holds"));
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            let (heads, kv_heads) = (self.heads, self.kv_heads);
            return refused(format!(
                "{heads} attention heads cannot share {kv_heads} key/value heads evenly"
            ));
        }
        if !self.head_dim.is_multiple_of(2) && !self.rotations.is_empty() {
            return refused(format!("head dimension {} is odd and cannot be rotated", self.head_dim));
        }
        self.check_audio()?;
        self.check_encoder()
    }
}

fn resolved(fields: Fields<'_>) -> Result<ModelConfig, BundleError> {
    let mut config = without_blocks(fields)?;
    let Some(named) = fields.object(BLOCKS)? else { return Ok(config) };
    config.blocks = serde_json::from_value(fields.value(BLOCKS)).map_err(|error| {
        BundleError::Config(format!("field {BLOCKS:?} names a type that is not known: {error}"))
    })?;
    // So that a refusal of unknown fields does not name each.
    config.blocks.keys().for_each(|name| named.ignore(&[name.as_str()]));
    Ok(config)
}

fn without_blocks(fields: Fields<'_>) -> Result<ModelConfig, BundleError> {
    let model_type = fields.text("model_type")?;
    if model_type == model::MODEL_TYPE {
        return onnx(&fields);
    }
    let architecture = Architecture::from_model_type(model_type)?;
    let class = Class::read(architecture, model_type, &fields)?;
    if matches!(architecture, Architecture::Gpt2 | Architecture::Whisper) || architecture.only_encodes() {
        let config = match architecture {
            Architecture::Gpt2 => gpt2(&fields)?,
            Architecture::Whisper => audio::whisper(&fields)?,
            _ => ModelConfig::read_encoder(architecture, class, &fields)?,
        };
        return config.check().map(|()| config);
    }
    let (whole, part) = (fields, text_part(architecture, &fields)?);
    let fields = part.unwrap_or(whole);
    let mut config = decoder(architecture, &fields)?;
    // The class of the whole model ties its head, not that of the part.
    if part.is_some() {
        config.tied_embeddings = whole.flag("tie_word_embeddings", config.tied_embeddings)?;
    }
    config.check()?;
    let sizes = (config.head_dim, config.max_positions);
    let rotations = rope::rotations(architecture, &fields, sizes)?;
    config.form = form::form(&config, &fields)?;
    config.form.rotated = rotations.rotated;
    config.rotations = vec![rotations.main];
    form::layers(&mut config, &fields, rotations.sliding)?;
    config.check()?;
    config.encoding(class, &fields)
}

/// The object that a multimodal model has for its text part.
fn text_part<'a>(architecture: Architecture, fields: &Fields<'a>) -> Result<Option<Fields<'a>>, BundleError> {
    if !matches!(architecture, Architecture::Gemma3 | Architecture::Mistral) {
        return Ok(None);
    }
    let Some(part) = fields.object("text_config")? else { return Ok(None) };
    match part.optional_text("model_type")? {
        Some(name) if Architecture::from_model_type(name)? != architecture => {
            refused(format!("its text_config is a {name}, which is not supported in this model"))
        }
        _ => Ok(Some(part)),
    }
}

impl ModelConfig {
    /// Number of all numbers in the weights of matrices.
    fn numbers(&self) -> u128 {
        let wide = |count: usize| count as u128;
        let (hidden, heads) = (wide(self.hidden_size), wide(self.heads) + wide(self.kv_heads));
        let attention = 2 * heads * wide(self.head_dim) * hidden;
        let mlps = (0..self.layers.len()).map(|index| {
            let experts =
                self.experts(index).map_or(0, |experts| wide(experts.count) * wide(experts.each.width));
            attention + 3 * (wide(self.mlp(index).width) + experts) * hidden
        });
        let positions = if self.rotations.is_empty() { wide(self.max_positions) } else { 0 };
        let types = wide(self.token_types());
        mlps.sum::<u128>() + (2 * wide(self.vocab_size) + positions + types) * hidden
    }
}

/// The configuration of an ONNX file. Sizes, which only transformers have, are 0.
fn onnx(fields: &Fields<'_>) -> Result<ModelConfig, BundleError> {
    let graph: Graph = serde_json::from_value(fields.value("graph"))
        .map_err(|error| BundleError::Config(format!("its graph does not parse: {error}")))?;
    Ok(ModelConfig { architecture: Architecture::Onnx, graph: Some(graph), ..ModelConfig::default() })
}

pub(super) fn check_layers(count: usize) -> Result<(), BundleError> {
    match (1..=MAX_LAYERS).contains(&count) {
        true => Ok(()),
        false => refused(format!("number of layers is {count}, which no model has")),
    }
}

/// So many equal layers, of which the first rotation is theirs if there is one. A malicious count must not fill memory.
pub(super) fn layers(count: usize, rotation: Option<usize>, mlp: Mlp) -> Result<Vec<Block>, BundleError> {
    check_layers(count)?;
    Ok(vec![Block { window: None, rotation, feed: Feed::Mlp(mlp) }; count])
}

fn gpt2(fields: &Fields<'_>) -> Result<ModelConfig, BundleError> {
    let hidden_size = fields.count("n_embd")?;
    let heads = fields.count("n_head")?;
    if fields.flag("scale_attn_by_inverse_layer_idx", false)? || !fields.flag("scale_attn_weights", true)? {
        return refused(
            "gpt2 variants of attention scaling (scale_attn_by_inverse_layer_idx, scale_attn_weights=false) are not supported",
        );
    }
    let mlp = Mlp {
        width: fields.optional_count("n_inner")?.unwrap_or(hidden_size.saturating_mul(4)),
        activation: activation(fields.optional_text("activation_function")?.unwrap_or("gelu_new"))?,
        gated: false,
        bias: true,
    };
    Ok(ModelConfig {
        architecture: Architecture::Gpt2,
        hidden_size,
        layers: layers(fields.count("n_layer")?, None, mlp)?,
        heads,
        kv_heads: heads,
        head_dim: even_share(hidden_size, heads)?,
        vocab_size: fields.count("vocab_size")?,
        max_positions: fields.count("n_positions")?,
        norm_epsilon: fields.epsilon("layer_norm_epsilon", 1e-5)?,
        qkv_bias: true,
        output_bias: true,
        tied_embeddings: fields.flag("tie_word_embeddings", true)?,
        causal: true,
        ..ModelConfig::default()
    })
}

/// Any decoder but gpt2's, still without its form.
fn decoder(architecture: Architecture, fields: &Fields<'_>) -> Result<ModelConfig, BundleError> {
    use Architecture::{
        Cohere, Dream, Gemma2, Gemma3, Glm, Glm4, GptNeox, GptOss, Granite, Llama, Mistral, Mixtral, Olmo2,
        Phi, Phi3, Qwen2, Qwen2Moe, Qwen3, Qwen3Moe, Smollm3, Stablelm, Starcoder2,
    };
    // Defaults for absent fields are transformers'.
    let count = |name: &str, of_gemma3: usize| match fields.optional_count(name)? {
        None if architecture == Gemma3 => Ok(of_gemma3),
        Some(given) => Ok(given),
        None => fields.count(name),
    };
    let hidden_size = fields.count("hidden_size")?;
    let heads = count("num_attention_heads", 8)?;
    let head_dim = match (fields.optional_count("head_dim")?, architecture) {
        (Some(given), _) => given,
        (None, Gemma2 | Gemma3) => 256,
        (None, Qwen3 | Glm | Glm4) => 128,
        (None, GptOss) => 64,
        (None, _) => even_share(hidden_size, heads)?,
    };
    // null means as many as heads of queries.
    let usual_kv_heads = match architecture {
        Gemma2 | Gemma3 | Smollm3 => Some(4),
        Mistral | Mixtral | GptOss => Some(8),
        Qwen2 | Qwen3 | Dream | Stablelm => Some(32),
        Glm | Glm4 | Starcoder2 => Some(2),
        Qwen2Moe => Some(16),
        Qwen3Moe => Some(4),
        _ => None,
    };
    let (epsilon, usual_epsilon) = match architecture {
        Phi | GptNeox | Stablelm | Cohere => ("layer_norm_eps", 1e-5),
        Starcoder2 => ("norm_epsilon", 1e-5),
        Olmo2 | Phi3 | Mixtral | GptOss => ("rms_norm_eps", 1e-5),
        Glm | Glm4 => ("rms_norm_eps", 1.5625e-7),
        _ => ("rms_norm_eps", 1e-6),
    };
    let is_usually_tied = matches!(architecture, Gemma2 | Gemma3 | Smollm3 | Starcoder2 | Cohere);
    if matches!(architecture, Qwen2 | Dream) {
        fields.ignore(&["attention_bias"]);
    }
    // Of queries, keys and values, and of the layer behind attention.
    let [qkv_bias, output_bias] = match architecture {
        Qwen2 | Dream => [true, false],
        Mistral | Phi3 | Mixtral => [false; 2],
        Phi => [true; 2],
        GptNeox | GptOss => [fields.flag("attention_bias", true)?; 2],
        Glm | Glm4 => [fields.flag("attention_bias", true)?, false],
        Qwen2Moe => [fields.flag("qkv_bias", true)?, false],
        Stablelm => [fields.flag("use_qkv_bias", false)?, false],
        Starcoder2 => [fields.flag("use_bias", true)?; 2],
        _ => [fields.flag("attention_bias", false)?; 2],
    };
    let (name, usual) = match architecture {
        Gemma2 | Gemma3 => ("hidden_activation", "gelu_pytorch_tanh"),
        Phi => ("hidden_act", "gelu_new"),
        GptNeox => ("hidden_act", "gelu"),
        Starcoder2 => ("hidden_act", "gelu_pytorch_tanh"),
        _ => ("hidden_act", "silu"),
    };
    let mlp = Mlp {
        width: fields.count("intermediate_size")?,
        activation: activation(fields.optional_text(name)?.unwrap_or(usual))?,
        gated: !matches!(architecture, Phi | GptNeox | Starcoder2),
        bias: match architecture {
            Llama | Smollm3 | Granite => fields.flag("mlp_bias", false)?,
            Phi | GptNeox => true,
            Starcoder2 => qkv_bias,
            _ => false,
        },
    };
    let mut layers = layers(fields.count("num_hidden_layers")?, Some(0), mlp)?;
    experts::give(architecture, fields, &mut layers)?;
    Ok(ModelConfig {
        architecture,
        hidden_size,
        layers,
        heads,
        kv_heads: fields.count_unless_null("num_key_value_heads", usual_kv_heads)?.unwrap_or(heads),
        head_dim,
        vocab_size: count("vocab_size", 262_208)?,
        max_positions: count("max_position_embeddings", 131_072)?,
        rms_norm: !matches!(architecture, Phi | GptNeox | Stablelm | Starcoder2 | Cohere),
        norm_epsilon: fields.epsilon(epsilon, usual_epsilon)?,
        qkv_bias,
        output_bias,
        head_bias: architecture == Phi,
        qk_norm: matches!(architecture, Qwen3 | Qwen3Moe | Gemma3 | Olmo2),
        tied_embeddings: fields.flag("tie_word_embeddings", is_usually_tied)?,
        causal: fields.flag("is_causal", true)? && architecture != Dream,
        mask_token: if architecture == Dream { Some(mask_token(fields)?) } else { None },
        ..ModelConfig::default()
    })
}

fn mask_token(fields: &Fields<'_>) -> Result<u32, BundleError> {
    let id = fields.count("mask_token_id")?;
    // Whether it is within the vocabulary is checked with the other sizes.
    Ok(u32::try_from(id).unwrap_or(u32::MAX))
}

// The tensors in the file of each precision.

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredTensor {
    pub name: String,
    pub shape: Vec<usize>,
    pub element: Element,
    /// The type of the file's own blocks that a matrix is stored in; its rows then are bytes.
    pub blocks: Option<BlockKind>,
}

impl StoredTensor {
    pub fn bytes(&self) -> u64 {
        self.shape.iter().product::<usize>() as u64 * self.element.bytes() as u64
    }
}

impl ModelConfig {
    /// The tensors of the file of `precision`, in file order. These are the ones of [`Self::tensors`]; after
    /// each run of quantised tensors follow their scales, in the same order. So tensors that engines fuse are
    /// adjacent in both.
    pub fn stored(&self, precision: Precision) -> Result<Vec<StoredTensor>, BundleError> {
        if precision == Precision::File && self.blocks.is_empty() {
            return Err(BundleError::NoBlocks);
        }
        let quantised = if precision.is_quantised() { self.quantised() } else { BTreeSet::new() };
        let mut stored = Vec::new();
        let mut scales: Vec<StoredTensor> = Vec::new();
        for spec in self.tensors() {
            if !quantised.contains(&spec.name) {
                stored.append(&mut scales);
                let element = precision.element();
                stored.push(StoredTensor { name: spec.name, shape: spec.shape, element, blocks: None });
                continue;
            }
            let &[rows, columns] = spec.shape.as_slice() else {
                unreachable!("a linear layer's weight is a matrix")
            };
            if precision == Precision::File {
                let kind = self.blocks.get(&spec.name).copied().unwrap_or(BlockKind::F32);
                check_columns((precision, kind.elements()), &spec.name, columns, true)?;
                let shape = vec![rows, kind.row_bytes(columns)];
                stored.push(StoredTensor {
                    name: spec.name,
                    shape,
                    element: Element::U8,
                    blocks: Some(kind),
                });
                continue;
            }
            let whole_blocks = precision != Precision::Nf4 || (rows * columns).is_multiple_of(NF4_BLOCK);
            // candle's int8 blocks have 32 columns, too.
            check_columns((precision, INT4_GROUP), &spec.name, columns, whole_blocks)?;
            let name = scale_name(&spec.name);
            let shape = scale_shape(precision, rows, columns);
            scales.push(StoredTensor { name, shape, element: Element::F32, blocks: None });
            let (shape, element) = match precision {
                Precision::Int8 => (vec![rows, columns], Element::I8),
                _ => (vec![rows, columns / 2], Element::U8),
            };
            stored.push(StoredTensor { name: spec.name, shape, element, blocks: None });
        }
        stored.append(&mut scales);
        Ok(stored)
    }

    /// Bytes of the weights at `precision`: of their file, or of an ONNX file and its external weights files.
    pub fn stored_bytes(&self, precision: Precision) -> Result<u64, BundleError> {
        match &self.graph {
            Some(graph) => Ok(graph.bytes),
            None => Ok(self.stored(precision)?.iter().map(StoredTensor::bytes).sum()),
        }
    }

    /// Names of the weights of all linear layers, which a quantised precision stores as codes. A tied
    /// embedding is included because it is the output head's weight; an embedding used only for lookup is
    /// not.
    pub fn quantised(&self) -> BTreeSet<String> {
        let layers = (0..self.layers.len()).map(|index| self.layer(index));
        let linear = layers.flat_map(|layer| {
            let experts = layer.experts.into_iter().flat_map(|experts| experts.each).flatten();
            let cross = layer.cross.into_iter().flat_map(|cross| [cross.q, cross.kv, cross.output]);
            [layer.qkv, layer.output, layer.gate_up, layer.down].into_iter().chain(cross).chain(experts)
        });
        let head = (!self.encodes() && self.graph.is_none()).then(|| self.lm_head());
        let heard = self.audio_encoder().map(|encoder| encoder.quantised()).unwrap_or_default();
        linear.flat_map(|names| names.weights).chain(head).chain(heard).collect()
    }
}

fn check_columns(
    (precision, multiple): (Precision, usize),
    name: &str,
    columns: usize,
    whole_blocks: bool,
) -> Result<(), BundleError> {
    if columns.is_multiple_of(multiple) && whole_blocks {
        return Ok(());
    }
    let multiple = if precision == Precision::Nf4 { NF4_BLOCK } else { multiple };
    Err(BundleError::Quantisation { precision, name: name.to_owned(), columns, multiple })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config(tied: bool, hidden: usize) -> ModelConfig {
        let json = json!({
            "model_type": "llama", "hidden_size": hidden, "intermediate_size": 160, "num_hidden_layers": 1,
            "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 320,
            "max_position_embeddings": 256, "tie_word_embeddings": tied
        });
        ModelConfig::from_json(&json).unwrap()
    }

    fn stored(config: &ModelConfig, precision: Precision, name: &str) -> Vec<StoredTensor> {
        let stored = config.stored(precision).unwrap();
        stored.into_iter().filter(|tensor| tensor.name.contains(name)).collect()
    }

    #[test]
    fn the_shapes_are_those_of_the_module_s_table() {
        let config = config(true, 64);
        let shapes = |precision| {
            let stored = stored(&config, precision, "k_proj");
            [stored[0].shape.clone(), stored[1].shape.clone()]
        };
        assert_eq!(shapes(Precision::Int8), [vec![32, 64], vec![32]]);
        assert_eq!(shapes(Precision::Int4), [vec![32, 32], vec![32, 2]]);
        assert_eq!(shapes(Precision::Nf4), [vec![32, 32], vec![32]]);
    }

    #[test]
    fn a_tied_embedding_is_quantised_as_the_head_and_another_is_not() {
        let element = |tied| stored(&config(tied, 64), Precision::Int8, "embed_tokens")[0].element;
        assert_eq!((element(true), element(false)), (Element::I8, Element::F32));
        assert_eq!(stored(&config(true, 64), Precision::Int8, "norm")[0].element, Element::F32);
        assert_eq!(stored(&config(true, 64), Precision::F16, "")[0].element, Element::F16);
    }

    #[test]
    fn rows_that_do_not_divide_into_groups_are_refused_by_name() {
        let error = config(true, 72).stored(Precision::Int4).unwrap_err().to_string();
        assert!(error.contains("embed_tokens") && error.contains("72") && error.contains("32"), "{error}");
    }
}

//! A GGUF file, or several with the parts of one model: configuration, tokenizer and weights, these often quantised.

mod config;
mod dequant;
mod reader;
mod tokenizer;

use std::collections::BTreeMap;
use std::io::Read;
use std::ops::Range;
use std::path::Path;

use bundle::{BLOCKS, BlockKind, BundleError, ModelConfig, NormPlacement, POOLING, Pooled, TensorSpec};
use config::RopeFactors;
use dequant::{Type, cannot_dequantise};
use protocol::untrusted;
use reader::{Header, Metadata, Refusal, TensorInfo};

use crate::PrepareError;
use crate::model::{
    self, Document, Model, SourceFile, TOKENIZER_CONFIG, Tensors, check_layers, matrix, most_common,
};
use crate::names::MOST_EXPERTS;

/// Divisors of the rotary frequencies, which go into config.json: Llama 3's, and LongRoPE's short and long ones.
const ROPE_FACTORS: [&str; 3] =
    ["rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight"];

pub(crate) fn open(path: &Path) -> Result<Model, PrepareError> {
    if path.is_dir() {
        return Err(PrepareError::not_a_model(path, "it is a directory, not a .gguf file"));
    }
    let Parts { name, files, header } = Parts::open(path)?;
    let path = files[0].path();
    let metadata = Metadata::new(&header, files[0].bytes());

    let factors = |name: &str| {
        let info = header.tensors.get(name);
        let values =
            info.map(|info| dequantise(info, &files[info.file].bytes()[info.range.clone()])).transpose();
        values.map_err(|reason| PrepareError::tensor(path, name, reason))
    };
    let [llama3, short, long] = ROPE_FACTORS.map(factors);
    let rope_factors = RopeFactors { llama3: llama3?, longrope: short?.zip(long?).map(<[_; 2]>::from) };
    let refused = |refusal: Refusal| refusal.in_file(path);
    let mut json = config::config(&metadata, &header, rope_factors).map_err(refused)?;
    let mut config = ModelConfig::from_json(&json).map_err(PrepareError::model(path))?;
    let architecture = metadata.text("general.architecture").ok().flatten();
    let pooling = config::pooling(&metadata).map_err(refused)?.filter(|_| config.encoder.is_some());
    let pooling = pooling.map(|pooling| {
        // As llama.cpp's programs do, unless they are told otherwise.
        let pooled = Pooled { pooling, normalise: true, ..Pooled::default() };
        let derived = "the GGUF's pooling_type; of length 1, as llama.cpp's are";
        (POOLING, Document::pretty(&pooled, derived))
    });
    let tokenizer = tokenizer::build(&metadata);
    let chat = build(&metadata).map(|document| (TOKENIZER_CONFIG, document));

    let mut derived = match files.as_slice() {
        [file] => format!("from {}, dequantised", file.name()),
        parts => format!("from {} and the {} parts after it, dequantised", parts[0].name(), parts.len() - 1),
    };
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
    let shared = files.iter().map(SourceFile::share).collect();
    let tensors = Weights::open(files, header.tensors, &config, permuted)?;
    config.blocks = tensors.blocks(&config);
    if !config.blocks.is_empty() {
        json[BLOCKS] = serde_json::json!(config.blocks);
    }
    let config_json = Document::pretty(&json, "built from the GGUF's metadata");
    Ok(Model {
        name,
        kind: "gguf",
        files: shared,
        seed: None,
        config,
        config_json,
        tokenizer,
        others: chat.into_iter().chain(pooling).collect(),
        tensors: Box::new(tensors),
        verbatim: Vec::new(),
        derived,
    })
}

/// The files of a model, with the metadata of the first and the tensors of all.
struct Parts {
    name: String,
    files: Vec<SourceFile>,
    header: Header,
}

impl Parts {
    /// The file at `path` alone, or, if it is one part of several, all of them. llama.cpp numbers parts from 0 within
    /// the file and from 1 in its name (`llama_split_path` in llama.cpp, `src/llama-model-loader.cpp`).
    fn open(path: &Path) -> Result<Parts, PrepareError> {
        let stem = |path: &Path| path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let (file, header) = read(SourceFile::open(path)?)?;
        let (number, count) = place(&header, &file)?;
        if count <= 1 {
            return Ok(Parts { name: stem(path), files: vec![file], header });
        }
        let end = |number: usize| format!("-{number:05}-of-{count:05}.gguf");
        let name = file.name();
        let Some(prefix) = name.strip_suffix(&end(number + 1)) else {
            let reason = format!(
                "it is part {} of {count} of a model, but its name does not end in {}: give all parts the names that \
                 llama-gguf-split gave them",
                number + 1,
                end(number + 1)
            );
            return Err(PrepareError::unsupported(path, reason));
        };
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let directory = directory.unwrap_or(Path::new("."));
        let mut files = Vec::new();
        let mut first: Option<Header> = None;
        for part in 1..=count {
            let name = format!("{prefix}{}", end(part));
            let path = directory.join(&name);
            if !path.exists() {
                return Err(PrepareError::not_a_model(
                    path,
                    format!(
                        "it is not there, and is part {part} of {count} of the model: put it beside the others"
                    ),
                ));
            }
            let (file, header) = read(SourceFile::within(directory, &name)?)?;
            if place(&header, &file)? != (part - 1, count) {
                let reason =
                    format!("its name says that it is part {part} of {count}, but its metadata do not");
                return Err(PrepareError::damaged(&path, reason));
            }
            let Some(all) = &mut first else {
                (first, files) = (Some(header), vec![file]);
                continue;
            };
            for (name, info) in header.tensors {
                let info = TensorInfo { file: files.len(), ..info };
                if let Some(other) = all.tensors.insert(name.clone(), info) {
                    let reason = format!("is also in {}", files[other.file].name());
                    return Err(PrepareError::tensor(&path, &name, reason));
                }
            }
            files.push(file);
        }
        let header = first.expect("there are at least two parts");
        let held = header.tensors.len();
        match Metadata::new(&header, files[0].bytes()).count("split.tensors.count") {
            Ok(Some(told)) if told != held => {
                let reason = format!("it says that its parts have {told} tensors, but they have {held}");
                Err(PrepareError::damaged(files[0].path(), reason))
            }
            _ => Ok(Parts { name: prefix.to_owned(), files, header }),
        }
    }
}

/// Whether a file is a GGUF file by its first bytes, whatever its name.
pub(crate) fn is_one(path: &Path) -> bool {
    let first = untrusted::file::open(path).and_then(|mut file| {
        let mut bytes = [0; reader::MAGIC.len()];
        file.read_exact(&mut bytes).map(|()| bytes)
    });
    first.is_ok_and(|bytes| bytes == reader::MAGIC)
}

fn read(file: SourceFile) -> Result<(SourceFile, Header), PrepareError> {
    match Header::parse(file.bytes()) {
        Ok(header) => Ok((file, header)),
        Err(Refusal::NotOne) => Err(file.not("it does not begin with the GGUF magic number")),
        Err(refusal) => Err(refusal.in_file(file.path())),
    }
}

/// Which part of a model a file is, from 0, and of how many.
fn place(header: &Header, file: &SourceFile) -> Result<(usize, usize), PrepareError> {
    let metadata = Metadata::new(header, file.bytes());
    let number = |key: &str, usual: usize| {
        let number = metadata.count(key).map_err(|reason| PrepareError::damaged(file.path(), reason))?;
        Ok::<_, PrepareError>(number.unwrap_or(usual))
    };
    Ok((number("split.no", 0)?, number("split.count", 1)?))
}

struct Weights {
    files: Vec<SourceFile>,
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
        files: Vec<SourceFile>,
        mut held: BTreeMap<String, TensorInfo>,
        config: &ModelConfig,
        permuted: bool,
    ) -> Result<Weights, PrepareError> {
        let of = |name: &str, info: &TensorInfo, reason: String| {
            PrepareError::tensor(files[info.file].path(), name, reason)
        };
        split_experts(&mut held);
        check_layers(config, files[0].path(), held.len())?;
        held.retain(|name, _| !ROPE_FACTORS.contains(&name.as_str()));
        if config.encoder.is_some() {
            // The head over the vocabulary, which no vector goes through.
            held.remove("output.weight");
        }
        let mut places = BTreeMap::new();
        for spec in config.tensors() {
            let name = gguf_name(&spec.name, config.form.norms)
                .expect("every tensor of these architectures has a name");
            let Some(info) = held.remove(&name) else {
                let reason = format!("is missing; the metadata call for one of shape {:?}", spec.shape);
                return Err(PrepareError::tensor(files[0].path(), &name, reason));
            };
            if info.shape != spec.shape {
                let reason =
                    format!("has shape {:?}, but the metadata call for {:?}", info.shape, spec.shape);
                return Err(of(&name, &info, reason));
            }
            // Nothing is read: this is about the type.
            if let Err(reason) = dequantise(&info, &[]) {
                return Err(of(&name, &info, reason));
            }
            let permuted_heads = if permuted { permuted_heads(&spec.name, config) } else { 0 };
            let is_norm = spec.name.ends_with("norm.weight");
            let offset = if is_norm { config.form.norm_offset } else { 0.0 };
            places.insert(spec.name, Place { info, permuted_heads, offset });
        }
        if let Some((name, info)) = held.iter().next() {
            return Err(of(name, info, "has no place in the model that the metadata describe".into()));
        }
        Ok(Weights { files, places })
    }

    /// [`ModelConfig::blocks`], if precision `file` has every type that the file's linear layers have.
    fn blocks(&self, config: &ModelConfig) -> BTreeMap<String, BlockKind> {
        let kind = |name: &String| self.places[name].info.kind.ok().and_then(Type::kept);
        let kinds: Option<BTreeMap<_, _>> =
            config.quantised().into_iter().map(|name| kind(&name).map(|kind| (name, kind))).collect();
        let mut kinds = kinds.unwrap_or_default();
        kinds.retain(|_, kind| *kind != BlockKind::F32);
        kinds
    }

    /// The bytes of these rows of the bundle's tensor, in the bundle's order.
    fn bytes(&self, spec: &TensorSpec, rows: Range<usize>) -> Vec<u8> {
        let Place { info, permuted_heads, .. } = &self.places[&spec.name];
        let file = &self.files[info.file];
        let (all, columns) = matrix(spec);
        // A row consists of whole blocks.
        let width = info.kind.map_or(0, |kind| kind.row(columns));
        let range =
            |rows: Range<usize>| info.range.start + rows.start * width..info.range.start + rows.end * width;
        let mut bytes = Vec::with_capacity(rows.len() * width);
        // A bias is one row, of elements that are reordered.
        if *permuted_heads == 0 || spec.shape.len() == 1 {
            bytes.extend(&file.bytes()[range(rows.clone())]);
            file.release(range(rows));
            return bytes;
        }
        for row in rows {
            let from = permuted(row, all / permuted_heads);
            bytes.extend(&file.bytes()[range(from..from + 1)]);
        }
        file.release(range(0..all));
        bytes
    }
}

impl Tensors for Weights {
    fn stored(&self) -> Option<String> {
        most_common(self.places.values().filter_map(|Place { info, .. }| {
            Some((info.kind.ok()?.name.to_owned(), info.shape.iter().product()))
        }))
    }

    fn read(&self, spec: &TensorSpec, rows: Range<usize>) -> Result<Vec<f32>, PrepareError> {
        let Place { info, permuted_heads, offset } = &self.places[&spec.name];
        let values = dequantise(info, &self.bytes(spec, rows));
        let path = self.files[info.file].path();
        let mut values = values.map_err(|reason| PrepareError::tensor(path, &spec.name, reason))?;
        if *offset != 0.0 {
            values.iter_mut().for_each(|value| *value -= offset);
        }
        match (*permuted_heads, spec.shape.as_slice()) {
            (heads @ 1.., &[elements]) => {
                Ok((0..elements).map(|element| values[permuted(element, elements / heads)]).collect())
            }
            _ => Ok(values),
        }
    }

    fn blocks(&self, spec: &TensorSpec, rows: Range<usize>) -> Vec<u8> {
        self.bytes(spec, rows)
    }

    fn check_blocks(&self, config: &ModelConfig) -> Result<(), PrepareError> {
        let linear = config.quantised();
        for (name, Place { info, .. }) in self.places.iter().filter(|(name, _)| linear.contains(*name)) {
            if info.kind.ok().and_then(Type::kept).is_none() {
                let stored = info.kind.map_or("an unknown type", |kind| kind.name);
                let reason = format!(
                    "is stored as {stored}, which precision file does not have; it has {}: ask for f32, int8 or int4",
                    BlockKind::names()
                );
                return Err(PrepareError::tensor(self.path_of(name), name, reason));
            }
        }
        if config.blocks.is_empty() { Err(BundleError::NoBlocks.into()) } else { Ok(()) }
    }

    fn path_of(&self, name: &str) -> &Path {
        self.files[self.places[name].info.file].path()
    }
}

/// The tensors of all experts as one for each, with the names of older files, which had them so:
/// `blk.0.ffn_up_exps.weight` becomes `blk.0.ffn_up.0.weight` and so on.
fn split_experts(held: &mut BTreeMap<String, TensorInfo>) {
    let of_all: Vec<String> = held.keys().filter(|name| name.ends_with("_exps.weight")).cloned().collect();
    for name in of_all {
        let Some(TensorInfo { shape, range, file, kind }) = held.remove(&name) else { continue };
        let count = shape.first().filter(|count| **count <= MOST_EXPERTS);
        let bytes = count.and_then(|&count| range.len().checked_div(count));
        let (Some(stem), &[count, rows, columns], Some(bytes)) =
            (name.strip_suffix("_exps.weight"), &shape[..], bytes)
        else {
            held.insert(name, TensorInfo { shape, range, file, kind });
            continue;
        };
        for expert in 0..count {
            let start = range.start + expert * bytes;
            let info = TensorInfo { shape: vec![rows, columns], range: start..start + bytes, file, kind };
            held.insert(format!("{stem}.{expert}.weight"), info);
        }
    }
}

fn dequantise(info: &TensorInfo, bytes: &[u8]) -> Result<Vec<f32>, String> {
    match info.kind {
        Ok(kind) => kind.dequantise(bytes),
        Err(number) => Err(cannot_dequantise(&format!("the unknown type {number}"))),
    }
}

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
const LAYER: [(&str, &str); 21] = [
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
    ("mlp.gate", "ffn_gate_inp"),
    ("block_sparse_moe.gate", "ffn_gate_inp"),
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

/// Names after those and `mlp.experts.N.` or `block_sparse_moe.experts.N.`.
const EXPERT: [(&str, &str); 6] = [
    ("gate_proj", "ffn_gate"),
    ("up_proj", "ffn_up"),
    ("down_proj", "ffn_down"),
    ("w1", "ffn_gate"),
    ("w3", "ffn_up"),
    ("w2", "ffn_down"),
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
    let experts =
        stem.strip_prefix("mlp.experts.").or_else(|| stem.strip_prefix("block_sparse_moe.experts."));
    if let Some((expert, part)) = experts.and_then(|of| of.split_once('.')) {
        let (_, theirs) = EXPERT.iter().find(|(ours, _)| *ours == part)?;
        return Some(format!("{prefix}{theirs}.{expert}.{kind}"));
    }
    let behind = if norms == NormPlacement::Before { &[][..] } else { &BEHIND };
    let (_, theirs) = behind.iter().chain(table).find(|(ours, _)| *ours == stem)?;
    Some(format!("{prefix}{theirs}.{kind}"))
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
}

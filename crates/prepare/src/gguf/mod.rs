//! A GGUF file: one file that holds configuration, tokenizer and weights, these often quantised.

mod chat;
mod config;
mod cursor;
mod family;
mod metadata;
mod names;
mod reader;
mod rope;
mod tokenizer;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use bundle::{Element, ModelConfig, TensorSpec};
use candle_core::CpuStorage;
use candle_core::quantized::GgmlDType;

use crate::encode::decode;
use crate::error::PrepareError;
use crate::model::{Document, Model, SourceFile, Tensors, check_layers, matrix, most_common};
use config::{Refusal, RopeFactors};
use metadata::Metadata;
use reader::{Header, TensorInfo};

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
    let json = config::config(&metadata, &header, rope_factors).map_err(|refusal| {
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
    let chat = chat::build(&metadata);

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
            let name = names::gguf_name(&spec.name, config.form.norms)
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

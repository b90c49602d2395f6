//! A directory of CTranslate2: `model.bin`, whose layout is that of its writer (`ModelSpec._serialize` in CTranslate2,
//! `python/ctranslate2/specs/model_spec.py`), and tokenizer.json. Its config.json has no sizes: they follow from the
//! shapes. Read are Whispers whose weights are floats.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use bundle::{Element, ModelConfig, TensorSpec};
use serde_json::json;

use crate::PrepareError;
use crate::model::{
    Document, Model, SourceFile, TOKENIZER, Tensors, WEIGHTS, decode, directory_name, matrix, most_common,
};

pub(crate) const MODEL: &str = "model.bin";

/// The layout that is read, and the newest of a Whisper's variables.
const VERSION: usize = 6;
const SPEC: &str = "WhisperSpec";
const REVISION: usize = 3;

/// Types by their number in the file, with their bytes.
const TYPES: [(&str, usize); 6] =
    [("float32", 4), ("int8", 1), ("int16", 2), ("int32", 4), ("float16", 2), ("bfloat16", 2)];

/// More variables than any model has: names must not fill memory.
const MOST: usize = 1 << 16;

/// Whether a file begins as a model of CTranslate2 does: with a version and the name of a specification.
pub(crate) fn is_one(bytes: &[u8]) -> bool {
    Reader { bytes, at: 4 }.text().is_ok_and(|name| name.len() <= 64 && name.ends_with("Spec"))
}

/// Whether a directory has such a file and no safetensors.
pub(crate) fn is_in(directory: &Path) -> bool {
    !directory.join(WEIGHTS).is_file()
        && SourceFile::open(&directory.join(MODEL)).is_ok_and(|file| is_one(file.bytes()))
}

pub(crate) fn open(directory: &Path) -> Result<Model, PrepareError> {
    let file = SourceFile::within(directory, MODEL)?;
    let mut held = variables(&file)?;
    let (config, json) = config(&held, file.path())?;
    let mut places = BTreeMap::new();
    for spec in config.tensors() {
        let (name, part, parts) = name_of(&spec.name);
        let wrong = |reason: String| PrepareError::tensor(file.path(), &name, reason);
        let mut expected = spec.shape.clone();
        expected[0] *= parts;
        let variable = held.get(&name).ok_or_else(|| {
            wrong(format!("is missing; the model's other tensors call for one of shape {expected:?}"))
        })?;
        let element = match TYPES[variable.kind].0 {
            "float32" => Element::F32,
            "float16" => Element::F16,
            "bfloat16" => Element::Bf16,
            quantised => {
                let reason = format!(
                    "weights quantised as {quantised} are not supported; use the model in float32, float16 or bfloat16"
                );
                return Err(PrepareError::unsupported(file.path(), reason));
            }
        };
        if variable.shape != expected {
            let reason = format!(
                "has shape {:?}, but the model's other tensors call for {expected:?}",
                variable.shape
            );
            return Err(wrong(reason));
        }
        let (start, bytes) = (variable.range.start, variable.range.len() / parts);
        let range = start + part * bytes..start + (part + 1) * bytes;
        places.insert(spec.name, Place { element, range });
        if part + 1 == parts {
            held.remove(&name);
        }
    }
    check_rest(&held, &config, &file)?;
    let mut files = vec![file.share()];
    let tokenizer = match SourceFile::optional(directory, TOKENIZER)? {
        Some(tokenizer) => {
            let (bytes, derived) =
                (tokenizer.bytes().to_vec(), "the source's tokenizer.json, verbatim".into());
            files.push(tokenizer);
            Ok(Document { bytes, derived })
        }
        None => Err("the source has no tokenizer.json".to_owned()),
    };
    let derived =
        format!("from {MODEL}, rows of queries, keys and values that it has in one tensor in one each");
    Ok(Model {
        name: directory_name(directory),
        kind: "ctranslate2",
        files,
        seed: None,
        config,
        config_json: Document::pretty(&json, format!("built from the variables of {MODEL}")),
        tokenizer,
        others: Vec::new(),
        tensors: Box::new(Weights { file, places }),
        verbatim: Vec::new(),
        derived,
    })
}

/// A variable of the file, a number if it has no shape.
#[derive(Clone)]
struct Variable {
    /// An index of [`TYPES`].
    kind: usize,
    shape: Vec<usize>,
    /// Within the file.
    range: Range<usize>,
    /// The value of a variable without a shape.
    number: Option<usize>,
}

/// By name, aliases as well. All ranges are within the file.
fn variables(file: &SourceFile) -> Result<BTreeMap<String, Variable>, PrepareError> {
    let damaged = |reason: String| PrepareError::damaged(file.path(), reason);
    let unsupported = |reason: String| Err(PrepareError::unsupported(file.path(), reason));
    let mut reader = Reader { bytes: file.bytes(), at: 0 };
    let version = reader.number::<4>().map_err(damaged)?;
    let spec = reader.text().map_err(damaged)?;
    if spec != SPEC {
        return unsupported(format!("a model of CTranslate2's {spec} is not supported; {SPEC} is"));
    }
    let revision = reader.number::<4>().map_err(damaged)?;
    if version != VERSION || revision > REVISION {
        return unsupported(format!(
            "it has version {version} of CTranslate2's layout and revision {revision} of {SPEC}; version {VERSION} and \
             revisions up to {REVISION} are read: convert the model again"
        ));
    }
    reader.variables().map_err(damaged)
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn take(&mut self, length: usize) -> Result<Range<usize>, String> {
        let (at, size) = (self.at, self.bytes.len());
        if size.checked_sub(at).is_none_or(|left| left < length) {
            return Err(format!("{length} bytes are to follow byte {at}, but the whole file has {size}"));
        }
        self.at = at + length;
        Ok(at..self.at)
    }

    fn number<const BYTES: usize>(&mut self) -> Result<usize, String> {
        self.take(BYTES).map(|range| little_endian(&self.bytes[range]))
    }

    /// A name, which ends with a zero.
    fn text(&mut self) -> Result<String, String> {
        let length = self.number::<2>()?;
        let bytes = &self.bytes[self.take(length)?];
        let text = bytes.strip_suffix(&[0]).and_then(|bytes| std::str::from_utf8(bytes).ok());
        text.map(str::to_owned).ok_or_else(|| format!("no name is at byte {}", self.at - length))
    }

    fn count(&mut self) -> Result<usize, String> {
        let count = self.number::<4>()?;
        if count > MOST {
            Err(format!("it claims {count} names, of which no model has so many"))
        } else {
            Ok(count)
        }
    }

    fn variables(&mut self) -> Result<BTreeMap<String, Variable>, String> {
        let mut held = BTreeMap::new();
        for _ in 0..self.count()? {
            let name = self.text()?;
            let shape =
                (0..self.number::<1>()?).map(|_| self.number::<4>()).collect::<Result<Vec<_>, _>>()?;
            let (kind, bytes) = (self.number::<1>()?, self.number::<4>()?);
            let Some((_, width)) = TYPES.get(kind) else {
                return Err(format!("variable {name:?} has type {kind}, which is unknown"));
            };
            let expected = shape.iter().try_fold(*width, |product, size| product.checked_mul(*size));
            if expected != Some(bytes) {
                return Err(format!("variable {name:?} has shape {shape:?}, but {bytes} bytes"));
            }
            let range = self.take(bytes)?;
            let number = shape.is_empty().then(|| little_endian(&self.bytes[range.clone()]));
            if held.insert(name.clone(), Variable { kind, shape, range, number }).is_some() {
                return Err(format!("variable {name:?} is there twice"));
            }
        }
        for _ in 0..self.count()? {
            let (alias, name) = (self.text()?, self.text()?);
            let variable = held.get(&name).cloned();
            let variable = variable
                .ok_or_else(|| format!("{alias:?} is another name of {name:?}, which is not there"))?;
            if held.insert(alias.clone(), variable).is_some() {
                return Err(format!("variable {alias:?} is there twice"));
            }
        }
        if self.at < self.bytes.len() {
            return Err(format!("it has {} bytes, but its variables end at {}", self.bytes.len(), self.at));
        }
        Ok(held)
    }
}

fn little_endian(bytes: &[u8]) -> usize {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte))
}

/// The model that the variables make, and its config.json.
fn config(
    held: &BTreeMap<String, Variable>,
    path: &Path,
) -> Result<(ModelConfig, serde_json::Value), PrepareError> {
    let size = |name: &str, dimension: usize| {
        let size = held.get(name).and_then(|variable| variable.shape.get(dimension));
        size.copied().ok_or_else(|| PrepareError::tensor(path, name, "is missing, or lacks a dimension"))
    };
    let heads = |side: &str| {
        let name = format!("{side}/num_heads");
        let number = held.get(&name).and_then(|variable| variable.number);
        number.ok_or_else(|| PrepareError::tensor(path, &name, "is missing, or is no number"))
    };
    let layers = |side: &str| {
        let is_there =
            |index: &usize| held.contains_key(&format!("{side}/layer_{index}/ffn/linear_0/weight"));
        (0..).take_while(is_there).count()
    };
    let range = |name: &str| held.get(name).map(|variable| variable.range.clone());
    let tied = range("decoder/projection/weight")
        .is_none_or(|head| Some(head) == range("decoder/embeddings/weight"));
    let config = json!({
        "model_type": "whisper",
        "activation_function": "gelu",
        "d_model": size("decoder/embeddings/weight", 1)?,
        "decoder_attention_heads": heads("decoder")?,
        "decoder_ffn_dim": size("decoder/layer_0/ffn/linear_0/weight", 0)?,
        "decoder_layers": layers("decoder"),
        "encoder_attention_heads": heads("encoder")?,
        "encoder_ffn_dim": size("encoder/layer_0/ffn/linear_0/weight", 0)?,
        "encoder_layers": layers("encoder"),
        "max_source_positions": size("encoder/position_encodings/encodings", 0)?,
        "max_target_positions": size("decoder/position_encodings/encodings", 0)?,
        "num_mel_bins": size("encoder/conv1/weight", 1)?,
        "tie_word_embeddings": tied,
        "vocab_size": size("decoder/embeddings/weight", 0)?
    });
    Ok((ModelConfig::from_json(&config).map_err(PrepareError::model(path))?, config))
}

/// Parts of a bundle's names and CTranslate2's, in the order in which they are replaced.
const NAMES: [(&str, &str); 21] = [
    ("model.", ""),
    ("lm_head.weight", "decoder.projection.weight"),
    ("embed_tokens", "embeddings"),
    ("embed_positions.weight", "position_encodings.encodings"),
    ("layers.", "layer_"),
    ("self_attn_layer_norm", "self_attention.layer_norm"),
    ("encoder_attn_layer_norm", "attention.layer_norm"),
    ("final_layer_norm", "ffn.layer_norm"),
    ("layer_norm.weight", "layer_norm.gamma"),
    ("layer_norm.bias", "layer_norm.beta"),
    ("encoder_attn.q_proj", "attention.linear_0"),
    ("encoder_attn.k_proj", "attention.linear_1"),
    ("encoder_attn.v_proj", "attention.linear_1"),
    ("encoder_attn.out_proj", "attention.linear_2"),
    ("self_attn.out_proj", "self_attention.linear_1"),
    ("self_attn.q_proj", "self_attention.linear_0"),
    ("self_attn.k_proj", "self_attention.linear_0"),
    ("self_attn.v_proj", "self_attention.linear_0"),
    ("fc1", "ffn.linear_0"),
    ("fc2", "ffn.linear_1"),
    (".", "/"),
];

/// The variable with a tensor of the bundle, which part of it that is, and of how many of one size.
fn name_of(tensor: &str) -> (String, usize, usize) {
    let name = NAMES.iter().fold(tensor.to_owned(), |name, (ours, theirs)| name.replace(ours, theirs));
    let parts: &[&str] = match tensor {
        _ if tensor.contains(".self_attn.") => &[".q_proj.", ".k_proj.", ".v_proj."],
        _ => &[".k_proj.", ".v_proj."],
    };
    match parts.iter().position(|part| tensor.contains(part)) {
        Some(part) => (name, part, parts.len()),
        None => (name, 0, 1),
    }
}

/// Refuses what a Whisper has not. Flags that are 0 are of what is left out.
fn check_rest(
    rest: &BTreeMap<String, Variable>,
    config: &ModelConfig,
    file: &SourceFile,
) -> Result<(), PrepareError> {
    // An exact GELU, and norms before blocks. Alignment is for timestamps of words.
    const KNOWN: [(&str, Option<usize>); 5] = [
        ("activation", Some(3)),
        ("pre_norm", Some(1)),
        ("num_heads", None),
        ("alignment_heads", None),
        ("alignment_layer", None),
    ];
    for (name, variable) in rest {
        let last = name.rsplit('/').next().unwrap_or_default();
        let known = KNOWN.iter().find(|(known, _)| *known == last);
        let usual = known.map_or(Some(0), |(_, usual)| *usual);
        let is_tied = config.tied_embeddings && name == "decoder/projection/weight";
        let reason = match variable.number {
            Some(number) if usual.is_none_or(|usual| usual == number) => continue,
            Some(number) => format!("is {number}, which no Whisper has"),
            None if is_tied => continue,
            None => "has no place in a Whisper".to_owned(),
        };
        return Err(PrepareError::tensor(file.path(), name, reason));
    }
    Ok(())
}

struct Weights {
    file: SourceFile,
    /// By the bundle's name of the tensor.
    places: BTreeMap<String, Place>,
}

struct Place {
    element: Element,
    /// Within the file.
    range: Range<usize>,
}

impl Tensors for Weights {
    fn read(&self, spec: &TensorSpec, rows: Range<usize>) -> Result<Vec<f32>, PrepareError> {
        let Place { element, range } = &self.places[&spec.name];
        let row = matrix(spec).1 * element.bytes();
        let range = range.start + rows.start * row..range.start + rows.end * row;
        let values = decode(&self.file.bytes()[range.clone()], *element);
        self.file.release(range);
        Ok(values)
    }

    fn stored(&self) -> Option<String> {
        most_common(
            self.places.values().map(|Place { element, range }| {
                (element.name().to_lowercase(), range.len() / element.bytes())
            }),
        )
    }

    fn path_of(&self, _: &str) -> &Path {
        self.file.path()
    }
}

//! A Hugging Face directory: config.json, safetensors in one file or several, tokenizer.json.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use bundle::{Architecture, ModelConfig, TensorSpec};
use serde_json::Value;

use crate::encode::{decode, transpose};
use crate::error::PrepareError;
use crate::model::{CONFIG, Document, Model, SourceFile, TOKENIZER, Tensors, check_layers};
use crate::safetensors::{Entry, Header};

pub(crate) const WEIGHTS: &str = "model.safetensors";
pub(crate) const INDEX: &str = "model.safetensors.index.json";

pub(crate) fn open(directory: &Path) -> Result<Model, PrepareError> {
    let not_a_model =
        |reason: &str| PrepareError::NotAModel { path: directory.to_path_buf(), reason: reason.into() };
    if !directory.exists() {
        return Err(not_a_model("there is no such directory"));
    }
    if !directory.is_dir() {
        return Err(not_a_model("it is neither a directory nor a .gguf file"));
    }
    if !directory.join(CONFIG).is_file() {
        let gguf = files_with(directory, &["gguf"])?.into_iter().next();
        return Err(not_a_model(&match gguf {
            Some(path) => format!("it has no config.json; to prepare its GGUF, name {}", path.display()),
            None => "it has no config.json".to_owned(),
        }));
    }
    let config_file = SourceFile::open(&directory.join(CONFIG))?;
    let config = read_config(&config_file)?;
    let (shards, index) = shard_paths(directory)?;
    let shards: Vec<_> = shards.iter().map(|path| SourceFile::open(path)).collect::<Result<_, _>>()?;
    let weights = Weights::open(shards.iter().map(SourceFile::share).collect(), &config, directory)?;

    let mut derived = if shards.len() == 1 {
        format!("from {}", shards[0].name())
    } else {
        format!("from {} safetensors files", shards.len())
    };
    if config.architecture == Architecture::Gpt2 {
        derived.push_str(", Conv1D weights transposed from [in, out] to [out, in]");
    }
    let config_json = match parse(&config_file)?.get("text_config").filter(|_| has_text_part(&config)) {
        Some(text) => Document {
            bytes: serde_json::to_vec_pretty(text).expect("a value is valid JSON"),
            derived: "the part of the source's config.json that is about text".into(),
        },
        None => Document {
            bytes: config_file.bytes().to_vec(),
            derived: "the source's config.json, verbatim".into(),
        },
    };
    let mut files = vec![config_file];
    let tokenizer_path = directory.join(TOKENIZER);
    let tokenizer = if tokenizer_path.is_file() {
        let file = SourceFile::open(&tokenizer_path)?;
        let bytes = file.bytes().to_vec();
        files.push(file);
        Ok(Document { bytes, derived: "the source's tokenizer.json, verbatim".into() })
    } else {
        Err("the source has no tokenizer.json".into())
    };
    files.extend(shards);
    files.extend(index);
    Ok(Model {
        name: directory_name(directory),
        kind: "huggingface",
        files,
        seed: None,
        config,
        config_json,
        tokenizer,
        tensors: Box::new(weights),
        derived,
    })
}

fn directory_name(directory: &Path) -> String {
    // `.` and `..` have no name of their own.
    let full = directory.canonicalize();
    let full = full.as_deref().unwrap_or(directory);
    full.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The config.json of a directory, known to describe a model that is supported.
pub(crate) fn config_json(directory: &Path) -> Result<Value, PrepareError> {
    let file = SourceFile::open(&directory.join(CONFIG))?;
    read_config(&file)?;
    parse(&file)
}

fn parse(file: &SourceFile) -> Result<Value, PrepareError> {
    serde_json::from_slice(file.bytes())
        .map_err(|e| PrepareError::damaged(file.path(), format!("it does not parse: {e}")))
}

fn read_config(file: &SourceFile) -> Result<ModelConfig, PrepareError> {
    let value = parse(file)?;
    if let Some(quantization) = value.get("quantization_config").filter(|value| !value.is_null()) {
        let method = quantization.get("quant_method").and_then(Value::as_str).unwrap_or("unknown");
        let reason = format!(
            "weights quantised by {method:?} are not supported; use the model's unquantised safetensors or a GGUF"
        );
        return Err(PrepareError::Unsupported { path: file.path().to_path_buf(), reason });
    }
    let path = file.path().parent().unwrap_or(file.path()).to_path_buf();
    ModelConfig::from_json(&value).map_err(|source| PrepareError::Model { path, source })
}

/// The files that hold the weights, and the index that lists them if there is one. Like
/// transformers: `model.safetensors` alone, else what the index lists, else every safetensors file.
fn shard_paths(directory: &Path) -> Result<(Vec<PathBuf>, Option<SourceFile>), PrepareError> {
    if directory.join(WEIGHTS).is_file() {
        return Ok((vec![directory.join(WEIGHTS)], None));
    }
    if directory.join(INDEX).is_file() {
        let index = SourceFile::open(&directory.join(INDEX))?;
        let names = indexed_files(&index)?;
        for name in &names {
            if !directory.join(name).is_file() {
                let reason = format!("{INDEX} lists {name}, which is not there");
                return Err(PrepareError::NotAModel { path: directory.to_path_buf(), reason });
            }
        }
        return Ok((names.iter().map(|name| directory.join(name)).collect(), Some(index)));
    }
    let shards = files_with(directory, &["safetensors"])?;
    if shards.is_empty() {
        let mut reason = "it has no safetensors weights".to_owned();
        if let Some(other) = files_with(directory, &["bin", "pt", "pth", "h5", "msgpack"])?.first() {
            let other = other.file_name().unwrap_or_default().to_string_lossy();
            reason = format!("{reason}, only {other}; convert it with transformers' save_pretrained");
        }
        return Err(PrepareError::NotAModel { path: directory.to_path_buf(), reason });
    }
    Ok((shards, None))
}

/// The files of a directory with one of `extensions`, sorted.
fn files_with(directory: &Path, extensions: &[&str]) -> Result<Vec<PathBuf>, PrepareError> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(PrepareError::reading(directory))? {
        let path = entry.map_err(PrepareError::reading(directory))?.path();
        if path.extension().is_some_and(|found| extensions.iter().any(|wanted| found == *wanted)) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Names of the files that an index maps tensors to. Only plain names: an index must not lead out
/// of its directory.
pub(crate) fn indexed_files(index: &SourceFile) -> Result<BTreeSet<String>, PrepareError> {
    let damaged = |reason: String| PrepareError::damaged(index.path(), reason);
    let value: Value =
        serde_json::from_slice(index.bytes()).map_err(|e| damaged(format!("it does not parse: {e}")))?;
    let map = value.get("weight_map").and_then(Value::as_object);
    let map = map.ok_or_else(|| damaged("it has no \"weight_map\"".into()))?;
    let mut names = BTreeSet::new();
    for (tensor, file) in map {
        let name = file.as_str().unwrap_or_default();
        let components: Vec<_> = Path::new(name).components().collect();
        if !matches!(components[..], [Component::Normal(_)]) {
            return Err(damaged(format!("it maps tensor {tensor:?} to {file}, which is not a file name")));
        }
        names.insert(name.to_owned());
    }
    if names.is_empty() {
        return Err(damaged("its \"weight_map\" is empty".into()));
    }
    Ok(names)
}

struct Weights {
    shards: Vec<SourceFile>,
    /// By the bundle's name of the tensor.
    places: BTreeMap<String, Place>,
}

struct Place {
    shard: usize,
    entry: Entry,
    stored: bundle::Element,
    transposed: bool,
}

impl Weights {
    fn open(
        shards: Vec<SourceFile>,
        config: &ModelConfig,
        directory: &Path,
    ) -> Result<Weights, PrepareError> {
        let mut held: BTreeMap<String, (usize, Entry)> = BTreeMap::new();
        for (shard, file) in shards.iter().enumerate() {
            for (name, entry) in Header::parse(file.bytes(), file.path())?.tensors {
                if let Some((first, _)) = held.insert(name.clone(), (shard, entry)) {
                    let reason = format!("is also in {}", shards[first].name());
                    return Err(PrepareError::tensor(file.path(), &name, reason));
                }
            }
        }
        check_layers(config, directory, held.len())?;
        let mut places = BTreeMap::new();
        for spec in config.tensors() {
            let name = source_name(&spec.name, &held).ok_or_else(|| {
                let path = if shards.len() == 1 { shards[0].path() } else { directory };
                let reason = format!("is missing; config.json calls for one of shape {:?}", spec.shape);
                PrepareError::tensor(path, &spec.name, reason)
            })?;
            let (shard, entry) = held.remove(&name).expect("found above");
            let place = Place::check(shard, entry, &spec, config)
                .map_err(|reason| PrepareError::tensor(shards[shard].path(), &name, reason))?;
            places.insert(spec.name, place);
        }
        let weights = Weights { shards, places };
        weights.check_rest(held, config)?;
        Ok(weights)
    }

    /// Tensors that no part of the model uses are buffers, or a sign that config.json describes another
    /// model than the one whose weights these are.
    fn check_rest(
        &self,
        rest: BTreeMap<String, (usize, Entry)>,
        config: &ModelConfig,
    ) -> Result<(), PrepareError> {
        for (name, (shard, entry)) in rest {
            let path = self.shards[shard].path();
            if is_buffer(&name) || (has_text_part(config) && sees(&name)) {
                continue;
            }
            if config.tied_embeddings && name == "lm_head.weight" {
                let embedding = &self.places[&config.embedding()];
                if self.shards[shard].bytes()[entry.range.clone()] != *self.bytes(embedding) {
                    let reason = "differs from the embedding, although config.json ties the two; \
                                  set tie_word_embeddings to false";
                    return Err(PrepareError::tensor(path, &name, reason));
                }
                continue;
            }
            let reason = "has no place in the model that config.json describes";
            return Err(PrepareError::tensor(path, &name, reason));
        }
        Ok(())
    }

    fn bytes(&self, place: &Place) -> &[u8] {
        &self.shards[place.shard].bytes()[place.entry.range.clone()]
    }
}

impl Place {
    fn check(shard: usize, entry: Entry, spec: &TensorSpec, config: &ModelConfig) -> Result<Place, String> {
        let transposed = config.architecture == Architecture::Gpt2 && is_conv1d(&spec.name);
        let mut expected = spec.shape.clone();
        if transposed {
            expected.reverse();
        }
        if entry.shape != expected {
            return Err(format!("has shape {:?}, but config.json calls for {expected:?}", entry.shape));
        }
        let stored = entry
            .element()
            .ok_or_else(|| format!("is stored as {}; weights must be F32, BF16 or F16", entry.dtype))?;
        Ok(Place { shard, entry, stored, transposed })
    }
}

impl Tensors for Weights {
    fn read(&self, spec: &TensorSpec) -> Result<Vec<f32>, PrepareError> {
        let place = &self.places[&spec.name];
        let values = decode(self.bytes(place), place.stored);
        Ok(match place.entry.shape[..] {
            [rows, columns] if place.transposed => transpose(&values, rows, columns),
            _ => values,
        })
    }

    fn path_of(&self, name: &str) -> &Path {
        self.shards[self.places[name].shard].path()
    }
}

/// What the source calls a tensor: a base model was saved without the `model.` or `transformer.`
/// that it has as a part of the causal language model, and one that sees as well has the part that reads and writes as
/// its `language_model`.
fn source_name(name: &str, held: &BTreeMap<String, (usize, Entry)>) -> Option<String> {
    let bare = name.strip_prefix("model.").or_else(|| name.strip_prefix("transformer.")).unwrap_or(name);
    let names = [
        name.to_owned(),
        bare.to_owned(),
        format!("language_model.{name}"),
        format!("model.language_model.{bare}"),
    ];
    names.into_iter().find(|name| held.contains_key(name))
}

/// gpt2's linear layers are `Conv1D`s, whose weights are `[in, out]`.
fn is_conv1d(name: &str) -> bool {
    ["c_attn.weight", "c_proj.weight", "c_fc.weight"].iter().any(|part| name.ends_with(part))
}

/// Constants that older versions of transformers saved with the weights.
fn is_buffer(name: &str) -> bool {
    [".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq"].iter().any(|part| name.ends_with(part))
}

/// Whether models of this architecture may have a part that sees beside the one that is read.
fn has_text_part(config: &ModelConfig) -> bool {
    config.architecture == Architecture::Gemma3
}

/// Whether a tensor belongs to that part.
fn sees(name: &str) -> bool {
    let name = name.strip_prefix("model.").unwrap_or(name);
    ["vision_tower.", "multi_modal_projector."].iter().any(|part| name.starts_with(part))
}

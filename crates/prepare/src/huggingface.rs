//! A Hugging Face directory: config.json, safetensors in one file or several, tokenizer.json.

mod files;
mod nomic_bert;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use bundle::{Architecture, ModelConfig, TensorSpec};
use serde_json::Value;

use crate::chat::{self, TEMPLATE, TOKENIZER_CONFIG};
use crate::encode::{decode, transpose};
use crate::error::PrepareError;
use crate::model::{
    CONFIG, Document, Model, SourceFile, TOKENIZER, Tensors, check_layers, matrix, most_common,
};
use crate::pooling;
use crate::safetensors::{Entry, Header};

pub(crate) use files::{INDEX, WEIGHTS, indexed_files};
use files::{files_with, shards};

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
    let config_file = SourceFile::within(directory, CONFIG)?;
    let pools = directory.join(pooling::POOLING).is_file();
    let config = read_config(&config_file, pools)?;
    let (shards, index) = shards(directory)?;
    let shards: Vec<_> =
        shards.iter().map(|name| SourceFile::within(directory, name)).collect::<Result<_, _>>()?;
    let weights = Weights::open(shards.iter().map(SourceFile::share).collect(), &config, directory)?;

    let derived = derivation(&shards, &config);
    let config_json = config_document(&config_file, &config, pools)?;
    let mut files = vec![config_file];
    let tokenizer = match SourceFile::optional(directory, TOKENIZER)? {
        Some(file) => {
            let bytes = file.bytes().to_vec();
            files.push(file);
            Ok(Document { bytes, derived: "the source's tokenizer.json, verbatim".into() })
        }
        None => Err("the source has no tokenizer.json".into()),
    };
    let [tokenizer_config, template] =
        [TOKENIZER_CONFIG, TEMPLATE].map(|name| SourceFile::optional(directory, name));
    let (tokenizer_config, template) = (tokenizer_config?, template?);
    let chat = chat::of_files(tokenizer_config.as_ref(), template.as_ref())?;
    files.extend(tokenizer_config.into_iter().chain(template));
    let pooling = match &config.encoder {
        Some(_) => pooling::of_directory(directory, &mut files)?,
        None => None,
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
        chat,
        pooling,
        tensors: Box::new(weights),
        verbatim: Vec::new(),
        derived,
    })
}

/// How the weights of a bundle were derived from these files.
fn derivation(shards: &[SourceFile], config: &ModelConfig) -> String {
    let mut derived = if shards.len() == 1 {
        format!("from {}", shards[0].name())
    } else {
        format!("from {} safetensors files", shards.len())
    };
    if config.architecture == Architecture::Gpt2 {
        derived.push_str(", Conv1D weights transposed from [in, out] to [out, in]");
    }
    derived
}

/// The config.json of the bundle: the source's, or the part or form of it that is used.
fn config_document(file: &SourceFile, config: &ModelConfig, pools: bool) -> Result<Document, PrepareError> {
    let whole = parse(file)?;
    let changed = |value: &Value, derived: &str| Document {
        bytes: serde_json::to_vec_pretty(value).expect("a value is valid JSON"),
        derived: derived.into(),
    };
    if let Some((read, derived)) = renamed(&whole, pools) {
        return Ok(changed(&read, derived));
    }
    Ok(match whole.get("text_config").filter(|_| has_text_part(config)) {
        Some(text) => changed(text, "the part of the source's config.json that is about text"),
        None => {
            Document { bytes: file.bytes().to_vec(), derived: "the source's config.json, verbatim".into() }
        }
    })
}

/// The config in the form that is read, and its derivation, if the source has another. `pools`: the directory
/// says how vectors of tokens are pooled.
fn renamed(config: &Value, pools: bool) -> Option<(Value, &'static str)> {
    const BODY: &str =
        "the source's config.json without its head over the vocabulary, for which it says how to pool";
    const NAMES: &str = "the source's config.json, with the names of fields that transformers 5 reads";
    let body = pooled_body(config).filter(|_| pools).map(|body| (body, BODY));
    body.or_else(|| nomic_bert::described(config).map(|described| (described, NAMES)))
}

/// The description of a decoder that encodes: one with a head over its vocabulary becomes its body.
fn pooled_body(config: &Value) -> Option<Value> {
    let class = config.get("architectures")?.get(0)?.as_str()?;
    let body = format!("{}Model", class.strip_suffix("ForCausalLM")?);
    let mut config = config.clone();
    config["architectures"] = serde_json::json!([body]);
    Some(config)
}

fn directory_name(directory: &Path) -> String {
    // `.` and `..` must be resolved to get a name.
    let full = directory.canonicalize();
    let full = full.as_deref().unwrap_or(directory);
    full.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The config.json of a directory, known to describe a model that is supported.
pub(crate) fn config_json(directory: &Path) -> Result<Value, PrepareError> {
    let file = SourceFile::within(directory, CONFIG)?;
    read_config(&file, false)?;
    parse(&file)
}

fn parse(file: &SourceFile) -> Result<Value, PrepareError> {
    serde_json::from_slice(file.bytes())
        .map_err(|e| PrepareError::damaged(file.path(), format!("it does not parse: {e}")))
}

/// `pools`: the directory says how vectors of tokens are pooled.
fn read_config(file: &SourceFile, pools: bool) -> Result<ModelConfig, PrepareError> {
    let value = parse(file)?;
    if let Some(quantization) = value.get("quantization_config").filter(|value| !value.is_null()) {
        let method = quantization.get("quant_method").and_then(Value::as_str).unwrap_or("unknown");
        let reason = format!(
            "weights quantised by {method:?} are not supported; use the model's unquantised safetensors or a GGUF"
        );
        return Err(PrepareError::Unsupported { path: file.path().to_path_buf(), reason });
    }
    let path = file.path().parent().unwrap_or(file.path()).to_path_buf();
    let read = renamed(&value, pools).map_or(value, |(read, _)| read);
    ModelConfig::from_json(&read).map_err(|source| PrepareError::Model { path, source })
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
        if config.architecture == Architecture::NomicBert {
            held = nomic_bert::tensors(held);
        }
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

    /// Tensors that no part of the model uses are buffers, or a sign that config.json describes another model
    /// than that of the weights.
    fn check_rest(
        &self,
        rest: BTreeMap<String, (usize, Entry)>,
        config: &ModelConfig,
    ) -> Result<(), PrepareError> {
        for (name, (shard, entry)) in rest {
            let path = self.shards[shard].path();
            if is_buffer(&name)
                || (has_text_part(config) && sees(&name))
                || (config.encoder.is_some() && is_head(&name))
            {
                continue;
            }
            if config.tied_embeddings && name == "lm_head.weight" {
                let embedding = &self.places[&config.embedding()];
                if !self.is_same((shard, &entry), (embedding.shard, &embedding.entry)) {
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

    /// Whether two tensors are the same bytes.
    fn is_same(&self, a: (usize, &Entry), b: (usize, &Entry)) -> bool {
        const CHUNK: usize = 1 << 22;
        let [(one, from), (other, to)] =
            [a, b].map(|(shard, entry)| (&self.shards[shard], entry.range.clone()));
        let length = from.len();
        length == to.len()
            && (0..length).step_by(CHUNK).all(|at| {
                let range = |start: usize| start + at..start + length.min(at + CHUNK);
                let (from, to) = (range(from.start), range(to.start));
                let is_same = one.bytes()[from.clone()] == other.bytes()[to.clone()];
                one.release(from);
                other.release(to);
                is_same
            })
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
    fn stored(&self) -> Option<String> {
        most_common(
            self.places.values().map(|Place { entry, stored, .. }| {
                (stored.name().to_lowercase(), entry.shape.iter().product())
            }),
        )
    }

    fn read(&self, spec: &TensorSpec, rows: Range<usize>) -> Result<Vec<f32>, PrepareError> {
        let Place { shard, entry, stored, transposed } = &self.places[&spec.name];
        let shard = &self.shards[*shard];
        let tensor = &shard.bytes()[entry.range.clone()];
        let (all, columns) = matrix(spec);
        let width = stored.bytes();
        if !transposed {
            let range = rows.start * columns * width..rows.end * columns * width;
            let values = decode(&tensor[range.clone()], *stored);
            shard.release(entry.range.start + range.start..entry.range.start + range.end);
            return Ok(values);
        }
        // The requested rows are columns of the source.
        let mut block = Vec::with_capacity(columns * rows.len());
        for line in tensor.chunks_exact(all * width) {
            block.extend(decode(&line[rows.start * width..rows.end * width], *stored));
        }
        shard.release(entry.range.clone());
        Ok(transpose(&block, columns, rows.len()))
    }

    fn path_of(&self, name: &str) -> &Path {
        self.shards[self.places[name].shard].path()
    }
}

/// Prefixes of a body's names where it is a part of a model with a head.
const BODIES: [&str; 8] =
    ["model.", "transformer.", "bert.", "roberta.", "distilbert.", "mpnet.", "nomic_bert.", "xlm_roberta."];

/// The source's name of a tensor: a base model was saved without the prefix that names have in a model with a
/// head, such as `model.`, and a multimodal model has its text part as `language_model`.
fn source_name(name: &str, held: &BTreeMap<String, (usize, Entry)>) -> Option<String> {
    let bare = BODIES.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name);
    let names = [name.to_owned(), bare.to_owned(), format!("language_model.{name}")];
    let under = ["model.language_model."].iter().chain(&BODIES).map(|prefix| format!("{prefix}{bare}"));
    let mut names = names.into_iter().chain(under);
    names.find(|name| held.contains_key(name))
}

/// gpt2's linear layers are `Conv1D`s; their weights are `[in, out]`.
fn is_conv1d(name: &str) -> bool {
    ["c_attn.weight", "c_proj.weight", "c_fc.weight"].iter().any(|part| name.ends_with(part))
}

/// Constants that older versions of transformers saved with the weights.
fn is_buffer(name: &str) -> bool {
    [".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq", "embeddings.position_ids"]
        .iter()
        .any(|part| name.ends_with(part))
}

/// Whether a tensor belongs to a training head of an encoder, which no text vector goes through.
fn is_head(name: &str) -> bool {
    let name = BODIES.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name);
    ["pooler.", "cls.", "lm_head.", "vocab_", "head.", "decoder."].iter().any(|part| name.starts_with(part))
}

/// Whether models of this architecture may have a vision part, which is not read.
fn has_text_part(config: &ModelConfig) -> bool {
    config.architecture == Architecture::Gemma3
}

/// Whether a tensor belongs to that part.
fn sees(name: &str) -> bool {
    let name = name.strip_prefix("model.").unwrap_or(name);
    ["vision_tower.", "multi_modal_projector."].iter().any(|part| name.starts_with(part))
}

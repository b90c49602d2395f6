//! A Hugging Face directory: config.json, safetensors in one file or several, tokenizer.json.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Component, Path, PathBuf};

use bundle::{Architecture, ModelConfig, TensorSpec};
use serde_json::{Value, json};

use crate::PrepareError;
use crate::elsewhere::{instead, one_file};
use crate::model::{
    self, CONFIG, Document, Model, SourceFile, TEMPLATE, TOKENIZER, TOKENIZER_CONFIG, Tensors, check_layers,
    decode, matrix, most_common, parse, transpose,
};
use crate::safetensors::{Entry, Header};

pub(crate) fn open(directory: &Path) -> Result<Model, PrepareError> {
    let not_a_model =
        |reason: &str| PrepareError::NotAModel { path: directory.to_path_buf(), reason: reason.into() };
    if !directory.exists() {
        return Err(not_a_model("there is no such directory"));
    }
    if !directory.is_dir() {
        return Err(one_file(&SourceFile::open(directory)?));
    }
    let lacks = |what: &str, found: Option<String>| {
        let found = found.map(|found| format!(": {found}")).unwrap_or_default();
        not_a_model(&format!("it has no {what}{found}"))
    };
    if !directory.join(CONFIG).is_file() {
        return Err(lacks(CONFIG, instead(directory)));
    }
    let shards = shards(directory);
    if let (Err(_), Some(found)) = (&shards, instead(directory)) {
        return Err(lacks("safetensors weights", Some(found)));
    }
    let config_file = SourceFile::within(directory, CONFIG)?;
    let pools = directory.join(model::POOLING).is_file();
    let config = read_config(&config_file, pools)?;
    let (shards, index) = shards?;
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
    let chat = model::of_files(tokenizer_config.as_ref(), template.as_ref())?;
    files.extend(tokenizer_config.into_iter().chain(template));
    let pooling = match &config.encoder {
        Some(_) => model::of_directory(directory, &mut files)?,
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
    body.or_else(|| self::described(config).map(|described| (described, NAMES)))
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
            for (name, entry) in Header::parse(file)?.tensors {
                if let Some((first, _)) = held.insert(name.clone(), (shard, entry)) {
                    let reason = format!("is also in {}", shards[first].name());
                    return Err(PrepareError::tensor(file.path(), &name, reason));
                }
            }
        }
        check_layers(config, directory, held.len())?;
        let mut places = BTreeMap::new();
        if config.architecture == Architecture::NomicBert {
            held = tensors(held);
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

// The files of a Hugging Face directory that hold weights.

pub(crate) const WEIGHTS: &str = "model.safetensors";

pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// Names of the weights' files, and the index that lists them if there is one. As in transformers:
/// `model.safetensors` alone, else the files of the index, else every safetensors file.
fn shards(directory: &Path) -> Result<(Vec<String>, Option<SourceFile>), PrepareError> {
    if directory.join(WEIGHTS).is_file() {
        return Ok((vec![WEIGHTS.to_owned()], None));
    }
    if directory.join(INDEX).is_file() {
        let index = SourceFile::within(directory, INDEX)?;
        let names = indexed_files(&index)?;
        for name in &names {
            if !directory.join(name).is_file() {
                let reason = format!("{INDEX} lists {name}, which is not there");
                return Err(PrepareError::NotAModel { path: directory.to_path_buf(), reason });
            }
        }
        return Ok((names.into_iter().collect(), Some(index)));
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
    let name = |path: &PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let names: Vec<_> = shards.iter().map(name).collect();
    // The parts of a model without its index: other files beside them have the same weights in another layout.
    let count = names
        .iter()
        .find_map(|name| name.strip_prefix("model-")?.strip_suffix(".safetensors")?.split_once("-of-"));
    let Some(count) = count.and_then(|(_, count)| count.parse::<usize>().ok()) else {
        return Ok((names, None));
    };
    let parts = (1..=count).map(|part| format!("model-{part:05}-of-{count:05}.safetensors"));
    let missing = parts.clone().find(|part| !names.contains(part));
    if let Some(part) = missing {
        let reason = format!("{part} is not there, one of the {count} files of its weights");
        return Err(PrepareError::NotAModel { path: directory.to_path_buf(), reason });
    }
    Ok((parts.collect(), None))
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
    let value = parse(index)?;
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

// A nomic_bert of the code that was published with the model, under the names of transformers 5.

/// The description with the names of transformers 5; `None` of one that has them already, and of other models.
fn described(config: &Value) -> Option<Value> {
    const NAMES: [(&str, &str); 5] = [
        ("n_embd", "hidden_size"),
        ("n_inner", "intermediate_size"),
        ("n_layer", "num_hidden_layers"),
        ("n_head", "num_attention_heads"),
        ("layer_norm_epsilon", "layer_norm_eps"),
    ];
    let mut fields = config.as_object().filter(|fields| fields.contains_key("n_embd"))?.clone();
    if fields.get("model_type")? != "nomic_bert" {
        return None;
    }
    for (published, name) in NAMES {
        if let Some(value) = fields.remove(published) {
            fields.insert(name.to_owned(), value);
        }
    }
    // Beyond those that it was trained on, frequencies change with the length of the text.
    let positions =
        ["n_positions", "max_trained_positions"].map(|name| fields.get(name).and_then(Value::as_u64));
    if let Some(positions) = positions.into_iter().flatten().min() {
        fields.insert("max_position_embeddings".to_owned(), positions.into());
    }
    // Another activation stays, and is refused by its name.
    let gated = match fields.get("activation_function").and_then(Value::as_str) {
        None | Some("swiglu") => Some("silu"),
        Some("geglu") => Some("gelu"),
        Some(_) => None,
    };
    if let Some(activation) = gated {
        fields.remove("activation_function");
        fields.insert("hidden_act".to_owned(), activation.into());
    }
    let theta = fields.remove("rotary_emb_base").unwrap_or(json!(1000.0));
    fields.insert("rope_parameters".to_owned(), json!({ "rope_theta": theta, "rope_type": "default" }));
    fields.remove("auto_map");
    Some(Value::Object(fields))
}

/// The tensors of a nomic_bert under the names of transformers 5, where they have those of the code that was published with
/// the model: there, queries, keys and values are one tensor.
fn tensors(held: BTreeMap<String, (usize, Entry)>) -> BTreeMap<String, (usize, Entry)> {
    const PARTS: [(&str, &str); 7] = [
        ("attn.out_proj.", "self_attn.o_proj."),
        ("mlp.fc11.", "mlp.up_proj."),
        ("mlp.fc12.", "mlp.gate_proj."),
        ("mlp.fc2.", "mlp.down_proj."),
        ("norm1.", "post_attention_layernorm."),
        ("norm2.", "post_mlp_layernorm."),
        ("emb_ln.", "embeddings.LayerNorm."),
    ];
    let mut renamed = BTreeMap::new();
    for (name, (shard, entry)) in held {
        let mut new = name.replace("encoder.layers.", "layers.");
        let Some((layer, kind)) = new.split_once("attn.Wqkv.").filter(|(layer, _)| layer.ends_with('.'))
        else {
            for (published, part) in PARTS {
                // `.` before a part, or the beginning: `norm1` is no end of another word.
                let found = new.find(published);
                if let Some(at) = found.filter(|&at| at == 0 || new.as_bytes()[at - 1] == b'.') {
                    new.replace_range(at..at + published.len(), part);
                }
            }
            renamed.insert(new, (shard, entry));
            continue;
        };
        let rows = entry.shape.first().copied().unwrap_or(0);
        let bytes = entry.range.len();
        if !rows.is_multiple_of(3) || !bytes.is_multiple_of(3) {
            renamed.insert(name, (shard, entry));
            continue;
        }
        for (place, part) in ["q_proj", "k_proj", "v_proj"].into_iter().enumerate() {
            let start = entry.range.start + place * (bytes / 3);
            let mut shape = entry.shape.clone();
            shape[0] = rows / 3;
            let part_of = Entry { dtype: entry.dtype.clone(), shape, range: start..start + bytes / 3 };
            renamed.insert(format!("{layer}self_attn.{part}.{kind}"), (shard, part_of));
        }
    }
    renamed
}

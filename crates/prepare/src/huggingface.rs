//! A Hugging Face directory: config.json, safetensors in one file or several, tokenizer.json.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Component, Path, PathBuf};

use bundle::{Architecture, MODULES, ModelConfig, POOLING, TensorSpec};
use serde_json::Value;

use crate::PrepareError;
use crate::elsewhere::{instead, one_file};
use crate::model::{
    self, CONFIG, Document, Model, SourceFile, TEMPLATE, TOKENIZER, TOKENIZER_CONFIG, Tensors, WEIGHTS,
    check_layers, decode, directory_name, matrix, most_common, parse, transpose,
};
use crate::modules::{self, Processing};
use crate::names::{described, foreign, has_text_part, is_buffer, is_head, parts, plain, sees, source_rows};
use crate::safetensors::{Entry, Header};
use crate::{mxfp4, tokenizer_files, vocabulary};

pub(crate) fn open(directory: &Path) -> Result<Model, PrepareError> {
    let not_a_model = |reason: &str| PrepareError::not_a_model(directory, reason);
    if !directory.exists() {
        return Err(not_a_model("there is no such directory"));
    }
    if !directory.is_dir() {
        return Err(one_file(&SourceFile::open(directory)?));
    }
    let mut files = Vec::new();
    let listed = modules::listed(directory, &mut files)?;
    let (whole, folder) = (directory, listed.as_ref().map_or("", |listed| listed.body()));
    let (body, config_name) = (whole.join(folder), Path::new(folder).join(CONFIG));
    let directory = body.as_path();
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
    // Within the whole: the Transformer's folder could be a link that leaves it.
    let config_file = SourceFile::within(whole, &config_name.to_string_lossy())?;
    let pools = listed.as_ref().is_some_and(|listed| listed.pools());
    let whole_config = parse(&config_file)?;
    let config = read_config(&config_file, &whole_config, pools)?;
    let (shards, index) = shards?;
    let shards: Vec<_> =
        shards.iter().map(|name| SourceFile::within(directory, name)).collect::<Result<_, _>>()?;
    let weights = Weights::open(shards.iter().map(SourceFile::share).collect(), &config, directory)?;

    let mut derived = match shards.as_slice() {
        [file] => format!("from {}", file.name()),
        several => format!("from {} safetensors files", several.len()),
    };
    if config.architecture == Architecture::Gpt2 {
        derived.push_str(", Conv1D weights transposed from [in, out] to [out, in]");
    }
    if config.tensors().iter().any(|tensor| source_rows(&config, &tensor.name).is_some()) {
        derived.push_str(
            ", rows in this program's order (queries, keys, values; heads rotated by halves; gate first)",
        );
    }
    let config_json = config_document(&config_file, &whole_config, &config, pools);
    files.push(config_file);
    let [tokenizer_config, template] =
        [TOKENIZER_CONFIG, TEMPLATE].map(|name| SourceFile::optional(directory, name));
    let (tokenizer_config, template) = (tokenizer_config?, template?);
    let chat = model::of_files(tokenizer_config.as_ref(), template.as_ref())?;
    let said = tokenizer_config.as_ref().map(parse).transpose()?.unwrap_or_default();
    let tokenizer = match SourceFile::optional(directory, TOKENIZER)? {
        Some(file) => {
            let encodes = config.encoder.is_some();
            let changed = encodes.then(|| vocabulary::with_said_ends(file.bytes(), &said)).flatten();
            let verbatim = || Document {
                bytes: file.bytes().to_vec(),
                derived: "the source's tokenizer.json, verbatim".into(),
            };
            let document = changed.unwrap_or_else(verbatim);
            files.push(file);
            Ok(document)
        }
        None => tokenizer_files::of_directory(directory, (&said, &whole_config), &mut files)?,
    };
    files.extend(tokenizer_config.into_iter().chain(template));
    let processing = match (listed, &config.encoder) {
        (Some(listed), Some(_)) => listed.processing(whole, &config, &mut files)?,
        _ => Processing::default(),
    };
    let tokenizer = if processing.lowers { tokenizer.map(modules::lowered) } else { tokenizer };
    files.extend(shards);
    files.extend(index);
    Ok(Model {
        name: directory_name(whole),
        kind: "huggingface",
        files,
        seed: None,
        config,
        config_json,
        tokenizer,
        others: [(TOKENIZER_CONFIG, chat), (POOLING, processing.pooling), (MODULES, processing.weights)]
            .into_iter()
            .filter_map(|(file, document)| Some((file, document?)))
            .collect(),
        tensors: Box::new(weights),
        verbatim: Vec::new(),
        derived,
    })
}

/// The config.json of the bundle: the source's, or the part or form of it that is used.
fn config_document(file: &SourceFile, whole: &Value, config: &ModelConfig, pools: bool) -> Document {
    let text = || whole.get("text_config").filter(|_| has_text_part(config));
    let of_text = "the part of the source's config.json that is about text";
    let changed = renamed(whole, pools).or_else(|| Some((text_part(text()?, whole, config), of_text)));
    match changed {
        Some((value, derived)) => Document {
            bytes: serde_json::to_vec_pretty(&value).expect("a value is valid JSON"),
            derived: derived.into(),
        },
        None => {
            Document { bytes: file.bytes().to_vec(), derived: "the source's config.json, verbatim".into() }
        }
    }
}

/// The description of a multimodal model's text part on its own.
fn text_part(text: &Value, whole: &Value, config: &ModelConfig) -> Value {
    let mut text = text.clone();
    let Some(fields) = text.as_object_mut() else { return text };
    let model_type = if config.architecture == Architecture::Mistral { "mistral" } else { "gemma3_text" };
    fields.entry("model_type").or_insert(model_type.into());
    // The class and the head are the whole model's.
    fields.remove("architectures");
    if let Some(tied) = whole.get("tie_word_embeddings").filter(|tied| !tied.is_null()) {
        fields.insert("tie_word_embeddings".to_owned(), tied.clone());
    }
    text
}

/// The config in the form that is read, and its derivation, if the source has another. `pools`: the directory
/// says how vectors of tokens are pooled.
fn renamed(config: &Value, pools: bool) -> Option<(Value, &'static str)> {
    const BODY: &str =
        "the source's config.json without its head over the vocabulary, for which it says how to pool";
    const NAMES: &str = "the source's config.json, with the names of fields that transformers 5 reads";
    const FLOATS: &str = "the source's config.json without its quantisation: the bundle has the numbers";
    let body = pooled_body(config).filter(|_| pools).map(|body| (body, BODY));
    let floats = || mxfp4::without(config).map(|config| (config, FLOATS));
    body.or_else(|| described(config).map(|described| (described, NAMES))).or_else(floats)
}

/// The description of a decoder that encodes: one with a head over its vocabulary becomes its body.
fn pooled_body(config: &Value) -> Option<Value> {
    let class = config.get("architectures")?.get(0)?.as_str()?;
    let body = format!("{}Model", class.strip_suffix("ForCausalLM")?);
    let mut config = config.clone();
    config["architectures"] = serde_json::json!([body]);
    Some(config)
}

/// The config.json of a directory, known to describe a model that is supported.
pub(crate) fn config_json(directory: &Path) -> Result<Value, PrepareError> {
    let file = SourceFile::within(directory, CONFIG)?;
    let config = parse(&file)?;
    read_config(&file, &config, false).map(|_| config)
}

/// `pools`: the directory says how vectors of tokens are pooled.
fn read_config(file: &SourceFile, value: &Value, pools: bool) -> Result<ModelConfig, PrepareError> {
    let quantised = ["quantization_config", "compression_config", "quantization"];
    let quantised = quantised.iter().find_map(|name| value.get(*name).filter(|value| !value.is_null()));
    if let Some(quantization) = quantised.filter(|_| mxfp4::without(value).is_none()) {
        let method = quantization.get("quant_method").and_then(Value::as_str).unwrap_or("unknown");
        return Err(PrepareError::unsupported(
            file.path(),
            format!(
                "weights quantised by {method:?} are not supported; use the model's unquantised safetensors or a GGUF"
            ),
        ));
    }
    let renamed = renamed(value, pools).map(|(read, _)| read);
    ModelConfig::checked(renamed.as_ref().unwrap_or(value))
        .map_err(PrepareError::model(file.path().parent().unwrap_or(file.path())))
}

struct Weights {
    shards: Vec<SourceFile>,
    /// By the bundle's name of the tensor; `None` for a bias that the source does not have, which is 0.
    places: BTreeMap<String, Option<Place>>,
}

struct Place {
    shard: usize,
    entry: Entry,
    stored: bundle::Element,
    transposed: bool,
    /// The source's row for each of the bundle's, where they differ.
    order: Option<Vec<usize>>,
    /// The file and place of the scales, if the tensor is blocks of MXFP4.
    scales: Option<(usize, Range<usize>)>,
}

/// A tensor of the source.
struct Held {
    /// In its file.
    name: String,
    shard: usize,
    entry: Entry,
}

impl Weights {
    fn open(
        shards: Vec<SourceFile>,
        config: &ModelConfig,
        directory: &Path,
    ) -> Result<Weights, PrepareError> {
        // By the plain name, which is the same for all ways to name a tensor.
        let mut held: BTreeMap<String, Held> = BTreeMap::new();
        for (shard, file) in shards.iter().enumerate() {
            for (name, entry) in Header::parse(file)?.tensors {
                for (plain, entry) in parts(plain(&name, config.architecture), entry, config.architecture) {
                    let Some(first) = held.insert(plain, Held { name: name.clone(), shard, entry }) else {
                        continue;
                    };
                    let reason = match first.name == name {
                        true => format!("is also in {}", shards[first.shard].name()),
                        false => format!("is another name of {:?}, which is also there", first.name),
                    };
                    return Err(PrepareError::tensor(file.path(), &name, reason));
                }
            }
        }
        check_layers(config, directory, held.len())?;
        let head = plain("lm_head.weight", config.architecture);
        let mut places = BTreeMap::new();
        for spec in config.tensors() {
            let name = plain(&spec.name, config.architecture);
            let found = held.remove(&name).or_else(|| {
                // A tied model may be stored with its head alone.
                let is_head = config.tied_embeddings && spec.name == config.embedding();
                is_head.then(|| held.remove(&head)).flatten()
            });
            if found.is_none() && config.audio.is_some() && spec.name.ends_with(".k_proj.bias") {
                places.insert(spec.name, None);
                continue;
            }
            let Held { name, shard, entry } = found.ok_or_else(|| {
                let path = if shards.len() == 1 { shards[0].path() } else { directory };
                let foreign = held.values().find_map(|held| Some((&held.name, foreign(&held.name)?)));
                match foreign {
                    Some((foreign, reason)) => PrepareError::tensor(path, foreign, reason),
                    None => PrepareError::tensor(path, &spec.name, missing(&spec)),
                }
            })?;
            let scales = held.remove(&mxfp4::scales_of(&plain(&spec.name, config.architecture)));
            let place = Place::check((shard, entry), scales, &spec, config)
                .map_err(|reason| PrepareError::tensor(shards[shard].path(), &name, reason))?;
            places.insert(spec.name, Some(place));
        }
        let weights = Weights { shards, places };
        weights.check_rest(held, config)?;
        Ok(weights)
    }

    /// Tensors that no part of the model uses are buffers, or a sign that config.json describes another model
    /// than that of the weights.
    fn check_rest(&self, rest: BTreeMap<String, Held>, config: &ModelConfig) -> Result<(), PrepareError> {
        for (plain, Held { name, shard, entry }) in rest {
            let path = self.shards[shard].path();
            if is_buffer(&plain)
                || (has_text_part(config) && sees(&plain))
                || (config.encoder.is_some() && is_head(&plain))
            {
                continue;
            }
            if config.tied_embeddings && plain == "lm_head.weight" {
                let embedding = self.places[&config.embedding()].as_ref();
                let embedding = embedding.map(|place| (place.shard, &place.entry));
                if embedding.is_some_and(|embedding| !self.is_same((shard, &entry), embedding)) {
                    let reason = format!(
                        "differs from {:?}, although config.json ties the two; set tie_word_embeddings to false",
                        config.embedding()
                    );
                    return Err(PrepareError::tensor(path, &name, reason));
                }
                continue;
            }
            let reason = foreign(&name).unwrap_or("has no place in the model that config.json describes");
            return Err(PrepareError::tensor(path, &name, reason));
        }
        Ok(())
    }

    /// Whether two tensors have the same numbers, whatever their types.
    fn is_same(&self, a: (usize, &Entry), b: (usize, &Entry)) -> bool {
        const CHUNK: usize = 1 << 20;
        let [(one, from, of), (other, to, and)] =
            [a, b].map(|(shard, entry)| (&self.shards[shard], entry.range.clone(), entry.element()));
        let (Some(of), Some(and)) = (of, and) else { return false };
        let (length, width, other_width) = (from.len() / of.bytes(), of.bytes(), and.bytes());
        length == to.len() / other_width
            && (0..length).step_by(CHUNK).all(|at| {
                let end = length.min(at + CHUNK);
                let from = from.start + at * width..from.start + end * width;
                let to = to.start + at * other_width..to.start + end * other_width;
                let is_same =
                    decode(&one.bytes()[from.clone()], of) == decode(&other.bytes()[to.clone()], and);
                one.release(from);
                other.release(to);
                is_same
            })
    }
}

/// Why a tensor must be there.
fn missing(spec: &TensorSpec) -> String {
    if spec.name == "lm_head.weight" {
        return "is missing, and config.json does not tie it to the embedding; \
                if the model uses the embedding as its head, set tie_word_embeddings to true"
            .into();
    }
    format!("is missing; config.json calls for one of shape {:?}", spec.shape)
}

impl Place {
    fn check(
        (shard, entry): (usize, Entry),
        scales: Option<Held>,
        spec: &TensorSpec,
        config: &ModelConfig,
    ) -> Result<Place, String> {
        let transposed = match config.architecture {
            Architecture::Gpt2 => is_conv1d(&spec.name),
            Architecture::GptOss => spec.name.contains(".experts.") && spec.shape.len() > 1,
            _ => false,
        };
        let (mut expected, order) = (spec.shape.clone(), source_rows(config, &spec.name));
        if let Some((rows, _)) = order {
            expected[0] = rows;
        }
        if let Some(Held { shard: of_scales, entry: scales, .. }) = scales {
            mxfp4::check(&entry, &scales, &expected)?;
            let (stored, order) = (bundle::Element::U8, order.map(|(_, rows)| rows));
            return Ok(Place {
                shard,
                entry,
                stored,
                transposed: false,
                order,
                scales: Some((of_scales, scales.range)),
            });
        }
        if transposed {
            expected.reverse();
        }
        if entry.shape != expected {
            let mut reason = format!("has shape {:?}, but config.json calls for {expected:?}", entry.shape);
            if config.head().is_some_and(|head| head.scores.weights.contains(&spec.name)) {
                reason.push_str(": a row for each label of id2label or num_labels, and two without either");
            }
            return Err(reason);
        }
        let stored = entry
            .element()
            .ok_or_else(|| format!("is stored as {}; weights must be F32, BF16 or F16", entry.dtype))?;
        Ok(Place { shard, entry, stored, transposed, order: order.map(|(_, rows)| rows), scales: None })
    }
}

impl Tensors for Weights {
    fn stored(&self) -> Option<String> {
        most_common(self.places.values().flatten().map(|Place { entry, stored, scales, .. }| {
            let count: usize = entry.shape.iter().product();
            match scales {
                Some(_) => ("mxfp4".to_owned(), 2 * count),
                None => (stored.name().to_lowercase(), count),
            }
        }))
    }

    fn read(&self, spec: &TensorSpec, rows: Range<usize>) -> Result<Vec<f32>, PrepareError> {
        let Some(Place { shard, entry, stored, transposed, order, scales }) = &self.places[&spec.name] else {
            return Ok(vec![0.0; matrix(spec).1]);
        };
        if let Some((of_scales, scales)) = scales {
            let rows: Vec<usize> = rows.map(|row| order.as_ref().map_or(row, |order| order[row])).collect();
            let (blocks, scales) = (
                &self.shards[*shard].bytes()[entry.range.clone()],
                &self.shards[*of_scales].bytes()[scales.clone()],
            );
            return Ok(mxfp4::rows(blocks, scales, matrix(spec).1, &rows));
        }
        let shard = &self.shards[*shard];
        let tensor = &shard.bytes()[entry.range.clone()];
        let (_, columns) = matrix(spec);
        let width = stored.bytes();
        if let (Some(order), false) = (order, *transposed) {
            // A vector is one row, and its numbers are in that order.
            let (rows, size) =
                if spec.shape.len() == 1 { (0..order.len(), width) } else { (rows, columns * width) };
            let bytes: Vec<u8> =
                order[rows].iter().flat_map(|row| &tensor[row * size..(row + 1) * size]).copied().collect();
            shard.release(entry.range.clone());
            return Ok(decode(&bytes, *stored));
        }
        if !transposed {
            let range = rows.start * columns * width..rows.end * columns * width;
            let values = decode(&tensor[range.clone()], *stored);
            shard.release(entry.range.start + range.start..entry.range.start + range.end);
            return Ok(values);
        }
        // The requested rows are columns of the source.
        let mut block = Vec::with_capacity(columns * rows.len());
        for line in tensor.chunks_exact(tensor.len() / columns) {
            match order {
                None => block.extend(decode(&line[rows.start * width..rows.end * width], *stored)),
                Some(order) => {
                    let numbers = order[rows.clone()].iter().map(|at| &line[at * width..(at + 1) * width]);
                    block.extend(decode(&numbers.flatten().copied().collect::<Vec<u8>>(), *stored));
                }
            }
        }
        shard.release(entry.range.clone());
        Ok(transpose(&block, columns, rows.len()))
    }

    fn path_of(&self, name: &str) -> &Path {
        self.shards[self.places[name].as_ref().map_or(0, |place| place.shard)].path()
    }
}

/// gpt2's linear layers are `Conv1D`s; their weights are `[in, out]`.
fn is_conv1d(name: &str) -> bool {
    ["c_attn.weight", "c_proj.weight", "c_fc.weight"].iter().any(|part| name.ends_with(part))
}

// The files of a Hugging Face directory that hold weights.

pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// Names of the weights' files, and the index that lists them if there is one. As in transformers:
/// `model.safetensors` alone, else the files of the index, else every safetensors file.
fn shards(directory: &Path) -> Result<(Vec<String>, Option<SourceFile>), PrepareError> {
    if directory.join(WEIGHTS).is_file() {
        return Ok((vec![WEIGHTS.to_owned()], None));
    }
    let not_a_model = |reason: String| PrepareError::not_a_model(directory, reason);
    if directory.join(INDEX).is_file() {
        let index = SourceFile::within(directory, INDEX)?;
        let names = indexed_files(&index)?;
        if let Some(name) = names.iter().find(|name| !directory.join(name).is_file()) {
            return Err(not_a_model(format!("{INDEX} lists {name}, which is not there")));
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
        return Err(not_a_model(reason));
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
    if let Some(part) = parts.clone().find(|part| !names.contains(part)) {
        return Err(not_a_model(format!("{part} is not there, one of the {count} files of its weights")));
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

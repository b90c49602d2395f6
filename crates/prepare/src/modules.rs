//! The files of sentence-transformers around a Transformer: the modules that a text goes through, and whatever else
//! changes its vector.
//!
//! Source: sentence-transformers 6.2.0: `base/model.py`, `util/deprecated_import.py` and the file of each module.

use std::path::{Component, Path};

use bundle::{Element, ModelConfig, Pooled, Residual, Step, StepActivation, StoredTensor, Way, step_tensors};
use protocol::Dense;
use serde_json::{Map, Value, json};

use crate::PrepareError;
use crate::model::{CONFIG, Document, SourceFile, WEIGHTS, decode, encode, parse};
use crate::safetensors::Header;

pub(crate) const MODULES: &str = "modules.json";

/// Prompts, and what kind of model it is.
pub(crate) const SETTINGS: &str = "config_sentence_transformers.json";

/// What a directory may have beside the modules' folders. The last seven are where a Transformer's own settings may be;
/// the first of them that is there counts.
pub(crate) const FILES: [&str; 10] = [
    MODULES,
    SETTINGS,
    "1_Pooling/config.json",
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
];

/// Each way's field in older files, and its word in newer ones, in the order in which several are joined.
const WAYS: [(&str, &str, Way); 6] = [
    ("pooling_mode_cls_token", "cls", Way::Cls),
    ("pooling_mode_max_tokens", "max", Way::Max),
    ("pooling_mode_mean_tokens", "mean", Way::Mean),
    ("pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens", Way::MeanSqrtLen),
    ("pooling_mode_weightedmean_tokens", "weightedmean", Way::WeightedMean),
    ("pooling_mode_lasttoken", "lasttoken", Way::Last),
];

const ACTIVATIONS: [(&str, StepActivation); 6] = [
    ("linear.Identity", StepActivation::Identity),
    ("activation.Tanh", StepActivation::Tanh),
    ("activation.ReLU", StepActivation::Relu),
    ("activation.GELU", StepActivation::Gelu),
    ("activation.Sigmoid", StepActivation::Sigmoid),
    ("activation.SiLU", StepActivation::Silu),
];

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Transformer,
    Pooling,
    Dense,
    LayerNorm,
    Normalize,
    /// It changes nothing once a model is trained.
    Dropout,
    /// Why there is no vector of a text here.
    Refused(&'static str),
}

const SPLADE: &str = "this is a SPLADE model: it gives a weight for each token of the vocabulary";
const COLBERT: &str = "this is a ColBERT model: it gives a vector for each token of a text";
const OF_WORDS: &str = "it looks words up in a table, without a Transformer";

/// The modules by the last word of their types.
const KINDS: [(&[&str], Kind); 14] = [
    (&["Transformer"], Kind::Transformer),
    (&["Pooling"], Kind::Pooling),
    (&["Dense"], Kind::Dense),
    (&["LayerNorm"], Kind::LayerNorm),
    (&["Normalize"], Kind::Normalize),
    (&["Dropout"], Kind::Dropout),
    (
        &["MLMTransformer", "SpladePooling", "SparseAutoEncoder", "SparseStaticEmbedding"],
        Kind::Refused(SPLADE),
    ),
    (&["MultiVectorMask", "HierarchicalTokenPooling", "LambdaTokenPooling"], Kind::Refused(COLBERT)),
    (&["WeightedLayerPooling"], Kind::Refused("it pools the vectors of several layers")),
    (&["CNN", "LSTM"], Kind::Refused("it is a network of its own over the vectors of tokens")),
    (&["StaticEmbedding", "BoW", "WordEmbeddings", "WordWeights"], Kind::Refused(OF_WORDS)),
    (&["CLIPModel"], Kind::Refused("it is a model of images and texts")),
    (&["Router", "Asym"], Kind::Refused("it chooses between several models")),
    (&["LogitScore"], Kind::Refused("it scores texts by the logits of two tokens")),
];

pub(crate) struct Listed(Vec<Module>);

struct Module {
    kind: Kind,
    /// As the file spells it.
    name: String,
    /// Within the directory; empty for the directory itself.
    folder: String,
}

/// What a source's files say of the vector of a text.
#[derive(Default)]
pub(crate) struct Processing {
    /// For `pooling.json`; `None` where scores alone are meant.
    pub(crate) pooling: Option<Document>,
    /// For `modules.safetensors`.
    pub(crate) weights: Option<Document>,
    /// Whether texts are lower-cased before all else.
    pub(crate) lowers: bool,
}

/// The modules of a directory; `None` if it is not one of sentence-transformers. Files that were read are added to
/// `files`.
pub(crate) fn listed(directory: &Path, files: &mut Vec<SourceFile>) -> Result<Option<Listed>, PrepareError> {
    let file = SourceFile::optional(directory, MODULES)?;
    let of_colbert = directory.join("artifact.metadata");
    if file.is_none() && of_colbert.is_file() {
        return Err(PrepareError::unsupported(
            &of_colbert,
            format!("{COLBERT}, and not one for the whole text"),
        ));
    }
    let Some(file) = file else {
        let pooling = Module { kind: Kind::Pooling, name: "Pooling".into(), folder: "1_Pooling".into() };
        let body = Module { kind: Kind::Transformer, name: "Transformer".into(), folder: String::new() };
        let is_there = directory.join("1_Pooling").join(CONFIG).is_file();
        return Ok(is_there.then(|| Listed(vec![body, pooling])));
    };
    let value = parse(&file)?;
    let modules = value.as_array().into_iter().flatten().map(|module| Module::read(module, file.path()));
    let listed = Listed(modules.collect::<Result<_, _>>()?);
    let settings = Folder { directory, files }.optional(SETTINGS)?;
    listed.check(file.path(), &settings)?;
    files.push(file);
    Ok(Some(listed))
}

impl Module {
    fn read(module: &Value, path: &Path) -> Result<Module, PrepareError> {
        let text = |name: &str| module[name].as_str();
        let Some(name) = text("type") else {
            return Err(PrepareError::unsupported(path, "a module has no type"));
        };
        let folder = text("path").unwrap_or_default().trim_matches('/').to_owned();
        if Path::new(&folder).components().any(|part| !matches!(part, Component::Normal(_))) {
            return Err(PrepareError::unsupported(
                path,
                format!("the path {folder:?} of module {name} leads out of the model's directory"),
            ));
        }
        let Some(kind) = kind(name) else {
            let colbert = if name.starts_with("pylate.") { format!("; {COLBERT}") } else { String::new() };
            let known =
                "Transformer, Pooling, Dense, LayerNorm, Normalize and Dropout of sentence-transformers";
            return Err(PrepareError::unsupported(
                path,
                format!("module {name} is none that is computed here ({known}){colbert}"),
            ));
        };
        if let Kind::Refused(why) = kind {
            return Err(PrepareError::unsupported(
                path,
                format!("module {name} is not computed here: {why}"),
            ));
        }
        Ok(Module { kind, name: name.to_owned(), folder })
    }

    /// A file of its folder, as named within the directory.
    fn file(&self, name: &str) -> String {
        if self.folder.is_empty() { name.to_owned() } else { format!("{}/{name}", self.folder) }
    }
}

/// The module of a type: `sentence_transformers`, its packages, and the class, which a file in the path may have the
/// name of.
fn kind(name: &str) -> Option<Kind> {
    const PACKAGES: [&str; 7] = [
        "models",
        "modules",
        "base",
        "sentence_transformer",
        "sparse_encoder",
        "multi_vector_encoder",
        "cross_encoder",
    ];
    let mut words = name.split('.');
    let (first, class) = (words.next()?, words.next_back()?);
    let (_, kind) = KINDS.iter().find(|(classes, _)| classes.contains(&class))?;
    let plain = |word: &str| word.replace('_', "").to_lowercase();
    let is_package = |word: &str| PACKAGES.contains(&word) || plain(word) == plain(class);
    (first == "sentence_transformers" && words.all(is_package)).then_some(*kind)
}

impl Listed {
    pub(crate) fn body(&self) -> &str {
        &self.0[0].folder
    }

    pub(crate) fn pools(&self) -> bool {
        self.0.len() > 1
    }

    /// The files that modules behind the Transformer must have.
    pub(crate) fn files(&self) -> Vec<String> {
        let of_module = |module: &Module| match module.kind {
            Kind::Pooling => vec![module.file(CONFIG)],
            Kind::Dense | Kind::LayerNorm => vec![module.file(CONFIG), module.file(WEIGHTS)],
            _ => Vec::new(),
        };
        self.0.iter().flat_map(of_module).collect()
    }

    /// Refuses an order of modules that gives no vector of a text.
    fn check(&self, path: &Path, settings: &Value) -> Result<(), PrepareError> {
        let is_of = |name: &str| settings["model_type"] == name;
        if is_of("SparseEncoder") {
            return Err(PrepareError::unsupported(path, format!("{SPLADE}, and no vector of a text")));
        }
        if is_of("ColBERT") || is_of("MultiVectorEncoder") || settings.get("document_length").is_some() {
            return Err(PrepareError::unsupported(
                path,
                format!("{COLBERT}, and not one for the whole text"),
            ));
        }
        let of = |kind: Kind| self.0.iter().filter(|module| module.kind == kind).count();
        let kinds: Vec<Kind> = self.0.iter().map(|module| module.kind).take(2).collect();
        match kinds[..] {
            [Kind::Transformer] => return Ok(()),
            [Kind::Transformer, Kind::Pooling] if of(Kind::Transformer) == 1 && of(Kind::Pooling) == 1 => {
                return Ok(());
            }
            _ => {}
        }
        let names: Vec<&str> = self.0.iter().map(|module| module.name.as_str()).collect();
        Err(PrepareError::unsupported(
            path,
            format!(
                "its modules are {}; a vector of a text comes from one Transformer, one Pooling and what follows them",
                names.join(", ")
            ),
        ))
    }

    /// How the vectors of the body's tokens are used. Files that were read are added to `files`.
    pub(crate) fn processing(
        &self,
        directory: &Path,
        config: &ModelConfig,
        files: &mut Vec<SourceFile>,
    ) -> Result<Processing, PrepareError> {
        let (hidden, folder) = (config.hidden_size, &mut Folder { directory, files });
        let own = self.transformer(folder)?;
        let lowers = own["do_lower_case"].as_bool() == Some(true);
        if !self.pools() {
            if config.scoring().is_none() {
                return folder.refuse(
                    MODULES,
                    "it lists a Transformer and no Pooling, and the Transformer has no head that gives scores",
                );
            }
            return Ok(Processing { pooling: None, weights: None, lowers });
        }
        let (ways, skips_prompt) = self.ways(folder, hidden)?;
        let mut steps = vec![Step::Pool { ways, skipped: 0 }];
        let (mut width, mut tensors) = (steps[0].width(hidden), Vec::new());
        for (index, module) in self.0.iter().enumerate().skip(2) {
            let step = module.step(folder, index, width)?;
            for stored in step.iter().flat_map(step_tensors) {
                let values = folder.tensor((&module.file(WEIGHTS), index), &stored)?;
                tensors.push((stored, values));
            }
            width = step.as_ref().map_or(width, |step| step.width(width));
            steps.extend(step);
        }
        let settings = folder.optional(SETTINGS)?;
        if let Some(most) = settings["truncate_dim"].as_u64() {
            steps.push(Step::Cut(most as usize));
        }
        let mut pooled = Pooled { skips_prompt, ..Pooled::default() }.with(steps);
        pooled.max_tokens = own["max_seq_length"].as_u64().map(|tokens| tokens as usize);
        add_prompts(&mut pooled, &settings, folder)?;
        let derived = format!("from the source's {MODULES} and the files of its modules");
        Ok(Processing {
            pooling: Some(Document::pretty(&pooled, derived)),
            weights: (!tensors.is_empty()).then(|| weights(&tensors)),
            lowers,
        })
    }

    /// The Transformer's own settings, all of which are known.
    fn transformer(&self, folder: &mut Folder<'_>) -> Result<Value, PrepareError> {
        let mut names = FILES[3..].iter().map(|name| self.0[0].file(name));
        let is_there = |name: &String| folder.directory.join(name).symlink_metadata().is_ok();
        let Some(name) = names.find(is_there) else { return Ok(Value::Null) };
        let own = folder.optional(&name)?;
        let is_harmless = |name: &str, value: &Value| match name {
            "max_seq_length" | "do_lower_case" | "unpad_inputs" | "model_args" | "model_kwargs" => true,
            "transformer_task" => {
                let task = if self.pools() { "feature-extraction" } else { "sequence-classification" };
                value == task
            }
            "module_output_name" => value == if self.pools() { "token_embeddings" } else { "scores" },
            "modality_config" => {
                let text = &value["text"];
                let output = if self.pools() { "last_hidden_state" } else { "logits" };
                text.is_null() || (text["method"] == "forward" && text["method_output_name"] == output)
            }
            "tokenizer_args" | "processor_kwargs" => {
                // No text is padded, and none is cut unless --truncate asks for it.
                let known =
                    ["padding_side", "use_fast", "trust_remote_code", "model_max_length", "truncation_side"];
                value
                    .as_object()
                    .is_some_and(|fields| fields.keys().all(|name| known.contains(&name.as_str())))
            }
            _ => false,
        };
        let is_empty = |value: &Value| value.is_null() || value.as_object().is_some_and(Map::is_empty);
        let mut fields = own.as_object().into_iter().flatten();
        match fields.find(|(name, value)| !is_empty(value) && !is_harmless(name, value)) {
            None => Ok(own),
            Some((field, value)) => {
                folder.refuse(&name, format!("{field} is {value}, which is not supported"))
            }
        }
    }

    /// The ways of pooling, and whether a prompt's tokens are left out.
    fn ways(&self, folder: &mut Folder<'_>, hidden: usize) -> Result<(Vec<Way>, bool), PrepareError> {
        let name = self.0[1].file(CONFIG);
        let own = folder.required(&name)?;
        let refuse = |reason: String| folder.refuse(&name, reason);
        let fields = own.as_object().into_iter().flatten();
        let is_known = |name: &str| {
            ["word_embedding_dimension", "embedding_dimension", "pooling_mode", "include_prompt"]
                .contains(&name)
                || WAYS.iter().any(|(field, _, _)| *field == name)
        };
        if let Some((name, value)) = fields.clone().find(|(name, value)| !is_known(name) && !is_off(value)) {
            return refuse(format!("{name} is {value}, which is not supported"));
        }
        let width =
            own.get("embedding_dimension").or(own.get("word_embedding_dimension")).and_then(Value::as_u64);
        if let Some(width) = width.filter(|&width| width != hidden as u64) {
            return refuse(format!(
                "it pools vectors of {width} numbers, and the Transformer's have {hidden}"
            ));
        }
        let modes: Vec<&Value> = match own.get("pooling_mode") {
            Some(Value::Array(modes)) => modes.iter().collect(),
            Some(mode) => vec![mode],
            None => Vec::new(),
        };
        let mut ways = Vec::new();
        for mode in &modes {
            match WAYS.iter().find(|(_, word, _)| *mode == word) {
                Some((_, _, way)) => ways.push(*way),
                None => return refuse(format!("pooling_mode is {mode}, which is not supported")),
            }
        }
        if modes.is_empty() {
            let is_on = |field: &str| own[field].as_bool() == Some(true);
            ways.extend(WAYS.iter().filter(|(field, _, _)| is_on(field)).map(|(_, _, way)| *way));
        }
        if ways.is_empty() {
            ways.push(Way::Mean);
        }
        Ok((ways, own["include_prompt"].as_bool() == Some(false)))
    }
}

impl Module {
    /// What it computes, as the module `index` of vectors of `width` numbers; `None` if nothing.
    fn step(
        &self,
        folder: &mut Folder<'_>,
        index: usize,
        width: usize,
    ) -> Result<Option<Step>, PrepareError> {
        let name = self.file(CONFIG);
        let own = match self.kind {
            Kind::Dense | Kind::LayerNorm => folder.required(&name)?,
            _ => folder.optional(&name)?,
        };
        let refuse = |reason: String| folder.refuse(&name, reason);
        for field in ["module_input_name", "module_output_name"] {
            let value = &own[field];
            if !value.is_null() && value != "sentence_embedding" {
                return refuse(format!(
                    "{field} is {value}: it works on the vectors of tokens, as ColBERT does"
                ));
            }
        }
        let number = |name: &str| own[name].as_u64().unwrap_or(0) as usize;
        let inputs = match self.kind {
            Kind::Dense => number("in_features"),
            Kind::LayerNorm => number("dimension"),
            _ => width,
        };
        if inputs != width {
            return refuse(format!(
                "it is for vectors of {inputs} numbers, and those before it have {width}"
            ));
        }
        let tensors = index.to_string();
        Ok(match self.kind {
            Kind::Normalize => Some(Step::Normalise),
            Kind::LayerNorm => Some(Step::LayerNorm { tensors, width }),
            Kind::Dense => {
                let outputs = number("out_features");
                if !(1..=1 << 20).contains(&outputs) {
                    return refuse(format!("out_features is {}, which is no width", own["out_features"]));
                }
                let activation = match own.get("activation_function") {
                    None => "torch.nn.modules.activation.Tanh",
                    Some(value) => value.as_str().unwrap_or_default(),
                };
                let known = ACTIVATIONS
                    .iter()
                    .find(|(end, _)| activation.strip_prefix("torch.nn.modules.") == Some(end));
                let Some((_, activation)) = known else {
                    let known: Vec<&str> =
                        ACTIVATIONS.iter().filter_map(|(end, _)| end.split('.').nth(1)).collect();
                    let known = known.join(", ");
                    return refuse(format!(
                        "activation_function is {activation:?}; supported are {known} of torch.nn"
                    ));
                };
                let is_on = |field: &str| own[field].as_bool();
                let residual = match (is_on("use_residual"), inputs == outputs) {
                    (Some(true), true) => Residual::Itself,
                    (Some(true), false) => Residual::Weighted,
                    _ => Residual::None,
                };
                let (bias, activation) = (is_on("bias") != Some(false), *activation);
                Some(Step::Dense(Dense { tensors, inputs, outputs, bias, activation, residual }))
            }
            _ => None,
        })
    }
}

fn add_prompts(pooled: &mut Pooled, settings: &Value, folder: &Folder<'_>) -> Result<(), PrepareError> {
    for (name, text) in settings["prompts"].as_object().into_iter().flatten() {
        pooled.prompts.extend(text.as_str().map(|text| (name.clone(), text.to_owned())));
    }
    let Some(name) = settings["default_prompt_name"].as_str() else { return Ok(()) };
    if pooled.prompts.contains_key(name) {
        pooled.default_prompt = Some(name.to_owned());
    } else if !["query", "document"].contains(&name) {
        // sentence-transformers has these two always, without a text.
        let reason = format!("default_prompt_name is {name:?}, and there is no such prompt");
        return folder.refuse(SETTINGS, reason);
    }
    Ok(())
}

/// tokenizer.json with a normaliser that lower-cases texts first, unless it has one already.
pub(crate) fn lowered(tokenizer: Document) -> Document {
    let Ok(Value::Object(mut fields)) = serde_json::from_slice(&tokenizer.bytes) else { return tokenizer };
    let old = fields.get("normalizer").cloned().unwrap_or_default();
    let parts = match &old["normalizers"] {
        Value::Array(parts) => parts.clone(),
        _ if old.is_null() => Vec::new(),
        _ => vec![old],
    };
    let lowers = |part: &Value| part["type"] == "Lowercase" || part["lowercase"] == true;
    if parts.iter().any(lowers) {
        return tokenizer;
    }
    let parts: Vec<Value> = [json!({"type": "Lowercase"})].into_iter().chain(parts).collect();
    fields.insert("normalizer".into(), json!({"type": "Sequence", "normalizers": parts}));
    let bytes = serde_json::to_vec(&fields).expect("a value is valid JSON");
    Document { bytes, derived: format!("{}, lower-casing texts as do_lower_case asks", tokenizer.derived) }
}

/// The most common pooling, for an encoder that is only a shape.
pub(crate) fn usual() -> Document {
    Document::pretty(&Pooled { normalise: true, ..Pooled::default() }, "as most sentence encoders do")
}

/// A safetensors file of tensors in f32.
fn weights(tensors: &[(StoredTensor, Vec<f32>)]) -> Document {
    let (mut header, mut data) = (Map::new(), Vec::new());
    for (StoredTensor { name, shape, .. }, values) in tensors {
        let start = data.len();
        encode(values, Element::F32, &mut data).expect("every f32 is one");
        let entry = json!({"dtype": "F32", "shape": shape, "data_offsets": [start, data.len()]});
        header.insert(name.clone(), entry);
    }
    let mut header = serde_json::to_vec(&header).expect("a value is valid JSON");
    header.resize(header.len().next_multiple_of(8), b' ');
    let length = (header.len() as u64).to_le_bytes();
    let bytes = [&length[..], &header, &data].concat();
    Document { bytes, derived: "the weights of the source's modules, in f32".into() }
}

/// A source's directory, and the files of it that were read.
struct Folder<'a> {
    directory: &'a Path,
    files: &'a mut Vec<SourceFile>,
}

impl Folder<'_> {
    /// The value of a JSON file; null if it is not there.
    fn optional(&mut self, name: &str) -> Result<Value, PrepareError> {
        let Some(file) = SourceFile::optional(self.directory, name)? else { return Ok(Value::Null) };
        let value = parse(&file)?;
        self.note(file);
        Ok(value)
    }

    fn required(&mut self, name: &str) -> Result<Value, PrepareError> {
        let path = self.directory.join(name);
        if path.symlink_metadata().is_err() {
            let reason = format!("it is missing, and {MODULES} lists its folder");
            return Err(PrepareError::not_a_model(path, reason));
        }
        self.optional(name)
    }

    /// A tensor of module `index`, in f32.
    fn tensor(
        &mut self,
        (name, index): (&str, usize),
        stored: &StoredTensor,
    ) -> Result<Vec<f32>, PrepareError> {
        let Some(file) = SourceFile::optional(self.directory, name)? else {
            let reason = "it is missing, and holds the weights of a module; save the model again with sentence-transformers";
            return Err(PrepareError::not_a_model(self.directory.join(name), reason));
        };
        let own = stored.name.strip_prefix(&format!("{index}.")).unwrap_or(&stored.name);
        let wrong = |reason: &str| PrepareError::tensor(file.path(), own, reason);
        let mut held = Header::parse(&file)?.tensors;
        let entry = held.remove(own).ok_or_else(|| wrong("is missing"))?;
        if entry.shape != stored.shape {
            let (found, wanted) = (&entry.shape, &stored.shape);
            return Err(wrong(&format!("has shape {found:?}, but its config.json calls for {wanted:?}")));
        }
        let unknown = || wrong(&format!("is stored as {}, which is not supported", entry.dtype));
        let values = decode(&file.bytes()[entry.range.clone()], entry.element().ok_or_else(unknown)?);
        if values.iter().any(|value| !value.is_finite()) {
            return Err(wrong("has a number that is not finite"));
        }
        self.note(file);
        Ok(values)
    }

    fn note(&mut self, file: SourceFile) {
        if self.files.iter().all(|other| other.path() != file.path()) {
            self.files.push(file);
        }
    }

    fn refuse<T>(&self, name: &str, reason: impl Into<String>) -> Result<T, PrepareError> {
        Err(PrepareError::unsupported(self.directory.join(name), reason))
    }
}

fn is_off(value: &Value) -> bool {
    value.is_null() || value == false
}

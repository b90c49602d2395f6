//! A *bundle* is a prepared model: an immutable directory that every engine reads, so that "the same weights"
//! is a hash and not a promise.
//!
//! ```text
//! config.json      Hugging Face field names      tokenizer.json   Hugging Face tokenizers format (optional)
//! pooling.json     how the vectors of tokens are pooled, and what follows (optional)
//! modules.safetensors              the weights of what follows, in f32 (optional)
//! tokenizer_config.json            the chat template and the special tokens that it may name (optional)
//! f32.safetensors  bf16.safetensors  f16.safetensors  …           (the requested ones)
//! graph.onnx and its external files, instead of weights, if the model is an ONNX file
//! manifest.json    source and sha256; for each file its sha256 and how it was derived
//! ```
//!
//! Three things are fixed here for all engines: linear weights are `[out, in]` whatever the source's layout;
//! tensors that engines fuse (q·k·v, gate·up) are adjacent in the file, so that a fused weight is a view
//! ([`Weights::stacked`]) and not a copy; and the rotary tables are computed in one place ([`rotary`]).
//!
//! This crate reads bundles. `prepare` writes them.

pub mod arithmetic;
mod blocks;
mod config;
pub mod quantised;
pub mod rotary;
mod weights;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};

pub use blocks::{BlockKind, Unpacked};
pub use config::*;
use protocol::untrusted;
pub use protocol::{Element, FileIdentity, Pooling, Precision, Residual, Step, StepActivation, Way};
pub use quantised::{Quantised, scale_name};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
pub use weights::Weights;

/// An opened bundle: its configuration and its manifest. No weights are read until asked for.
#[derive(Debug, Clone)]
pub struct Bundle {
    directory: PathBuf,
    config: ModelConfig,
    manifest: Manifest,
}

impl Bundle {
    pub fn open(directory: impl AsRef<Path>) -> Result<Bundle, BundleError> {
        let directory = directory.as_ref().to_path_buf();
        let manifest = Manifest::read(&directory)?;
        let path = directory.join("config.json");
        let config = ModelConfig::read(&path).map_err(|error| match error {
            BundleError::Config(reason) => {
                let again = format!("delete {} and prepare the model again", directory.display());
                BundleError::NotABundle { path, reason: format!("{reason}; {again}") }
            }
            other => other,
        })?;
        Ok(Bundle { directory, config, manifest })
    }

    /// The same weights as a token-by-token decoder ([`ModelConfig::autoregressive`]).
    pub fn autoregressive(self) -> Bundle {
        Bundle { config: self.config.autoregressive(), ..self }
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The precisions of the weights in this bundle.
    pub fn precisions(&self) -> Vec<Precision> {
        let is_held = |precision: &Precision| self.manifest.files.contains_key(&self.file_name(*precision));
        Precision::ALL.into_iter().filter(is_held).collect()
    }

    /// Path of `tokenizer.json`, if the source had a tokenizer.
    pub fn tokenizer(&self) -> Option<PathBuf> {
        self.held("tokenizer.json")
    }

    /// Path of a file that not every bundle has.
    fn held(&self, file: &str) -> Option<PathBuf> {
        self.manifest.files.contains_key(file).then(|| self.directory.join(file))
    }

    /// Why there is no `tokenizer.json`; `None` if there is one.
    pub fn no_tokenizer(&self) -> Option<&str> {
        let reason = self.manifest.no_tokenizer.as_deref().unwrap_or("its source has none");
        self.tokenizer().is_none().then_some(reason)
    }

    /// Path of `tokenizer_config.json`, if the source had a chat template.
    pub fn chat_template(&self) -> Option<PathBuf> {
        self.held("tokenizer_config.json")
    }

    /// How the vectors of tokens are pooled; `None` if the model's source does not say.
    pub fn pooled(&self) -> Result<Option<Pooled>, BundleError> {
        let Some(path) = self.held(POOLING) else { return Ok(None) };
        let text =
            untrusted::file::read_text(&path, untrusted::file::CONFIG).map_err(BundleError::io(&path))?;
        let pooled = serde_json::from_str(&text);
        pooled.map(Some).map_err(|e| BundleError::Config(format!("{} does not parse: {e}", path.display())))
    }

    /// Path of the weights at `precision`; the error lists the available precisions.
    pub fn weights_path(&self, precision: Precision) -> Result<PathBuf, BundleError> {
        let held = self.precisions();
        if !held.contains(&precision) {
            let held = held.iter().map(|p| p.name()).collect::<Vec<_>>().join(", ");
            return Err(BundleError::PrecisionNotHeld {
                path: self.directory.clone(),
                wanted: precision,
                held: if held.is_empty() { "none".into() } else { held },
            });
        }
        Ok(self.directory.join(self.file_name(precision)))
    }

    /// The file with the weights at `precision`. An ONNX file has a precision of its own, and is found under
    /// f32.
    fn file_name(&self, precision: Precision) -> String {
        match &self.config.graph {
            Some(_) if precision == Precision::F32 => GRAPH_FILE.to_owned(),
            _ => precision.file_name(),
        }
    }

    /// Rejects incomplete weights: checks every tensor's presence, shape and type, without reading their
    /// pages. An ONNX file describes itself.
    pub fn check_weights(&self, precision: Precision) -> Result<(), BundleError> {
        match &self.config.graph {
            Some(_) => self.weights_path(precision).map(drop),
            None => self.weights(precision).map(drop),
        }
    }

    /// Compares the hash of every file of the weights at `precision` with the manifest's.
    pub fn verify_weights(&self, precision: Precision) -> Result<(), BundleError> {
        if self.config.graph.is_none() {
            return self.verify(&precision.file_name()).map(drop);
        }
        self.manifest.files.keys().try_for_each(|file| self.verify(file).map(drop))
    }

    /// Maps the weights at `precision` and checks every tensor's presence, shape and element type
    /// against the configuration. Pages are not touched: see [`Weights::touch`].
    pub fn weights(&self, precision: Precision) -> Result<Weights, BundleError> {
        let stored = self.config.stored(precision)?;
        Weights::map(&self.weights_path(precision)?, precision, &stored)
    }

    /// Reads a file of the bundle and compares its sha256 with the manifest's.
    pub fn verify(&self, file: &str) -> Result<String, BundleError> {
        let path = self.directory.join(file);
        let Some(FileRecord { sha256: expected, .. }) = self.manifest.files.get(file) else {
            let reason = format!("its manifest does not list {file}");
            return Err(BundleError::NotABundle { path: self.directory.clone(), reason });
        };
        let found = sha256_of(&path).map_err(BundleError::io(&path))?;
        match found == *expected {
            true => Ok(found),
            false => Err(BundleError::HashMismatch { path, found, expected: expected.clone() }),
        }
    }
}

// Errors of bundles.

/// An error of a bundle, or of a `config.json` to be prepared.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    #[error("cannot read {path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
    #[error("{path} is not a prepared model: {reason}")]
    NotABundle { path: PathBuf, reason: String },
    #[error("architecture {name:?} is not supported; supported are {known}{nearest}")]
    UnsupportedArchitecture { name: String, known: String, nearest: String },
    #[error("config.json: {0}")]
    Config(String),
    #[error("{path} is not a valid safetensors file: {reason}")]
    Malformed { path: PathBuf, reason: String },
    #[error("{path} has no tensor {name:?}, which config.json calls for")]
    MissingTensor { path: PathBuf, name: String },
    #[error("tensor {name:?} in {path} has shape {found:?}, but config.json calls for {expected:?}")]
    Shape { path: PathBuf, name: String, found: Vec<usize>, expected: Vec<usize> },
    #[error("tensor {name:?} in {path} is stored as {found}, not as {expected}")]
    ElementType { path: PathBuf, name: String, found: String, expected: Element },
    #[error(
        "tensor {name:?} begins at byte {start} of {path}, which is not a multiple of {alignment}, so it cannot be \
         read in place: prepare the model again, or take another precision"
    )]
    Alignment { path: PathBuf, name: String, start: usize, alignment: usize },
    #[error("{precision} needs rows of a multiple of {multiple}, but tensor {name:?} has rows of {columns}")]
    Quantisation { precision: Precision, name: String, columns: usize, multiple: usize },
    #[error(
        "precision file measures the quantised blocks of a GGUF as they are, and this model has none: ask for f32, int8 or int4"
    )]
    NoBlocks,
    #[error("{path} holds no {wanted} weights; it holds {held}")]
    PrecisionNotHeld { path: PathBuf, wanted: Precision, held: String },
    #[error("{path} has sha256 {found}, but the bundle's manifest says {expected}: delete {} and prepare the model again", path.parent().unwrap_or(path).display())]
    HashMismatch { path: PathBuf, found: String, expected: String },
}

/// Least similarity (Jaro and Winkler's, 1 for equal names) at which another name is suggested.
const LIKE: f64 = 0.7;

impl BundleError {
    /// An architecture that is none of `known`, with the most similar one of them.
    pub fn unknown_architecture(name: &str, known: &[&str]) -> BundleError {
        let likeness = |known: &str| strsim::jaro_winkler(&name.to_lowercase(), &known.to_lowercase());
        let nearest = known.iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
        let nearest = nearest.filter(|known| likeness(known) >= LIKE);
        BundleError::UnsupportedArchitecture {
            name: name.to_owned(),
            known: known.join(", "),
            nearest: nearest.map_or(String::new(), |known| format!("; the nearest is {known}")),
        }
    }

    pub fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> BundleError {
        let path = path.into();
        move |source| BundleError::Io { path, source }
    }
}

/// The sha256 of a file, in lower-case hexadecimal.
pub fn sha256_of(path: &Path) -> std::io::Result<String> {
    let mut file = untrusted::file::open(path)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0u8; 1 << 20];
    loop {
        let n = file.read(&mut buffer)?;
        if n == 0 {
            break;
        }
        hasher.update(&buffer[..n]);
    }
    Ok(hexadecimal(&hasher.finalize()))
}

/// Bytes in lower-case hexadecimal.
pub fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

// How the vector of a text is computed from those of its tokens.

/// The file of a bundle that says how to pool, if the model's source does.
pub const POOLING: &str = "pooling.json";

/// The file of a bundle with the tensors of [`Pooled::steps`], in f32.
pub const MODULES: &str = "modules.safetensors";

/// The processing of texts, and of the vectors of their tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Pooled {
    pub pooling: Pooling,
    /// Whether each vector is divided by its length, the root of the sum of squares.
    pub normalise: bool,
    /// The longest text in tokens that the model was made for, according to its source.
    #[serde(default)]
    pub max_tokens: Option<usize>,
    /// What follows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<Step>,
    /// What is put in front of texts, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub prompts: BTreeMap<String, String>,
    /// Name of the prompt for texts of which nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_prompt: Option<String>,
    /// Whether the tokens of a prompt are not pooled.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub skips_prompt: bool,
}

/// The mean, as sentence-transformers has it where no file says how to pool.
impl Default for Pooled {
    fn default() -> Pooled {
        Pooled {
            pooling: Pooling::Mean,
            normalise: false,
            max_tokens: None,
            steps: Vec::new(),
            prompts: BTreeMap::new(),
            default_prompt: None,
            skips_prompt: false,
        }
    }
}

impl Pooled {
    /// All steps from the vectors of tokens: the first is [`Step::Pool`].
    pub fn whole(&self) -> Vec<Step> {
        let way = match self.pooling {
            Pooling::Each => return self.steps.clone(),
            Pooling::Cls => Way::Cls,
            Pooling::Max => Way::Max,
            Pooling::Mean => Way::Mean,
            Pooling::Last => Way::Last,
        };
        let normalise = self.normalise.then_some(Step::Normalise);
        let pool = Step::Pool { ways: vec![way], skipped: 0 };
        [pool].into_iter().chain(normalise).chain(self.steps.iter().cloned()).collect()
    }

    /// These steps instead. The engine does the first of them, if engines know them.
    pub fn with(self, mut whole: Vec<Step>) -> Pooled {
        let ways = match &whole[..] {
            [Step::Pool { ways, .. }, ..] if !self.skips_prompt => &ways[..],
            _ => &[],
        };
        let pooling = match ways {
            [Way::Cls] => Pooling::Cls,
            [Way::Max] => Pooling::Max,
            [Way::Mean] => Pooling::Mean,
            [Way::Last] => Pooling::Last,
            _ => return Pooled { pooling: Pooling::Each, normalise: false, steps: whole, ..self },
        };
        let normalise = whole.get(1) == Some(&Step::Normalise);
        let steps = whole.split_off(if normalise { 2 } else { 1 });
        Pooled { pooling, normalise, steps, ..self }
    }
}

/// The tensors of a step, in [`MODULES`].
pub fn step_tensors(step: &Step) -> Vec<StoredTensor> {
    let tensor = |prefix: &str, name: &str, shape: &[usize]| StoredTensor {
        name: format!("{prefix}.{name}"),
        shape: shape.to_vec(),
        element: Element::F32,
        blocks: None,
    };
    match step {
        Step::Dense(protocol::Dense { tensors, inputs, outputs, bias, residual, .. }) => {
            let matrix = [*outputs, *inputs];
            let bias = bias.then(|| tensor(tensors, "linear.bias", &[*outputs]));
            let residual =
                (*residual == Residual::Weighted).then(|| tensor(tensors, "residual.weight", &matrix));
            [tensor(tensors, "linear.weight", &matrix)].into_iter().chain(bias).chain(residual).collect()
        }
        Step::LayerNorm { tensors, width } => {
            ["norm.weight", "norm.bias"].map(|name| tensor(tensors, name, &[*width])).to_vec()
        }
        Step::Pool { .. } | Step::Normalise | Step::Cut(_) => Vec::new(),
    }
}

// `manifest.json`: the origin of a bundle and the description of its files.

pub const MANIFEST: &str = "manifest.json";

/// Version of the layout of a bundle. A bundle of another version is prepared again.
pub const MANIFEST_FORMAT: u32 = 1;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    pub format: u32,
    /// The model's usual name, for example `SmolLM2-135M-Instruct.Q4_1`.
    pub name: String,
    pub source: Source,
    /// Why there is no `tokenizer.json`; `None` if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_tokenizer: Option<String>,
    /// By file name within the bundle.
    pub files: BTreeMap<String, FileRecord>,
}

/// The origin of a bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// `gguf`, `huggingface` or `synthetic`.
    pub kind: String,
    /// The seed of random weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// The type that the source stores most of its weights in, such as `Q4_1` or `bf16`. `None` for random
    /// weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored: Option<String>,
    /// sha256 by name of every source file that was read.
    pub sha256: BTreeMap<String, String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRecord {
    pub sha256: String,
    pub bytes: u64,
    /// One sentence for people: how this file was derived from the source.
    pub derived: String,
}

impl Manifest {
    pub fn read(directory: &Path) -> Result<Manifest, BundleError> {
        let path = directory.join(MANIFEST);
        let text =
            untrusted::file::read_text(&path, untrusted::file::CONFIG).map_err(BundleError::io(&path))?;
        Manifest::parse(directory, &text)
    }

    /// The manifest of the bundle in `directory`, from its text.
    pub fn parse(directory: &Path, text: &str) -> Result<Manifest, BundleError> {
        let not_a_bundle = |reason: String| BundleError::NotABundle { path: directory.to_path_buf(), reason };
        let manifest: Manifest = serde_json::from_str(text)
            .map_err(|e| not_a_bundle(format!("its {MANIFEST} does not parse: {e}")))?;
        if manifest.format != MANIFEST_FORMAT {
            return Err(not_a_bundle(format!(
                "its {MANIFEST} has format {}, this build reads format {MANIFEST_FORMAT}",
                manifest.format
            )));
        }
        Ok(manifest)
    }
}

// A model's description as plain data, for workers that cannot call this crate.

impl ModelConfig {
    /// The properties, the names of the tensors and the frequencies of the rotation, resolved, in the form of
    /// `docs/reference/protocol.md`: readers need no knowledge of architectures.
    pub fn described(&self) -> Value {
        let mut described = json!(self);
        for (place, rotary) in self.rotations.iter().enumerate() {
            described["rotations"][place]["inverse_frequencies"] =
                json!(rotary::inverse_frequencies(rotary, self.rotary_dim()));
        }
        // A reader must know or reject each.
        let features = self.features();
        if !features.is_empty() {
            described["features"] =
                features.into_iter().map(|feature| (feature.name(), feature.words())).collect();
        }
        described["tensors"] = json!({
            "embedding": self.embedding(),
            "position_embedding": self.position_embedding(),
            "layers": (0..self.layers.len()).map(|index| self.layer(index)).collect::<Vec<_>>(),
            "final_norm": self.final_norm(),
            "lm_head": self.lm_head(),
            "lm_head_bias": self.lm_head_bias(),
        });
        self.describe_encoder(&mut described["tensors"]);
        if let Some(encoder) = self.audio_encoder() {
            described["tensors"]["stem"] = json!(self.stem());
            described["audio_encoder"] = encoder.described();
        }
        described
    }
}

// A tensor in a mapped file.

/// One tensor, row-major, little-endian.
#[derive(Debug, Clone)]
pub struct TensorView<'a> {
    pub shape: Vec<usize>,
    pub element: Element,
    pub bytes: &'a [u8],
    /// Offset of `bytes` in the file: ONNX Runtime's offset of an external initialiser.
    pub file_offset: u64,
}

impl TensorView<'_> {
    /// As [`Weights::touch`](Weights::touch), for this tensor alone.
    pub fn touch(&self) -> u64 {
        touch(self.bytes)
    }
}

/// Reads a byte of every page, so that all of them are resident. Returning the sum keeps the reads.
fn touch(bytes: &[u8]) -> u64 {
    bytes.iter().step_by(4096).map(|&byte| u64::from(byte)).sum()
}

// Files next to a bundle, in the directory of all bundles. Each such name begins with a dot; no bundle's
// does.

const LOCK: &str = ".lock";

const STAGING: &str = ".partial";

const USE: &str = ".used";

/// Locked by the one process that may write the bundle, or remove it.
pub fn lock(bundle: &Path) -> PathBuf {
    beside(bundle, LOCK)
}

/// Directory for new files until they are complete. If no process holds the lock, it is left over from a
/// crash.
pub fn staging(bundle: &Path) -> PathBuf {
    beside(bundle, STAGING)
}

/// Locked, shared, by every process that uses the bundle; its time of change is the bundle's last use.
pub fn used(bundle: &Path) -> PathBuf {
    beside(bundle, USE)
}

/// The bundle that `path` is the staging directory of, if it is one.
pub fn staged(path: &Path) -> Option<PathBuf> {
    let name = path.file_name()?.to_str()?;
    let name = name.strip_prefix('.')?.strip_suffix(STAGING)?;
    Some(path.with_file_name(name))
}

fn beside(bundle: &Path, end: &str) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(bundle.file_name().unwrap_or_default());
    name.push(end);
    bundle.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_staging_directory_is_known_by_its_name_alone() {
        let bundle = Path::new("bundles/llama-1b.v2-0123");
        assert_eq!(staging(bundle), Path::new("bundles/.llama-1b.v2-0123.partial"));
        assert_eq!(staged(&staging(bundle)).as_deref(), Some(bundle));
        for other in [bundle.to_path_buf(), lock(bundle), used(bundle)] {
            assert_eq!(staged(&other), None);
        }
    }
}

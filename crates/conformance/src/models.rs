//! The tiny models, the results of an independent implementation for them, and plain settings.
//!
//! The references come from Hugging Face transformers in f32; they contain `input_ids` [2, T], `logits` [2,
//! T, V], `hidden.0` … `hidden.L` [2, T, H] and `greedy` (16 tokens after row 0). Models with bidirectional
//! attention have no `greedy`: their `prompt` and `states.ALGORITHM` are for the worker, which chooses
//! tokens.

use std::path::{Path, PathBuf};

use engine::{Bundle, Device, Precision, Settings};
use safetensors::{Dtype, SafeTensors};
use tempfile::TempDir;

/// Where the tiny reference models are in a checkout: Hugging Face directories with a
/// `reference.safetensors` each.
pub fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine/fixtures/tiny")
}

/// Directories of all the tiny models that go token by token.
pub fn tiny_models() -> Vec<PathBuf> {
    directories(&fixtures())
}

/// Directories of tiny models with layers that differ from llama's. A model with a window has longer texts
/// than it.
pub fn architectures() -> Vec<PathBuf> {
    directories(&fixtures().with_file_name("architectures"))
}

/// Directories of the tiny models that generate by masked diffusion.
pub(crate) fn diffusion_models() -> Vec<PathBuf> {
    directories(&fixtures().with_file_name("diffusion"))
}

pub(crate) fn directories(parent: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(parent).expect("the fixtures are part of the checkout");
    let mut models: Vec<_> = entries.map(|entry| entry.expect("readable").path()).collect();
    models.sort();
    models
}

/// The threads of most tests. candle's spin while they wait for one another, so that there must not be more
/// of them than cores.
pub(crate) fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get().min(2))
}

/// This precision on a CPU, and nothing out of the ordinary.
pub fn at(precision: Precision) -> Settings {
    Settings {
        precision,
        cache: precision.usual_cache(),
        device: Device::Cpu,
        threads: threads(),
        jit: true,
        hidden_states: false,
        dequantised: false,
        options: Default::default(),
    }
}

/// f32 with these options and no others.
pub fn with_options(options: &[(&str, &str)]) -> Settings {
    with(at(Precision::F32), options)
}

/// These settings with these options and no others.
pub fn with(settings: Settings, options: &[(&str, &str)]) -> Settings {
    let options = options.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
    Settings { options, ..settings }
}

/// A model as engines load it, at every precision, with its reference.
pub struct Model {
    pub source: PathBuf,
    pub bundle: Bundle,
    pub reference: Reference,
    /// Contains the bundle, and is removed with this value.
    pub directory: TempDir,
}

impl Model {
    /// The tiny model of this name.
    pub fn tiny(name: &str) -> Model {
        Model::prepared(fixtures().join(name))
    }

    fn prepared(source: PathBuf) -> Model {
        println!("{}", source.display());
        let directory = tempfile::tempdir().expect("a temporary directory");
        let (bundle, reference) = (bundle(&source, directory.path()), Reference::read(&source));
        Model { source, bundle, reference, directory }
    }

    pub fn name(&self) -> String {
        self.source.file_name().expect("a name").to_string_lossy().into_owned()
    }
}

/// Each of these models, prepared when it is used.
pub fn each(sources: Vec<PathBuf>) -> impl Iterator<Item = Model> {
    sources.into_iter().map(Model::prepared)
}

/// Each of the tiny models.
pub fn tiny() -> impl Iterator<Item = Model> {
    each(tiny_models())
}

/// The Hugging Face directory `source` as a bundle at every precision, in the directory `bundles`.
pub fn bundle(source: &Path, bundles: &Path) -> Bundle {
    bundle_at(source, bundles, &Precision::ALL)
}

/// The same at these precisions.
pub fn bundle_at(source: &Path, bundles: &Path, precisions: &[Precision]) -> Bundle {
    let request = prepare::Request {
        source: prepare::Source::Directory(source.to_owned()),
        name: None,
        precisions: precisions.to_vec(),
        bundles: bundles.to_owned(),
        progress: prepare::Progress::Silent,
    };
    let directory = prepare::prepare(&request).unwrap_or_else(|e| panic!("{}: {e}", source.display()));
    Bundle::open(directory).expect("opens")
}

/// Reference outputs of one tiny model.
pub struct Reference {
    pub batch: usize,
    pub positions: usize,
    /// `[batch, positions]`
    pub tokens: Vec<u32>,
    /// `[batch, positions, vocabulary]`
    pub logits: Vec<f32>,
    /// As in [`engine::HiddenStates`].
    pub hidden: Vec<Vec<f32>>,
    /// None where the model does not go token by token.
    pub greedy: Vec<u32>,
}

impl Reference {
    pub fn read(model: &Path) -> Reference {
        let path = model.join("reference.safetensors");
        let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let file = SafeTensors::deserialize(&bytes).expect("a valid reference file");
        let floats = |name: &str| -> Option<Vec<f32>> {
            let tensor = file.tensor(name).ok()?;
            assert_eq!(tensor.dtype(), Dtype::F32);
            let numbers = tensor.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
            Some(numbers.collect())
        };
        let ids = |name: &str| -> Option<Vec<u32>> {
            let data = file.tensor(name).ok()?.data().to_vec();
            Some(data.chunks_exact(8).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
        };
        let shape = file.tensor("input_ids").expect("present").shape().to_vec();
        Reference {
            batch: shape[0],
            positions: shape[1],
            tokens: ids("input_ids").expect("present"),
            logits: floats("logits").expect("present"),
            hidden: (0..).map_while(|layer| floats(&format!("hidden.{layer}"))).collect(),
            greedy: ids("greedy").unwrap_or_default(),
        }
    }

    /// The tokens of each sequence.
    pub fn rows(&self) -> Vec<&[u32]> {
        self.tokens.chunks_exact(self.positions).collect()
    }
}

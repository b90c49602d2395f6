//! The tiny models, the results of an independent implementation for them, and plain settings.
//!
//! The references come from Hugging Face transformers in f32; they contain `input_ids` [2, T], `logits` [2,
//! T, V], `hidden.0` … `hidden.L` [2, T, H] and `greedy` (16 tokens after row 0). Models with bidirectional
//! attention have no `greedy`: their `prompt` and `states.ALGORITHM` are for the worker, which chooses
//! tokens.

use std::path::{Path, PathBuf};

use bundle::Pooling;
use prepare::testing::{GgmlDType, Gguf};
use safetensors::{Dtype, SafeTensors};
use tempfile::TempDir;
use worker::engine::{
    Bundle, Decode, EncodeTask, HiddenStates, InferenceEngine, KvCachePolicy, Precision, Settings, Texts,
    Want,
};

use crate::{check_architectures, check_tiny_models, senseless, unsupported};

/// Where the tiny reference models are in a checkout: Hugging Face directories with a
/// `reference.safetensors` each.
pub fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/tiny")
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

/// Models with experts, one of which has an MLP beside them for all tokens.
pub fn mixtures() -> Vec<PathBuf> {
    ["mixtral", "qwen2-moe"].map(|name| fixtures().with_file_name("architectures").join(name)).into()
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
    Settings::on_cpu(precision, threads())
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

/// The observed data type of keys and values.
pub(crate) fn cache<E: InferenceEngine>(engine: &E) -> Precision {
    engine.in_effect().kv_cache_precision.parse().expect("a precision")
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
    pub fn tiny(name: &str) -> Model {
        Model::prepared(fixtures().join(name))
    }

    fn prepared(source: PathBuf) -> Model {
        println!("{}", source.display());
        let directory = tempfile::tempdir().expect("a temporary directory");
        // Rows of some architectures' models are no multiple of nf4's blocks.
        let is_tiny = source.parent() == Some(&fixtures());
        let made = if is_tiny {
            &Precision::MADE[..]
        } else {
            &[Precision::F32, Precision::Bf16, Precision::F16, Precision::Int8, Precision::Int4]
        };
        let (bundle, reference) = (bundle_at(&source, directory.path(), made), Reference::read(&source));
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

pub fn tiny() -> impl Iterator<Item = Model> {
    each(tiny_models())
}

/// The Hugging Face directory `source` as a bundle at every precision, in the directory `bundles`.
pub fn bundle(source: &Path, bundles: &Path) -> Bundle {
    bundle_at(source, bundles, &Precision::MADE)
}

/// The same at these precisions.
pub fn bundle_at(source: &Path, bundles: &Path, precisions: &[Precision]) -> Bundle {
    bundle_of(prepare::Source::Directory(source.to_owned()), bundles, precisions)
}

pub fn synthetic(name: &str, bundles: &Path, precisions: &[Precision]) -> Bundle {
    bundle_of(prepare::Source::Synthetic(name.to_owned()), bundles, precisions)
}

pub(crate) fn bundle_of(source: prepare::Source, bundles: &Path, precisions: &[Precision]) -> Bundle {
    let shown = format!("{source:?}");
    let request = prepare::Request {
        source,
        name: None,
        precisions: precisions.to_vec(),
        bundles: bundles.to_owned(),
        progress: prepare::Progress::Silent,
    };
    let directory = prepare::prepare(&request).unwrap_or_else(|error| panic!("{shown}: {error}"));
    Bundle::open(directory).expect("opens")
}

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
        let bytes = reference_file(model);
        let file = SafeTensors::deserialize(&bytes).expect("a valid reference file");
        let shape = file.tensor("input_ids").expect("present").shape().to_vec();
        Reference {
            batch: shape[0],
            positions: shape[1],
            tokens: ids(&file, "input_ids").expect("present"),
            logits: floats(&file, "logits").expect("present"),
            hidden: (0..).map_while(|layer| floats(&file, &format!("hidden.{layer}"))).collect(),
            greedy: ids(&file, "greedy").unwrap_or_default(),
        }
    }

    pub fn rows(&self) -> Vec<&[u32]> {
        self.tokens.chunks_exact(self.positions).collect()
    }
}

pub(crate) fn reference_file(model: &Path) -> Vec<u8> {
    let path = model.join("reference.safetensors");
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

pub(crate) fn floats(file: &SafeTensors<'_>, name: &str) -> Option<Vec<f32>> {
    let tensor = file.tensor(name).ok()?;
    assert_eq!(tensor.dtype(), Dtype::F32);
    Some(tensor.data().as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
}

/// Whole numbers of 4 or 8 bytes, none of which is negative or above u32's.
pub(crate) fn ids(file: &SafeTensors<'_>, name: &str) -> Option<Vec<u32>> {
    let tensor = file.tensor(name).ok()?;
    let size = if tensor.dtype() == Dtype::I64 { 8 } else { 4 };
    let low = |bytes: &[u8]| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    Some(tensor.data().chunks_exact(size).map(low).collect())
}

// Comparisons of an engine's logits with others.

/// Largest absolute difference of two computations of the same f32 logits. The order of summation differs
/// between frameworks; 2e-4 is some hundred times the effect seen on the tiny models, and far below the
/// effect of any wrong operation.
pub const TOLERANCE: f32 = 2e-4;

/// Largest absolute difference; infinite where the lengths differ or a number is not finite.
pub fn max_abs_difference(a: &[f32], b: &[f32]) -> f32 {
    if a.len() != b.len() || a.iter().chain(b).any(|x| !x.is_finite()) {
        return f32::INFINITY;
    }
    a.iter().zip(b).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max)
}

/// Index of the largest logit, the first of equals.
pub fn argmax(logits: &[f32]) -> u32 {
    let largest = |best, index| if logits[index] > logits[best] { index } else { best };
    (0..logits.len()).fold(0, largest) as u32
}

/// Logits of all positions of `rows`, which are of one length, appended `piece` positions at a time.
pub fn logits_in_pieces<E: InferenceEngine + Decode>(
    engine: &mut E,
    rows: &[&[u32]],
    piece: usize,
) -> Vec<f32> {
    let positions = rows[0].len();
    engine.begin(rows.len(), positions).expect("begins");
    let mut logits = vec![Vec::new(); rows.len()];
    for start in (0..positions).step_by(piece) {
        let end = positions.min(start + piece);
        let tokens: Vec<u32> = rows.iter().flat_map(|row| &row[start..end]).copied().collect();
        let appended = engine.append(&tokens, Want::All).expect("appends");
        for (logits, appended) in logits.iter_mut().zip(appended.chunks_exact(appended.len() / rows.len())) {
            logits.extend_from_slice(appended);
        }
    }
    logits.concat()
}

/// Holds an engine that rounds to `reference`, one position at a time, five, and all at once: logits are that near, and
/// so is the chosen token's to the largest.
pub fn check_follows<E: InferenceEngine + Decode>(
    engine: &mut E,
    reference: &Reference,
    tolerance: f32,
    case: &str,
) {
    let vocabulary = reference.logits.len() / reference.tokens.len();
    for piece in [1, 5, reference.positions] {
        let logits = logits_in_pieces(engine, &reference.rows(), piece);
        let difference = max_abs_difference(&logits, &reference.logits);
        assert!(difference <= tolerance, "{case}, pieces of {piece}: {difference}");
        for (ours, theirs) in logits.chunks(vocabulary).zip(reference.logits.chunks(vocabulary)) {
            let margin = theirs[argmax(theirs) as usize] - theirs[argmax(ours) as usize];
            assert!(
                margin <= tolerance,
                "{case}, pieces of {piece}: the chosen token's logit is {margin} lower"
            );
        }
    }
}

/// The kernels for a GGUF's own blocks follow the weights that they stand for, in f32, of every type and of several in one
/// product; and these weights, dequantised at load, are the very ones of the f32 file. `tolerance`: of the largest logit.
pub fn check_file_blocks<E: InferenceEngine + Decode>(tolerance: f32) {
    use GgmlDType::{F16, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};
    let all = [Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0];
    let mixed = [vec![Q4K, Q6K, Q8_0, F16, Q5_0], vec![Q4K, Q4K, Q6K]];
    for types in all.map(|one| vec![one]).into_iter().chain(mixed) {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("model.gguf");
        std::fs::write(&path, Gguf::of_types(&types).bytes()).expect("writes");
        let precisions = [Precision::F32, Precision::File];
        let bundle = bundle_of(prepare::Source::Gguf(path), directory.path(), &precisions);
        let tokens: Vec<u32> = (0..2 * 24).map(|at| at * 37 % 96).collect();
        let mut reference = Reference {
            batch: 2,
            positions: 24,
            tokens,
            logits: Vec::new(),
            hidden: Vec::new(),
            greedy: Vec::new(),
        };
        let logits = |settings: Settings| {
            let mut engine = E::load(&bundle, &settings).expect("loads");
            assert_eq!(engine.in_effect().precision, settings.precision.name());
            logits_in_pieces(&mut engine, &reference.rows(), reference.positions)
        };
        let exact = logits(at(Precision::F32));
        let emulated = logits(Settings { dequantised: true, ..at(Precision::File) });
        assert_eq!(emulated, exact, "{types:?}");
        reference.logits = exact;
        let largest = reference.logits.iter().fold(0f32, |largest, logit| largest.max(logit.abs()));
        let mut engine = E::load(&bundle, &at(Precision::File)).expect("loads");
        assert_eq!(engine.in_effect().precision, "file");
        let storage = engine.in_effect().weight_storage;
        assert!(storage.contains("the file's own blocks"), "{storage}");
        check_follows(&mut engine, &reference, tolerance * largest, &format!("{types:?}, largest {largest}"));
    }
}

/// Holds hidden states to those of a reference.
pub fn check_hidden_states(ours: &HiddenStates, theirs: &[Vec<f32>], tolerance: f32) {
    assert_eq!(ours.layers.len(), theirs.len(), "embeddings and one state a layer");
    for (layer, (ours, theirs)) in ours.layers.iter().zip(theirs).enumerate() {
        let difference = max_abs_difference(ours, theirs);
        assert!(difference <= tolerance, "hidden state {layer} differs by {difference}");
    }
}

// Variants of engines that make a common mistake: they compute the same as others, and report the mistake.

/// In 16 bits, an engine follows f32's results on every tiny model, within the tolerance of each of these settings.
pub fn check_halves<E: InferenceEngine + Decode>(each: &[(Settings, f32)]) {
    for model in tiny() {
        for (settings, tolerance) in each {
            let mut engine = E::load(&model.bundle, settings).expect("loads");
            let precision = settings.precision.name();
            assert_eq!(engine.in_effect().precision, precision);
            let case = format!("{precision} {:?}", settings.options);
            check_follows(&mut engine, &model.reference, *tolerance, &case);
        }
    }
}

/// With a KV cache that grows, an engine conforms, and the cache holds keys and values of exactly the positions that were
/// appended.
pub fn check_growth<E: InferenceEngine + Decode>(settings: &Settings) {
    check_tiny_models::<E>(settings);
    check_architectures::<E>(std::slice::from_ref(settings));
    let model = Model::tiny("llama-gqa-tied");
    let Model { bundle, reference, .. } = &model;
    let mut engine = E::load(bundle, settings).expect("loads");
    assert_eq!(engine.in_effect().kv_cache, KvCachePolicy::Growing);
    let config = bundle.config();
    let element = cache(&engine).element().bytes();
    let least = (2 * config.layers.len() * config.kv_heads * config.head_dim * element) as u64;
    for batch in [1, 2, 2] {
        engine.begin(batch, reference.positions).expect("begins");
        assert_eq!(engine.kv_cache_bytes(), Some(0), "nothing is preallocated");
        let mut each = Vec::new();
        for (appended, positions) in [(3, 3), (1, 4), (2, 6)] {
            engine.append(&reference.tokens[..batch * appended], Want::Last).expect("appends");
            let bytes = engine.kv_cache_bytes().expect("tells its size");
            assert_eq!(bytes % (batch * positions) as u64, 0, "room of no position");
            each.push(bytes / (batch * positions) as u64);
        }
        assert!(each.iter().all(|&bytes| bytes == each[0] && bytes >= least), "{each:?} bytes a position");
    }
}

/// Weights of 16 bits that are converted for every product give f32's results, and are reported as converted;
/// with other weights there is nothing to convert. Keys and values are in f32, as in all engines then.
pub fn check_converted<E: InferenceEngine + Decode>(tolerances: &[(Precision, f32)]) {
    let converted = |precision| {
        with(Settings { kv_precision: Some(Precision::F32), ..at(precision) }, &[("weights", "converted")])
    };
    for model in tiny() {
        for &(precision, tolerance) in tolerances {
            let mut engine = E::load(&model.bundle, &converted(precision)).expect("loads");
            let in_effect = engine.in_effect();
            assert_eq!(in_effect.precision, precision.name());
            let storage = in_effect.weight_storage;
            assert!(storage.contains("converted to f32 for every product"), "{storage}");
            check_follows(&mut engine, &model.reference, tolerance, &format!("{precision}, converted"));
        }
    }
    let model = Model::tiny("gpt2");
    for precision in [Precision::F32, Precision::Int8, Precision::Int4, Precision::Nf4] {
        let reason = unsupported::<E>(&model.bundle, &converted(precision));
        assert!(reason.contains(&format!("nothing to convert at {precision}")), "{reason}");
    }
}

/// The effect of each value of the option `padded` on three texts of 1, 3 and 1 tokens, of a model with 130
/// positions: the reported kernels, and the computed positions, of which there are `unpadded` without the option. Vectors
/// are the same without padding. A decoder has no texts to pad, and an encoder no cache to grow.
pub fn check_padding<E: InferenceEngine + Decode>(unpadded: usize) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let source = fixtures().with_file_name("encoders").join("bert");
    let bundle = bundle_at(&source, directory.path(), &[Precision::F32]);
    let task = EncodeTask::Embed { pooling: Pooling::Max, normalise: false };
    let found = |option: &str| {
        let mut engine = E::load(&bundle, &with_options(&[("padded", option)])).expect("loads");
        let kernels = engine.in_effect().kernels.join(", ");
        let encoder = engine.encode().expect("encodes");
        let texts = Texts { tokens: &[5, 6, 7, 8, 9], types: &[], lengths: &[1, 3, 1] };
        let vectors = encoder.encode(texts, task).expect("encodes").to_vec();
        (kernels, encoder.positions(), vectors)
    };
    let (_, _, expected) = found("false");
    for (option, said, computed) in [
        ("false", "texts unpadded", unpadded),
        ("true", "texts padded to the longest", 9),
        ("2", "texts padded to 2 tokens each", 9),
        ("7", "texts padded to 7 tokens each", 21),
        ("512", "texts padded to 130 tokens each", 3 * 130),
    ] {
        let (kernels, positions, vectors) = found(option);
        assert!(kernels.contains(said), "{option}: {kernels}");
        assert_eq!(positions, computed, "{option}");
        assert!(max_abs_difference(&vectors, &expected) <= TOLERANCE, "{option}");
    }
    let decoder = Model::tiny("gpt2");
    for (option, bundle, reason) in [
        (("padded", "512"), &decoder.bundle, "option padded is for encoders"),
        (("padded", "0"), &bundle, "true, false or a number of tokens"),
        (("cache", "growing"), &bundle, "option cache is for models that continue texts"),
    ] {
        let found = senseless::<E>(bundle, &with_options(&[option]));
        assert!(found.contains(reason), "{found}");
    }
}

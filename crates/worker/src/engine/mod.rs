//! [`InferenceEngine`]: the one interface through which every framework is driven and measured.
//!
//! The worker is generic over it, so every engine is timed by the same clock code, gets the same calls in the
//! same order, and has to pass the same suite (crate `conformance`). An implementation translates between
//! this trait and a framework's best public operations; it contains no timing, no logging, and no policy of
//! its own about threads, precision or warm-up.
//!
//! An adapter must never fall back silently. It reports a request that it cannot satisfy as
//! [`EngineError::Unsupported`] with the reason; [`InferenceEngine::in_effect`] reports observed values and
//! does not repeat the settings.
mod capabilities;
mod encode;
mod hand_over;

pub use bundle::{Bundle, BundleError, Dtype, Element, Graph, Precision, Quantised};
use bundle::{Feature, ModelConfig};
pub use capabilities::{Decode, HiddenStates, Run, Tensor, Want, without_panic};
pub use encode::*;
pub use hand_over::{CacheMemory, HandsOver, Plane};
pub use protocol::untrusted::Foreigns;
pub use protocol::{
    Artefact, Device, EncodeTask, HandOver, Hybrid, InEffect, KvCachePolicy, Padding, ProfileEvent, Served,
    Settings, Shows, Side,
};

/// Name and version of a framework that a worker is compiled with and that does not report its own: the
/// version that the repository pins, or another one that it was built with (`setup::versions`).
#[macro_export]
macro_rules! framework_version {
    ($pinned:literal) => {
        match option_env!("PHOTOFINISH_FRAMEWORK") {
            Some(built_with) => built_with,
            None => $pinned,
        }
    };
}

/// Bytes that a framework's own allocator has handed out on a GPU. Memory that it keeps for later is not
/// included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allocated {
    pub in_use: u64,
    pub peak: u64,
}

/// The framework as it is in this process, observed after initialising it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Runtime {
    /// Version of the Rust crate or other binding, for example `tch 0.24.0`.
    pub binding: String,
    /// Name and version as the native library itself reports it, for example `libtorch 2.11.0`.
    /// For a framework that is pure Rust, its crate and version.
    pub library: String,
    /// File of the native library that was loaded, if there is one.
    pub library_path: Option<std::path::PathBuf>,
    /// CPU capabilities that the framework says it uses, for example `AVX512`.
    pub cpu_capability: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// This engine cannot do the task; the text says why, for people.
    #[error("unsupported: {0}")]
    Unsupported(String),
    /// The task makes no sense for any engine: a token outside the vocabulary, …
    #[error("{0}")]
    Input(String),
    #[error(transparent)]
    Bundle(#[from] BundleError),
    /// The framework reported an error.
    #[error("{0}")]
    Framework(String),
}

/// What an engine's calls return.
pub type Result<T, E = EngineError> = std::result::Result<T, E>;

/// The option with a file that is run in place of the bundle's ONNX file: another one of the same inputs and outputs,
/// or what the framework has made of one.
pub const ARTEFACT: &str = "artefact";

/// A framework, ready to run one model: the operations of every framework. The operations of a model are
/// capabilities, traits of their own ([`Decode`]).
///
/// The worker's order of calls: [`runtime`](Self::runtime) once, [`load`](Self::load) once, then those of a capability.
pub trait InferenceEngine: Sized + 'static {
    /// Name of the framework, for example `candle`.
    const FRAMEWORK: &'static str;

    /// Whether it runs ONNX files: [`load`](Self::load) then takes such a model, and [`graph`](Self::graph) gives the
    /// capability.
    const RUNS_GRAPHS: bool = false;

    /// Whether a request can pause between two tokens. A server goes on computing.
    const PAUSES: bool = true;

    /// Initialises the framework in this process and describes it. Timed as part of start-up.
    fn runtime() -> Result<Runtime>;

    /// The file that [`load`](Self::load) will read: the bundle's own, or for an ONNX file the one of the option
    /// [`ARTEFACT`]. An engine that cannot read a bundle derives its file here, once. Not timed.
    fn weights_file(bundle: &Bundle, settings: &Settings) -> Result<std::path::PathBuf> {
        match settings.options.get(ARTEFACT) {
            Some(file) if bundle.config().graph.is_some() => Ok(std::path::PathBuf::from(file)),
            _ => Ok(bundle.weights_path(settings.precision)?),
        }
    }

    /// Makes the model's weights resident and ready to compute with. Timed as model load. Pages of a mapped
    /// file are touched here ([`bundle::Weights::touch`]), or their cost would move silently into the first
    /// token. If the framework needs weights in another form, they are converted here, not on first use,
    /// where the framework allows the choice.
    fn load(bundle: &Bundle, settings: &Settings) -> Result<Self>;

    /// Fixed work on the GPU of `settings`, with buffers of about so many bytes. The worker times it: the
    /// limits of a GPU are those that a framework reaches.
    ///
    /// `None` where this engine cannot run plain operations of its framework. Errors with
    /// [`EngineError::Unsupported`] if the framework cannot use that GPU.
    fn bench(settings: &Settings, bytes: usize) -> Result<Option<Box<dyn Bench>>> {
        let _ = (settings, bytes);
        Ok(None)
    }

    /// The values in effect now. Not timed.
    fn in_effect(&self) -> InEffect;

    /// What can be seen of each step: all, unless this is a server.
    fn shows(&self) -> Shows {
        Shows::All
    }

    /// Tokens that a server keeps its model from choosing.
    fn barred(&self) -> Vec<u32> {
        Vec::new()
    }

    /// What a server says of the requests that this engine sent; the last one is ended here. Not timed.
    fn served(&mut self) -> Result<Option<Served>> {
        Ok(None)
    }

    /// Memory that the framework's own allocator has handed out on a GPU; `None` on a CPU, and where the
    /// framework does not report it. Not timed.
    fn gpu_allocated(&self) -> Option<Allocated> {
        None
    }

    /// This engine as a decoder. The default is for engines without this capability.
    ///
    /// Errors with [`EngineError::Unsupported`] where it has none.
    fn decode(&mut self) -> Result<&mut dyn Decode> {
        Err(EngineError::Unsupported(format!("{} continues no tokens here", Self::FRAMEWORK)))
    }

    /// The capability to turn texts into vectors or scores: [`Encode`].
    ///
    /// Errors with [`EngineError::Unsupported`] where it has none.
    fn encode(&mut self) -> Result<&mut dyn Encode> {
        Err(EngineError::Unsupported(format!("{} encodes no texts here", Self::FRAMEWORK)))
    }

    /// The capability to run an ONNX file: [`Run`].
    ///
    /// Errors with [`EngineError::Unsupported`] where it has none.
    fn graph(&mut self) -> Result<&mut dyn Run> {
        Err(EngineError::Unsupported(format!("{} runs no ONNX files here", Self::FRAMEWORK)))
    }

    /// The settings to load with if the run is to be profiled, for profilers that must be set up before. The
    /// engine may put files into `directory`.
    fn profiled(settings: Settings, directory: &std::path::Path) -> Settings {
        let _ = directory;
        settings
    }

    /// Starts the framework's own profiler, once, after [`load`](Self::load). No timed run is profiled.
    ///
    /// Errors with [`EngineError::Unsupported`] where there is no profiler; the text is a whole sentence that says so.
    fn begin_profile(&mut self) -> Result<()> {
        let framework = Self::FRAMEWORK;
        let text = format!("Photofinish reads no profiler of {framework}, so its own events are not here.");
        Err(EngineError::Unsupported(text))
    }

    /// Ends the profiler and returns its events: all since [`begin_profile`](Self::begin_profile), and
    /// earlier ones that it has recorded.
    fn end_profile(&mut self) -> Result<Profile> {
        Err(EngineError::Input("end_profile before begin_profile".into()))
    }
}

// Fixed work on a GPU to measure its limits.

/// Buffers on a GPU and work with them. Each call returns when the GPU has finished.
pub trait Bench {
    /// The GPU, observed from the buffers.
    fn device(&self) -> Device;

    /// The element type of the products.
    fn precision(&self) -> Precision;

    /// Copies a buffer to another on the GPU, so many times. Returns the bytes read and written, all
    /// together.
    fn copies(&mut self, times: usize) -> Result<u64>;

    /// Multiplies two large square matrices, so many times. Returns the floating-point operations, two for each
    /// multiply-add.
    fn products(&mut self, times: usize) -> Result<u64>;
}

// Checks of every engine before it computes: the model's features and the caller's input.

/// The checks that every engine's `begin` starts with.
pub fn check_begin(config: &ModelConfig, batch: usize, capacity: usize) -> Result<()> {
    if batch == 0 || capacity == 0 {
        return Err(EngineError::Input(format!(
            "a batch of {batch} with room for {capacity} tokens is empty"
        )));
    }
    if capacity > config.max_positions {
        let context = config.max_positions;
        let text = format!("{capacity} tokens do not fit the model's context of {context} tokens");
        return Err(EngineError::Input(text));
    }
    Ok(())
}

/// The checks that every engine's `listen` starts with; `filled` positions of the sequences are taken. Returns the
/// encoder's sizes.
pub fn check_listen(
    config: &ModelConfig,
    frames: &[f32],
    (batch, filled): (usize, usize),
) -> Result<bundle::Audio> {
    let input = |text: String| Err(EngineError::Input(text));
    let Some(audio) = config.audio else { return input("audio for a model that does not hear".into()) };
    if batch != 1 || filled > 0 {
        return input("audio comes right after begin, for one sequence".into());
    }
    if frames.len() != audio.numbers() {
        let (found, numbers) = (frames.len(), audio.numbers());
        return input(format!("a spectrogram of {found} numbers, where the model takes {numbers}"));
    }
    Ok(audio)
}

/// The check of an `append` to a model that hears: whether it has listened.
pub fn check_listened(config: &ModelConfig, has_listened: bool) -> Result<()> {
    match config.audio.is_some() && !has_listened {
        true => Err(EngineError::Input("tokens before the audio: listen comes right after begin".into())),
        false => Ok(()),
    }
}

/// The error of an engine without bidirectional attention for such a model.
pub fn check_causal(config: &ModelConfig, framework: &str) -> Result<()> {
    if config.causal {
        return Ok(());
    }
    let text = format!(
        "masked diffusion attends both ways, and {framework} is driven here with causal attention alone"
    );
    Err(EngineError::Unsupported(text))
}

/// For a framework that computes only the `known` features of models: it must not ignore the others.
pub fn check_features(config: &ModelConfig, framework: &str, known: &[Feature]) -> Result<()> {
    match config.beyond(known) {
        None => Ok(()),
        Some(words) => {
            let text = format!("the model has {words}, which {framework} does not compute here");
            Err(EngineError::Unsupported(text))
        }
    }
}

/// For a framework without sliding windows: contexts that fit in one need none.
pub fn check_window(config: &ModelConfig, framework: &str, capacity: usize) -> Result<()> {
    match config.window() {
        Some(window) if capacity > window => Err(EngineError::Unsupported(format!(
            "{capacity} tokens are more than the model's sliding window of {window}, which {framework} does not \
             compute here"
        ))),
        _ => Ok(()),
    }
}

/// The checks that every engine's `append` starts with. `filled` of `capacity` positions are taken.
/// Returns the number of positions that are appended.
pub fn check_append(
    config: &ModelConfig,
    tokens: &[u32],
    batch: usize,
    filled: usize,
    capacity: usize,
) -> Result<usize> {
    if batch == 0 {
        return Err(EngineError::Input("append before begin".into()));
    }
    if tokens.is_empty() || !tokens.len().is_multiple_of(batch) {
        let count = tokens.len();
        return Err(EngineError::Input(format!("{count} tokens do not divide over a batch of {batch}")));
    }
    let count = tokens.len() / batch;
    if filled > 0 && !config.causal {
        let text = "this model attends both ways: a whole sequence is appended in one piece, after begin";
        return Err(EngineError::Input(text.into()));
    }
    if filled + count > capacity {
        let text = format!("{filled} + {count} tokens exceed the KV cache's capacity of {capacity}");
        return Err(EngineError::Input(text));
    }
    check_vocabulary(config, tokens)?;
    Ok(count)
}

/// The sequences of an engine, if there are any.
pub fn begun<T>(sequences: Option<T>) -> Result<T> {
    sequences.ok_or_else(|| EngineError::Input("there are no sequences before begin".into()))
}

/// The check that every engine's `set_filled` starts with.
pub fn check_filled(positions: usize, capacity: usize) -> Result<()> {
    if positions <= capacity {
        return Ok(());
    }
    Err(EngineError::Input(format!("{positions} positions do not fit the capacity of {capacity}")))
}

/// The checks that every engine's `append_each` starts with; `filled` positions of the sequences are taken.
/// Returns the longest length.
pub fn check_append_each(
    config: &ModelConfig,
    (tokens, lengths): (&[u32], &[usize]),
    (batch, filled, capacity): (usize, usize, usize),
) -> Result<usize> {
    let input = |text: String| Err(EngineError::Input(text));
    if batch == 0 || filled > 0 {
        return input("prompts of different lengths come right after begin, in one piece".into());
    }
    if !config.causal {
        return input("this model attends both ways: its sequences have one length".into());
    }
    if lengths.len() != batch || lengths.contains(&0) || lengths.iter().sum::<usize>() != tokens.len() {
        let count = tokens.len();
        return input(format!(
            "{count} tokens are not sequences of {lengths:?} tokens in a batch of {batch}"
        ));
    }
    let longest = lengths.iter().copied().max().unwrap_or(0);
    if longest > capacity {
        return input(format!("{longest} tokens exceed the KV cache's capacity of {capacity}"));
    }
    check_vocabulary(config, tokens)?;
    Ok(longest)
}

fn check_vocabulary(config: &ModelConfig, tokens: &[u32]) -> Result<()> {
    match tokens.iter().find(|&&token| token as usize >= config.vocab_size) {
        None => Ok(()),
        Some(token) => {
            let vocabulary = config.vocab_size;
            let text = format!("token id {token} is outside the vocabulary of {vocabulary} tokens");
            Err(EngineError::Input(text))
        }
    }
}

// Options of engine variants (`configs/engines/*.toml`), which every engine parses and rejects in the same way.

pub trait Options {
    /// An error naming the first option that is not among `known`.
    fn check_options(&self, known: &[&str]) -> Result<()>;

    /// The value of a yes/no option ("true" or "false").
    fn flag(&self, name: &str, default: bool) -> Result<bool>;

    /// The length that an encoder's texts are padded to (`padded`: true, false or a number of tokens), if
    /// they are.
    fn padding(&self, config: &ModelConfig) -> Result<Option<TextPadding>>;

    // Of the variants that make a common mistake, so that its cost can be measured.

    /// Whether the KV cache grows (`cache = "growing"`): nothing is preallocated, and every append copies all keys and
    /// values into new memory.
    fn grows_cache(&self, config: &ModelConfig) -> Result<bool>;

    /// Whether weights of 16 bits are converted to f32 again for every product (`weights = "converted"`).
    fn converts_weights(&self) -> Result<bool>;
}

impl Options for Settings {
    fn check_options(&self, known: &[&str]) -> Result<()> {
        match self.options.keys().find(|name| !known.contains(&name.as_str())) {
            None => Ok(()),
            Some(name) if known.is_empty() => {
                Err(EngineError::Input(format!("option {name:?}: this engine has no options")))
            }
            Some(name) => Err(EngineError::Input(format!(
                "unknown option {name:?}; this engine has {}",
                known.join(", ")
            ))),
        }
    }

    fn flag(&self, name: &str, default: bool) -> Result<bool> {
        match self.options.get(name).map(String::as_str) {
            None => Ok(default),
            Some("true") => Ok(true),
            Some("false") => Ok(false),
            Some(other) => Err(EngineError::Input(format!("option {name} is {other:?}, not true or false"))),
        }
    }

    fn padding(&self, config: &ModelConfig) -> Result<Option<TextPadding>> {
        let padding = match self.options.get("padded").map(String::as_str) {
            None | Some("false") => return Ok(None),
            Some("true") => TextPadding::Longest,
            Some(number) => match number.parse() {
                Ok(tokens) if tokens > 0 => TextPadding::To(config.max_positions.min(tokens)),
                _ => {
                    let text = format!("option padded is {number:?}, not true, false or a number of tokens");
                    return Err(EngineError::Input(text));
                }
            },
        };
        if config.encoder.is_none() {
            let text = "option padded is for encoders, and the model is none";
            return Err(EngineError::Input(text.into()));
        }
        Ok(Some(padding))
    }

    fn grows_cache(&self, config: &ModelConfig) -> Result<bool> {
        let grows = is_chosen(self, "cache", "growing")?;
        let keeps_none = !config.causal || config.encoder.is_some() || config.graph.is_some();
        if grows && keeps_none {
            let text =
                "option cache is for models that continue texts, and this one keeps no keys and values";
            return Err(EngineError::Input(text.into()));
        }
        Ok(grows)
    }

    fn converts_weights(&self) -> Result<bool> {
        let converts = is_chosen(self, "weights", "converted")?;
        if converts && !matches!(self.precision, Precision::Bf16 | Precision::F16) {
            let text = format!(
                "option weights is for bf16 and f16: there is nothing to convert at {}",
                self.precision
            );
            return Err(EngineError::Unsupported(text));
        }
        Ok(converts)
    }
}

/// Whether an option with one permitted value is set to it.
fn is_chosen(settings: &Settings, name: &str, value: &str) -> Result<bool> {
    match settings.options.get(name) {
        None => Ok(false),
        Some(chosen) if chosen == value => Ok(true),
        Some(other) => Err(EngineError::Input(format!("option {name} is {other:?}, not {value}"))),
    }
}

/// Why a growing cache does not support prompts of different lengths.
pub fn no_place_for_padding() -> EngineError {
    let reason = "a cache that grows has no place for padding: prompts of different lengths need another";
    EngineError::Unsupported(reason.into())
}

// The output of a framework's own profiler, in one form for all.

/// The events of a framework's own profiler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// For example `ONNX Runtime's profiler`.
    pub profiler: String,
    pub clock: ProfileClock,
    /// On that clock. A part of the model is named in the words of every engine: `embedding`, `layer 3 attention norm`,
    /// `layer 3 attention`, `layer 3 mlp norm`, `layer 3 mlp`, or `layer 3` where no more is known, `final norm`,
    /// `head`. Layers count from 0.
    pub events: Vec<ProfileEvent>,
    /// Limits of the profiler, a sentence each.
    pub notes: Vec<String>,
}

/// The system's clock that a profiler reads. The worker knows its offset from its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProfileClock {
    /// Time since 1970.
    Realtime,
    /// The clock that the worker reads, too.
    Monotonic,
}

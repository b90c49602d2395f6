//! A model compiled by ONNX Runtime, which calls it a session.

use std::ffi::OsStr;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use bundle::{Element, ModelConfig, Precision, TensorView, Weights};
use engine::{Bundle, BundleError, Device, EngineError, Settings};
use half::{bf16, f16};
use onnx::fused::{self, encoder};
use onnx::{Attention, Products, Storage};
use ort::environment::ThreadManager;
use ort::session::Session;
use ort::session::builder::SessionBuilder;

use crate::options::Options;
use crate::probe::{self, Activations};
use crate::runtime::{Library, commit, cuda_session_builder, framework, session_builder};

/// Copying would make decoding slower with every token of context.
pub(crate) const CACHE_IS_COPIED: &str =
    "GroupQueryAttention copies the KV cache instead of writing into it in place";

pub(crate) struct Model {
    pub(crate) config: ModelConfig,
    pub(crate) attention: Attention,
    pub(crate) products: Products,
    /// Whether products round their activations, as observed by a probe.
    pub(crate) activations: Activations,
    pub(crate) options: Options,
    pub(crate) device: Device,
    pub(crate) session: Session,
    /// The table of relative positions, in encoders that have one.
    pub(crate) relative: Option<Vec<f32>>,
    /// Whether the graph outputs its hidden states.
    pub(crate) hidden_states: bool,
    /// Threads that compute: the caller's and those that the session started.
    pub(crate) threads: usize,
}

impl Model {
    pub(crate) fn compile(
        library: &Library,
        bundle: &Bundle,
        attention: Attention,
        settings: &Settings,
    ) -> Result<Model, EngineError> {
        let options = Options::from_settings(settings, bundle.config())?;
        let products = Products {
            precision: settings.precision,
            dequantised: settings.precision.is_quantised() && settings.dequantised,
            converted: options.converts,
            folds_constants: options.optimization.folds_constants(),
        };
        let config = bundle.config().clone();
        let builder = builder_on(settings.device, library, &config, attention, &options)?;
        let activations = match products.by_codes() {
            true => probe::activations(library, products)?,
            false => Activations::F32,
        };
        let weights = bundle.weights(settings.precision)?;
        let (folder, file) = location(weights.path())?;
        let storage = match products.dequantised {
            true => Storage::Memory(Vec::new()),
            false => Storage::File(file),
        };
        let plan = (attention, products);
        let graph = match config.encoder {
            Some(_) => {
                let outputs = (options.padding.is_some(), settings.hidden_states);
                encoder::build(&config, plan, &weights, storage, outputs)?
            }
            None => fused::build(&config, plan, &weights, storage, settings.hidden_states)?,
        };
        touch_mapped(&config, products, &weights)?;
        let relative = config.relative_bias().map(|name| weights.tensor(&name)).transpose()?;
        let relative = relative.map(|table| numbers(&table));
        drop(weights);
        let threads = CountedThreads::default();
        let started = Arc::clone(&threads.started);
        let compile = || {
            let mut builder = builder
                .with_intra_threads(settings.threads)?
                .with_thread_manager(threads)?
                .with_config_entry("session.model_external_initializers_file_folder_path", folder)?;
            // `SkipLayerNormFusion` would restore the slower operator: see `onnx::fused`.
            let disabled = match products.converted {
                true => "SkipLayerNormFusion;ConstantFolding",
                false => "SkipLayerNormFusion",
            };
            builder = builder.with_config_entry("optimization.disable_specified_optimizers", disabled)?;
            if options.spins_within_runs_alone {
                builder = builder.with_config_entry("session.force_spinning_stop", "1")?;
            }
            if let Some(path) = &options.profile {
                builder = builder.with_profiling(path)?;
            }
            commit(builder, graph)
        };
        let session = compile().map_err(framework)?;
        let threads = 1 + started.load(Ordering::SeqCst);
        let (device, hidden_states) = (settings.device, settings.hidden_states);
        Ok(Model {
            config,
            attention,
            products,
            activations,
            options,
            device,
            session,
            relative,
            hidden_states,
            threads,
        })
    }
}

/// A session builder for the device. On a CPU, fails if the cache would be copied.
fn builder_on(
    device: Device,
    library: &Library,
    config: &ModelConfig,
    attention: Attention,
    options: &Options,
) -> Result<SessionBuilder, EngineError> {
    let (optimization, is_shared) = (options.optimization, attention.cached && !options.grows);
    match device {
        Device::Cuda(index) => cuda_session_builder(library, optimization, index),
        Device::Cpu if is_shared && !probe::cache_is_shared(library, config, attention)? => {
            Err(EngineError::Framework(CACHE_IS_COPIED.into()))
        }
        Device::Cpu => session_builder(library, optimization).map_err(framework),
    }
}

impl Model {
    /// Ends the profile requested by the options and renames its file, because ONNX Runtime appends the time
    /// to the name. `None` if there is no profile or it has already been ended.
    pub(crate) fn end_profile(&mut self) -> Option<Result<PathBuf, String>> {
        end_profile(&mut self.session, &mut self.options)
    }
}

/// See [`Model::end_profile`].
pub(crate) fn end_profile(session: &mut Session, options: &mut Options) -> Option<Result<PathBuf, String>> {
    let path = options.profile.take()?;
    let moved = session.end_profiling().map_err(|error| error.to_string()).and_then(|written| {
        std::fs::rename(&written, &path).map_err(|error| format!("cannot rename {written}: {error}"))
    });
    Some(moved.map_err(|reason| format!("no profile in {}: {reason}", path.display())).map(|()| path))
}

impl Drop for Model {
    fn drop(&mut self) {
        if let Some(Err(reason)) = self.end_profile() {
            eprintln!("{reason}");
        }
    }
}

/// Reads the tensors that the session will keep mapped, so that they do not come from the disk later. The
/// others are read when the session packs them.
fn touch_mapped(config: &ModelConfig, products: Products, weights: &Weights) -> Result<(), BundleError> {
    if products.converted || products.by_codes() && products.precision == Precision::Nf4 {
        black_box(weights.touch());
        return Ok(());
    }
    let tables = [config.position_embedding(), config.token_type_embedding()];
    for name in tables.into_iter().flatten().chain([config.embedding()]) {
        black_box(weights.tensor(&name)?.touch());
        if weights.is_quantised(&name) {
            black_box(weights.quantised(&[name])?.scales.touch());
        }
    }
    Ok(())
}

/// All numbers of a tensor of f32, f16 or bf16.
fn numbers(tensor: &TensorView<'_>) -> Vec<f32> {
    let halves = || tensor.bytes.as_chunks().0.iter();
    match tensor.element {
        Element::F16 => halves().map(|number| f16::from_le_bytes(*number).to_f32()).collect(),
        Element::Bf16 => halves().map(|number| bf16::from_le_bytes(*number).to_f32()).collect(),
        _ => tensor.bytes.as_chunks().0.iter().map(|number| f32::from_le_bytes(*number)).collect(),
    }
}

/// Folder and name of the weights file, with links resolved: ONNX Runtime follows no link out of the folder.
pub fn location(weights: &Path) -> Result<(String, String), EngineError> {
    let path = weights.canonicalize().map_err(BundleError::io(weights))?;
    let text = |part: Option<&OsStr>| part.and_then(OsStr::to_str).map(str::to_owned);
    match (text(path.parent().map(Path::as_os_str)), text(path.file_name())) {
        (Some(folder), Some(file)) => Ok((folder, file)),
        _ => Err(EngineError::Input(format!("the path {} is not valid UTF-8", path.display()))),
    }
}

/// Starts the session's threads as the library itself would, and counts them, because the library does not
/// report their number.
#[derive(Default)]
pub(crate) struct CountedThreads {
    pub(crate) started: Arc<AtomicUsize>,
}

impl ThreadManager for CountedThreads {
    type Thread = JoinHandle<()>;

    fn create(&self, work: impl FnOnce() + Send + 'static) -> ort::Result<JoinHandle<()>> {
        let thread = std::thread::Builder::new()
            .name("ort-intra-op".into())
            .spawn(work)
            .map_err(|error| ort::Error::new(format!("cannot start a thread: {error}")))?;
        self.started.fetch_add(1, Ordering::SeqCst);
        Ok(thread)
    }

    fn join(thread: JoinHandle<()>) -> ort::Result<()> {
        thread.join().map_err(|_| ort::Error::new("a thread of the session panicked"))
    }
}

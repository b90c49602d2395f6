//! A model compiled by ONNX Runtime, which calls it a session.

use std::ffi::OsStr;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use bundle::{Element, ModelConfig, Precision, TensorView, Weights};
use half::{bf16, f16};
use onnx::fused::{self, audio, encoder};
use onnx::graph::part;
use onnx::{Attention, Products, Storage, Written};
use ort::environment::ThreadManager;
use ort::session::Session;
use ort::session::builder::SessionBuilder;
use serde_json::{Map, Value};
use worker::engine::{
    Bundle, BundleError, Device, EngineError, Profile, ProfileClock, ProfileEvent, Result, Settings,
};

use crate::hearing::Hearing;
use crate::runtime::{
    self, Activations, Library, Options, commit, cuda_session_builder, framework, session_builder,
};

/// Copying would make decoding slower with every token of context.
pub(crate) const CACHE_IS_COPIED: &str =
    "GroupQueryAttention copies the KV cache instead of writing into it in place";

pub(crate) struct Model {
    pub(crate) config: ModelConfig,
    pub(crate) attention: Attention,
    pub(crate) products: Products,
    /// Whether products round their activations, as observed by a probe.
    pub(crate) activations: Activations,
    pub(crate) device: Device,
    pub(crate) running: Running,
    /// What it hears with, in models that hear.
    pub(crate) hearing: Option<Hearing>,
    /// The table of relative positions, in encoders that have one.
    pub(crate) relative: Option<Vec<f32>>,
    pub(crate) hidden_states: bool,
}

impl Model {
    pub(crate) fn compile(
        library: &Library,
        bundle: &Bundle,
        attention: Attention,
        settings: &Settings,
    ) -> Result<Model> {
        let options = Options::from_settings(settings, bundle.config())?;
        let products = Products {
            precision: settings.precision,
            dequantised: settings.precision.is_quantised() && settings.dequantised,
            converted: options.converts,
            folds_constants: options.optimization.folds_constants(),
        };
        let config = bundle.config().clone();
        let builder = builder_on(settings.device(), library, &config, attention, &options)?;
        let activations = match products.by_codes() {
            // A file's own blocks go through the same operator.
            true if products.precision == Precision::File => {
                runtime::activations(library, Products { precision: Precision::Int8, ..products })?
            }
            true => runtime::activations(library, products)?,
            false => Activations::F32,
        };
        let weights = bundle.weights(settings.precision)?;
        let (folder, file) = location(weights.path())?;
        let storage = || match products.dequantised || products.precision == Precision::File {
            true => Storage::Memory(Vec::new()),
            false => Storage::File(file.clone()),
        };
        let plan = (attention, products);
        let graph = match config.encoder {
            Some(_) => {
                let outputs = (options.padding.is_some(), settings.hidden_states);
                encoder::build(&config, plan, &weights, storage(), outputs)?
            }
            None => fused::build(&config, plan, &weights, storage(), settings.hidden_states)?,
        };
        let of_audio = audio::build(&config, products, &weights, storage())?;
        touch_mapped(&config, products, &weights)?;
        let relative = config.relative_bias().map(|name| weights.tensor(&name)).transpose()?;
        let relative = relative.map(|table| numbers(&table));
        drop(weights);
        let started = |builder: SessionBuilder, options: Options, graph: Written| {
            // `SkipLayerNormFusion` would restore the slower operator: see `onnx::fused`.
            let mut disabled = "SkipLayerNormFusion".to_owned();
            if products.converted {
                disabled.push_str(";ConstantFolding");
            }
            // For 1,500 rows of 2,048, `BiasGelu` takes three times as long as Add and Gelu (1.31).
            if config.audio.is_some() {
                disabled.push_str(";BiasGeluFusion");
            }
            let made = |builder: SessionBuilder| {
                let builder = builder
                    .with_config_entry("session.model_external_initializers_file_folder_path", &folder)?
                    .with_config_entry("optimization.disable_specified_optimizers", disabled)?;
                commit(builder, graph)
            };
            Running::start(builder, (settings.threads, options), made).map_err(framework)
        };
        let (device, hidden_states) = (settings.device(), settings.hidden_states);
        let hearing = match config.audio.zip(of_audio) {
            Some((audio, graph)) => {
                let uncached = Attention { cached: false, ..attention };
                let builder = builder_on(device, library, &config, uncached, &options)?;
                let running = started(builder, Hearing::options(&options), graph)?;
                Some(
                    Hearing::new(running, (&config, &audio), (products.float(), device))
                        .map_err(framework)?,
                )
            }
            None => None,
        };
        let running = started(builder, options, graph)?;
        Ok(Model {
            config,
            attention,
            products,
            activations,
            device,
            running,
            hearing,
            relative,
            hidden_states,
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
) -> Result<SessionBuilder> {
    let (optimization, is_shared) = (options.optimization, attention.cached && !options.grows);
    match device {
        Device::Cuda(index) => cuda_session_builder(library, optimization, index),
        Device::Cpu if is_shared && !runtime::cache_is_shared(library, config, attention)? => {
            Err(EngineError::Framework(CACHE_IS_COPIED.into()))
        }
        Device::Cpu => session_builder(library, optimization).map_err(framework),
    }
}

/// A session with its options, as an encoder, a decoder or an ONNX file has it.
pub(crate) struct Running {
    pub(crate) session: Session,
    pub(crate) options: Options,
    /// Threads that compute: the caller's and those that the session started.
    pub(crate) threads: usize,
}

impl Running {
    /// `commit` makes the session, with so many threads and the rest as the options say.
    pub(crate) fn start(
        builder: SessionBuilder,
        (threads, options): (usize, Options),
        commit: impl FnOnce(SessionBuilder) -> ort::Result<Session>,
    ) -> ort::Result<Running> {
        let counted = CountedThreads::default();
        let started = Arc::clone(&counted.started);
        let mut builder = builder.with_intra_threads(threads)?.with_thread_manager(counted)?;
        if options.spins_within_runs_alone {
            builder = builder.with_config_entry("session.force_spinning_stop", "1")?;
        }
        if options.packs_on_all_threads {
            builder = builder.with_config_entry("session.prepack.enable_parallel", "1")?;
        }
        if let Some(path) = &options.profile {
            builder = builder.with_profiling(path)?;
        }
        let session = commit(builder)?;
        Ok(Running { session, options, threads: 1 + started.load(Ordering::SeqCst) })
    }

    /// Ends the profile requested by the options and renames its file, because ONNX Runtime appends the time
    /// to the name. `None` if there is no profile or it has already been ended.
    pub(crate) fn end_profile(&mut self) -> Option<Result<PathBuf, String>> {
        let path = self.options.profile.take()?;
        let moved = self.session.end_profiling().map_err(|error| error.to_string()).and_then(|written| {
            std::fs::rename(&written, &path).map_err(|error| format!("cannot rename {written}: {error}"))
        });
        Some(moved.map_err(|reason| format!("no profile in {}: {reason}", path.display())).map(|()| path))
    }
}

impl Drop for Running {
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
    let heard = config.audio_encoder().map_or(Vec::new(), |encoder| {
        let stem = encoder.stem().into_iter().flat_map(|names| names.weights);
        stem.chain(encoder.position_embedding()).collect()
    });
    for name in tables.into_iter().flatten().chain([config.embedding()]).chain(heard) {
        black_box(weights.tensor(&name)?.touch());
        if weights.is_quantised(&name) {
            black_box(weights.quantised(&[name])?.scales.touch());
        }
    }
    Ok(())
}

fn numbers(tensor: &TensorView<'_>) -> Vec<f32> {
    let halves = || tensor.bytes.as_chunks().0.iter();
    match tensor.element {
        Element::F16 => halves().map(|number| f16::from_le_bytes(*number).to_f32()).collect(),
        Element::Bf16 => halves().map(|number| bf16::from_le_bytes(*number).to_f32()).collect(),
        _ => tensor.bytes.as_chunks().0.iter().map(|number| f32::from_le_bytes(*number)).collect(),
    }
}

/// Folder and name of the weights file, with links resolved: ONNX Runtime follows no link out of the folder.
pub fn location(weights: &Path) -> Result<(String, String)> {
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
struct CountedThreads {
    started: Arc<AtomicUsize>,
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

// Reads the events of ONNX Runtime's own profile. The option `profile` switches it on when a session is
// made.

/// Suffix of the name of a node's event.
const KERNEL: &str = "_kernel_time";

/// Details that are kept of an event. Shapes are JSON.
const DETAILS: [&str; 5] = ["op_name", "provider", "input_type_shape", "output_type_shape", "output_size"];

/// Events that the profiler keeps; it silently drops later ones.
const MOST: usize = 1_000_000;

/// Ends the profile of a session and reads it.
pub(crate) fn profile(running: &mut Running) -> Result<Profile> {
    let start_ns = running.session.profiling_start_ns().map_err(framework)?;
    let file = running.end_profile().ok_or_else(|| {
        EngineError::Input("end_profile without begin_profile, or for the second time".into())
    })?;
    read(&file.map_err(EngineError::Framework)?, start_ns)
}

/// The events of the profile in `file`. Its times count from `start_ns`.
fn read(file: &Path, start_ns: u64) -> Result<Profile> {
    let cannot = |why: String| EngineError::Framework(format!("cannot read {}: {why}", file.display()));
    let text = std::fs::read_to_string(file).map_err(|error| cannot(error.to_string()))?;
    let values: Vec<Value> = serde_json::from_str(&text).map_err(|error| cannot(error.to_string()))?;
    let events: Vec<ProfileEvent> = values.iter().filter_map(|value| event(value, start_ns)).collect();
    let mut notes = vec!["Its times are whole microseconds, and its events begin with the load.".to_owned()];
    if values.len() >= MOST {
        notes.push(format!("It keeps {MOST} events: those after that are missing."));
    }
    // The library reads `high_resolution_clock`: in GNU's C++ library the time since 1970, elsewhere the time
    // since boot. No machine has run for thirty years.
    let clock =
        if start_ns > 1_000_000_000_000_000_000 { ProfileClock::Realtime } else { ProfileClock::Monotonic };
    Ok(Profile { profiler: "ONNX Runtime's profiler".into(), clock, events, notes })
}

/// A complete event; `None` for metadata of the profile.
fn event(value: &Value, start_ns: u64) -> Option<ProfileEvent> {
    if value["ph"] != "X" {
        return None;
    }
    let microseconds = |field: &str| value[field].as_u64();
    let name = value["name"].as_str()?;
    let node = name.strip_suffix(KERNEL);
    let none = Map::new();
    let told = value["args"].as_object().unwrap_or(&none);
    let details =
        DETAILS.into_iter().filter_map(|detail| Some((detail.into(), plain(told.get(detail)?).into())));
    let mut event = ProfileEvent {
        name: name.into(),
        part: node.and_then(part).map(Into::into),
        thread: format!("thread {}", value["tid"]).into(),
        start_ns: start_ns + microseconds("ts")? * 1000,
        duration_ns: microseconds("dur")? * 1000,
        details: details.collect(),
    };
    // A node is shown under its operator's name; its own name is a detail.
    let operator = event.details.remove("op_name").filter(|operator| !operator.is_empty());
    if let (Some(node), Some(operator)) = (node, operator) {
        event.details.insert("node".into(), node.into());
        event.name = operator;
    }
    Some(event)
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROFILE: &str = r#"[
        {"cat": "Session", "pid": 7, "tid": 7, "dur": 90, "ts": 5, "ph": "X", "name": "model_run", "args": {}},
        {"cat": "Node", "pid": 7, "tid": 7, "dur": 20, "ts": 10, "ph": "X", "name": "layer.2.attended_kernel_time",
         "args": {"op_name": "GroupQueryAttention", "provider": "CPUExecutionProvider", "node_index": "3"}},
        {"cat": "Session", "pid": 7, "tid": 7, "ts": 5, "ph": "M", "name": "process_name", "args": {}}
    ]"#;

    #[test]
    fn a_node_is_its_operator_and_the_part_of_the_model() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("profile.json");
        std::fs::write(&file, PROFILE).unwrap();
        let since_1970 = 1_795_000_000_000_000_000;
        let profile = read(&file, since_1970).unwrap();
        assert_eq!(profile.clock, ProfileClock::Realtime);
        let [run, node] = profile.events.as_slice() else { panic!("{:?}", profile.events) };
        assert_eq!((run.name.as_str(), &run.part), ("model_run", &None));
        assert_eq!((run.start_ns, run.duration_ns), (since_1970 + 5_000, 90_000));
        assert_eq!(
            (node.name.as_str(), node.part.as_deref()),
            ("GroupQueryAttention", Some("layer 2 attention"))
        );
        assert_eq!(node.details["node"], "layer.2.attended");
        assert_eq!(read(&file, 86_400_000_000_000).unwrap().clock, ProfileClock::Monotonic);
    }

    #[test]
    fn a_profile_that_is_cut_short_is_an_error_that_names_it() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("cut.json");
        std::fs::write(&file, &PROFILE[..100]).unwrap();
        let error = read(&file, 0).unwrap_err().to_string();
        assert!(error.contains("cut.json"), "{error}");
    }
}

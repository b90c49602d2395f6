//! A model compiled by ONNX Runtime: what it calls a session.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use bundle::ModelConfig;
use engine::{Bundle, BundleError, EngineError, Settings};
use ort::environment::ThreadManager;
use ort::ep;
use ort::logging::LogLevel;
use ort::session::Session;
use ort::session::builder::GraphOptimizationLevel;

use crate::attention::Attention;
use crate::decoder;
use crate::runtime::{Library, framework};

pub(crate) struct Model {
    pub(crate) config: ModelConfig,
    pub(crate) attention: Attention,
    pub(crate) session: Session,
    /// Whether the graph puts out its hidden states.
    pub(crate) hidden_states: bool,
    /// Threads that compute: the caller's own and those that the session started.
    pub(crate) threads: usize,
}

impl Model {
    pub(crate) fn compile(
        library: &Library,
        bundle: &Bundle,
        attention: Attention,
        settings: &Settings,
    ) -> Result<Model, EngineError> {
        let config = bundle.config().clone();
        let weights = bundle.weights(settings.precision)?;
        let (folder, file) = location(weights.path())?;
        let graph = decoder::build(&config, attention, &weights, &file, settings.hidden_states)?;
        // All other weights are read in packing them; of these the session keeps the mapping.
        for name in [Some(config.embedding()), config.position_embedding()].into_iter().flatten() {
            touch(weights.tensor(&name)?.bytes);
        }
        drop(weights);
        let level = if settings.jit { GraphOptimizationLevel::All } else { GraphOptimizationLevel::Disable };
        let threads = CountedThreads::default();
        let started = Arc::clone(&threads.started);
        let session = Session::builder(&library.environment)
            .map_err(framework)?
            .with_log_level(LogLevel::Fatal)
            .map_err(framework)?
            // Named, or the library chooses a provider by a policy of its own.
            .with_execution_providers([ep::CPU::default().with_arena_allocator(true).build()])
            .map_err(framework)?
            .with_optimization_level(level)
            .map_err(framework)?
            .with_parallel_execution(false)
            .map_err(framework)?
            .with_inter_threads(1)
            .map_err(framework)?
            .with_intra_threads(settings.threads)
            .map_err(framework)?
            .with_thread_manager(threads)
            .map_err(framework)?
            .with_config_entry("session.model_external_initializers_file_folder_path", folder)
            .map_err(framework)?
            .commit_from_memory(&graph)
            .map_err(framework)?;
        let threads = 1 + started.load(Ordering::SeqCst);
        Ok(Model { config, attention, session, hidden_states: settings.hidden_states, threads })
    }
}

/// Folder and name of the weights file itself: ONNX Runtime follows no link out of the folder.
fn location(weights: &Path) -> Result<(String, String), EngineError> {
    let path = weights.canonicalize().map_err(BundleError::io(weights))?;
    let text = |part: Option<&OsStr>| part.and_then(OsStr::to_str).map(str::to_owned);
    match (text(path.parent().map(Path::as_os_str)), text(path.file_name())) {
        (Some(folder), Some(file)) => Ok((folder, file)),
        _ => Err(EngineError::Input(format!("the path {} is not valid UTF-8", path.display()))),
    }
}

/// Reads a byte of every page, so that none is read from the disk later.
fn touch(bytes: &[u8]) {
    for byte in bytes.iter().step_by(4096) {
        std::hint::black_box(*byte);
    }
}

/// Starts the session's threads as the library would itself, and counts them: the library has no
/// call that tells how many there are.
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

//! The native library, which `ORT_DYLIB_PATH` names. A process loads it once.

use std::error::Error;
use std::ffi::CStr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};

use engine::EngineError;
use onnx::{IN_MEMORY, Written};
use ort::environment::Environment;
use ort::ep;
use ort::logging::LogLevel;
use ort::session::Session;
use ort::session::builder::SessionBuilder;

use crate::options::Optimization;

/// The `ort` crate, pinned to this version in the workspace's manifest.
pub(crate) const BINDING: &str = "ort 2.0.0-rc.15";
/// Names the file of the native library.
const DYLIB_VARIABLE: &str = "ORT_DYLIB_PATH";
/// How to install the library.
const SET_UP: &str = "run `photofinish setup` (in a checkout: `cargo xtask setup`)";

/// The loaded library. A process can have only one, with one environment.
pub(crate) struct Library {
    pub(crate) path: PathBuf,
    /// As the library reports it, for example `1.31.1`.
    pub(crate) version: String,
    pub(crate) environment: Environment,
}

/// The first call loads the library that `ORT_DYLIB_PATH` names.
pub(crate) fn library() -> Result<&'static Library, EngineError> {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    static LOADING: Mutex<()> = Mutex::new(());
    let _guard = LOADING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(library) = LIBRARY.get() {
        return Ok(library);
    }
    let (path, version) = find(std::env::var_os(DYLIB_VARIABLE).map(PathBuf::from))?;
    let builder = ort::init_from(&path).map_err(|error| EngineError::Framework(error.to_string()))?;
    let environment = builder.with_name("photofinish").with_telemetry(false).build().map_err(framework)?;
    // Errors are reported through `EngineError`; the library's own log would repeat them.
    environment.set_log_level(LogLevel::Fatal);
    Ok(LIBRARY.get_or_init(|| Library { path, version, environment }))
}

/// The library's absolute path and its version. Fails if `ort` cannot use that version.
pub(crate) fn find(named: Option<PathBuf>) -> Result<(PathBuf, String), EngineError> {
    let unusable =
        |reason: String| EngineError::Framework(format!("{reason}; {SET_UP}, or correct {DYLIB_VARIABLE}"));
    let Some(named) = named.filter(|path| !path.as_os_str().is_empty()) else {
        let text = format!("{DYLIB_VARIABLE} is not set; {SET_UP}");
        return Err(EngineError::Framework(text));
    };
    // Absolute, because `ort` would look in the executable's directory first.
    let path = std::path::absolute(&named).unwrap_or(named);
    if !path.is_file() {
        return Err(unusable(format!("{DYLIB_VARIABLE} names {}, which is no file", path.display())));
    }
    let version = version(&path).map_err(|reason| unusable(format!("{} {reason}", path.display())))?;
    let minor = version.split('.').nth(1).and_then(|minor| minor.parse::<u32>().ok());
    if !version.starts_with("1.") || minor.is_none_or(|minor| minor < ort::MINOR_VERSION) {
        let (shown, needed) = (path.display(), ort::MINOR_VERSION);
        let reason = format!("{shown} is ONNX Runtime {version}, but 1.{needed} or a newer 1.x is needed");
        return Err(unusable(reason));
    }
    Ok((path, version))
}

/// `OrtGetApiBase()->GetVersionString()`, which `ort` checks too but does not expose.
fn version(path: &Path) -> Result<String, String> {
    // SAFETY: a caller that names a library to load trusts its initialisers. The symbol has had this type
    // since ONNX Runtime's first release, and it points to static data of the library, which stays open
    // throughout.
    #[allow(unsafe_code)]
    unsafe {
        let library = libloading::Library::new(path).map_err(|error| {
            let cause = error.source().map_or_else(|| error.to_string(), ToString::to_string);
            format!("cannot be loaded: {cause}")
        })?;
        let base = library
            .get::<unsafe extern "C" fn() -> *const ort::sys::OrtApiBase>(b"OrtGetApiBase")
            .map_err(|_| "is not an ONNX Runtime library")?;
        let base = base().as_ref().ok_or("does not report its version")?;
        Ok(CStr::from_ptr((base.GetVersionString)()).to_string_lossy().into_owned())
    }
}

/// The common settings of all sessions on a CPU.
pub(crate) fn session_builder(library: &Library, optimization: Optimization) -> ort::Result<SessionBuilder> {
    // Without a named provider, the library would choose one by its own policy.
    let provider = ep::CPU::default().with_arena_allocator(true).build();
    Ok(without_provider(library, optimization)?.with_execution_providers([provider])?)
}

/// As [`session_builder`], for GPU `index`. Fails if any node cannot run there.
pub(crate) fn cuda_session_builder(
    library: &Library,
    optimization: Optimization,
    index: usize,
) -> Result<SessionBuilder, EngineError> {
    let builder = without_provider(library, optimization)
        .and_then(|builder| Ok(builder.with_config_entry("session.disable_cpu_ep_fallback", "1")?))
        .map_err(framework)?;
    let device = i32::try_from(index).unwrap_or(i32::MAX);
    let provider = ep::CUDA::default().with_device_id(device).build().error_on_failure();
    builder.with_execution_providers([provider]).map_err(|error| {
        let (path, cause) = (library.path.display(), error.to_string());
        let cause = cause.lines().next().unwrap_or_default();
        EngineError::Unsupported(format!(
            "{path} cannot compute on cuda:{index} ({cause}): set {DYLIB_VARIABLE} to the library of the package \
             onnxruntime-gpu, with CUDA and cuDNN where it finds them"
        ))
    })
}

fn without_provider(library: &Library, optimization: Optimization) -> ort::Result<SessionBuilder> {
    let builder = Session::builder(&library.environment)?
        .with_log_level(LogLevel::Fatal)?
        .with_optimization_level(optimization.level())?
        .with_parallel_execution(false)?
        .with_inter_threads(1)?;
    Ok(builder)
}

/// Makes a session of `graph`.
pub(crate) fn commit(mut builder: SessionBuilder, graph: Written) -> ort::Result<Session> {
    if let Some(memory) = graph.in_memory.filter(|memory| !memory.is_empty()) {
        builder = builder.with_external_initializer_file_in_memory(IN_MEMORY, memory.into())?;
    }
    builder.commit_from_memory(&graph.model)
}

pub(crate) fn framework<T>(error: ort::Error<T>) -> EngineError {
    EngineError::Framework(error.to_string())
}

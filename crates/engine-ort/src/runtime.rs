//! The native library: found by `ORT_DYLIB_PATH`, loaded once in a process.

use std::ffi::CStr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};

use engine::EngineError;
use ort::LoadDynamicError;
use ort::environment::Environment;
use ort::logging::LogLevel;

/// The `ort` crate, pinned to this version in the workspace's manifest.
pub(crate) const BINDING: &str = "ort 2.0.0-rc.15";
/// Names the file of the native library.
pub(crate) const DYLIB_VARIABLE: &str = "ORT_DYLIB_PATH";

/// The loaded library. There can be but one, and one environment, in a process.
pub(crate) struct Library {
    pub(crate) path: PathBuf,
    /// As the library itself says, for example `1.31.1`.
    pub(crate) version: String,
    pub(crate) environment: Environment,
}

/// Loads the library that [`DYLIB_VARIABLE`] names, at the first call.
pub(crate) fn library() -> Result<&'static Library, EngineError> {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    static LOADING: Mutex<()> = Mutex::new(());
    let _guard = LOADING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(library) = LIBRARY.get() {
        return Ok(library);
    }
    let loaded = load(std::env::var_os(DYLIB_VARIABLE).map(PathBuf::from))?;
    Ok(LIBRARY.get_or_init(|| loaded))
}

fn load(named: Option<PathBuf>) -> Result<Library, EngineError> {
    let unusable = |reason: String| {
        EngineError::Framework(format!("{reason}; run `cargo xtask setup`, or correct {DYLIB_VARIABLE}"))
    };
    let Some(named) = named.filter(|path| !path.as_os_str().is_empty()) else {
        let text = format!("{DYLIB_VARIABLE} is not set; run `cargo xtask setup`");
        return Err(EngineError::Framework(text));
    };
    // Made absolute here: `ort` would look beside the executable first.
    let path = std::path::absolute(&named).unwrap_or(named);
    if !path.is_file() {
        return Err(unusable(format!("{DYLIB_VARIABLE} names {}, which is no file", path.display())));
    }
    let builder = ort::init_from(&path).map_err(|error| unusable(explain(&error, &path)))?;
    let version = version_of(&path).map_err(&unusable)?;
    let environment = builder.with_name("photofinish").with_telemetry(false).build().map_err(framework)?;
    // Errors reach people through `EngineError`; the library's own log would say them twice.
    environment.set_log_level(LogLevel::Fatal);
    Ok(Library { path, version, environment })
}

fn explain(error: &LoadDynamicError, path: &Path) -> String {
    let shown = path.display();
    match error {
        LoadDynamicError::Dlopen { error, .. } => format!("{shown} cannot be loaded: {error}"),
        LoadDynamicError::MissingApi { .. } => format!("{shown} is no ONNX Runtime library"),
        LoadDynamicError::InvalidVersionString => format!("{shown} does not tell its version"),
        LoadDynamicError::BadVersion { version_str, .. } => {
            let needed = ort::MINOR_VERSION;
            format!("{shown} is ONNX Runtime {version_str}, but 1.{needed} or newer is needed")
        }
    }
}

/// What `OrtGetApiBase()->GetVersionString()` says. `ort` checks it but does not hand it out.
fn version_of(path: &Path) -> Result<String, String> {
    // SAFETY: `ort` has loaded this very file and keeps it, so that loading it again runs no code; it found
    // the symbol there, whose type ONNX Runtime has not changed since its first release. The string is
    // static in the library.
    #[allow(unsafe_code)]
    let version = unsafe {
        let library = libloading::Library::new(path).map_err(|e| e.to_string())?;
        let base = library
            .get::<unsafe extern "C" fn() -> *const ort::sys::OrtApiBase>(b"OrtGetApiBase")
            .map_err(|e| e.to_string())?;
        CStr::from_ptr(((*base()).GetVersionString)()).to_string_lossy().into_owned()
    };
    Ok(version)
}

pub(crate) fn framework<T>(error: ort::Error<T>) -> EngineError {
    EngineError::Framework(error.to_string())
}

//! The loaded libtorch, and its settings for the whole process.

use std::path::{Path, PathBuf};
use std::sync::Once;

use engine::{Device, EngineError, Runtime, Settings};

use crate::shim;

/// The version that the workspace pins; tch does not report its own.
pub(crate) const BINDING: &str = "tch 0.24.0";

pub(crate) fn observe() -> Result<Runtime, EngineError> {
    let loaded = shim::loaded();
    let library_path = library_path();
    check_version(&loaded, &shim::built_for(), library_path.as_deref())?;
    Ok(Runtime {
        binding: BINDING.into(),
        library: format!("libtorch {loaded}"),
        library_path,
        cpu_capability: Some(shim::cpu_capability()),
    })
}

/// Another version may load, if it happens to have all symbols, and still have a different layout of objects.
fn check_version(loaded: &str, built_for: &str, path: Option<&Path>) -> Result<(), EngineError> {
    if loaded == built_for {
        return Ok(());
    }
    let place = path.map_or("the libtorch that was loaded".into(), |path| path.display().to_string());
    Err(EngineError::Framework(format!(
        "{place} is version {loaded}, but this worker was built for {built_for}: set LIBTORCH to a libtorch \
         {built_for}, or unset it, and build the worker again"
    )))
}

/// The file that is actually mapped. Only Linux shows it.
fn library_path() -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let path = maps.lines().find_map(|line| {
        line.find('/').map(|at| &line[at..]).filter(|path| path.ends_with("/libtorch_cpu.so"))
    })?;
    Some(path.into())
}

/// Sets the number of threads; 0 leaves it to libtorch.
pub(crate) fn set_threads(threads: usize) {
    // libtorch accepts this number once, and panics the second time. Nothing here runs operations
    // concurrently, so the pool needs only one thread.
    static INTEROP: Once = Once::new();
    INTEROP.call_once(|| tch::set_num_interop_threads(1));
    if threads > 0 {
        tch::set_num_threads(i32::try_from(threads).unwrap_or(i32::MAX));
    }
}

pub(crate) fn device(settings: &Settings) -> Result<tch::Device, EngineError> {
    let Device::Cuda(index) = settings.device else { return Ok(tch::Device::Cpu) };
    if !tch::Cuda::is_available() {
        return Err(EngineError::Unsupported(
            "this libtorch sees no CUDA device: it was built for the CPU alone, or no driver is loaded"
                .into(),
        ));
    }
    let count = tch::Cuda::device_count();
    if index as i64 >= count {
        return Err(EngineError::Unsupported(format!(
            "there is no device cuda:{index}; libtorch sees {count}, counted from 0"
        )));
    }
    // cuDNN's attention makes a new plan for every length: 0.3 s per new token on an H200.
    shim::attend_without_cudnn();
    Ok(tch::Device::Cuda(index))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_reported_is_the_one_that_is_pinned() {
        let manifest = include_str!("../../../Cargo.toml");
        let version = BINDING.strip_prefix("tch ").unwrap();
        assert!(manifest.contains(&format!("tch = {{ version = \"={version}\"")));
    }

    #[test]
    fn a_library_of_another_version_is_refused_by_name() {
        let path = Path::new("/somewhere/libtorch_cpu.so");
        let error = check_version("2.9.1", "2.11.0", Some(path)).expect_err("is refused").to_string();
        for part in ["/somewhere/libtorch_cpu.so", "2.9.1", "2.11.0"] {
            assert!(error.contains(part), "{error}");
        }
        assert!(check_version("2.11.0", "2.11.0", None).is_ok());
    }

    #[test]
    fn the_loaded_library_tells_its_version() {
        assert_eq!(shim::loaded(), shim::built_for());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_path_is_that_of_the_mapped_file() {
        let path = library_path().expect("libtorch is loaded");
        assert!(path.is_file(), "{}", path.display());
    }
}

//! The only user of NVML, NVIDIA's management library, which is loaded at run time: the GPUs, their readings,
//! and the processes on them. Each reading is a plain value, or [`Unavailable`] with the reason as a
//! sentence.

mod device;
mod index;
mod throttling;
mod unavailable;

use std::ffi::OsString;
use std::path::Path;

use nvml_wrapper::Nvml;

pub use device::{Clocks, Gpu, Memory, Process};
pub use index::{ORDER, VISIBLE, index};
pub use throttling::HeldBack;
pub use unavailable::{Reason, Unavailable};

/// A reading, or why there is none.
pub type Reading<T> = Result<T, Unavailable>;

/// The variable that names the library's file where the system's linker does not find it.
pub const LIBRARY_VARIABLE: &str = "PHOTOFINISH_NVML";

/// NVML, loaded and initialised.
pub struct Gpus {
    nvml: Nvml,
}

impl Gpus {
    /// The library that [`LIBRARY_VARIABLE`] names, or the one that the system's linker finds.
    pub fn open() -> Reading<Gpus> {
        let named: Option<OsString> = std::env::var_os(LIBRARY_VARIABLE).filter(|name| !name.is_empty());
        match named {
            Some(path) => Gpus::open_at(Path::new(&path)),
            None => Gpus::opened(Nvml::init()),
        }
    }

    /// The library in this file.
    pub fn open_at(library: &Path) -> Reading<Gpus> {
        Gpus::opened(Nvml::builder().lib_path(library.as_os_str()).init())
    }

    fn opened(nvml: Result<Nvml, nvml_wrapper::error::NvmlError>) -> Reading<Gpus> {
        nvml.map(|nvml| Gpus { nvml }).map_err(|error| Unavailable::new("NVML", error))
    }

    /// Number of GPUs that the driver has.
    pub fn count(&self) -> Reading<u32> {
        self.nvml.device_count().map_err(|error| Unavailable::new("the number of GPUs", error))
    }

    /// Version of the driver.
    pub fn driver(&self) -> Reading<String> {
        let version = self.nvml.sys_driver_version();
        version.map_err(|error| Unavailable::new("the driver's version", error))
    }

    /// The newest CUDA that the driver can run, for example `13.0`.
    pub fn cuda(&self) -> Reading<String> {
        let version = self.nvml.sys_cuda_driver_version();
        let version = version.map_err(|error| Unavailable::new("the driver's version of CUDA", error))?;
        // The number is 1000 times the major version plus 10 times the minor one.
        Ok(format!("{}.{}", version / 1000, version % 1000 / 10))
    }

    /// The GPU with this number in NVML's order, which is that of the bus.
    pub fn device(&self, index: u32) -> Reading<Gpu<'_>> {
        let device = self.nvml.device_by_index(index);
        device.map(Gpu::new).map_err(|error| Unavailable::new(format!("GPU {index}"), error))
    }

    /// Every GPU that can be reached.
    pub fn all(&self) -> impl Iterator<Item = Gpu<'_>> {
        (0..self.count().unwrap_or(0)).filter_map(|index| self.device(index).ok())
    }

    /// The GPU that programs call `cuda:N`, according to [`VISIBLE`].
    pub fn cuda_device(&self, number: usize) -> Reading<Gpu<'_>> {
        let uuids: Vec<String> = self.all().map(|gpu| gpu.uuid().unwrap_or_default()).collect();
        let visible = std::env::var(VISIBLE).ok();
        let index = index(number, visible.as_deref(), &uuids).map_err(Unavailable::no_such_device)?;
        self.device(index)
    }
}

/// The reason why nothing can run on the GPUs that programs call by these numbers, as far as it is known without a
/// framework. It replaces an error from each framework after a model was prepared for it.
pub fn objection(numbers: &[usize]) -> Option<String> {
    if numbers.is_empty() {
        return None;
    }
    let all_are_there =
        |gpus: Gpus| numbers.iter().try_for_each(|&number| gpus.cuda_device(number).map(drop));
    let reason = Gpus::open().and_then(all_are_there).err()?;
    match reason.reason() {
        // Some systems have a driver and no NVML; there the frameworks report the error.
        Reason::NoDriver if Path::new("/proc/driver/nvidia/version").exists() => None,
        why => Some(why.to_string()),
    }
}

//! NVIDIA's GPUs, read by NVML, which is loaded at run time: which exist, and who else computes there.

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use judge::Gpu;

/// The GPUs in NVML's order, which is that of the bus; empty without NVML.
pub fn gpus() -> Vec<Gpu> {
    let Ok(nvml) = Nvml::init() else { return Vec::new() };
    let driver = nvml.sys_driver_version().ok();
    let cuda = nvml.sys_cuda_driver_version().ok();
    // The number is 1000 times the major version plus 10 times the minor one.
    let cuda = cuda.map(|version| format!("{}.{}", version / 1000, version % 1000 / 10));
    let described = |index| {
        let device = nvml.device_by_index(index).ok()?;
        Some(Gpu {
            name: device.name().ok()?,
            memory_bytes: device.memory_info().ok().map(|memory| memory.total),
            driver: driver.clone(),
            cuda: cuda.clone(),
        })
    };
    (0..nvml.device_count().unwrap_or_default()).filter_map(described).collect()
}

/// The reason why nothing can run on `device`, as far as it is known without a framework. It replaces an error from
/// each framework after a model was prepared for it.
pub fn objection(device: &str) -> Option<String> {
    let index: u32 = device.strip_prefix("cuda:")?.parse().ok()?;
    match Nvml::init().and_then(|nvml| nvml.device_count()) {
        Ok(count) if index < count => None,
        Ok(0) => Some(format!("--device {device}: NVIDIA's driver sees no GPU; use --device cpu")),
        Ok(count) => Some(format!("--device {device}: NVIDIA's driver sees {count} GPUs, counted from 0")),
        // Some systems have a driver and no NVML; there the frameworks report the error.
        Err(_) if std::path::Path::new("/proc/driver/nvidia/version").exists() => None,
        Err(NvmlError::LibloadingError(_)) => {
            Some(format!("--device {device}: this machine has no NVIDIA driver; use --device cpu"))
        }
        Err(error) => Some(format!("--device {device}: NVIDIA's driver does not work: {error}")),
    }
}

/// Number of processes of others that compute on the GPU. It is read between runs, when no worker runs. `None` for a
/// CPU, and without NVML.
pub(super) fn foreign_processes(device: &str) -> Option<usize> {
    let index: u32 = device.strip_prefix("cuda:")?.parse().ok()?;
    let nvml = Nvml::init().ok()?;
    let device = nvml.device_by_index(index).ok()?;
    Some(device.running_compute_processes().ok()?.len())
}

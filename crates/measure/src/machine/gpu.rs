//! NVIDIA's GPUs, by NVML, which is loaded at run time: what there is, and who else computes there.

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use judge::Gpu;

/// In NVML's order, which is that of the bus; empty where there is no NVML.
pub fn gpus() -> Vec<Gpu> {
    let Ok(nvml) = Nvml::init() else { return Vec::new() };
    let driver = nvml.sys_driver_version().ok();
    let cuda = nvml.sys_cuda_driver_version().ok();
    // 1000 times the major version and 10 times the minor.
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

/// Why nothing can run on `device`, as far as that can be known without a framework: a sentence now rather than
/// one from each framework, after a model has been prepared for it.
pub fn objection(device: &str) -> Option<String> {
    let index: u32 = device.strip_prefix("cuda:")?.parse().ok()?;
    match Nvml::init().and_then(|nvml| nvml.device_count()) {
        Ok(count) if index < count => None,
        Ok(0) => Some(format!("--device {device}: NVIDIA's driver sees no GPU; use --device cpu")),
        Ok(count) => Some(format!("--device {device}: NVIDIA's driver sees {count} GPUs, counted from 0")),
        // Some systems have a driver and no NVML; there the frameworks will say.
        Err(_) if std::path::Path::new("/proc/driver/nvidia/version").exists() => None,
        Err(NvmlError::LibloadingError(_)) => {
            Some(format!("--device {device}: this machine has no NVIDIA driver; use --device cpu"))
        }
        Err(error) => Some(format!("--device {device}: NVIDIA's driver does not work: {error}")),
    }
}

/// Processes that compute on the GPU, besides ours. Asked between runs, when none is ours. `None` for a CPU,
/// and where NVML is not there.
pub(super) fn foreign_processes(device: &str) -> Option<usize> {
    let index: u32 = device.strip_prefix("cuda:")?.parse().ok()?;
    let nvml = Nvml::init().ok()?;
    let device = nvml.device_by_index(index).ok()?;
    Some(device.running_compute_processes().ok()?.len())
}

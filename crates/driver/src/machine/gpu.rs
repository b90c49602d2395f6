//! Other people's work on the GPU.

/// Processes that compute on the GPU, besides ours. Asked between runs, when none is ours. `None` for a CPU,
/// and where NVML is not there.
pub(super) fn foreign_processes(device: &str) -> Option<usize> {
    let index: u32 = device.strip_prefix("cuda:")?.parse().ok()?;
    let nvml = nvml_wrapper::Nvml::init().ok()?;
    let device = nvml.device_by_index(index).ok()?;
    Some(device.running_compute_processes().ok()?.len())
}

//! What NVIDIA's management library says of this process. It is loaded at run time, and only for a job on
//! a CUDA device.

use engine::Device;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::{Nvml, device};
use protocol::GpuMemory;

pub(crate) struct Gpu(Nvml);

impl Gpu {
    /// Opens NVML for a job on this device. `None` for a job on the CPU, and where there is no NVML.
    pub(crate) fn open(device: Device) -> Option<Gpu> {
        match device {
            Device::Cpu => None,
            Device::Cuda(_) => Nvml::init().inspect_err(|e| eprintln!("NVML: {e}")).ok().map(Gpu),
        }
    }

    /// Memory that this process holds, of all GPUs. `None` where NVML does not list it: before it has
    /// touched a GPU, and within a container whose process ids are not the host's.
    pub(crate) fn memory(&self) -> Option<GpuMemory> {
        let bytes = self.of_this_process().map(|(_, bytes)| bytes).reduce(|a, b| Some(a? + b?))??;
        Some(GpuMemory { bytes, method: "NVML, compute processes".into() })
    }

    /// Energy that the GPUs of this process have used since their driver was loaded, in millijoules.
    /// CUDA and NVML may number GPUs differently, so they are found by the process, not by the index.
    pub(crate) fn energy_mj(&self) -> Option<u64> {
        let total = |(gpu, _): (device::Device<'_>, _)| gpu.total_energy_consumption().ok();
        self.of_this_process().map(total).reduce(|a, b| Some(a? + b?))?
    }

    /// The GPUs on which this process computes, and its memory there.
    fn of_this_process(&self) -> impl Iterator<Item = (device::Device<'_>, Option<u64>)> {
        let count = self.0.device_count().unwrap_or_default();
        (0..count).filter_map(|index| {
            let gpu = self.0.device_by_index(index).ok()?;
            let processes = gpu.running_compute_processes().ok()?;
            let own = processes.into_iter().find(|process| process.pid == std::process::id())?;
            let bytes = match own.used_gpu_memory {
                UsedGpuMemory::Used(bytes) => Some(bytes),
                UsedGpuMemory::Unavailable => None,
            };
            Some((gpu, bytes))
        })
    }
}

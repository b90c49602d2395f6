//! A simulated GPU: work is launched, and done some time later.

use std::path::Path;
use std::time::Duration;

use engine::{Allocated, Bench, Device, EngineError, Precision, Settings};
use nvml_fake::Played;

use crate::script::{GpuScript, Script};

/// The GPU of a model that is loaded.
pub(crate) struct PlayedGpu {
    script: GpuScript,
    /// Work that was launched and not waited for.
    pending: Duration,
    /// Its entry in the list of the GPU's processes.
    _listed: Option<Played>,
}

impl PlayedGpu {
    /// `None` for a model on the CPU.
    pub(crate) fn open(script: &Script, settings: &Settings) -> Result<Option<PlayedGpu>, EngineError> {
        let script = match (settings.device, script.gpu) {
            (Device::Cpu, _) => return Ok(None),
            (Device::Cuda(_), Some(script)) => script,
            (Device::Cuda(_), None) => {
                return Err(EngineError::Unsupported("the mock computes nothing on a GPU".into()));
            }
        };
        // The library that the worker reads. Without it no process list exists.
        let library = std::env::var_os("PHOTOFINISH_NVML");
        let listed = library.map(|library| nvml_fake::play(Path::new(&library), script.memory_bytes));
        let listed = listed.transpose().map_err(|error| EngineError::Framework(error.to_string()))?;
        Ok(Some(PlayedGpu { script, pending: Duration::ZERO, _listed: listed }))
    }

    /// Launches work, and returns how long to wait for all of it; zero if the script does not wait.
    pub(crate) fn launch(&mut self, work: Duration) -> Duration {
        self.pending += work;
        if self.script.synchronises { std::mem::take(&mut self.pending) } else { Duration::ZERO }
    }

    pub(crate) fn allocated(&self) -> Option<Allocated> {
        self.script.allocated
    }

    pub(crate) fn synchronises(&self) -> bool {
        self.script.synchronises
    }
}

/// Buffers on a simulated GPU.
pub(crate) struct PlayedBench {
    script: Script,
    gpu: GpuScript,
    device: Device,
    precision: Precision,
    bytes: u64,
}

/// Rows and columns of the matrices.
const SIDE: u64 = 4096;

impl PlayedBench {
    pub(crate) fn new(settings: &Settings, bytes: usize) -> Result<PlayedBench, EngineError> {
        let script = Script::read(settings)?;
        let gpu = script.gpu.ok_or_else(|| EngineError::Unsupported("the mock plays no GPU".into()))?;
        script.begin();
        let (device, precision) = (settings.device, settings.precision);
        Ok(PlayedBench { script, gpu, device, precision, bytes: bytes as u64 })
    }

    /// Does so much work at this many units a nanosecond.
    fn work(&self, units: u64, speed: f64) -> u64 {
        self.script.wait(Duration::from_secs_f64(units as f64 / speed / 1e9));
        units
    }
}

impl Bench for PlayedBench {
    fn device(&self) -> Device {
        self.device
    }

    fn precision(&self) -> Precision {
        self.precision
    }

    fn copies(&mut self, times: usize) -> Result<u64, EngineError> {
        Ok(self.work(2 * self.bytes * times as u64, self.gpu.bandwidth))
    }

    fn products(&mut self, times: usize) -> Result<u64, EngineError> {
        Ok(self.work(2 * SIDE.pow(3) * times as u64, self.gpu.arithmetic))
    }
}

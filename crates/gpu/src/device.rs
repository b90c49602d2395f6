//! One GPU's readings.

use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::{Clock, EccCounter, MemoryError, TemperatureSensor};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;

use crate::Reading;
use crate::throttling::HeldBack;
use crate::unavailable::{Reason, Unavailable};

/// One GPU.
pub struct Gpu<'a>(Device<'a>);

/// Memory of a GPU, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    pub total: u64,
    /// By whomever.
    pub used: u64,
}

/// A process that computes on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    pub pid: u32,
    /// Its memory there; `None` if the driver does not report it.
    pub bytes: Option<u64>,
}

/// Speed of a GPU's multiprocessors, in megahertz.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clocks {
    pub now: u32,
    /// The most that it can do.
    pub most: u32,
}

fn read<T>(what: &str, reading: Result<T, NvmlError>) -> Reading<T> {
    reading.map_err(|error| Unavailable::new(what, error))
}

impl<'a> Gpu<'a> {
    pub(crate) fn new(device: Device<'a>) -> Gpu<'a> {
        Gpu(device)
    }

    pub fn name(&self) -> Reading<String> {
        read("the GPU's name", self.0.name())
    }

    pub fn uuid(&self) -> Reading<String> {
        read("the GPU's identity", self.0.uuid())
    }

    pub fn memory(&self) -> Reading<Memory> {
        let info = read("the GPU's memory", self.0.memory_info())?;
        Ok(Memory { total: info.total, used: info.used })
    }

    /// The processes that compute on it.
    pub fn processes(&self) -> Reading<Vec<Process>> {
        let processes = read("the list of the GPU's processes", self.0.running_compute_processes())?;
        let process = |process: nvml_wrapper::struct_wrappers::device::ProcessInfo| {
            let bytes = match process.used_gpu_memory {
                UsedGpuMemory::Used(bytes) => Some(bytes),
                UsedGpuMemory::Unavailable => None,
            };
            Process { pid: process.pid, bytes }
        };
        Ok(processes.into_iter().map(process).collect())
    }

    /// Memory that this process holds, in bytes.
    pub fn memory_of(&self, pid: u32) -> Reading<u64> {
        const WHAT: &str = "the GPU's memory by process";
        let process = self.processes()?.into_iter().find(|process| process.pid == pid);
        let process = process.ok_or_else(|| Unavailable::because(WHAT, Reason::NotListed))?;
        process.bytes.ok_or_else(|| Unavailable::because(WHAT, Reason::WithoutSize))
    }

    /// Share of the last moments in which it computed, in percent.
    pub fn utilisation(&self) -> Reading<u32> {
        Ok(read("the GPU's utilisation", self.0.utilization_rates())?.gpu)
    }

    pub fn clocks(&self) -> Reading<Clocks> {
        const WHAT: &str = "the GPU's clock";
        let now = read(WHAT, self.0.clock_info(Clock::SM))?;
        Ok(Clocks { now, most: read(WHAT, self.0.max_clock_info(Clock::SM))? })
    }

    /// In degrees Celsius.
    pub fn temperature(&self) -> Reading<u32> {
        read("the GPU's temperature", self.0.temperature(TemperatureSensor::Gpu))
    }

    /// The present causes of a slow-down.
    pub fn held_back(&self) -> Reading<Vec<HeldBack>> {
        let reasons = read("the reason for the GPU's clock", self.0.current_throttle_reasons())?;
        Ok(HeldBack::all(reasons))
    }

    /// Energy that it has used since its driver was loaded, in millijoules.
    pub fn energy_mj(&self) -> Reading<u64> {
        read("the GPU's energy", self.0.total_energy_consumption())
    }

    /// Whether it is divided into several (MIG). A GPU that cannot be is not.
    pub fn is_divided(&self) -> Reading<bool> {
        match self.0.mig_mode() {
            Err(NvmlError::NotSupported) => Ok(false),
            mode => Ok(read("whether the GPU is divided (MIG)", mode)?.current != 0),
        }
    }

    /// Errors of its memory since the driver was loaded that could not be corrected.
    pub fn memory_errors(&self) -> Reading<u64> {
        let errors = self.0.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile);
        read("the number of the GPU's memory errors", errors)
    }
}

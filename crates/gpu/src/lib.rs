//! The only user of NVML, NVIDIA's management library, which is loaded at run time: the GPUs, their readings,
//! and the processes on them. Each reading is a plain value, or [`Unavailable`] with the reason as a
//! sentence.

pub mod simulated;

use std::path::Path;

use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{Clock, EccCounter, MemoryError, TemperatureSensor};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper::{Device, Nvml};
use serde::{Deserialize, Serialize};

use crate::simulated::{Machine, Simulated};

/// A reading, or why there is none.
pub type Reading<T> = Result<T, Unavailable>;

/// The variable that names the library's file where the system's linker does not find it.
pub const LIBRARY_VARIABLE: &str = "PHOTOFINISH_NVML";

/// NVML, loaded and initialised.
pub struct Gpus {
    source: Source,
}

enum Source {
    Library(Box<Nvml>),
    Simulated(Machine),
}

impl Gpus {
    /// The library that [`LIBRARY_VARIABLE`] names, or the one that the system's linker finds.
    pub fn open() -> Reading<Gpus> {
        if let Some(file) = simulated::file() {
            return Gpus::simulated(file);
        }
        match std::env::var_os(LIBRARY_VARIABLE).filter(|name| !name.is_empty()) {
            Some(path) => Gpus::open_at(Path::new(&path)),
            None => Gpus::opened(Nvml::init()),
        }
    }

    pub fn open_at(library: &Path) -> Reading<Gpus> {
        Gpus::opened(Nvml::builder().lib_path(library.as_os_str()).init())
    }

    fn opened(nvml: Result<Nvml, NvmlError>) -> Reading<Gpus> {
        read("NVML", nvml.map(|nvml| Gpus { source: Source::Library(Box::new(nvml)) }))
    }

    /// The GPUs that a file describes.
    pub fn simulated(file: &Path) -> Reading<Gpus> {
        read("NVML", Machine::open(file).map(|machine| Gpus { source: Source::Simulated(machine) }))
    }

    pub fn count(&self) -> Reading<u32> {
        let count = match &self.source {
            Source::Library(nvml) => nvml.device_count(),
            Source::Simulated(machine) => Ok(machine.script.devices.len() as u32),
        };
        read("the number of GPUs", count)
    }

    pub fn driver(&self) -> Reading<String> {
        let version = match &self.source {
            Source::Library(nvml) => nvml.sys_driver_version(),
            Source::Simulated(machine) => Ok(machine.script.driver.clone()),
        };
        read("the driver's version", version)
    }

    /// The newest CUDA that the driver can run, for example `13.0`.
    pub fn cuda(&self) -> Reading<String> {
        let version = match &self.source {
            Source::Library(nvml) => nvml.sys_cuda_driver_version(),
            Source::Simulated(machine) => Ok(machine.script.cuda),
        };
        let version = read("the driver's version of CUDA", version)?;
        // The number is 1000 times the major version plus 10 times the minor one.
        Ok(format!("{}.{}", version / 1000, version % 1000 / 10))
    }

    /// The GPU with this number in NVML's order, which is that of the bus.
    pub fn device(&self, index: u32) -> Reading<Gpu<'_>> {
        let card = match &self.source {
            Source::Library(nvml) => nvml.device_by_index(index).map(Card::Library),
            Source::Simulated(machine) => machine.card(index as usize).map(Card::Simulated),
        };
        read(&format!("GPU {index}"), card.map(Gpu))
    }

    /// Every GPU that can be reached.
    pub fn all(&self) -> impl Iterator<Item = Gpu<'_>> {
        (0..self.count().unwrap_or(0)).filter_map(|index| self.device(index).ok())
    }

    /// The GPU that programs call `cuda:N`, according to [`VISIBLE`].
    pub fn cuda_device(&self, number: usize) -> Reading<Gpu<'_>> {
        let uuids: Vec<String> = self.all().map(|gpu| gpu.uuid().unwrap_or_default()).collect();
        let visible = std::env::var(VISIBLE).ok();
        let index = index(number, visible.as_deref(), &uuids);
        let index = index.map_err(|why| Unavailable { what: "the GPU".to_owned(), why })?;
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
    let Unavailable { why, .. } = Gpus::open().and_then(all_are_there).err()?;
    // Some systems have a driver and no NVML; there the frameworks report the error.
    let is_of_frameworks = why == NO_DRIVER && Path::new("/proc/driver/nvidia/version").exists();
    (!is_of_frameworks).then_some(why)
}

// One GPU's readings.

pub struct Gpu<'a>(Card<'a>);

enum Card<'a> {
    Library(Device<'a>),
    Simulated(Simulated<'a>),
}

/// Memory of a GPU, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    pub total: u64,
    pub used: u64,
}

/// A process that computes on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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

impl<'a> Gpu<'a> {
    /// One reading. Simulated GPUs know it by the name `key`.
    fn read<T>(
        &self,
        what: &str,
        key: &str,
        of_library: impl FnOnce(&Device<'a>) -> Result<T, NvmlError>,
        of_simulated: impl FnOnce(&Simulated<'a>) -> Result<T, NvmlError>,
    ) -> Reading<T> {
        read(
            what,
            match &self.0 {
                Card::Library(gpu) => of_library(gpu),
                Card::Simulated(gpu) => gpu.fails(key).and_then(|()| of_simulated(gpu)),
            },
        )
    }

    pub fn name(&self) -> Reading<String> {
        self.read("the GPU's name", "name", Device::name, |gpu| Ok(gpu.name.clone()))
    }

    pub fn uuid(&self) -> Reading<String> {
        self.read("the GPU's identity", "uuid", Device::uuid, |gpu| Ok(gpu.uuid.clone()))
    }

    pub fn memory(&self) -> Reading<Memory> {
        let of_library =
            |gpu: &Device| gpu.memory_info().map(|info| Memory { total: info.total, used: info.used });
        self.read("the GPU's memory", "memory", of_library, |gpu| Ok(gpu.memory()))
    }

    /// The processes that compute on it.
    pub fn processes(&self) -> Reading<Vec<Process>> {
        let of_library = |gpu: &Device| {
            let process = |info: ProcessInfo| Process {
                pid: info.pid,
                bytes: match info.used_gpu_memory {
                    UsedGpuMemory::Used(bytes) => Some(bytes),
                    UsedGpuMemory::Unavailable => None,
                },
            };
            Ok(gpu.running_compute_processes()?.into_iter().map(process).collect())
        };
        self.read("the list of the GPU's processes", "processes", of_library, |gpu| Ok(gpu.processes()))
    }

    /// Memory that this process holds, in bytes.
    pub fn memory_of(&self, pid: u32) -> Reading<u64> {
        let because = |why: &str| Unavailable {
            what: "the GPU's memory by process".to_owned(),
            why: format!("NVIDIA's driver {why}"),
        };
        let process = self.processes()?.into_iter().find(|process| process.pid == pid);
        let process = process.ok_or_else(|| {
            because(
                "does not list this process: it has not used the GPU yet, or a container hides its number \
                 (`--pid=host` shows it)",
            )
        })?;
        process.bytes.ok_or_else(|| {
            because(
                "lists the process without its memory, as it does on Windows and on a GPU that is divided (MIG)",
            )
        })
    }

    /// Share of the last moments in which it computed, in percent.
    pub fn utilisation(&self) -> Reading<u32> {
        let of_library = |gpu: &Device| gpu.utilization_rates().map(|rates| rates.gpu);
        self.read("the GPU's utilisation", "utilisation", of_library, |gpu| Ok(gpu.utilisation))
    }

    pub fn clocks(&self) -> Reading<Clocks> {
        const WHAT: &str = "the GPU's clock";
        let now = self.read(WHAT, "clock", |gpu| gpu.clock_info(Clock::SM), Simulated::clock)?;
        let most = |gpu: &Device| gpu.max_clock_info(Clock::SM);
        let most = self.read(WHAT, "highest_clock", most, |gpu| Ok(gpu.most_clock_mhz))?;
        Ok(Clocks { now, most })
    }

    /// In degrees Celsius.
    pub fn temperature(&self) -> Reading<u32> {
        let of_library = |gpu: &Device| gpu.temperature(TemperatureSensor::Gpu);
        self.read("the GPU's temperature", "temperature", of_library, |gpu| Ok(gpu.temperature))
    }

    pub fn held_back(&self) -> Reading<Vec<HeldBack>> {
        let simulated = |gpu: &Simulated| Ok(ThrottleReasons::from_bits_truncate(gpu.throttle));
        let (what, key) = ("the reason for the GPU's clock", "throttle_reasons");
        self.read(what, key, Device::current_throttle_reasons, simulated).map(HeldBack::all)
    }

    /// Energy that it has used since its driver was loaded, in millijoules.
    pub fn energy_mj(&self) -> Reading<u64> {
        let simulated = |gpu: &Simulated| Ok(gpu.energy());
        self.read("the GPU's energy", "energy_mj", Device::total_energy_consumption, simulated)
    }

    /// Whether it is divided into several (MIG). A GPU that cannot be is not.
    pub fn is_divided(&self) -> Reading<bool> {
        let cannot_be = |error| match error {
            NvmlError::NotSupported => Ok(false),
            error => Err(error),
        };
        let of_library = |gpu: &Device| gpu.mig_mode().map(|mode| mode.current != 0).or_else(cannot_be);
        let what = "whether the GPU is divided (MIG)";
        self.read(what, "is_divided", of_library, |gpu| Ok(gpu.mig.unwrap_or(false)))
    }

    /// Errors of its memory since the driver was loaded that could not be corrected.
    pub fn memory_errors(&self) -> Reading<u64> {
        let of_library = |gpu: &Device| gpu.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile);
        let what = "the number of the GPU's memory errors";
        self.read(what, "memory_errors", of_library, |gpu| Ok(gpu.ecc_errors))
    }
}

// NVML's GPU for a program's `cuda:N`.

/// The variable that hides GPUs from CUDA and orders the others.
pub const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// The variable, with its value, by which CUDA counts GPUs as NVML does: along the bus. Its own order begins with the
/// fastest.
pub const ORDER: (&str, &str) = ("CUDA_DEVICE_ORDER", "PCI_BUS_ID");

/// NVML's number of `cuda:N`. `visible` is the value of [`VISIBLE`], if it is set: numbers or the beginnings of names
/// such as `GPU-1a2b`, up to the first that no GPU has. The error is the reason why there is none.
pub fn index(number: usize, visible: Option<&str>, uuids: &[String]) -> Result<u32, String> {
    let found = match visible {
        None => (0..uuids.len()).nth(number),
        Some(list) => {
            let mut seen = list.split(',').map_while(|entry| position(entry.trim(), uuids));
            seen.nth(number)
        }
    };
    found.and_then(|index| u32::try_from(index).ok()).ok_or_else(|| match visible {
        Some(list) => format!("{VISIBLE}={list} leaves no GPU with the number {number}"),
        None => match uuids.len() {
            0 => "NVIDIA's driver sees no GPU".to_owned(),
            1 => format!("NVIDIA's driver sees 1 GPU, cuda:0, and no cuda:{number}"),
            count => format!("NVIDIA's driver sees {count} GPUs, counted from 0, and no cuda:{number}"),
        },
    })
}

fn position(entry: &str, uuids: &[String]) -> Option<usize> {
    match entry.parse::<usize>() {
        Ok(index) => (index < uuids.len()).then_some(index),
        Err(_) if entry.is_empty() => None,
        Err(_) => uuids.iter().position(|uuid| uuid.starts_with(entry)),
    }
}

// Why a GPU's clocks are lower than they could be.

/// A cause of lower clocks while a GPU computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum HeldBack {
    /// It draws as much power as it may.
    Power,
    Heat,
    /// The power supply demands less power.
    PowerBrake,
    /// Its own protection, for a reason that it does not report.
    Hardware,
    Settings,
    Group,
}

impl HeldBack {
    /// A sentence's end: "the GPU was slowed down by ...".
    pub fn words(self) -> &'static str {
        match self {
            HeldBack::Power => "its power limit",
            HeldBack::Heat => "heat",
            HeldBack::PowerBrake => "the power supply",
            HeldBack::Hardware => "its own protection",
            HeldBack::Settings => "clocks that were set by hand",
            HeldBack::Group => "another GPU of its group",
        }
    }

    /// An idle GPU is slow too, and nothing holds it back.
    pub(crate) fn all(reasons: ThrottleReasons) -> Vec<HeldBack> {
        let table = [
            (ThrottleReasons::SW_POWER_CAP, HeldBack::Power),
            (ThrottleReasons::SW_THERMAL_SLOWDOWN, HeldBack::Heat),
            (ThrottleReasons::HW_THERMAL_SLOWDOWN, HeldBack::Heat),
            (ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN, HeldBack::PowerBrake),
            (ThrottleReasons::APPLICATIONS_CLOCKS_SETTING, HeldBack::Settings),
            (ThrottleReasons::SYNC_BOOST, HeldBack::Group),
        ];
        let mut found: Vec<HeldBack> =
            table.into_iter().filter(|(bit, _)| reasons.contains(*bit)).map(|(_, cause)| cause).collect();
        // The hardware's own bit is set together with that of its cause, if the cause is known.
        let has_cause = found.iter().any(|cause| matches!(cause, HeldBack::Heat | HeldBack::PowerBrake));
        if reasons.contains(ThrottleReasons::HW_SLOWDOWN) && !has_cause {
            found.push(HeldBack::Hardware);
        }
        found.sort();
        found.dedup();
        found
    }
}

// Why a reading is not available, as a sentence.

/// A reading that there is not. Its text says which, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unavailable {
    what: String,
    why: String,
}

impl std::fmt::Display for Unavailable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} is not available: {}", self.what, self.why)
    }
}

fn read<T>(what: &str, reading: Result<T, NvmlError>) -> Reading<T> {
    reading.map_err(|error| Unavailable { what: what.to_owned(), why: why(error) })
}

const NO_DRIVER: &str = "this machine has no NVIDIA driver, or hides it from this program";

fn why(error: NvmlError) -> String {
    let lacks = |function: &str| {
        format!("the library has no {function}: it is too old, or another library than NVML")
    };
    let known = match error {
        NvmlError::LibloadingError(_) | NvmlError::LibraryNotFound => NO_DRIVER,
        NvmlError::FailedToLoadSymbol(symbol) => return lacks(named(&symbol)),
        NvmlError::FunctionNotFound => return lacks("a function"),
        NvmlError::DriverNotLoaded => "NVIDIA's driver is installed and not loaded (`nvidia-smi` says more)",
        NvmlError::LibRmVersionMismatch => {
            "NVIDIA's library and the loaded driver are of different versions: restart the machine, or install \
             them together"
        }
        NvmlError::NoPermission | NvmlError::OperatingSystem => "this user may not ask NVIDIA's driver",
        NvmlError::NotSupported => "this GPU does not report it",
        NvmlError::GpuLost => "the GPU has fallen off the bus: restart the machine",
        NvmlError::ResetRequired => "the GPU must be reset before it works again",
        other => return format!("NVIDIA's driver says: {other}"),
    };
    known.to_owned()
}

/// The function that a linker's error names.
fn named(error: &str) -> &str {
    let mut words = error.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.find(|word| word.starts_with("nvml")).unwrap_or("a function")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuda_s_numbers_are_those_of_the_gpus_that_it_sees() {
        let uuids = ["GPU-aa", "GPU-bb", "GPU-cc"].map(str::to_owned);
        assert_eq!(index(2, None, &uuids), Ok(2));
        assert_eq!(index(0, Some("2,0"), &uuids), Ok(2));
        assert_eq!(index(1, Some("GPU-c, GPU-aa"), &uuids), Ok(0));
    }

    #[test]
    fn a_gpu_that_is_not_seen_has_a_reason() {
        let uuids = ["GPU-aa", "GPU-bb"].map(str::to_owned);
        let refused = |number, visible, uuids: &[String]| index(number, visible, uuids).unwrap_err();
        assert_eq!(refused(0, Some(""), &uuids), "CUDA_VISIBLE_DEVICES= leaves no GPU with the number 0");
        // GPUs after a name that no GPU has are not seen either.
        assert!(refused(0, Some("7,0"), &uuids).contains("leaves no GPU"));
        assert_eq!(refused(2, None, &uuids), "NVIDIA's driver sees 2 GPUs, counted from 0, and no cuda:2");
        assert_eq!(refused(0, None, &[]), "NVIDIA's driver sees no GPU");
    }
}

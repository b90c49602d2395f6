//! GPUs of tests: a file says what they answer. `engine-mock` and a test program of `driver` use them, the driver and the
//! engines never.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use nvml_wrapper::error::NvmlError;
use serde::{Deserialize, Serialize};

use crate::{Memory, Process};

static FILE: OnceLock<PathBuf> = OnceLock::new();

/// The script that the environment names in the place of NVIDIA's library, as tests do: a file of JSON.
pub fn named() -> Option<PathBuf> {
    let file = PathBuf::from(std::env::var_os(crate::LIBRARY_VARIABLE)?);
    file.extension().is_some_and(|kind| kind == "json").then_some(file)
}

/// From now on this process has the GPUs of this file, and no others.
pub fn simulate(file: PathBuf) {
    let _ = FILE.set(file);
}

pub(crate) fn file() -> Option<&'static Path> {
    FILE.get().map(PathBuf::as_path)
}

/// What there is. Errors are named as NVML's header does, without `NVML_ERROR_`, in small letters: `gpu_is_lost`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Script {
    /// The error of the start.
    pub init: Option<String>,
    pub driver: String,
    /// 1000 times the major version of CUDA plus 10 times the minor one.
    pub cuda: i32,
    pub devices: Vec<Device>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    pub name: String,
    pub uuid: String,
    pub memory_bytes: u64,
    /// Memory in use in addition to that of the processes.
    pub used_bytes: u64,
    pub processes: Vec<Process>,
    pub utilisation: u32,
    /// The clock of its multiprocessors, in megahertz: an answer a call, the last again and again.
    pub clock_mhz: Vec<u32>,
    pub most_clock_mhz: u32,
    pub temperature: u32,
    /// The reasons for slower clocks, as NVML's bits.
    pub throttle: u64,
    /// Energy since the driver was loaded, and how much more it is with every call.
    pub energy_mj: u64,
    pub energy_step_mj: u64,
    /// `None`: a GPU that cannot be divided.
    pub mig: Option<bool>,
    pub ecc_errors: u64,
    /// Errors by reading, by the key of each reading of [`crate::Gpu`]; `handle` is that of the GPU itself.
    pub errors: BTreeMap<String, String>,
    /// It falls off the bus after this number of readings.
    pub lost_after: Option<usize>,
}

impl Default for Script {
    /// A machine with one idle GPU.
    fn default() -> Script {
        Script { init: None, driver: "580.82.07".to_owned(), cuda: 13_000, devices: vec![Device::default()] }
    }
}

impl Default for Device {
    /// An idle GPU of 80 GB.
    fn default() -> Device {
        Device {
            name: "NVIDIA Simulated 80GB".to_owned(),
            uuid: "GPU-00000000-0000-0000-0000-000000000000".to_owned(),
            memory_bytes: 80_000_000_000,
            used_bytes: 500_000_000,
            processes: Vec::new(),
            utilisation: 0,
            clock_mhz: vec![1980],
            most_clock_mhz: 1980,
            temperature: 35,
            throttle: 0,
            energy_mj: 1_000_000,
            energy_step_mj: 0,
            mig: Some(false),
            ecc_errors: 0,
            errors: BTreeMap::new(),
            lost_after: None,
        }
    }
}

impl Script {
    pub fn one(device: Device) -> Script {
        Script { devices: vec![device], ..Script::default() }
    }

    /// Writes it for processes that will [`simulate`] it; returns its file.
    pub fn install(&self, directory: &Path) -> std::io::Result<PathBuf> {
        let file = directory.join("gpus.json");
        std::fs::write(&file, serde_json::to_vec_pretty(self)?)?;
        Ok(file)
    }
}

impl Device {
    pub fn failing(mut self, reading: &str, error: &str) -> Device {
        self.errors.insert(reading.to_owned(), error.to_owned());
        self
    }
}

pub(crate) struct Machine {
    pub(crate) script: Script,
    file: PathBuf,
    /// Number of readings of any GPU, of clocks and of energies.
    readings: [AtomicUsize; 3],
}

impl Machine {
    pub(crate) fn open(file: &Path) -> Result<Machine, NvmlError> {
        let text = std::fs::read_to_string(file).map_err(|_| NvmlError::LibraryNotFound)?;
        let script: Script = serde_json::from_str(&text).map_err(|_| NvmlError::LibraryNotFound)?;
        match &script.init {
            Some(error) => Err(error_named(error)),
            None => Ok(Machine { script, file: file.to_owned(), readings: Default::default() }),
        }
    }

    pub(crate) fn card(&self, index: usize) -> Result<Simulated<'_>, NvmlError> {
        let device = self.script.devices.get(index).ok_or(NvmlError::InvalidArg)?;
        let card = Simulated { machine: self, device, is_first: index == 0 };
        card.fails("handle").map(|()| card)
    }

    /// The number of this call.
    fn count(&self, what: usize) -> usize {
        self.readings[what].fetch_add(1, Ordering::Relaxed)
    }
}

/// One GPU of a machine, with the values of its script.
pub(crate) struct Simulated<'a> {
    machine: &'a Machine,
    device: &'a Device,
    is_first: bool,
}

impl Deref for Simulated<'_> {
    type Target = Device;

    fn deref(&self) -> &Device {
        self.device
    }
}

impl Simulated<'_> {
    /// The error of a reading, if it has one.
    pub(crate) fn fails(&self, reading: &str) -> Result<(), NvmlError> {
        let before = self.machine.count(0);
        if self.lost_after.is_some_and(|most| before >= most) {
            return Err(NvmlError::GpuLost);
        }
        self.errors.get(reading).map_or(Ok(()), |error| Err(error_named(error)))
    }

    pub(crate) fn processes(&self) -> Vec<Process> {
        let mut processes = self.device.processes.clone();
        if self.is_first {
            processes.extend(players(&self.machine.file));
        }
        processes
    }

    pub(crate) fn memory(&self) -> Memory {
        let held: u64 = self.processes().iter().filter_map(|process| process.bytes).sum();
        let used = self.used_bytes.saturating_add(held).min(self.memory_bytes);
        Memory { total: self.memory_bytes, used }
    }

    pub(crate) fn clock(&self) -> Result<u32, NvmlError> {
        let index = self.machine.count(1).min(self.clock_mhz.len().saturating_sub(1));
        self.clock_mhz.get(index).copied().ok_or(NvmlError::NoData)
    }

    pub(crate) fn energy(&self) -> u64 {
        self.energy_mj + self.energy_step_mj * self.machine.count(2) as u64
    }
}

fn error_named(name: &str) -> NvmlError {
    match name {
        "not_supported" => NvmlError::NotSupported,
        "no_permission" => NvmlError::NoPermission,
        "driver_not_loaded" => NvmlError::DriverNotLoaded,
        "lib_rm_version_mismatch" => NvmlError::LibRmVersionMismatch,
        "gpu_is_lost" => NvmlError::GpuLost,
        "reset_required" => NvmlError::ResetRequired,
        "operating_system" => NvmlError::OperatingSystem,
        "timeout" => NvmlError::Timeout,
        _ => NvmlError::Unknown,
    }
}

// Processes that say of themselves that they use the first GPU: a file for each, beside that of the machine.

/// A process that pretends to use a GPU, until this is dropped.
pub struct Player(PathBuf);

/// Lists this process with this memory on the first GPU of the file.
pub fn play(file: &Path, bytes: u64) -> std::io::Result<Player> {
    let directory = file.with_file_name("players");
    std::fs::create_dir_all(&directory)?;
    let player = directory.join(std::process::id().to_string());
    std::fs::write(&player, bytes.to_string())?;
    Ok(Player(player))
}

impl Drop for Player {
    fn drop(&mut self) {
        // A process that has ended is not listed, even if this fails.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Those that still run.
fn players(file: &Path) -> Vec<Process> {
    let files = std::fs::read_dir(file.with_file_name("players")).into_iter().flatten().flatten();
    let living = files.filter_map(|file| {
        let pid: u32 = file.file_name().to_str()?.parse().ok()?;
        let bytes = std::fs::read_to_string(file.path()).ok()?.trim().parse().ok()?;
        Path::new("/proc").join(pid.to_string()).exists().then_some(Process { pid, bytes: Some(bytes) })
    });
    living.collect()
}

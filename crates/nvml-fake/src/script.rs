//! The answers of the library.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The whole answer. Errors are named as NVML's header does, without `NVML_ERROR_`, in small letters: `gpu_is_lost`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Script {
    /// The error of `nvmlInit`.
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
    /// The reasons for slower clocks, as bits: an answer a call, the last again and again.
    pub throttle: Vec<u64>,
    /// Energy since the driver was loaded, and how much more it is with every call.
    pub energy_mj: u64,
    pub energy_step_mj: u64,
    /// `None`: a GPU that cannot be divided.
    pub mig: Option<bool>,
    pub ecc_errors: u64,
    /// Errors by reading: `name`, `uuid`, `memory`, `processes`, `utilisation`, `clock`, `most_clock`, `temperature`,
    /// `throttle`, `energy`, `mig`, `ecc`.
    pub errors: BTreeMap<String, String>,
    /// It falls off the bus after so many readings.
    pub lost_after: Option<usize>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Process {
    pub pid: u32,
    /// `None`: listed without a size.
    pub bytes: Option<u64>,
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
            throttle: vec![0],
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
    /// One GPU.
    pub fn one(device: Device) -> Script {
        Script { devices: vec![device], ..Script::default() }
    }
}

impl Device {
    /// With an error instead of a reading.
    pub fn failing(mut self, reading: &str, error: &str) -> Device {
        self.errors.insert(reading.to_owned(), error.to_owned());
        self
    }
}

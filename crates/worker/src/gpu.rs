//! Readings from NVIDIA's management library of the GPU that this process computes on. The library is loaded
//! only for a job on a CUDA device.

use std::cell::RefCell;
use std::collections::BTreeSet;

use engine::Device;
use gpu::{Clocks, Gpus, Reading};
use protocol::{GpuMemory, GpuWork};

pub(crate) struct Gpu {
    /// The number that CUDA has for it.
    number: usize,
    nvml: Reading<Gpus>,
    seen: RefCell<Seen>,
}

/// Readings after measured requests.
#[derive(Default)]
struct Seen {
    clocks: Option<(Clocks, Clocks)>,
    celsius: Option<u32>,
    /// Memory of this process: the sum over readings, their number, and the highest.
    held: (u64, u64, u64),
    held_back: BTreeSet<&'static str>,
    remarks: BTreeSet<String>,
}

impl Gpu {
    /// Opens NVML for a job on this device. `None` for a job on the CPU.
    pub(crate) fn open(device: Device) -> Option<Gpu> {
        let Device::Cuda(number) = device else { return None };
        let nvml = Gpus::open();
        if let Err(reason) = &nvml {
            eprintln!("{reason}");
        }
        Some(Gpu { number, nvml, seen: RefCell::default() })
    }

    /// Memory that this process holds, of all GPUs.
    pub(crate) fn memory(&self) -> Option<GpuMemory> {
        let bytes = self.known(self.memory_bytes())?;
        Some(GpuMemory { bytes, method: "NVML, compute processes".into() })
    }

    fn memory_bytes(&self) -> Reading<u64> {
        let own = std::process::id();
        let gpus = self.nvml.as_ref().map_err(Clone::clone)?;
        let held = gpus.all().filter_map(|gpu| gpu.memory_of(own).ok());
        match held.reduce(|a, b| a + b) {
            Some(bytes) => Ok(bytes),
            None => gpus.cuda_device(self.number)?.memory_of(own),
        }
    }

    /// Energy that the GPU has used since its driver was loaded, in millijoules.
    pub(crate) fn energy_mj(&self) -> Option<u64> {
        let energy = self.nvml.as_ref().map_err(Clone::clone);
        self.known(energy.and_then(|gpus| gpus.cuda_device(self.number)?.energy_mj()))
    }

    /// Notes the state of the GPU, right after it has computed.
    pub(crate) fn look(&self) {
        let Ok(gpus) = &self.nvml else { return };
        let Some(gpu) = self.known(gpus.cuda_device(self.number)) else { return };
        let (clocks, celsius) = (self.known(gpu.clocks()), self.known(gpu.temperature()));
        let held_back = self.known(gpu.held_back());
        let held = self.known(self.memory_bytes());
        let mut seen = self.seen.borrow_mut();
        if let Some(bytes) = held {
            let (sum, count, most) = seen.held;
            seen.held = (sum + bytes, count + 1, most.max(bytes));
        }
        if let Some(now) = clocks {
            let (slowest, fastest) = seen.clocks.unwrap_or((now, now));
            let slowest = if now.now < slowest.now { now } else { slowest };
            let fastest = if now.now > fastest.now { now } else { fastest };
            seen.clocks = Some((slowest, fastest));
        }
        seen.celsius = seen.celsius.max(celsius);
        seen.held_back.extend(held_back.into_iter().flatten().map(|cause| cause.words()));
    }

    /// The clock just now, in megahertz.
    pub(crate) fn clock(&self) -> Option<u32> {
        let clocks = self.nvml.as_ref().ok()?.cuda_device(self.number).and_then(|gpu| gpu.clocks());
        clocks.ok().map(|clocks| clocks.now)
    }

    /// All readings so far.
    pub(crate) fn work(&self) -> GpuWork {
        self.remark();
        let seen = self.seen.borrow();
        let clocks = |pick: fn(&(Clocks, Clocks)) -> u32| seen.clocks.as_ref().map(pick).map(u64::from);
        GpuWork {
            slowest_mhz: clocks(|(slowest, _)| slowest.now),
            fastest_mhz: clocks(|(_, fastest)| fastest.now),
            most_mhz: clocks(|(_, fastest)| fastest.most),
            celsius: seen.celsius.map(u64::from),
            held_mean_bytes: seen.held.0.checked_div(seen.held.1),
            held_most_bytes: (seen.held.1 > 0).then_some(seen.held.2),
            held_back: seen.held_back.iter().copied().collect(),
            remarks: seen.remarks.iter().map(String::as_str).collect(),
        }
    }

    /// Notes remarks on the GPU itself.
    fn remark(&self) {
        let gpus = match &self.nvml {
            Ok(gpus) => gpus,
            Err(reason) => {
                self.seen.borrow_mut().remarks.insert(reason.to_string());
                return;
            }
        };
        let Some(gpu) = self.known(gpus.cuda_device(self.number)) else { return };
        if gpu.is_divided().unwrap_or(false) {
            let remark =
                "the GPU is divided (MIG): its clocks, its energy and its heat are those of all parts";
            self.seen.borrow_mut().remarks.insert(remark.to_owned());
        }
        if let Some(errors) = gpu.memory_errors().ok().filter(|&errors| errors > 0) {
            let remark = format!("the GPU's memory has had {errors} errors that could not be corrected");
            self.seen.borrow_mut().remarks.insert(remark);
        }
    }

    /// The reading; if it is not available, the reason is noted.
    fn known<T>(&self, reading: Reading<T>) -> Option<T> {
        reading.map_err(|reason| self.seen.borrow_mut().remarks.insert(reason.to_string())).ok()
    }
}

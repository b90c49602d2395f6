//! NVIDIA's GPUs as crate `gpu` reads them: which exist, which other processes compute there, and what slows
//! them down.

use std::collections::BTreeSet;

use facts::Gpu;
use gpu::{Gpus, HeldBack};

/// The GPUs in NVML's order, which is that of the bus; empty without NVML.
pub fn gpus() -> Vec<Gpu> {
    let Ok(gpus) = Gpus::open() else { return Vec::new() };
    let (driver, cuda) = (gpus.driver().ok(), gpus.cuda().ok());
    let described = |gpu: gpu::Gpu<'_>| {
        Some(Gpu {
            name: gpu.name().ok()?,
            memory_bytes: gpu.memory().ok().map(|memory| memory.total),
            driver: driver.clone(),
            cuda: cuda.clone(),
        })
    };
    gpus.all().filter_map(described).collect()
}

/// Free memory of the GPUs of `device`, in bytes. `None` if the driver does not report it.
pub(super) fn memory_left(device: &str) -> Option<u64> {
    let (numbers, gpus) = (protocol::gpus(device), Gpus::open().ok()?);
    let left = |&number: &usize| {
        let memory = gpus.cuda_device(number).ok()?.memory().ok()?;
        Some(memory.total.saturating_sub(memory.used))
    };
    numbers.iter().map(left).sum()
}

/// The GPUs that a comparison runs on, kept open: NVML needs tens of milliseconds to start.
pub(crate) struct Watched {
    gpus: Gpus,
    numbers: Vec<usize>,
}

impl Watched {
    /// `None` for a CPU, and without NVML.
    pub(crate) fn new(device: &str) -> Option<Watched> {
        let numbers = protocol::gpus(device);
        let gpus = if numbers.is_empty() { None } else { Gpus::open().ok() };
        gpus.map(|gpus| Watched { gpus, numbers })
    }

    /// The readings of all of them; `None` if one is missing.
    fn of_all<T>(&self, read: impl Fn(gpu::Gpu<'_>) -> gpu::Reading<T>) -> Option<Vec<T>> {
        self.numbers.iter().map(|&number| self.gpus.cuda_device(number).and_then(&read).ok()).collect()
    }

    /// Memory that a process holds on them, in bytes. `None` if the driver does not report it, or lists no
    /// such process.
    pub(crate) fn memory_of(&self, pid: u32) -> Option<u64> {
        let held = self.numbers.iter().map(|&number| self.gpus.cuda_device(number)?.memory_of(pid));
        held.filter_map(Result::ok).reduce(|all, more| all + more)
    }

    /// Number of other programs' processes that compute there. `children` are the processes of this program
    /// that are alive. `None` if the driver lists none of them, because then processes cannot be
    /// distinguished.
    pub(super) fn foreign_processes(&self, children: &BTreeSet<u32>) -> Option<usize> {
        let processes = self.of_all(|gpu| gpu.processes())?.into_iter().flatten();
        let (own, foreign): (BTreeSet<u32>, BTreeSet<u32>) =
            processes.map(|process| process.pid).partition(|&pid| is_own(pid, children));
        (children.is_empty() || !own.is_empty() || foreign.is_empty()).then_some(foreign.len())
    }

    /// Unusual causes that slow it down now, in words.
    pub(super) fn held_back(&self) -> Vec<String> {
        let causes = self.of_all(|gpu| gpu.held_back());
        let is_unusual = |cause: &HeldBack| {
            matches!(cause, HeldBack::Heat | HeldBack::PowerBrake | HeldBack::Hardware | HeldBack::Group)
        };
        let causes = causes.into_iter().flatten().flatten();
        let unusual: BTreeSet<_> = causes.filter(is_unusual).map(|cause| cause.words().to_owned()).collect();
        unusual.into_iter().collect()
    }
}

/// Whether a process is a child of ours, or of a child's group: a launcher may start another.
fn is_own(pid: u32, children: &BTreeSet<u32>) -> bool {
    let group = || rustix::process::getpgid(rustix::process::Pid::from_raw(pid as i32)).ok();
    children.contains(&pid)
        || group().is_some_and(|group| children.contains(&(group.as_raw_nonzero().get() as u32)))
}

//! NVIDIA's GPUs as crate `gpu` reads them: which exist, who else computes there, and what slows them down.

use std::collections::BTreeSet;

use gpu::{Gpus, HeldBack};
use judge::Gpu;

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

/// Memory of `device`, in bytes: what nobody holds now. `None` where the driver does not tell.
pub(super) fn memory_left(device: &str) -> Option<u64> {
    let number = gpu::number(device)?;
    let memory = Gpus::open().ok()?.cuda_device(number).ok()?.memory().ok()?;
    Some(memory.total.saturating_sub(memory.used))
}

/// The GPU that a comparison runs on, kept open: NVML takes tens of milliseconds to begin.
pub(super) struct Watched {
    gpus: Gpus,
    number: usize,
}

impl Watched {
    /// `None` for a CPU, and without NVML.
    pub(super) fn new(device: &str) -> Option<Watched> {
        let number = gpu::number(device)?;
        Some(Watched { gpus: Gpus::open().ok()?, number })
    }

    /// Number of processes of others that compute there. `children` are the processes of this program that live. `None`
    /// where the driver lists none of them, so that nobody can be told apart.
    pub(super) fn foreign_processes(&self, children: &BTreeSet<u32>) -> Option<usize> {
        let processes = self.gpus.cuda_device(self.number).ok()?.processes().ok()?;
        let (own, foreign): (Vec<u32>, Vec<u32>) =
            processes.into_iter().map(|process| process.pid).partition(|&pid| is_own(pid, children));
        (children.is_empty() || !own.is_empty() || foreign.is_empty()).then_some(foreign.len())
    }

    /// What slows it down just now that is no part of its usual work, in words.
    pub(super) fn held_back(&self) -> Vec<String> {
        let causes = self.gpus.cuda_device(self.number).and_then(|gpu| gpu.held_back());
        let is_unusual = |cause: &HeldBack| {
            matches!(cause, HeldBack::Heat | HeldBack::PowerBrake | HeldBack::Hardware | HeldBack::Group)
        };
        let causes = causes.unwrap_or_default();
        causes.into_iter().filter(is_unusual).map(|cause| cause.words().to_owned()).collect()
    }
}

/// Whether a process is a child of ours, or of a child's group: a launcher may start another.
fn is_own(pid: u32, children: &BTreeSet<u32>) -> bool {
    let group = || rustix::process::getpgid(rustix::process::Pid::from_raw(pid as i32)).ok();
    children.contains(&pid)
        || group().is_some_and(|group| children.contains(&(group.as_raw_nonzero().get() as u32)))
}

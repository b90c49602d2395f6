//! The machine and the checkout of a result. A value that the system does not report is `null`.

use serde::{Deserialize, Serialize};

/// The facts that a result depends on, besides the plan.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// Name of the machine.
    pub host: String,
    /// The operating system, with its version.
    pub os: Option<String>,
    /// Release of the kernel.
    pub kernel: Option<String>,
    /// The processor's own name for itself.
    pub cpu: String,
    /// Extensions of the processor that products may use, as Linux names them: `avx512_bf16`, `amx_int8`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cpu_extensions: Vec<String>,
    /// Whether the processor says that a hypervisor runs below the system; `null` where the system does not report.
    #[serde(default)]
    pub is_virtual: Option<bool>,
    /// Physical cores of the machine.
    pub physical_cores: Option<usize>,
    /// Cores that this process may use, by affinity and quota.
    pub available_cores: usize,
    /// The CPUs' frequency governor; `null` where there is none.
    pub governor: Option<String>,
    /// Quota of a cgroup, in CPUs; `null` without a limit.
    pub cpu_quota: Option<f64>,
    /// Priority of the processes, from -20, the highest, to 19 (`nice`); `null` where the system does not report.
    #[serde(default)]
    pub priority: Option<i32>,
    /// Memory modules with their speed: "4 of DDR5 at 4800 MT/s"; `null` where the system does not report.
    #[serde(default)]
    pub memory_modules: Option<String>,
    /// Memory of the machine, in bytes.
    pub memory_bytes: u64,
    /// NVIDIA's GPUs, as NVML lists them.
    pub gpus: Vec<Gpu>,
    /// The commit that is checked out; `None` outside a checkout with git.
    pub git_commit: Option<String>,
    /// Whether tracked files differ from the commit.
    pub git_modified: Option<bool>,
    /// Version of Photofinish.
    pub driver_version: String,
    /// The command as it was given, without values that may be secret.
    pub command: Vec<String>,
    /// Start of the run, RFC 3339, UTC.
    pub started: String,
}

impl Environment {
    /// The hardware that computes, in words.
    pub fn processor(&self, device: &str) -> String {
        let number = protocol::gpus(device).first().copied();
        match number.and_then(|number| self.gpus.get(number)) {
            Some(gpu) => gpu.name.clone(),
            None if self.is_virtual == Some(true) => format!("{} (virtual machine)", self.cpu),
            None => self.cpu.clone(),
        }
    }
}

/// One GPU, as its driver describes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Gpu {
    pub name: String,
    /// Memory of the GPU, in bytes.
    pub memory_bytes: Option<u64>,
    /// Version of the driver.
    pub driver: Option<String>,
    /// Newest CUDA that the driver can run, for example `13.0`.
    pub cuda: Option<String>,
}

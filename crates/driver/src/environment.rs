//! The machine and the checkout a result belongs to. What a system does not tell is `null`.

use std::path::Path;
use std::process::{Command, Stdio};

use serde::Serialize;
use sysinfo::{CpuRefreshKind, MemoryRefreshKind, RefreshKind, System};

use crate::machine;
use crate::places::Places;

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Environment {
    pub(crate) host: String,
    pub(crate) os: Option<String>,
    pub(crate) kernel: Option<String>,
    pub(crate) cpu: String,
    pub(crate) physical_cores: Option<usize>,
    /// Cores this process may use, by affinity and quota.
    pub(crate) available_cores: usize,
    /// The CPUs' frequency governor; `null` where there is none.
    pub(crate) governor: Option<String>,
    /// CPUs' worth of time that a cgroup allows; `null` without a limit.
    pub(crate) cpu_quota: Option<f64>,
    pub(crate) memory_bytes: u64,
    /// NVIDIA's, by NVML.
    pub(crate) gpus: Vec<machine::Gpu>,
    /// `None` outside a checkout with git.
    pub(crate) git_commit: Option<String>,
    /// Whether tracked files differ from the commit.
    pub(crate) git_modified: Option<bool>,
    pub(crate) driver_version: &'static str,
    /// The command as it was given.
    pub(crate) command: Vec<String>,
    pub(crate) started: String,
}

pub(crate) fn read(places: &Places, started: String) -> Environment {
    let what = RefreshKind::nothing()
        .with_cpu(CpuRefreshKind::nothing())
        .with_memory(MemoryRefreshKind::nothing().with_ram());
    let system = System::new_with_specifics(what);
    let cpu =
        system.cpus().first().map(|cpu| cpu.brand().trim().to_owned()).filter(|brand| !brand.is_empty());
    let checkout = places.checkout.as_deref();
    Environment {
        host: host(),
        os: System::long_os_version(),
        kernel: System::kernel_version(),
        cpu: cpu.unwrap_or_else(|| std::env::consts::ARCH.into()),
        physical_cores: System::physical_core_count(),
        available_cores: std::thread::available_parallelism().map_or(1, usize::from),
        governor: machine::governor(&machine::allowed().unwrap_or_default()),
        cpu_quota: machine::quota(),
        memory_bytes: system.total_memory(),
        gpus: machine::gpus(),
        git_commit: checkout.and_then(head),
        git_modified: checkout.and_then(is_modified),
        driver_version: env!("CARGO_PKG_VERSION"),
        command: std::env::args().collect(),
        started,
    }
}

impl Environment {
    /// What computes, for people.
    pub(crate) fn processor(&self, device: &str) -> &str {
        let index = device.strip_prefix("cuda:").and_then(|index| index.parse::<usize>().ok());
        index.and_then(|index| self.gpus.get(index)).map_or(&self.cpu, |gpu| &gpu.name)
    }
}

pub(crate) fn host() -> String {
    System::host_name().unwrap_or_else(|| "unknown-host".into())
}

/// The commit that is checked out.
pub(crate) fn head(checkout: &Path) -> Option<String> {
    git(checkout, &["rev-parse", "HEAD"])
}

/// Whether tracked files differ from it.
pub(crate) fn is_modified(checkout: &Path) -> Option<bool> {
    git(checkout, &["status", "--porcelain", "--untracked-files=no"]).map(|changes| !changes.is_empty())
}

/// The commit that git knows by this name, in the checkout.
pub(crate) fn commit(places: &Places, name: &str) -> Option<String> {
    let name = format!("{name}^{{commit}}");
    git(places.checkout.as_deref()?, &["rev-parse", "--verify", "--quiet", "--end-of-options", &name])
}

fn git(checkout: &Path, arguments: &[&str]) -> Option<String> {
    #[expect(clippy::disallowed_methods, reason = "git alone knows the commit")]
    let mut command = Command::new("git");
    let output = command.arg("-C").arg(checkout).args(arguments).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

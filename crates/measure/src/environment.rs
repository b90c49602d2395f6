//! Reads the facts about the machine and the checkout or installation that belong to a result.

use std::path::Path;
use std::process::{Command, Stdio};

use sysinfo::{CpuRefreshKind, MemoryRefreshKind, RefreshKind, System};

use facts::Environment;
use setup::Layout;

use crate::machine;
use crate::places::{Places, checkout_of};

pub fn read(places: &Places, started: String) -> Environment {
    let what = RefreshKind::nothing()
        .with_cpu(CpuRefreshKind::nothing())
        .with_memory(MemoryRefreshKind::nothing().with_ram());
    let system = System::new_with_specifics(what);
    let cpu =
        system.cpus().first().map(|cpu| cpu.brand().trim().to_owned()).filter(|brand| !brand.is_empty());
    let (git_commit, git_modified) = match &places.checkout {
        Some(checkout) => (head(checkout), is_modified(checkout)),
        None => places.build().map_or((None, None), |build| (build.git_commit, build.git_modified)),
    };
    Environment {
        host: host(),
        os: System::long_os_version(),
        kernel: System::kernel_version(),
        cpu: cpu.unwrap_or_else(|| std::env::consts::ARCH.into()),
        cpu_extensions: cpu_extensions(),
        is_virtual: is_virtual(),
        physical_cores: System::physical_core_count(),
        available_cores: std::thread::available_parallelism().map_or(1, usize::from),
        governor: machine::governor(&machine::allowed().unwrap_or_default()),
        cpu_quota: machine::quota(),
        priority: machine::nice(std::process::id()),
        memory_modules: machine::memory_modules(),
        memory_bytes: system.total_memory(),
        gpus: machine::gpus(),
        git_commit,
        git_modified,
        driver_version: env!("CARGO_PKG_VERSION").to_owned(),
        command: crate::command::typed(),
        started,
    }
}

pub fn host() -> String {
    System::host_name().unwrap_or_else(|| "unknown-host".into())
}

/// The commit of these workers, and whether tracked files differed from it: of the checkout around them, or
/// of their installation.
pub fn origin(workers: &Path) -> (Option<String>, Option<bool>) {
    if let Some(checkout) = checkout_of(workers) {
        return (head(&checkout), is_modified(&checkout));
    }
    let installed = workers.parent().map(Layout::at).filter(|layout| layout.workers() == workers);
    let build = installed.and_then(|layout| layout.build()).unwrap_or_default();
    (build.git_commit, build.git_modified)
}

/// The commit that is checked out.
fn head(checkout: &Path) -> Option<String> {
    git(checkout, &["rev-parse", "HEAD"])
}

/// Whether tracked files differ from the commit.
fn is_modified(checkout: &Path) -> Option<bool> {
    git(checkout, &["status", "--porcelain", "--untracked-files=no"]).map(|changes| !changes.is_empty())
}

/// The commit that git resolves this name to, in the checkout.
pub fn commit(places: &Places, name: &str) -> Option<String> {
    let name = format!("{name}^{{commit}}");
    git(places.checkout.as_deref()?, &["rev-parse", "--verify", "--quiet", "--end-of-options", &name])
}

fn git(checkout: &Path, arguments: &[&str]) -> Option<String> {
    #[expect(clippy::disallowed_methods, reason = "git alone knows the commit")]
    let mut command = Command::new("git");
    let output = command.arg("-C").arg(checkout).args(arguments).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Linux lists "hypervisor" among the flags of an x86 processor if a hypervisor announces itself.
fn is_virtual() -> Option<bool> {
    Some(cpu_flags("flags")?.iter().any(|flag| flag == "hypervisor"))
}

/// Vectors, products of 8 and 16 bits, and matrices: x86's and Arm's.
const EXTENSIONS: [&str; 15] = [
    "avx2",
    "avx512f",
    "avx_vnni",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_int8",
    "amx_bf16",
    "amx_fp16",
    "asimddp",
    "asimdhp",
    "i8mm",
    "bf16",
    "sve",
    "sme",
];

/// The processor's extensions, as Linux names them.
pub(crate) fn cpu_extensions() -> Vec<String> {
    let flags = cpu_flags("flags").or_else(|| cpu_flags("Features")).unwrap_or_default();
    EXTENSIONS.into_iter().filter(|name| flags.iter().any(|flag| flag == name)).map(str::to_owned).collect()
}

/// Linux's list under this name for the first processor.
fn cpu_flags(name: &str) -> Option<Vec<String>> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let flags = text.lines().find_map(|line| line.strip_prefix(name)?.split_once(':'))?.1;
    Some(flags.split_whitespace().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use setup::BuildRecord;

    #[test]
    fn workers_of_an_installation_are_of_the_commit_that_it_was_built_from() {
        let root = tempfile::tempdir().unwrap();
        let layout = Layout::below(root.path());
        std::fs::create_dir_all(layout.workers()).unwrap();
        assert_eq!(origin(&layout.workers()), (None, None));
        let commit = Some("abcd".to_owned());
        let record =
            BuildRecord { git_commit: commit.clone(), git_modified: Some(true), ..BuildRecord::default() };
        layout.write_build(&record).unwrap();
        assert_eq!(origin(&layout.workers()), (commit, Some(true)));
        assert_eq!(origin(root.path()), (None, None));
    }
}

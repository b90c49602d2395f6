//! Locations: checkout or installation, configuration, workers, cache, results.

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use comparison::facts::Environment;
use comparison::plan::{Failure, Result};
use configs::{Engine, Layers};
use setup::versions::{Build, Version};
use setup::{BuildRecord, Home, Layout, Target};
use sysinfo::{CpuRefreshKind, MemoryRefreshKind, RefreshKind, System};

use crate::measure::machine;

/// Locations of configuration and workers as typed; for tests and unusual layouts.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct GivenPlaces {
    // The user's own directory then overrides nothing.
    /// Directory of configs/ [default: that of the checkout or installation, under ~/.config/photofinish]
    #[arg(long, value_name = "DIR", hide = true)]
    pub configs: Option<PathBuf>,
    /// Directory of the worker binaries [default: that of the checkout or installation]
    #[arg(long, value_name = "DIR", hide = true)]
    pub workers: Option<PathBuf>,
}

impl GivenPlaces {
    pub fn find(&self) -> Result<Places> {
        let executable = std::env::current_exe()
            .map_err(|e| Failure::failed(format!("cannot find the path of photofinish itself: {e}")))?;
        Places::around(&executable, self, &Home::from_environment())
    }
}

#[derive(Debug, Clone)]
pub struct Places {
    /// Root of the checkout, if this binary is in one.
    pub checkout: Option<PathBuf>,
    /// The installation, if this binary is part of one.
    pub installed: Option<Layout>,
    pub configs: Layers,
    pub workers: PathBuf,
    pub cache: PathBuf,
    /// The target of workers and libraries: those for a GPU are separate.
    pub target: Target,
}

impl Places {
    /// The places of the program at `executable`.
    pub fn around(executable: &Path, given: &GivenPlaces, home: &Home) -> Result<Places> {
        let cache = home.cache.clone().ok_or_else(|| {
            Failure::usage("neither HOME nor XDG_CACHE_HOME is set: nowhere to keep prepared models")
        })?;
        // The installation of the program comes first: it may be below a checkout.
        let installed = Layout::beside(executable);
        let checkout = if installed.is_some() { None } else { checkout_of(executable) };
        let elsewhere = || home.data.clone().map(Layout::at).filter(Layout::is_there);
        let installed = installed.or_else(|| if checkout.is_none() { elsewhere() } else { None });
        let beside = beside(executable);
        let shipped = match (&checkout, &installed) {
            (Some(checkout), _) => checkout.join("configs"),
            (None, Some(installed)) => installed.configs(),
            (None, None) => beside.join("configs"),
        };
        let configs = match &given.configs {
            Some(given) => Layers::single(given),
            None => Layers::single(&shipped).under(home.config.clone()),
        };
        let engines = configs.base().join("engines");
        if !engines.is_dir() {
            return Err(match given.configs {
                Some(_) => Failure::usage(format!(
                    "--configs: there is no directory {}; name one that holds `engines`",
                    engines.display()
                )),
                None => alone(),
            });
        }
        let workers = match (&given.workers, &installed) {
            (Some(given), _) => given.clone(),
            (None, Some(installed)) => installed.workers(),
            (None, None) => beside,
        };
        Ok(Places { checkout, installed, configs, workers, cache, target: Target::Cpu })
    }

    /// Path of the binary of a worker or tool.
    pub fn binary(&self, name: &str) -> PathBuf {
        if let Some(path) = name.strip_prefix("{root}/") {
            // A script next to the configuration that names it.
            return self.root().join(path);
        }
        let file = format!("{name}{}", std::env::consts::EXE_SUFFIX);
        match self.target {
            // A worker without a build for a GPU is the same program on every device.
            Target::Cuda if self.gpu_workers().join(&file).is_file() => self.gpu_workers().join(file),
            _ => {
                let brought = setup::levels::worker(&self.workers, &file);
                let compiled = setup::versions::place(&self.cache, name, &Version::Build(Build::Here));
                let is_compiled = self.installed.is_some() && !brought.is_file() && compiled.is_file();
                if is_compiled { compiled } else { brought }
            }
        }
    }

    /// The same places for work on `device`.
    pub fn on(&self, device: &str) -> Places {
        Places { target: Target::of_device(device), ..self.clone() }
    }

    /// Directory of the workers that were built for a GPU.
    pub(crate) fn gpu_workers(&self) -> PathBuf {
        setup::gpu_workers(&self.workers)
    }

    /// Root of the configuration: a checkout, or the data directory of an installation.
    pub(crate) fn root(&self) -> &Path {
        self.configs.base().parent().unwrap_or(self.configs.base())
    }

    /// The directory of a file that is the same for all: next to the engines, or else the one shipped with the program.
    pub fn directory_of(&self, file: &str) -> PathBuf {
        let shipped = match (&self.checkout, &self.installed) {
            (Some(checkout), _) => Some(checkout.join("configs")),
            (None, installed) => installed.as_ref().map(Layout::configs),
        };
        let own = self.configs.base();
        shipped.filter(|_| !own.join(file).is_file()).unwrap_or_else(|| own.to_owned())
    }

    /// The source of the installation's build. A checkout has git instead.
    pub fn build(&self) -> Option<BuildRecord> {
        self.installed.as_ref()?.build()
    }

    pub fn bundles(&self) -> PathBuf {
        self.cache.join("bundles")
    }

    pub fn results(&self) -> PathBuf {
        match &self.checkout {
            Some(checkout) => checkout.join("results"),
            None => PathBuf::from("results"),
        }
    }

    /// The command of set-up.
    pub(crate) fn setup_command(&self) -> &'static str {
        if self.checkout.is_some() { "cargo xtask setup" } else { "photofinish setup" }
    }

    /// The command that provides an engine that cannot run.
    pub(crate) fn provides(&self, engine: &Engine) -> String {
        match self.checkout {
            Some(_) => format!("cargo xtask build --frameworks {}", engine.name),
            None => self.remedy(engine),
        }
    }

    /// The remedy for an engine that cannot run.
    pub(crate) fn remedy(&self, engine: &Engine) -> String {
        if self.checkout.is_some() {
            return "`photofinish doctor` says what to do".into();
        }
        if !engine.native.is_empty() && self.binary(&engine.worker).is_file() {
            return format!("`photofinish setup --only {}` provides its libraries", engine.native.join(","));
        }
        format!("`photofinish --frameworks {}` compiles its worker, where Rust is installed", engine.name)
    }
}

/// The directory of a build's workers: that of the program.
fn beside(executable: &Path) -> PathBuf {
    let own = executable.parent().unwrap_or(Path::new(".")).to_path_buf();
    // Workers are measured, so they are always release builds, even for a debug build of this program.
    match own.file_name() {
        Some(name) if name == "debug" => own.with_file_name("release"),
        _ => own,
    }
}

/// The error of a program that was installed without anything else, as `cargo install` does.
fn alone() -> Failure {
    // A program that was built for other machines has no checkout there.
    let built_in = match option_env!("PHOTOFINISH_RELOCATABLE") {
        Some(_) => None,
        None => checkout_of(Path::new(env!("CARGO_MANIFEST_DIR"))),
    };
    let command = match built_in {
        Some(checkout) => format!("`cd {} && cargo xtask install`", checkout.display()),
        None => "`cargo xtask install`, run in a checkout of photofinish,".to_owned(),
    };
    Failure::usage(format!(
        "this photofinish was installed alone, without its workers and configurations; {command} installs all of it"
    ))
}

/// The checkout that contains `path`.
pub(crate) fn checkout_of(path: &Path) -> Option<PathBuf> {
    path.ancestors().find(|directory| is_checkout(directory)).map(Path::to_path_buf)
}

fn is_checkout(directory: &Path) -> bool {
    directory.join("configs/engines").is_dir() && directory.join("xtask/Cargo.toml").is_file()
}

// Reads the facts about the machine and the checkout or installation that belong to a result.

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
        cpu_family: cpu_family(),
        cpu_caches: cpu_caches(Path::new("/sys/devices/system/cpu/cpu0/cache")),
        threads_per_core: threads_per_core(),
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
        command: crate::measure::progress::typed(),
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
    setup::tooling::process::end_with_parent(&mut command);
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

/// Vendor, family, model and stepping: hypervisors often leave no more of a name than "AMD EPYC".
pub(crate) fn cpu_family() -> Option<String> {
    let number = |name| Some(cpu_info(name)?.trim().to_owned());
    let stepping = number("stepping").map_or_else(String::new, |stepping| format!(", stepping {stepping}"));
    let [vendor, family, model] = ["vendor_id", "cpu family", "model\t"].map(number);
    Some(format!("{}, family {}, model {}{stepping}", vendor?, family?, model?))
}

/// Level, kind and size of each cache in Linux's directory of a core's caches.
fn cpu_caches(directory: &Path) -> Vec<String> {
    let cache = |index: usize| {
        let of =
            |name: &str| std::fs::read_to_string(directory.join(format!("index{index}")).join(name)).ok();
        let kind = match of("type")?.trim() {
            "Data" => "d",
            "Instruction" => "i",
            _ => "",
        };
        Some(format!("L{}{kind} {}", of("level")?.trim(), of("size")?.trim()))
    };
    (0..).map_while(cache).collect()
}

/// Threads of a core, where the system says how many of both a package has.
pub(crate) fn threads_per_core() -> Option<usize> {
    let count = |name| cpu_info(name)?.trim().parse::<usize>().ok().filter(|count| *count > 0);
    Some(count("siblings")? / count("cpu cores")?)
}

/// Linux's list under this name for the first processor.
fn cpu_flags(name: &str) -> Option<Vec<String>> {
    Some(cpu_info(name)?.split_whitespace().map(str::to_owned).collect())
}

/// The first processor's value in the line that begins with this name.
fn cpu_info(name: &str) -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    Some(text.lines().find_map(|line| line.strip_prefix(name)?.split_once(':'))?.1.to_owned())
}

#[cfg(test)]
mod unit {
    use setup::BuildRecord;

    use super::*;

    #[test]
    fn caches_have_their_level_kind_and_size() {
        let root = tempfile::tempdir().unwrap();
        for (index, files) in [["1", "Data", "32K"], ["2", "Unified", "1024K"]].iter().enumerate() {
            let directory = root.path().join(format!("index{index}"));
            std::fs::create_dir(&directory).unwrap();
            for (name, text) in ["level", "type", "size"].iter().zip(files) {
                std::fs::write(directory.join(name), format!("{text}\n")).unwrap();
            }
        }
        assert_eq!(cpu_caches(root.path()), ["L1d 32K", "L2 1024K"]);
        assert!(cpu_caches(&root.path().join("none")).is_empty());
    }

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

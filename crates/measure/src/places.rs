//! Locations: checkout or installation, configuration, workers, cache, results.

use std::path::{Path, PathBuf};

use configs::{Engine, Layers};
use plan::{Failure, Result};
use setup::{BuildRecord, Home, Layout, Target};

/// Locations of configuration and workers that were given explicitly.
#[derive(Debug, Clone, Default)]
pub struct GivenPlaces {
    /// Directory of configs/. The user's own directory then overrides nothing.
    pub configs: Option<PathBuf>,
    /// Directory of the worker binaries.
    pub workers: Option<PathBuf>,
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
    pub fn find(given: &GivenPlaces) -> Result<Places> {
        let executable = std::env::current_exe()
            .map_err(|e| Failure::failed(format!("cannot find the path of photofinish itself: {e}")))?;
        Places::around(&executable, given, &Home::from_environment())
    }

    /// The places of the program at `executable`.
    pub fn around(executable: &Path, given: &GivenPlaces, home: &Home) -> Result<Places> {
        let cache = home.cache().ok_or_else(|| {
            Failure::usage("neither HOME nor XDG_CACHE_HOME is set: nowhere to keep prepared models")
        })?;
        // The installation of the program comes first: it may be below a checkout.
        let installed = Layout::beside(executable);
        let checkout = if installed.is_some() { None } else { checkout_of(executable) };
        let elsewhere = || home.data().map(Layout::at).filter(Layout::is_there);
        let installed = installed.or_else(|| if checkout.is_none() { elsewhere() } else { None });
        let beside = beside(executable);
        let shipped = match (&checkout, &installed) {
            (Some(checkout), _) => checkout.join("configs"),
            (None, Some(installed)) => installed.configs(),
            (None, None) => beside.join("configs"),
        };
        let configs = match &given.configs {
            Some(given) => Layers::single(given),
            None => Layers::single(&shipped).under(home.config()),
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
            _ => self.workers.join(file),
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

    /// Default directory of the results.
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
        "docs/how-to/install.md says what to do".into()
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
    let built_in = checkout_of(Path::new(env!("CARGO_MANIFEST_DIR")));
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

#[cfg(test)]
mod tests;

//! Locations: checkout, configuration, workers, cache, results.

use std::path::{Path, PathBuf};

use configs::Engine;
use plan::{Engines, Failure, Result};

/// Locations of configuration and workers that were given explicitly.
#[derive(Debug, Clone, Default)]
pub struct GivenPlaces {
    /// Directory of configs/.
    pub configs: Option<PathBuf>,
    /// Directory of the worker binaries.
    pub workers: Option<PathBuf>,
}

#[derive(Debug, Clone)]
pub struct Places {
    /// Root of the checkout, if this binary is in one.
    pub checkout: Option<PathBuf>,
    pub configs: PathBuf,
    pub workers: PathBuf,
    pub cache: PathBuf,
}

impl Places {
    pub fn find(given: &GivenPlaces) -> Result<Places> {
        let executable = std::env::current_exe()
            .map_err(|e| Failure::failed(format!("cannot find the path of photofinish itself: {e}")))?;
        let checkout = checkout_of(&executable);
        let own = executable.parent().unwrap_or(Path::new(".")).to_path_buf();
        // Workers are measured, so they are always release builds, even beside a debug build of this program.
        let beside = match own.file_name() {
            Some(name) if name == "debug" => own.with_file_name("release"),
            _ => own,
        };
        let configs = match (&given.configs, &checkout) {
            (Some(configs), _) => configs.clone(),
            (None, Some(checkout)) => checkout.join("configs"),
            (None, None) => beside.join("configs"),
        };
        if !configs.join("engines").is_dir() {
            return Err(Failure::usage(format!(
                "no engines are configured at {}: run photofinish from a checkout, or name a directory with --configs",
                configs.join("engines").display()
            )));
        }
        let workers = given.workers.clone().unwrap_or(beside);
        Ok(Places { checkout, configs, workers, cache: cache()? })
    }

    /// Path of the binary of a worker or tool.
    pub fn binary(&self, name: &str) -> PathBuf {
        if let Some(path) = name.strip_prefix("{root}/") {
            // A script of the checkout starts it; the configuration names the script.
            return self.configs.parent().unwrap_or(&self.configs).join(path);
        }
        self.workers.join(format!("{name}{}", std::env::consts::EXE_SUFFIX))
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
}

/// The checkout that contains `path`.
pub fn checkout_of(path: &Path) -> Option<PathBuf> {
    path.ancestors().find(|directory| is_checkout(directory)).map(Path::to_path_buf)
}

fn is_checkout(directory: &Path) -> bool {
    directory.join("configs/engines").is_dir() && directory.join("xtask/Cargo.toml").is_file()
}

/// The cache directory: `${XDG_CACHE_HOME:-~/.cache}/photofinish`.
fn cache() -> Result<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = variable("XDG_CACHE_HOME")
        .filter(|path| path.is_absolute())
        .or_else(|| std::env::home_dir().map(|home| home.join(".cache")));
    match base {
        Some(base) => Ok(base.join("photofinish")),
        None => {
            Err(Failure::usage("neither HOME nor XDG_CACHE_HOME is set: nowhere to keep prepared models"))
        }
    }
}

impl Engines for Places {
    fn engine(&self, name: &str) -> Result<Engine> {
        Ok(configs::engine(&self.configs, name)?)
    }

    fn usual(&self) -> Result<Vec<Engine>> {
        Ok(configs::default_engines(&self.configs)?)
    }
}

//! Where things are.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use configs::Engine;
use setup::Provision;
use tooling::{BadInput, Reporter};

/// The program that compares; the package that it is built from is called `driver`.
pub(crate) const PHOTOFINISH: &str = "photofinish";

#[derive(Clone)]
pub(crate) struct Workspace {
    /// Directory of the workspace's Cargo.toml.
    pub(crate) root: PathBuf,
    /// `${XDG_CACHE_HOME:-~/.cache}/photofinish`; need not exist.
    pub(crate) cache: PathBuf,
    /// Where cargo puts release binaries.
    pub(crate) binaries: PathBuf,
    /// The target directory, where cargo's choice is not meant.
    pub(crate) target: Option<PathBuf>,
}

impl Workspace {
    pub(crate) fn locate() -> Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask lies in no directory")?;
        // This binary is one of them, whatever the target directory is set to.
        let executable = std::env::current_exe().context("cannot tell where this program lies")?;
        let binaries = executable.parent().context("this program lies in no directory")?;
        let cache = cache_directory(
            std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from),
            std::env::var_os("HOME").map(PathBuf::from),
        )?;
        Ok(Self { root: root.to_owned(), cache, binaries: binaries.to_owned(), target: None })
    }

    /// The checkout at `root`, built in a corner of this one's target directory.
    pub(crate) fn apart(&self, root: &Path) -> Self {
        let target = self.binaries.parent().unwrap_or(&self.binaries).join("gate");
        Self { root: root.to_owned(), binaries: target.join("release"), target: Some(target), ..self.clone() }
    }

    pub(crate) fn is_apart(&self) -> bool {
        self.target.is_some()
    }

    pub(crate) fn binary(&self, name: &str) -> PathBuf {
        self.binaries.join(format!("{name}{}", std::env::consts::EXE_SUFFIX))
    }

    pub(crate) fn configs(&self) -> PathBuf {
        self.root.join("configs")
    }

    /// Native libraries and the model, from the cache directory or downloaded into it.
    pub(crate) fn provision(&self, reporter: Reporter) -> Result<Provision> {
        Provision::new(&self.configs(), &self.cache, reporter)
    }

    /// Variables that an engine's configuration sets, where the user has not set them.
    pub(crate) fn environment(&self, engine: &Engine) -> Vec<(String, OsString)> {
        let is_unset = |name: &str| std::env::var_os(name).is_none_or(|value| value.is_empty());
        let unset = engine.env.iter().filter(|(name, _)| is_unset(name));
        unset
            .map(|(name, text)| (name.clone(), text.replace("{cache}", &self.cache.to_string_lossy()).into()))
            .collect()
    }
}

fn cache_directory(xdg: Option<PathBuf>, home: Option<PathBuf>) -> Result<PathBuf> {
    // The XDG specification: a relative path there is to be ignored.
    let base = xdg.filter(|path| path.is_absolute()).or_else(|| home.map(|home| home.join(".cache")));
    match base {
        Some(base) if base.is_absolute() => Ok(base.join("photofinish")),
        _ => {
            Err(BadInput("no cache directory: set XDG_CACHE_HOME or HOME to an absolute path".into()).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_directory_follows_xdg() {
        let at = |xdg: Option<&str>, home: Option<&str>| {
            cache_directory(xdg.map(PathBuf::from), home.map(PathBuf::from)).ok()
        };
        assert_eq!(at(Some("/x"), Some("/h")), Some(PathBuf::from("/x/photofinish")));
        assert_eq!(at(None, Some("/h")), Some(PathBuf::from("/h/.cache/photofinish")));
        assert_eq!(at(Some("relative"), Some("/h")), Some(PathBuf::from("/h/.cache/photofinish")));
        assert_eq!(at(Some(""), None), None);
    }
}

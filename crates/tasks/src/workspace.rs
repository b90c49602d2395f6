//! Where things are.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use configs::Layers;
pub(crate) use setup::PROGRAM as PHOTOFINISH;
use setup::tooling::process::file_name;
use setup::tooling::{BadInput, Reporter};
use setup::{Home, Provision};

#[derive(Clone)]
pub(crate) struct Workspace {
    /// Directory of the workspace's Cargo.toml.
    pub(crate) root: PathBuf,
    /// `${XDG_CACHE_HOME:-~/.cache}/photofinish`; need not exist.
    pub(crate) cache: PathBuf,
    pub(crate) binaries: PathBuf,
    pub(crate) target: Option<PathBuf>,
    pub(crate) variables: Vec<(&'static str, String)>,
    /// The user's own configuration, which overrides that of the checkout; need not exist.
    pub(crate) user_configs: Option<PathBuf>,
}

impl Workspace {
    pub(crate) fn locate() -> Result<Self> {
        let root = own_checkout()?;
        // This binary is one of them, wherever the target directory is.
        let executable = std::env::current_exe().context("cannot find where this program is")?;
        let binaries = executable.parent().context("this program is in no directory")?;
        let home = Home::from_environment();
        let cache = home.cache.ok_or_else(|| {
            BadInput("no cache directory: set XDG_CACHE_HOME or HOME to an absolute path".into())
        })?;
        Ok(Self {
            root: root.to_owned(),
            cache,
            binaries: binaries.to_owned(),
            target: None,
            variables: Vec::new(),
            user_configs: home.config,
        })
    }

    /// The checkout at `root`, built in a corner of this one's target directory.
    pub(crate) fn apart(&self, root: &Path) -> Self {
        let target = self.binaries.parent().unwrap_or(&self.binaries).join("gate");
        let user_configs = None;
        let binaries = target.join("release");
        Self { root: root.to_owned(), binaries, target: Some(target), user_configs, ..self.clone() }
    }

    /// This checkout, built with these variables in `target`.
    pub(crate) fn built_with(&self, target: PathBuf, variables: Vec<(&'static str, String)>) -> Self {
        Self { binaries: target.join("release"), target: Some(target), variables, ..self.clone() }
    }

    /// Whether this is another checkout than the one that this program was built from.
    pub(crate) fn is_apart(&self) -> bool {
        own_checkout().is_ok_and(|own| own != self.root)
    }

    pub(crate) fn binary(&self, name: &str) -> PathBuf {
        self.binaries.join(file_name(name))
    }

    pub(crate) fn configs(&self) -> PathBuf {
        self.root.join("configs")
    }

    /// The checkout's configuration, with the user's over it.
    pub(crate) fn layers(&self) -> Layers {
        Layers::single(self.configs()).under(self.user_configs.clone())
    }

    /// The shipped files, without the user's own configuration.
    pub(crate) fn shipped(&self) -> Self {
        Self { user_configs: None, ..self.clone() }
    }

    /// Native libraries and the model, from the cache directory or downloaded into it.
    pub(crate) fn provision(&self, reporter: Reporter) -> Result<Provision> {
        Provision::new(&self.configs(), &self.cache, reporter)
    }
}

/// The entries of a directory by name.
pub(crate) fn sorted(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(directory)?.map(|entry| entry.map(|entry| entry.path()));
    let mut paths = entries.collect::<std::io::Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

fn own_checkout() -> Result<&'static Path> {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .context("the package tasks has no directory above it")
}

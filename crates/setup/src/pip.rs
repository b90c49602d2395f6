//! Fetching one wheel with the ordinary pip client.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use tooling::process::{self, command};
use tooling::{BadInput, Reporter};

use crate::install::Fetch;
use crate::pins::{PipOptions, Wheel};

pub(crate) struct Pip<'a> {
    pub(crate) options: &'a PipOptions,
    pub(crate) tags: &'a [String],
    /// The alternative for people without a network.
    pub(crate) instead: String,
}

impl Fetch for Pip<'_> {
    fn fetch(&self, wheel: &Wheel, directory: &Path, reporter: Reporter) -> Result<PathBuf> {
        self.require_pip(wheel)?;
        let log = directory.join("pip.log");
        // pip first unpacks its downloads under TMPDIR: here, half a gigabyte neither fills a small /tmp nor
        // escapes the clean-up, and its growth can be shown.
        let partial = directory.join("partial");
        let complete = directory.join("complete");
        std::fs::create_dir_all(&partial)?;
        std::fs::create_dir_all(&complete)?;

        let mut pip = command("python3");
        pip.args(["-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"])
            // The wheel is deleted once it is unpacked; a second copy in pip's cache would stay.
            .arg("--no-cache-dir")
            .args(["--no-deps", "--only-binary=:all:"])
            .args(["--python-version", &self.options.python_version])
            .args(["--implementation", &self.options.implementation])
            .args(self.tags.iter().flat_map(|tag| ["--platform", tag]))
            .arg("-d")
            .arg(&complete)
            .arg(&wheel.requirement)
            .env("TMPDIR", &partial)
            .stdin(std::process::Stdio::null())
            .stdout(File::create(&log)?)
            .stderr(File::options().append(true).open(&log)?);
        let mut child = pip.spawn().context("cannot start python3")?;
        let transfer = reporter.transfer(&format!("downloading {}", wheel.requirement), wheel.bytes);
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            transfer.at(size_of_tree(directory));
            std::thread::sleep(Duration::from_millis(100));
        };
        drop(transfer);
        if !status.success() {
            let said = std::fs::read(&log).unwrap_or_default();
            let cause = process::cause(&said).unwrap_or_else(|| status.to_string());
            bail!(
                "cannot download {}: pip says {cause:?}; check the network or {}",
                wheel.requirement,
                self.instead
            );
        }
        only_file(&complete).with_context(|| format!("pip download {}", wheel.requirement))
    }
}

impl Pip<'_> {
    fn require_pip(&self, wheel: &Wheel) -> Result<()> {
        process::output_of(command("python3").args(["-m", "pip", "--version"])).map(drop).map_err(|error| {
            let requirement = &wheel.requirement;
            anyhow!(BadInput(format!(
                "python3 with pip is needed to download {requirement} ({error:#}): install both (on Debian and \
                 Ubuntu: apt-get install python3-pip) or {}",
                self.instead
            )))
        })
    }
}

fn only_file(directory: &Path) -> Result<PathBuf> {
    let mut files = std::fs::read_dir(directory)?.map(|entry| entry.map(|entry| entry.path()));
    match (files.next().transpose()?, files.next()) {
        (Some(file), None) => Ok(file),
        (None, _) => bail!("saved no wheel"),
        (Some(_), Some(_)) => bail!("saved more than one wheel"),
    }
}

/// Bytes of everything readable at the moment: pip moves files meanwhile.
fn size_of_tree(directory: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(directory) else { return 0 };
    let size = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => size_of_tree(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    };
    entries.flatten().map(size).sum()
}

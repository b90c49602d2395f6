//! Downloads of archives: several at once, each going on where an earlier download of it stopped.
//!
//! A wheel with a pinned sha256 is fetched by fetch.py, into a file that stays if it is interrupted. `pip download`
//! fetches the others, and takes over where a server or this version of pip refuses; `npm pack` fetches
//! npm's.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};

use crate::layout::Wanted;
use crate::pins::{PipOptions, Wheel};
use crate::receipt;
use crate::tooling::process::{self, command, output_of};
use crate::tooling::{self, BadInput, Reporter, Transfer};

const FETCH: &str = include_str!("fetch.py");

// Exit codes of fetch.py.
const LOST: i32 = 3;
const UNKNOWN: i32 = 4;

/// More at once would not be faster, and servers may refuse them.
const AT_ONCE: usize = 4;

/// In the cache directory.
pub(crate) fn directory(cache: &Path) -> PathBuf {
    cache.join(receipt::DOWNLOADS)
}

/// The download of a wheel as far as it came.
fn partial(directory: &Path, wheel: &Wheel) -> PathBuf {
    directory.join(format!("{}.partial", wheel.sha256))
}

/// Bytes of it that are there.
pub(crate) fn there(directory: &Path, wheel: &Wheel) -> u64 {
    partial(directory, wheel).metadata().map_or(0, |found| found.len().min(wheel.bytes))
}

// Where files come from in place of the indexes that pip and npm know.

pub(crate) const MIRROR: &str = "PHOTOFINISH_MIRROR";

/// A copy of all files, made by `setup --to`. Nothing else is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Mirror {
    Directory(PathBuf),
    /// A page that links them.
    Page(String),
}

impl Mirror {
    pub(crate) fn from_environment() -> std::result::Result<Option<Self>, BadInput> {
        Self::named(std::env::var_os(MIRROR).unwrap_or_default())
    }

    fn named(value: OsString) -> std::result::Result<Option<Self>, BadInput> {
        let text = value.to_string_lossy();
        if value.is_empty() {
            return Ok(None);
        }
        if text.contains("://") {
            return Ok(Some(Self::Page(format!("{}/", text.trim_end_matches('/')))));
        }
        let readable = std::path::absolute(&value).and_then(|path| fs::read_dir(&path).map(|_| path));
        let unreadable =
            |error| BadInput(format!("{MIRROR}={text} is no directory that can be read ({error})"));
        Ok(Some(Self::Directory(readable.map_err(unreadable)?)))
    }

    /// Has pip ask it alone.
    fn serve(&self, pip: &mut Command) {
        pip.env_remove("PIP_FIND_LINKS").args(["--no-index", "--find-links"]);
        match self {
            Self::Directory(path) => pip.arg(path),
            Self::Page(url) => pip.arg(url),
        };
        // pip ignores a server without TLS unless its name is given. What comes is checked by its hash.
        if let Self::Page(url) = self
            && let Some(rest) = url.strip_prefix("http://")
        {
            let server = rest.split('/').next().unwrap_or_default();
            pip.args(["--trusted-host", server.rsplit('@').next().unwrap_or(server)]);
        }
    }
}

impl std::fmt::Display for Mirror {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Directory(path) => write!(f, "{MIRROR}={}", path.display()),
            Self::Page(url) => write!(f, "{MIRROR}={url}"),
        }
    }
}

/// Has this call of pip ask the user's mirror alone, if there is one.
pub(crate) fn from_mirror(pip: &mut Command) -> std::result::Result<Option<Mirror>, BadInput> {
    let mirror = Mirror::from_environment()?;
    mirror.iter().for_each(|mirror| mirror.serve(pip));
    Ok(mirror)
}

pub(crate) struct Downloads<'a> {
    pub(crate) options: &'a PipOptions,
    pub(crate) mirror: Option<Mirror>,
    /// Holds partial files.
    pub(crate) directory: PathBuf,
    /// For clients that cannot go on: half a gigabyte neither fills a small /tmp nor escapes the clean-up.
    pub(crate) scratch: &'a Path,
    pub(crate) reporter: Reporter,
}

/// What came. Its hash is not checked yet.
pub(crate) struct Archive {
    pub(crate) file: PathBuf,
    /// The name that it has where it comes from.
    pub(crate) name: String,
}

impl Archive {
    fn at(file: PathBuf) -> Self {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Self { file, name }
    }
}

impl Downloads<'_> {
    /// Fetches these archives, and shows how far they are together.
    pub(crate) fn all(&self, wanted: &[(&Wanted, &Wheel)]) -> Vec<Result<Archive>> {
        let left = Mutex::new(wanted.iter().enumerate());
        let next = || left.lock().unwrap_or_else(PoisonError::into_inner).next();
        let (sender, done) = mpsc::channel();
        let transfer = self.begin(wanted);
        let mut archives = BTreeMap::new();
        std::thread::scope(|scope| {
            for sender in vec![sender; AT_ONCE] {
                scope.spawn(move || {
                    // Until nothing is left.
                    while let Some((number, (wanted, wheel))) = next() {
                        let _ = sender.send((number, self.one(wanted, wheel)));
                    }
                });
            }
            loop {
                match done.recv_timeout(Duration::from_millis(100)) {
                    Ok((number, archive)) => drop(archives.insert(number, archive)),
                    Err(RecvTimeoutError::Timeout) => transfer.iter().for_each(|it| it.at(self.came(wanted))),
                    Err(RecvTimeoutError::Disconnected) => break,
                }
            }
        });
        archives.into_values().collect()
    }

    /// Fetches those that the directory lacks, verifies them, and gives them their own names there.
    pub(crate) fn keep(&self, wanted: &[(&Wanted, &Wheel)]) -> Result<()> {
        let mut lacking = wanted.to_vec();
        lacking.retain(|(_, wheel)| !matches!(find(&self.directory, wheel), Ok(Some(_))));
        if lacking.is_empty() {
            return Ok(());
        }
        let mut failed = Ok(());
        for ((_, wheel), archive) in lacking.iter().zip(self.all(&lacking)) {
            let kept = archive.and_then(|Archive { file, name }| {
                let is_ours = file.starts_with(&self.directory);
                receipt::verify(&file, wheel).inspect_err(|_| {
                    let _ = is_ours.then(|| fs::remove_file(&file));
                })?;
                let place = self.directory.join(name);
                let placed =
                    if is_ours { fs::rename(&file, &place) } else { fs::copy(&file, &place).map(drop) };
                placed.with_context(|| format!("cannot write {}", place.display()))
            });
            failed = failed.and(kept);
        }
        tooling::check()?;
        failed
    }

    fn begin(&self, wanted: &[(&Wanted, &Wheel)]) -> Option<Transfer> {
        if let Some(Mirror::Directory(_)) = self.mirror {
            return None;
        }
        // Not the many wheels of pieces: a line of a terminal holds this and the bar.
        let mut names: Vec<String> = wanted.iter().map(|(wanted, _)| wanted.name.clone()).collect();
        names.dedup();
        let what = if let [(_, wheel)] = wanted { wheel.requirement.clone() } else { names.join(", ") };
        let bytes = wanted.iter().map(|(_, wheel)| wheel.bytes).sum();
        Some(self.reporter.transfer(&format!("downloading {what}"), self.came(wanted), bytes))
    }

    /// Bytes of all that have come.
    fn came(&self, wanted: &[(&Wanted, &Wheel)]) -> u64 {
        let partials: u64 = wanted.iter().map(|(_, wheel)| there(&self.directory, wheel)).sum();
        partials + size_of_tree(self.scratch)
    }

    fn one(&self, wanted: &Wanted, wheel: &Wheel) -> Result<Archive> {
        let is_pinned = !wheel.sha256.is_empty();
        let asked = match (wheel.of_npm(), &self.mirror) {
            (_, Some(Mirror::Directory(directory))) if is_pinned => {
                return find(directory, wheel)?.ok_or_else(|| self.failed(wanted, wheel, "pip", None));
            }
            (Some(package), None) => return self.npm(&package, wanted, wheel),
            (Some(package), Some(Mirror::Page(url))) if is_pinned => {
                format!("{url}{}", name_by_npm(&package))
            }
            (Some(_), Some(_)) => return Err(self.failed(wanted, wheel, "npm", None)),
            (None, _) => wheel.requirement.clone(),
        };
        if is_pinned && let Some(archive) = self.resumed(&asked, wanted, wheel)? {
            return Ok(archive);
        }
        if wheel.of_npm().is_some() {
            return Err(self.failed(wanted, wheel, "npm", None));
        }
        let archive = self.pip(wanted, wheel)?;
        let _ = fs::remove_file(partial(&self.directory, wheel));
        Ok(archive)
    }

    /// `None` if a server or pip refuses.
    fn resumed(&self, asked: &str, wanted: &Wanted, wheel: &Wheel) -> Result<Option<Archive>> {
        let file = partial(&self.directory, wheel);
        fs::create_dir_all(&self.directory)
            .with_context(|| format!("cannot create {}", self.directory.display()))?;
        let mut python = process::python();
        python.args(["-c", FETCH, asked]).arg(&file).arg(wheel.bytes.to_string());
        self.options(&mut python, wanted);
        let Ok(output) = process::output(&mut python) else {
            // Without python3, `pip` says so.
            return tooling::check().map(|()| None);
        };
        let unreachable = String::from_utf8_lossy(&output.stderr).contains("Retrying (Retry(");
        match output.status.code() {
            Some(0) => {
                let said = String::from_utf8_lossy(&output.stdout);
                let Archive { name, .. } = Archive::at(PathBuf::from(said.trim()));
                Ok(Some(Archive { file, name }))
            }
            Some(UNKNOWN) if unreachable => {
                Err(self.failed(wanted, wheel, "pip", Some("no index answers".to_owned())))
            }
            Some(UNKNOWN) if self.mirror.is_some() => Err(self.failed(wanted, wheel, "pip", None)),
            Some(LOST | UNKNOWN) => Err(self.failed(wanted, wheel, "pip", process::cause(&output.stderr))),
            _ => Ok(None),
        }
    }

    fn options(&self, pip: &mut Command, wanted: &Wanted) {
        // A wheel is deleted once it is unpacked; a second copy in pip's cache would stay.
        pip.args(["--no-input", "--disable-pip-version-check", "--no-cache-dir", "--no-deps"])
            .arg("--only-binary=:all:")
            .args(["--python-version", &self.options.python_version])
            .args(["--implementation", &self.options.implementation])
            .args(wanted.tags.iter().flat_map(|tag| ["--platform", tag]));
        self.mirror.iter().for_each(|mirror| mirror.serve(pip));
    }

    fn pip(&self, wanted: &Wanted, wheel: &Wheel) -> Result<Archive> {
        let mut pip = process::python();
        pip.args(["-m", "pip", "download", "--quiet"]);
        self.options(&mut pip, wanted);
        pip.args([wheel.requirement.as_str(), "-d"]);
        self.client(("pip", "python3-pip"), pip, wanted, wheel)
    }

    fn npm(&self, package: &str, wanted: &Wanted, wheel: &Wheel) -> Result<Archive> {
        let mut npm = command("npm");
        npm.args(["pack", "--loglevel=error", "--logs-max=0", "--no-update-notifier", "--ignore-scripts"]);
        npm.args([package, "--pack-destination"]);
        self.client(("npm", "npm"), npm, wanted, wheel)
    }

    /// Runs a client that saves one file in the directory that is its last argument; Debian has it in this package.
    fn client(
        &self,
        (client, debian): (&str, &str),
        mut download: Command,
        wanted: &Wanted,
        wheel: &Wheel,
    ) -> Result<Archive> {
        let own = tempfile::tempdir_in(self.scratch).context("cannot make a temporary directory")?.keep();
        let complete = own.join("complete");
        fs::create_dir(&complete)?;
        // Clients first write their downloads here, whose growth can be shown.
        download.arg(&complete).env("TMPDIR", &own).env("npm_config_cache", &own);
        let output = process::output(&mut download);
        tooling::check()?;
        if output.as_ref().is_ok_and(|output| output.status.success()) {
            return only_file(&complete).with_context(|| format!("{client} download {}", wheel.requirement));
        }
        let (name, mut version) = match client {
            "npm" => ("npm", command("npm")),
            _ => ("python3 with pip", process::python()),
        };
        version.args(["-m", "pip"].iter().filter(|_| client == "pip")).arg("--version");
        if let Err(error) = output_of(&mut version) {
            bail!(BadInput(format!(
                "{name} is needed to download {} ({error:#}): install it (on Debian and Ubuntu: apt-get install \
                 {debian}) or {}",
                wheel.requirement, wanted.instead
            )));
        }
        let output = output?;
        let cause = npm_cause(&output.stderr).or_else(|| process::cause(&output.stderr));
        Err(self.failed(wanted, wheel, client, cause.or_else(|| Some(output.status.to_string()))))
    }

    /// Without a cause: the mirror lacks the file.
    fn failed(&self, wanted: &Wanted, wheel: &Wheel, client: &str, cause: Option<String>) -> anyhow::Error {
        let (Wheel { requirement, .. }, Wanted { instead, .. }) = (wheel, wanted);
        match (cause, &self.mirror) {
            (Some(cause), Some(mirror)) => {
                anyhow!("cannot download {requirement} from {mirror}: {client} says {cause:?}")
            }
            (None, Some(mirror)) => {
                anyhow!("{mirror} holds no file of {requirement}; add it with `setup --to DIR`, or {instead}")
            }
            (cause, None) => anyhow!(
                "cannot download {requirement}: {client} says {:?}; check the network, set {MIRROR}, or {instead}",
                cause.unwrap_or_default()
            ),
        }
    }
}

/// The wheel's file in a mirror's directory, whatever it is called.
fn find(directory: &Path, wheel: &Wheel) -> Result<Option<Archive>> {
    let cannot = || format!("cannot read {}", directory.display());
    for entry in fs::read_dir(directory).with_context(cannot)? {
        let file = entry.with_context(cannot)?.path();
        let has_size = file.metadata().is_ok_and(|found| found.is_file() && found.len() == wheel.bytes);
        if has_size && receipt::sha256(&file).is_ok_and(|found| found == wheel.sha256) {
            return Ok(Some(Archive::at(file)));
        }
    }
    Ok(None)
}

/// The name that `npm pack` gives to a package's file: `scope-name-1.0.tgz`.
fn name_by_npm(package: &str) -> String {
    let name = package.trim_start_matches('@').replace(['/', '@'], "-");
    format!("{name}.tgz")
}

/// The line on which npm says what is wrong: its code comes before, and advice after.
fn npm_cause(said: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(said);
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("npm error "));
    lines.find(|line| !line.starts_with("code ")).map(str::to_owned)
}

fn only_file(directory: &Path) -> Result<Archive> {
    let mut files = fs::read_dir(directory)?.map(|entry| entry.map(|entry| entry.path()));
    match (files.next().transpose()?, files.next()) {
        (Some(file), None) => Ok(Archive::at(file)),
        (None, _) => bail!("saved no wheel"),
        (Some(_), Some(_)) => bail!("saved more than one wheel"),
    }
}

/// Bytes of everything readable at the moment: pip moves files meanwhile.
pub fn size_of_tree(directory: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(directory) else { return 0 };
    let size = |entry: fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => size_of_tree(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    };
    entries.flatten().map(size).sum()
}

#[cfg(test)]
mod tests;

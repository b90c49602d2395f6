//! Paths of the parts of an installed program, for installing and finding them.
//!
//! ```text
//! ROOT/bin/photofinish
//! ROOT/share/photofinish/   the data directory
//!     build.json            the source of the build
//!     configs/              as in the repository
//!     references/python/    workers in Python
//!     sources/              packages of workers, to build them with other versions of their frameworks
//!     workers/              engine-candle, engine-ort, engine-tch, prepare, …
//! ```
//!
//! No file refers to another by an absolute path, so a root can be moved as a whole.

#[cfg(test)]
mod install_tests;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Error, Result, bail};
use serde::{Deserialize, Serialize};

use crate::download::Archive;
use crate::pins::{Pin, Wheel};
use crate::receipt::{self, Look, Receipt, State};
use crate::tooling::{self, BadInput, Reporter};

/// The program that people run.
pub const PROGRAM: &str = "photofinish";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    data: PathBuf,
}

impl Layout {
    pub fn at(data: impl Into<PathBuf>) -> Self {
        Self { data: data.into() }
    }

    /// The layout of an installation below `root`, with programs in `root/bin`.
    pub fn below(root: &Path) -> Self {
        Self::at(root.join("share").join(PROGRAM))
    }

    /// The layout that was installed together with the program at `executable`.
    pub fn beside(executable: &Path) -> Option<Self> {
        let layout = Self::below(executable.parent()?.parent()?);
        layout.is_there().then_some(layout)
    }

    pub fn is_there(&self) -> bool {
        self.configs().join("engines").is_dir()
    }

    pub fn data(&self) -> &Path {
        &self.data
    }

    pub fn configs(&self) -> PathBuf {
        self.data.join("configs")
    }

    /// Sources of workers, to build them with other versions of their frameworks.
    pub fn sources(&self) -> PathBuf {
        self.data.join("sources")
    }

    pub fn workers(&self) -> PathBuf {
        self.data.join("workers")
    }

    /// The record of the installation's build, if it has one.
    pub fn build(&self) -> Option<BuildRecord> {
        serde_json::from_slice(&fs::read(self.data.join(BUILD)).ok()?).ok()
    }

    pub fn write_build(&self, record: &BuildRecord) -> Result<()> {
        let file = self.data.join(BUILD);
        let text = serde_json::to_string_pretty(record)? + "\n";
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))
    }
}

const BUILD: &str = "build.json";

/// The source of an installation's build. A checkout asks git instead, and each worker reports its own
/// compiler and flags.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuildRecord {
    pub version: String,
    /// `None` if git did not know it.
    pub git_commit: Option<String>,
    pub git_modified: Option<bool>,
    /// The compiler's flags, if they are not those of the repository.
    pub rustflags: Option<String>,
    /// The user's own libtorch, if the workers were built with one.
    pub libtorch: Option<PathBuf>,
}

// The directories of a user, by the XDG Base Directory Specification.

/// Our directories in those of the user, according to the environment. None of them need exist.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Home {
    /// `${XDG_CACHE_HOME:-~/.cache}/photofinish`: libraries, models, references.
    pub cache: Option<PathBuf>,
    /// `${XDG_DATA_HOME:-~/.local/share}/photofinish`: files of `cargo xtask install`.
    pub data: Option<PathBuf>,
    /// `${XDG_CONFIG_HOME:-~/.config}/photofinish`: the user's own engines, models and suites.
    pub config: Option<PathBuf>,
    /// `~/.local/bin`, the user's programs. The specification has no variable for it.
    pub programs: Option<PathBuf>,
}

impl Home {
    pub fn from_environment() -> Self {
        Self::from_variables(|name| match name {
            // Without HOME, the system's user database still has it.
            "HOME" => std::env::home_dir().map(PathBuf::into_os_string),
            name => std::env::var_os(name),
        })
    }

    /// A relative path counts as not set, as the specification requires.
    pub fn from_variables(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let path = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let home = path("HOME");
        let below = |usual| home.as_ref().map(|home| home.join(usual));
        let ours = |name, usual| Some(path(name).or_else(|| below(usual))?.join(PROGRAM));
        Self {
            cache: ours("XDG_CACHE_HOME", ".cache"),
            data: ours("XDG_DATA_HOME", ".local/share"),
            config: ours("XDG_CONFIG_HOME", ".config"),
            programs: below(".local/bin"),
        }
    }
}

// Installing pieces: fetch what they lack together, then for each verify, unpack next to its place, move in.

/// A piece to install, or the packages of a model.
pub(crate) struct Wanted {
    pub(crate) name: String,
    pub(crate) pin: Pin,
    /// The tags that pip accepts.
    pub(crate) tags: Vec<String>,
    /// The alternative for people without a network.
    pub(crate) instead: String,
}

/// The source of archives: module `download`, or a test. It may use the directory as it likes.
pub(crate) type Fetch<'a> = &'a dyn Fn(&[(&Wanted, &Wheel)], &Path) -> Result<Vec<Result<Archive>>>;

/// Installs those that are not there, and needs neither network nor write access if all are. One that cannot be
/// installed stops no other: its error is returned.
pub(crate) fn install(
    cache: &Path,
    wanted: &[Wanted],
    fetch: Fetch<'_>,
    reporter: Reporter,
) -> Result<BTreeMap<String, Error>> {
    let is_missing = |wanted: &&Wanted| match receipt::state(cache, &wanted.name, &wanted.pin, Look::Usual) {
        State::Whole => false,
        State::Missing => true,
        State::Damaged(what) => {
            reporter.warn(&format!("{what}; {} is installed again", wanted.name));
            true
        }
    };
    let mut missing: Vec<&Wanted> = wanted.iter().filter(is_missing).collect();
    let mut failures = BTreeMap::new();
    if missing.is_empty() {
        return Ok(failures);
    }
    let lock = receipt::lock(cache, reporter)?;
    // Another set-up may have installed them while this one waited.
    missing.retain(|wanted| !receipt::is_whole(cache, &wanted.name, &wanted.pin));
    if missing.is_empty() {
        return Ok(failures);
    }
    let staging = receipt::directory(cache, &lock)?;
    let mut archives = fetched(&missing, fetch, &staging.path().join("download"))?;
    for (number, &one) in missing.iter().enumerate() {
        let staged = staging.path().join(number.to_string());
        if let Err(error) = unpack(cache, one, &archives, &staged, reporter) {
            failures.insert(one.name.clone(), error);
            continue;
        }
        // Pieces may share an archive.
        let is_needed = |name: &str| {
            missing[number + 1..]
                .iter()
                .flat_map(|later| &later.pin.wheels)
                .any(|wheel| wheel.requirement == name)
        };
        for wheel in one.pin.wheels.iter().filter(|wheel| !is_needed(&wheel.requirement)) {
            if let Some(Ok(archive)) = archives.remove(wheel.requirement.as_str()) {
                discard(cache, &archive.file);
            }
        }
    }
    Ok(failures)
}

/// All archives of these pieces, by requirement.
fn fetched<'a>(
    wanted: &[&'a Wanted],
    fetch: Fetch<'_>,
    scratch: &Path,
) -> Result<BTreeMap<&'a str, Result<Archive>>> {
    let each = wheels(wanted.iter().copied());
    fs::create_dir(scratch)?;
    let archives = fetch(&each, scratch)?;
    // The first error would be that of a client that was ended.
    tooling::check()?;
    Ok(each.iter().map(|(_, wheel)| wheel.requirement.as_str()).zip(archives).collect())
}

/// The wheels of these pieces, each once.
pub(crate) fn wheels<'a>(wanted: impl Iterator<Item = &'a Wanted>) -> Vec<(&'a Wanted, &'a Wheel)> {
    let all = wanted.flat_map(|wanted| wanted.pin.wheels.iter().map(move |wheel| (wanted, wheel)));
    let mut seen = BTreeSet::new();
    all.filter(|(_, wheel)| seen.insert(&wheel.requirement)).collect()
}

/// Deletes an archive, unless it is in a mirror, and its directory with the last one.
fn discard(cache: &Path, file: &Path) {
    if file.starts_with(cache) {
        let _ = fs::remove_file(file);
        let _ = file.parent().map(fs::remove_dir);
    }
}

fn unpack(
    cache: &Path,
    Wanted { name: piece, pin, .. }: &Wanted,
    archives: &BTreeMap<&str, Result<Archive>>,
    staging: &Path,
    reporter: Reporter,
) -> Result<()> {
    let staged = staging.join("piece");
    fs::create_dir_all(&staged)?;
    let mut files = BTreeSet::new();
    let mut pin = pin.clone();
    for wheel in &mut pin.wheels {
        let file = match &archives[wheel.requirement.as_str()] {
            Ok(archive) => &archive.file,
            // Another piece may need the same archive, and say the same.
            Err(error) if tooling::is_bad_input(error) => bail!(BadInput(format!("{error:#}"))),
            Err(error) => bail!("{error:#}"),
        };
        reporter.note(&format!("unpacking {}", wheel.requirement));
        // A download that is wrong cannot be continued.
        wheel.sha256 = receipt::verify(file, wheel).inspect_err(|_| discard(cache, file))?;
        receipt::extract(file, wheel, &staged, &mut files)
            .with_context(|| format!("wheel of {}", wheel.requirement))?;
    }
    for (name, text) in &pin.write {
        let file = staged.join(name);
        fs::create_dir_all(file.parent().unwrap_or(&staged))?;
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
        files.insert(name.clone());
    }
    let (place, receipt) = (cache.join(&pin.directory), receipt::file_name(piece));
    Receipt::of_files(pin, &staged, files)?.write(&staging.join(&receipt))?;
    publish(staging, &staged, &place, &receipt)
        .with_context(|| format!("cannot move {piece} into {}", cache.display()))
}

/// Moves a staged piece to its place. The old receipt is removed first and the new one comes last: at no
/// moment is there a receipt next to files other than those that it lists. Other files in the directory are
/// left alone.
fn publish(staging: &Path, staged: &Path, place: &Path, receipt: &str) -> std::io::Result<()> {
    fs::create_dir_all(place)?;
    remove(&place.join(receipt))?;
    for entry in fs::read_dir(staged)? {
        let entry = entry?;
        let target = place.join(entry.file_name());
        remove(&target)?;
        fs::rename(entry.path(), target)?;
    }
    fs::rename(staging.join(receipt), place.join(receipt))
}

fn remove(path: &Path) -> std::io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cache, data, configuration and programs.
    fn home(variables: &[(&str, &str)]) -> [Option<String>; 4] {
        let home = Home::from_variables(|asked| {
            variables.iter().find(|(name, _)| *name == asked).map(|(_, value)| value.into())
        });
        [home.cache, home.data, home.config, home.programs].map(|path| Some(path?.display().to_string()))
    }

    #[test]
    fn directories_are_below_home_unless_xdg_names_others() {
        let usual = [
            "/h/.cache/photofinish",
            "/h/.local/share/photofinish",
            "/h/.config/photofinish",
            "/h/.local/bin",
        ];
        let usual = usual.map(|path| Some(path.to_owned()));
        let [_, _, config, programs] = usual.clone();
        let ours = |path: &str| Some(format!("{path}/photofinish"));
        let named = [ours("/x"), ours("/d"), config, programs];
        assert_eq!(home(&[("HOME", "/h")]), usual);
        assert_eq!(home(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x"), ("XDG_DATA_HOME", "/d")]), named);
        // A relative path counts as not set.
        assert_eq!(home(&[("HOME", "/h"), ("XDG_CONFIG_HOME", "mine"), ("XDG_CACHE_HOME", "")]), usual);
        assert_eq!(home(&[]), [const { None }; 4]);
    }
}

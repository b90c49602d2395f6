//! Paths of the parts of an installed program, for installing and finding them.
//!
//! ```text
//! ROOT/bin/photofinish
//! ROOT/share/photofinish/   the data directory
//! build.json            the source of the build
//!     configs/              as in the repository
//!     references/python/    workers in Python
//!     sources/              packages of workers, to build them with other versions of their frameworks
//!     workers/              engine-candle, engine-ort, engine-tch, prepare, …
//! ```
//!
//! No file refers to another by an absolute path, so a root can be moved as a whole.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// The program that people run.
pub const PROGRAM: &str = "photofinish";

/// The data directory of an installation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    data: PathBuf,
}

impl Layout {
    /// The layout at `data`.
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

    /// Whether something is installed there.
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
        serde_json::from_slice(&std::fs::read(self.data.join(BUILD)).ok()?).ok()
    }

    pub fn write_build(&self, record: &BuildRecord) -> Result<()> {
        let file = self.data.join(BUILD);
        let text = serde_json::to_string_pretty(record)? + "\n";
        std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_finds_what_was_installed_with_it() {
        let root = tempfile::tempdir().unwrap();
        let program = root.path().join("bin").join(PROGRAM);
        assert_eq!(Layout::beside(&program), None);
        let layout = Layout::below(root.path());
        std::fs::create_dir_all(layout.configs().join("engines")).unwrap();
        assert_eq!(Layout::beside(&program), Some(layout));
    }

    #[test]
    fn the_record_of_a_build_is_read_back() {
        let directory = tempfile::tempdir().unwrap();
        let layout = Layout::at(directory.path());
        assert_eq!(layout.build(), None);
        let record =
            BuildRecord { version: "1.0".into(), git_commit: Some("ab".into()), ..BuildRecord::default() };
        layout.write_build(&record).unwrap();
        assert_eq!(layout.build(), Some(record));
    }
}

//! The program `hub`, which fetches files. It is in the directory of this program, if it was built or
//! installed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::progress::Progress;

pub(super) struct Program {
    path: PathBuf,
    progress: Progress,
}

/// The hub's description of a repository.
#[derive(Deserialize)]
pub(super) struct Listing {
    pub(super) commit: String,
    pub(super) files: BTreeSet<String>,
}

#[derive(Deserialize)]
struct Refusal {
    error: String,
}

impl Program {
    /// The error says how to get the program.
    pub(super) fn find(progress: Progress) -> Result<Program, String> {
        let own = std::env::current_exe()
            .map_err(|e| format!("the directory of `hub`, which downloads models, cannot be told: {e}"))?;
        let path = own.with_file_name(format!("hub{}", std::env::consts::EXE_SUFFIX));
        if path.is_file() { Ok(Program { path, progress }) } else { Err(absence(&own)) }
    }

    pub(super) fn list(&self, repository: &str, cache: &Path) -> Result<Listing, String> {
        let output = self.run(cache, &["--", repository])?;
        parse(output.lines().next().unwrap_or_default())
    }

    /// Puts these files of one commit into the cache.
    pub(super) fn fetch(
        &self,
        repository: &str,
        cache: &Path,
        commit: &str,
        files: &[String],
    ) -> Result<(), String> {
        let mut arguments = vec!["--revision", commit, "--", repository];
        arguments.extend(files.iter().map(String::as_str));
        self.run(cache, &arguments).map(drop)
    }

    /// Returns its stdout. Its progress is shown.
    fn run(&self, cache: &Path, arguments: &[&str]) -> Result<String, String> {
        #[expect(clippy::disallowed_methods, reason = "what fetches is a program of its own")]
        let mut command = Command::new(&self.path);
        command.arg("--cache").arg(cache);
        if self.progress == Progress::Silent {
            command.arg("--quiet");
        }
        command.args(arguments).stdin(Stdio::null()).stderr(Stdio::inherit());
        let output = command.output().map_err(|e| format!("cannot start {}: {e}", self.path.display()))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            return Ok(text);
        }
        let last = text.lines().next_back().unwrap_or_default();
        Err(match parse::<Refusal>(last) {
            Ok(refusal) => refusal.error,
            Err(_) => format!("the program `hub` gave no reason why it ended with {}", output.status),
        })
    }
}

fn parse<T: DeserializeOwned>(line: &str) -> Result<T, String> {
    serde_json::from_str(line).map_err(|e| format!("the program `hub` printed something unexpected: {e}"))
}

/// The message for a missing `hub` next to `own`. An installation has its workers next to its configurations.
fn absence(own: &Path) -> String {
    let directory = own.parent().unwrap_or(own);
    let is_installed =
        directory.ends_with("workers") && directory.with_file_name("configs").join("engines").is_dir();
    let remedy = if is_installed {
        "installed: install it with `cargo xtask install --hub`"
    } else {
        "built: run `cargo xtask build --hub`"
    };
    format!("the program `hub`, which downloads models, is not {remedy}")
}

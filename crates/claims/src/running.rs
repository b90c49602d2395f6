//! Runs a claim's studies, and stores their results.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result};
use tooling::process::{cause, command, output_of, status_of};
use tooling::{BadInput, interrupt};

use crate::claim::{Claim, Run};
use crate::kept::{self, RunRecord};

/// The settings of every run.
pub struct Runner {
    pub root: PathBuf,
    pub photofinish: PathBuf,
    /// The workers of another build.
    pub workers: Option<PathBuf>,
    /// One round of each; nothing is stored.
    pub look: bool,
}

/// A run that has ended, and where to store it.
struct Finished {
    archive: PathBuf,
    name: String,
    /// The directory of its results.
    study: Option<PathBuf>,
    record: RunRecord,
    /// Paths of this machine, and their replacements in the stored files.
    paths: Vec<(String, String)>,
}

impl Runner {
    /// Runs every study of these claims, one after another. Results are stored after the last study, also
    /// those from before an error: a stored file changes the checkout, which would mark every later run.
    pub fn run(&self, claims: &[&Claim]) -> Result<()> {
        interrupt::listen()?;
        self.warn_of_changes();
        let mut finished = Vec::new();
        let ran = self.run_all(claims, &mut finished);
        for Finished { archive, name, study, record, paths } in finished {
            let runs = kept::unpack(&archive)?;
            kept::keep(study.as_deref(), &runs.path().join(name), record, &paths)?;
            kept::pack(runs.path(), &archive)?;
        }
        ran
    }

    fn run_all(&self, claims: &[&Claim], finished: &mut Vec<Finished>) -> Result<()> {
        for claim in claims {
            for run in &claim.runs {
                finished.extend(self.run_one(claim, run)?);
            }
        }
        Ok(())
    }

    fn warn_of_changes(&self) {
        let mut status = command("git");
        status.current_dir(&self.root).args(["status", "--porcelain", "--untracked-files=no"]);
        if !self.look && output_of(&mut status).is_ok_and(|changed| !changed.trim().is_empty()) {
            eprintln!(
                "the checkout has local changes: the page will ask for these runs again. Commit them first"
            );
        }
    }

    /// `None` for a look, which stores nothing.
    fn run_one(&self, claim: &Claim, run: &Run) -> Result<Option<Finished>> {
        let place = self.root.join("target/claims").join(claim.directory()).join(&run.name);
        if place.exists() {
            fs::remove_dir_all(&place).with_context(|| format!("cannot remove {}", place.display()))?;
        }
        fs::create_dir_all(&place).with_context(|| format!("cannot make {}", place.display()))?;
        let words = run.words().map_err(BadInput)?;
        let words = if self.look { at_a_look(words) } else { words };
        eprintln!("claim {}, {}: photofinish {}", claim.number, run.name, words.join(" "));
        let log = place.join("stderr.txt");
        let mut photofinish = command(&self.photofinish);
        photofinish.current_dir(&self.root).args(&words).arg("--results-dir").arg(&place);
        if let Some(workers) = &self.workers {
            photofinish.arg("--workers").arg(workers);
        }
        let written = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        photofinish.stdout(fs::File::create(place.join("stdout.txt"))?).stderr(written);
        let begun = SystemTime::now();
        let status = status_of(&mut photofinish)?;
        let seconds = begun.elapsed().unwrap_or_default().as_secs_f64();
        let study = study(&place);
        let refused = match &study {
            Some(_) => None,
            None => Some(cause(&fs::read(&log)?).unwrap_or_else(|| status.to_string())),
        };
        let exit_code = status.code();
        let told = refused.clone().unwrap_or_else(|| format!("exit code {}", exit_code.unwrap_or(-1)));
        eprintln!("  {seconds:.0} s: {told}");
        if refused.is_some() {
            eprintln!("  its messages: {}", log.display());
        }
        if self.look {
            return Ok(None);
        }
        let Run { command, revision, .. } = run.clone();
        let record = RunRecord { command, revision, exit_code, seconds, refused, left_out: Vec::new() };
        let (archive, name) = (self.root.join(kept::archive(claim)), run.name.clone());
        Ok(Some(Finished { archive, name, study, record, paths: self.paths(&place) }))
    }

    /// Paths of this machine, and their replacements in the stored files.
    fn paths(&self, place: &Path) -> Vec<(String, String)> {
        let mut paths = vec![
            (self.photofinish.display().to_string(), "photofinish".to_owned()),
            (format!("{}/", place.display()), String::new()),
            (place.display().to_string(), ".".to_owned()),
            (self.root.display().to_string(), ".".to_owned()),
            // Each process writes its parity below.
            (format!("{}/", std::env::temp_dir().display()), "{tmp}/".to_owned()),
        ];
        paths
            .extend(self.workers.iter().map(|workers| (workers.display().to_string(), "WORKERS".to_owned())));
        if let Some(home) = std::env::var_os("HOME") {
            paths.push((home.to_string_lossy().into_owned(), "~".to_owned()));
        }
        paths
    }
}

/// The directory of the study, if it got as far as a report.
fn study(place: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(place).ok()?.flatten().map(|entry| entry.path());
    let mut found: Vec<PathBuf> = entries.filter(|path| path.join("report.json").is_file()).collect();
    found.sort();
    found.pop()
}

/// The same command with one round, noise accepted: to test it and to see how long a round takes.
fn at_a_look(words: Vec<String>) -> Vec<String> {
    let mut look: Vec<String> = Vec::new();
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--rounds" => drop(words.next()),
            "--accept-noise" => {}
            _ => look.push(word),
        }
    }
    look.extend(["--rounds", "1", "--accept-noise", "--quiet-timeout", "0"].map(str::to_owned));
    look
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_is_one_round_whatever_the_claim_asks_for() {
        let words =
            ["ab", "jax", "jax-neither", "--rounds", "6", "--accept-noise"].map(str::to_owned).to_vec();
        let expected =
            ["ab", "jax", "jax-neither", "--rounds", "1", "--accept-noise", "--quiet-timeout", "0"];
        assert_eq!(at_a_look(words), expected);
    }
}

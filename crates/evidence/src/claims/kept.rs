//! The stored results of a claim's runs: `results/published/claims/NN.tar.gz` with a directory for each run, small, and
//! without the paths of the machine.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result};
use comparison::facts::Environment;
use comparison::judge;
use comparison::judge::study::StudyReport;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde::{Deserialize, Serialize};
use setup::tooling::process::{cause, command, output_of, status_of};
use setup::tooling::{self, BadInput};
use tempfile::TempDir;

use crate::claims::claim::{Claim, Run, first_revision};

/// Where the runs are, from the root of the checkout.
pub const RESULTS: &str = "results/published/claims";

/// Most bytes to store of one run. The page lists the parts left out.
const MOST: u64 = 300_000;

const RECORD: &str = "run.json";

const REPORT: &str = "report.json";

const ENVIRONMENT: &str = "environment.json";

/// Files of a study that are always stored. `photofinish report` makes its page again.
const ALWAYS: [&str; 2] = [REPORT, "report.md"];

/// Files of each cell: with these two, `photofinish report` makes every output of it again.
const EVIDENCE: [&str; 2] = ["plan.json", "samples.jsonl"];

/// How a run went.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    /// The claim's command at that time, and its revision.
    pub command: String,
    #[serde(default = "first_revision")]
    pub revision: u32,
    pub exit_code: Option<i32>,
    /// Wall time in seconds.
    pub seconds: f64,
    /// The reason why there is no report.
    pub refused: Option<String>,
    /// The parts left out for their size.
    pub left_out: Vec<String>,
}

/// A stored run.
#[derive(Debug, Clone)]
pub struct Kept {
    pub record: RunRecord,
    pub report: Option<StudyReport>,
    pub environment: Option<Environment>,
}

impl Kept {
    /// Why its figures are of another study than `run` as it is in the claim now.
    pub(crate) fn changed(&self, run: &Run) -> Option<String> {
        let what = if self.record.command != run.command {
            format!("its command was `{}`", self.record.command)
        } else if self.record.revision != run.revision {
            run.changed.clone().unwrap_or_else(|| "its revision".to_owned())
        } else {
            return None;
        };
        Some(format!("its study has changed since: {what}"))
    }

    /// Why this must be measured again for `run`: also because no commit has the checkout that it ran in.
    pub(crate) fn due(&self, run: &Run) -> Option<String> {
        let is_clean = self.record.refused.is_some() || matches!(self.checkout(), (Some(_), Some(false)));
        let unclean = (!is_clean).then(|| format!("its figures are of {}", self.described()));
        self.changed(run).or(unclean)
    }

    /// The commit that it was run on, and whether tracked files differed from it, in any cell.
    fn checkout(&self) -> (Option<&str>, Option<bool>) {
        let Some(environment) = &self.environment else { return (None, None) };
        let cells = self.report.iter().flat_map(|report| &report.cells);
        let is_modified = cells.map(|cell| cell.origin.git_modified).chain([environment.git_modified]);
        let is_modified: Vec<bool> = is_modified.flatten().collect();
        let any = (!is_modified.is_empty()).then(|| is_modified.contains(&true));
        (environment.git_commit.as_deref(), any)
    }

    /// "commit 6c327bdcf, clean", for people.
    pub(crate) fn described(&self) -> String {
        let (commit, is_modified) = self.checkout();
        let Some(commit) = commit else { return "an unknown commit".to_owned() };
        let short: String = commit.chars().take(9).collect();
        let state = match is_modified {
            Some(false) => "clean",
            Some(true) => "with local changes",
            None => "unknown whether clean",
        };
        format!("commit {short}, {state}")
    }
}

/// The archive of a claim's runs, from the root of the checkout.
pub fn archive(claim: &Claim) -> PathBuf {
    Path::new(RESULTS).join(format!("{}.tar.gz", claim.directory()))
}

/// The runs of an archive, each in a directory of its name; none if there is no archive.
pub fn unpack(archive: &Path) -> Result<TempDir> {
    let place = tempfile::tempdir()?;
    if archive.is_file() {
        let file = fs::File::open(archive).with_context(|| archive.display().to_string())?;
        let unpacked = tar::Archive::new(GzDecoder::new(file)).unpack(place.path());
        unpacked.with_context(|| archive.display().to_string())?;
    }
    Ok(place)
}

/// Packs the runs in `place`. Equal files give equal archives.
pub fn pack(place: &Path, archive: &Path) -> Result<()> {
    let mut open = vec![place.to_owned()];
    let mut files = Vec::new();
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(&directory).with_context(|| directory.display().to_string())? {
            let path = entry?.path();
            if path.is_dir() { open.push(path) } else { files.push(path) }
        }
    }
    files.sort();
    let cannot = || format!("cannot write {}", archive.display());
    let file = fs::File::create(archive).with_context(cannot)?;
    let mut tar = tar::Builder::new(GzEncoder::new(file, Compression::best()));
    for path in files {
        let bytes = fs::read(&path).with_context(|| path.display().to_string())?;
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, path.strip_prefix(place)?, bytes.as_slice()).with_context(cannot)?;
    }
    tar.into_inner().and_then(GzEncoder::finish).with_context(cannot)?;
    Ok(())
}

/// Reads a run of an unpacked archive. `None` if it was never run; the error names the file that is wrong.
pub fn read(unpacked: &Path, run: &Run) -> Result<Option<Kept>> {
    let directory = unpacked.join(&run.name);
    let Some(record) = json(&directory.join(RECORD))? else { return Ok(None) };
    let record =
        serde_json::from_value(record).with_context(|| directory.join(RECORD).display().to_string())?;
    let report = match json(&directory.join(REPORT))? {
        Some(value) => {
            let read = judge::study::read(value).map_err(anyhow::Error::msg);
            Some(read.with_context(|| directory.join(REPORT).display().to_string())?)
        }
        None => None,
    };
    let environment = json(&directory.join(ENVIRONMENT))?.map(serde_json::from_value).transpose()?;
    Ok(Some(Kept { record, report, environment }))
}

fn json(file: &Path) -> Result<Option<serde_json::Value>> {
    if !file.is_file() {
        return Ok(None);
    }
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    serde_json::from_str(&text).map(Some).with_context(|| file.display().to_string())
}

/// Copies the files of a study in `study` (if there are any) to `kept`, and replaces earlier ones there.
/// `paths` are the machine's, each with its replacement.
pub fn keep(
    study: Option<&Path>,
    kept: &Path,
    mut record: RunRecord,
    paths: &[(String, String)],
) -> Result<()> {
    if kept.exists() {
        fs::remove_dir_all(kept).with_context(|| format!("cannot remove {}", kept.display()))?;
    }
    let cells = study.map(cells).transpose()?.unwrap_or_default();
    let named = cells.iter().enumerate().map(|(index, cell)| (cell.display().to_string(), cell_name(index)));
    let paths: Vec<_> = paths.iter().cloned().chain(named).collect();
    let mut room = Room { kept, left: MOST, paths: &paths };
    if let Some(study) = study {
        for name in ALWAYS {
            room.take(&study.join(name), name)?;
        }
        if let Some(first) = cells.first() {
            room.take(&first.join(ENVIRONMENT), ENVIRONMENT)?;
        }
        let named = |(index, cell): (usize, &PathBuf)| {
            EVIDENCE.map(|name| (cell.join(name), format!("{}/{name}", cell_name(index))))
        };
        let evidence: Vec<(PathBuf, String)> = cells.iter().enumerate().flat_map(named).collect();
        if !room.take_if_it_fits(&evidence)? {
            let files: Vec<PathBuf> = evidence.into_iter().map(|(file, _)| file).collect();
            record.left_out.push(format!("the samples ({})", kilobytes(&files)));
        }
    }
    let text = serde_json::to_string_pretty(&record)? + "\n";
    room.write(RECORD, &plain(&text, &paths))
}

fn cell_name(index: usize) -> String {
    format!("cell-{}", index + 1)
}

/// Directories of a study's cells, in the order in which they were measured: their names begin with the time.
fn cells(study: &Path) -> Result<Vec<PathBuf>> {
    let mut cells: Vec<PathBuf> = fs::read_dir(study)
        .with_context(|| study.display().to_string())?
        .flatten()
        .map(|entry| entry.path())
        .collect();
    cells.retain(|cell| cell.join(ENVIRONMENT).is_file());
    cells.sort();
    Ok(cells)
}

struct Room<'a> {
    kept: &'a Path,
    left: u64,
    paths: &'a [(String, String)],
}

impl Room<'_> {
    fn take(&mut self, file: &Path, name: &str) -> Result<()> {
        let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        self.left = self.left.saturating_sub(text.len() as u64);
        self.write(name, &plain(&text, self.paths))
    }

    /// Copies all of these, or none.
    fn take_if_it_fits(&mut self, files: &[(PathBuf, String)]) -> Result<bool> {
        let fits = size(files.iter().map(|(file, _)| file)) <= self.left;
        for (file, name) in files.iter().filter(|(file, _)| fits && file.is_file()) {
            self.take(file, name)?;
        }
        Ok(fits)
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        let file = self.kept.join(name);
        let directory = file.parent().unwrap_or(self.kept);
        fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))
    }
}

fn size<'a>(files: impl Iterator<Item = &'a PathBuf>) -> u64 {
    files.filter_map(|file| fs::metadata(file).ok()).map(|data| data.len()).sum()
}

fn kilobytes(files: &[PathBuf]) -> String {
    format!("{} kB", size(files.iter()).div_ceil(1000))
}

/// Text without paths of the machine. Longer ones come first: one may be below another.
fn plain(text: &str, paths: &[(String, String)]) -> String {
    let mut paths: Vec<_> = paths.iter().filter(|(path, _)| path.len() > 1).collect();
    paths.sort_by_key(|(path, _)| std::cmp::Reverse(path.len()));
    paths.iter().fold(text.to_owned(), |text, (path, stands)| text.replace(path.as_str(), stands))
}

// Runs a claim's studies, and stores their results.

/// The settings of every run.
pub struct Runner {
    pub root: PathBuf,
    pub photofinish: PathBuf,
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
        tooling::listen()?;
        self.warn_of_changes();
        let mut finished = Vec::new();
        let ran = self.run_all(claims, &mut finished);
        for Finished { archive, name, study, record, paths } in finished {
            let runs = unpack(&archive)?;
            keep(study.as_deref(), &runs.path().join(name), record, &paths)?;
            pack(runs.path(), &archive)?;
        }
        ran
    }

    fn run_all(&self, claims: &[&Claim], finished: &mut Vec<Finished>) -> Result<()> {
        for claim in claims {
            for run in &claim.runs {
                finished.push(self.run_one(claim, run)?);
            }
        }
        Ok(())
    }

    fn warn_of_changes(&self) {
        let mut status = command("git");
        status.current_dir(&self.root).args(["status", "--porcelain", "--untracked-files=no"]);
        if output_of(&mut status).is_ok_and(|changed| !changed.trim().is_empty()) {
            eprintln!(
                "the checkout has local changes: the page will ask for these runs again. Commit them first"
            );
        }
    }

    fn run_one(&self, claim: &Claim, run: &Run) -> Result<Finished> {
        let place = self.root.join("target/claims").join(claim.directory()).join(&run.name);
        if place.exists() {
            fs::remove_dir_all(&place).with_context(|| format!("cannot remove {}", place.display()))?;
        }
        fs::create_dir_all(&place).with_context(|| format!("cannot make {}", place.display()))?;
        let words = run.words().map_err(BadInput)?;
        eprintln!("claim {}, {}: photofinish {}", claim.number, run.name, words.join(" "));
        let log = place.join("stderr.txt");
        let mut photofinish = command(&self.photofinish);
        photofinish.current_dir(&self.root).args(&words).arg("--results-dir").arg(&place);
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
        let Run { command, revision, .. } = run.clone();
        let record = RunRecord { command, revision, exit_code, seconds, refused, left_out: Vec::new() };
        let (archive, name) = (self.root.join(self::archive(claim)), run.name.clone());
        Ok(Finished { archive, name, study, record, paths: self.paths(&place) })
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

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> RunRecord {
        RunRecord {
            command: "photofinish x".into(),
            revision: 1,
            exit_code: Some(0),
            seconds: 1.0,
            refused: None,
            left_out: vec![],
        }
    }

    /// A study of one cell with samples of this size.
    fn study(samples: usize) -> tempfile::TempDir {
        let study = tempfile::tempdir().unwrap();
        let cell = study.path().join("2026-cell");
        fs::create_dir(&cell).unwrap();
        fs::write(study.path().join("report.md"), "below /some/where/x").unwrap();
        fs::write(study.path().join("report.json"), "{}").unwrap();
        fs::write(study.path().join("report.html"), "page").unwrap();
        fs::write(cell.join("environment.json"), "{}").unwrap();
        fs::write(cell.join("plan.json"), "{}").unwrap();
        fs::write(cell.join("samples.jsonl"), "x".repeat(samples)).unwrap();
        study
    }

    #[test]
    fn a_small_run_is_kept_whole_without_paths_of_the_machine() {
        let (study, kept) = (study(100), tempfile::tempdir().unwrap());
        let kept = kept.path().join("01/both");
        let paths = [("/some".to_owned(), "A".to_owned()), ("/some/where".to_owned(), "B".to_owned())];
        keep(Some(study.path()), &kept, record(), &paths).unwrap();
        assert_eq!(fs::read_to_string(kept.join("report.md")).unwrap(), "below B/x");
        assert!(kept.join("cell-1/samples.jsonl").is_file() && !kept.join("report.html").is_file());
        let read: RunRecord = serde_json::from_str(&fs::read_to_string(kept.join(RECORD)).unwrap()).unwrap();
        assert_eq!(read, record());
    }

    #[test]
    fn samples_that_are_too_large_are_left_out_and_named() {
        let (study, kept) = (study(400_000), tempfile::tempdir().unwrap());
        keep(Some(study.path()), kept.path(), record(), &[]).unwrap();
        assert!(!kept.path().join("cell-1").exists());
        let text = fs::read_to_string(kept.path().join(RECORD)).unwrap();
        assert!(text.contains("the samples (401 kB)"), "{text}");
    }

    fn run() -> Run {
        Run { name: "r".into(), command: "photofinish x".into(), revision: 1, changed: None }
    }

    fn of_checkout(git_modified: Option<bool>) -> Kept {
        let git_commit = Some("0123456789abcdef".to_owned());
        let environment = Some(Environment { git_commit, git_modified, ..Environment::default() });
        Kept { record: record(), report: None, environment }
    }

    #[test]
    fn what_is_kept_counts_for_the_same_study_on_a_clean_commit() {
        assert_eq!(of_checkout(Some(false)).due(&run()), None);
        let unclean = "its figures are of commit 012345678, with local changes";
        assert_eq!(of_checkout(Some(true)).due(&run()).as_deref(), Some(unclean));
        assert!(of_checkout(None).due(&run()).is_some(), "unknown is not clean");
        let other = Run { command: "photofinish y".into(), ..run() };
        assert!(of_checkout(Some(false)).changed(&other).is_some());
        let raised = Run { revision: 2, changed: Some("why".into()), ..run() };
        assert_eq!(of_checkout(Some(false)).due(&raised), Some("its study has changed since: why".into()));
    }

    #[test]
    fn what_is_packed_is_unpacked_and_equal_files_give_equal_archives() {
        let place = tempfile::tempdir().unwrap();
        let archives = ["a.tar.gz", "b.tar.gz"].map(|name| place.path().join(name));
        keep(Some(study(10).path()), &place.path().join("runs/both"), record(), &[]).unwrap();
        archives.iter().for_each(|archive| pack(&place.path().join("runs"), archive).unwrap());
        assert_eq!(fs::read(&archives[0]).unwrap(), fs::read(&archives[1]).unwrap());
        let unpacked = unpack(&archives[0]).unwrap();
        assert!(unpacked.path().join("both/cell-1/samples.jsonl").is_file());
        assert!(unpack(&place.path().join("none")).unwrap().path().read_dir().unwrap().next().is_none());
    }

    #[test]
    fn a_run_that_was_refused_leaves_its_reason_alone() {
        let kept = tempfile::tempdir().unwrap();
        fs::write(kept.path().join("report.md"), "of an older run").unwrap();
        let refused = RunRecord { refused: Some("no such model".into()), exit_code: Some(2), ..record() };
        keep(None, kept.path(), refused, &[]).unwrap();
        let names: Vec<_> =
            fs::read_dir(kept.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, [RECORD]);
    }
}

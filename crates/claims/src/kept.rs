//! The stored results of a run: `results/published/claims/NN/RUN/`, small, and without the paths of the
//! machine.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use facts::Environment;
use judge::study::StudyReport;
use serde::{Deserialize, Serialize};

use crate::claim::{Claim, Run, first_revision};
use crate::verdict::Due;

/// Where the runs are, from the root of the checkout.
pub const RESULTS: &str = "results/published/claims";
/// Most bytes to store of one run. The page lists the parts left out.
const MOST: u64 = 300_000;

const RECORD: &str = "run.json";
const REPORT: &str = "report.json";
const ENVIRONMENT: &str = "environment.json";
/// Files of a study that are always stored, and the one that is stored if there is room.
const ALWAYS: [&str; 2] = [REPORT, "report.md"];
const PAGE: &str = "report.html";
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
    /// Whether there is a page next to the report.
    pub has_page: bool,
}

impl Kept {
    /// Why this must be measured again for `run` as it is in the claim now.
    pub(crate) fn due(&self, run: &Run) -> Option<Due> {
        if self.record.command != run.command {
            return Some(Due::Changed(format!("its command was `{}`", self.record.command)));
        }
        if self.record.revision != run.revision {
            return Some(Due::Changed(run.changed.clone().unwrap_or_else(|| "its revision".to_owned())));
        }
        let is_clean = self.record.refused.is_some() || matches!(self.checkout(), (Some(_), Some(false)));
        (!is_clean).then(|| Due::Unclean(self.described()))
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

/// Its directory, from the root of the checkout.
pub fn directory(claim: &Claim, run: &Run) -> PathBuf {
    Path::new(RESULTS).join(claim.directory()).join(&run.name)
}

/// Reads a run back. `None` if it was never run; the error names the file that is wrong.
pub fn read(root: &Path, claim: &Claim, run: &Run) -> Result<Option<Kept>> {
    let directory = root.join(directory(claim, run));
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
    Ok(Some(Kept { record, report, environment, has_page: directory.join(PAGE).is_file() }))
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
        if !room.take_if_it_fits(&[(study.join(PAGE), PAGE.to_owned())])? {
            record.left_out.push(format!("the page ({})", kilobytes(&[study.join(PAGE)])));
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
    unlink_what_is_not_kept(&kept.join(PAGE))?;
    let text = serde_json::to_string_pretty(&record)? + "\n";
    room.write(RECORD, &plain(&text, &paths))
}

/// Removes links to files that are not stored from a page, if there is one.
fn unlink_what_is_not_kept(page: &Path) -> Result<()> {
    let directory = page.parent().unwrap_or(Path::new(""));
    let Ok(text) = fs::read_to_string(page) else { return Ok(()) };
    let unlinked = unlinked(&text, |file| directory.join(file).is_file());
    fs::write(page, unlinked).with_context(|| format!("cannot write {}", page.display()))
}

/// A page without the relative links that lead nowhere: their words stay, but not as further items of a list of files.
fn unlinked(page: &str, is_kept: impl Fn(&str) -> bool) -> String {
    const LINK: &str = "<a href=\"";
    let mut pieces = page.split(LINK);
    let mut text = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let link =
            piece.split_once("\">").and_then(|(target, rest)| Some((target, rest.split_once("</a>")?)));
        let is_elsewhere = |target: &str| target.starts_with('#') || target.contains(':');
        match link {
            Some((target, (words, after))) if !is_elsewhere(target) && !is_kept(target) => {
                match text.strip_suffix(", ").map(str::len) {
                    Some(length) => text.truncate(length),
                    None => text += words,
                }
                text += after;
            }
            _ => text.extend([LINK, piece]),
        }
    }
    text
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
        assert!(kept.join("cell-1/samples.jsonl").is_file() && kept.join("report.html").is_file());
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
        Kept { record: record(), report: None, environment, has_page: false }
    }

    #[test]
    fn what_is_kept_counts_for_the_same_study_on_a_clean_commit() {
        assert_eq!(of_checkout(Some(false)).due(&run()), None);
        let unclean = Due::Unclean("commit 012345678, with local changes".into());
        assert_eq!(of_checkout(Some(true)).due(&run()), Some(unclean));
        assert!(matches!(of_checkout(None).due(&run()), Some(Due::Unclean(_))), "unknown is not clean");
        let other = Run { command: "photofinish y".into(), ..run() };
        assert!(matches!(of_checkout(Some(false)).due(&other), Some(Due::Changed(_))));
        let raised = Run { revision: 2, changed: Some("why".into()), ..run() };
        assert_eq!(of_checkout(Some(false)).due(&raised), Some(Due::Changed("why".into())));
    }

    #[test]
    fn a_kept_page_links_to_what_is_kept() {
        let (study, kept) = (study(400_000), tempfile::tempdir().unwrap());
        let link = |target: &str, words: &str| format!("<a href=\"{target}\">{words}</a>");
        let files =
            [("report.json", "report.json"), ("report.csv", "report.csv"), ("report.md", "report.md")];
        let files = files.map(|(target, words)| link(target, words));
        let cell = link(&study.path().join("2026-cell").join("report.html").display().to_string(), "a cell");
        let page = format!("<p>{}</p><li>1: {cell}</li>{}", files.join(", "), link("#top", "up"));
        fs::write(study.path().join(PAGE), page).unwrap();
        keep(Some(study.path()), kept.path(), record(), &[]).unwrap();
        let expected = format!("<p>{}, {}</p><li>1: a cell</li>{}", files[0], files[2], link("#top", "up"));
        assert_eq!(fs::read_to_string(kept.path().join(PAGE)).unwrap(), expected);
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

//! Sources of runs: files from anywhere, or the history.

use std::path::{Path, PathBuf};

use history::Record;

use judge::records::{self, HISTORY};
use measure::{Places, environment, saved};
use plan::{Failure, Result};

/// The records of one run, and how the run was found.
#[derive(Debug, Clone)]
pub(in crate::commands) struct Run {
    pub(in crate::commands) source: String,
    pub(in crate::commands) records: Vec<Record>,
}

/// The runs of a history, oldest first.
pub(in crate::commands) struct Runs {
    path: PathBuf,
    runs: Vec<Vec<Record>>,
}

const REPORT: &str = "report.json";
/// Ends a sentence on a directory that was taken for results.
const IS_DIRECTORY: &str = "is a directory that holds neither report.json nor history.jsonl: name the directory of one \
                            run, its report.json, or a history.jsonl";
/// The name of the newest run.
pub(in crate::commands) const LATEST: &str = "latest";
/// Shortest prefix of a commit that is accepted, in digits; shorter ones match too many commits.
const SHORTEST_COMMIT: usize = 4;

/// The run in a file, if `text` names one: a report, a directory with a report, or a history, of which `#RUN` picks a
/// run.
pub(in crate::commands) fn file(text: &str) -> Option<Result<Run>> {
    let (path, run) = match text.rsplit_once('#') {
        Some((path, run)) if !Path::new(text).exists() => (Path::new(path), Some(run)),
        _ => (Path::new(text), None),
    };
    let path = match path {
        path if path.join(REPORT).is_file() => path.join(REPORT),
        path if path.join(HISTORY).is_file() => path.join(HISTORY),
        path => path.to_path_buf(),
    };
    if path.is_dir() && text.contains(['/', '\\', '.']) {
        return Some(Err(Failure::usage(format!("{text} {IS_DIRECTORY}"))));
    }
    if !path.is_file() {
        let looks_like_a_file =
            text.contains(['/', '\\']) || text.ends_with(".json") || text.ends_with(".jsonl");
        return looks_like_a_file.then(|| Err(Failure::usage(format!("{text}: there is no such file"))));
    }
    Some(read(text, &path, run))
}

fn read(text: &str, path: &Path, run: Option<&str>) -> Result<Run> {
    if path.extension().is_some_and(|extension| extension == "jsonl") {
        let history = Runs::read(path)?;
        let found = match run {
            Some(run) => history.named(run),
            None => history.newest(|_| true),
        };
        return found.ok_or_else(|| {
            let what = run.map_or("complete run".to_owned(), |run| format!("run {run:?}"));
            Failure::usage(format!("{}: it holds no {what}", path.display()))
        });
    }
    let value = saved::json(path)?.unwrap_or_default();
    let report =
        judge::report::read(value).map_err(|why| Failure::usage(format!("{}: {why}", path.display())))?;
    let records = records::records(&report, None);
    if records.is_empty() {
        return Err(Failure::usage(format!("{}: it is the report of no framework at all", path.display())));
    }
    Ok(Run { source: text.to_owned(), records })
}

impl Runs {
    pub(in crate::commands) fn read(path: &Path) -> Result<Runs> {
        let read = history::read(path).map_err(|error| Failure::usage(error.to_string()))?;
        let mut runs: Vec<Vec<Record>> = Vec::new();
        for record in read.records {
            match runs.iter_mut().rev().find(|run| run[0].run == record.run) {
                Some(run) => run.push(record),
                None => runs.push(vec![record]),
            }
        }
        Ok(Runs { path: path.to_path_buf(), runs })
    }

    pub(in crate::commands) fn named(&self, name: &str) -> Option<Run> {
        self.run(self.runs.iter().rfind(|run| run[0].run == name))
    }

    /// The newest of the runs that were completed.
    pub(in crate::commands) fn newest(&self, is_meant: impl Fn(&[Record]) -> bool) -> Option<Run> {
        self.run(self.runs.iter().rfind(|run| is_complete(run) && is_meant(run)))
    }

    /// The newest complete run of a commit, by a prefix of its hash. A run without local changes is preferred.
    fn of_commit(&self, prefix: &str) -> Option<Run> {
        let is_meant = |run: &[Record]| {
            let commit = run[0].git_commit.as_deref().unwrap_or_default();
            prefix.len() >= SHORTEST_COMMIT && commit.starts_with(&prefix.to_lowercase())
        };
        let unmodified = |run: &[Record]| is_meant(run) && run[0].git_modified == Some(false);
        self.newest(unmodified).or_else(|| self.newest(is_meant))
    }

    fn run(&self, run: Option<&Vec<Record>>) -> Option<Run> {
        let records = run?.clone();
        Some(Run { source: format!("{}#{}", self.path.display(), records[0].run), records })
    }

    /// A run by its name or by its commit. The commit may be anything that git can resolve: a branch, a tag, HEAD~3.
    pub(in crate::commands) fn find(&self, text: &str, places: &Places) -> Result<Run> {
        let by_name = || self.named(text).or_else(|| self.of_commit(text));
        let by_git = || self.of_commit(&environment::commit(places, text)?);
        by_name().or_else(by_git).ok_or_else(|| {
            if Path::new(text).is_dir() {
                return Failure::usage(format!("{text} {IS_DIRECTORY}"));
            }
            Failure::usage(format!(
                "{text:?} is not a file, and {} holds no run and no complete run of a commit of this name; `photofinish \
                 history` lists what there is",
                self.path.display()
            ))
        })
    }

    pub(in crate::commands) fn path(&self) -> &Path {
        &self.path
    }
}

fn is_complete(run: &[Record]) -> bool {
    run.iter().all(|record| !record.interrupted && record.noise.is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use judge::regression::testing;

    fn history(runs: &[(&str, &str, bool)]) -> Runs {
        let run = |(name, commit, modified): &(&str, &str, bool)| {
            let mut record = testing::record("one", 100.0);
            (record.run, record.git_commit) = ((*name).to_owned(), Some((*commit).to_owned()));
            record.git_modified = Some(*modified);
            vec![record]
        };
        Runs { path: "h.jsonl".into(), runs: runs.iter().map(run).collect() }
    }

    fn name(run: Option<Run>) -> Option<String> {
        run.map(|run| run.records[0].run.clone())
    }

    #[test]
    fn a_commit_is_its_newest_run_of_an_unmodified_tree() {
        let history = history(&[("a", "abcd01", false), ("b", "abcd01", true), ("c", "ffff02", false)]);
        assert_eq!(name(history.of_commit("abcd")).as_deref(), Some("a"));
        assert_eq!(name(history.of_commit("FFFF02")).as_deref(), Some("c"));
        assert_eq!(name(history.of_commit("ab")), None, "too short to mean one");
    }

    #[test]
    fn what_was_interrupted_or_noisy_is_no_baseline() {
        let mut history = history(&[("a", "abcd01", false), ("b", "abcd01", false), ("c", "abcd01", false)]);
        history.runs[2][0].interrupted = true;
        history.runs[1][0].noise = Some("other processes".into());
        assert_eq!(name(history.newest(|_| true)).as_deref(), Some("a"));
        assert_eq!(name(history.named("c")).as_deref(), Some("c"), "by its name it can be had");
    }
}

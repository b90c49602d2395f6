//! Reads many results directories, for pages that show them together.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use facts::Evidence;
use judge::Report;
use judge::records::collection::Entry;
use judge::report::Warning;
use plan::{Failure, Result};

use crate::saved::{self, REPORT, SAMPLES};

/// Names of the files of a study and of a parity check.
const CELLS: &str = "cells.jsonl";
const PARITY: &str = "parity.json";
/// Levels of subdirectories in which results are looked for: a machine's, a study's, a cell's.
const DEEPEST: usize = 3;

/// The results of these directories and of their subdirectories, in the order of their names. An unreadable
/// one is an entry with the reason. A directory without any results is an error.
pub fn read(directories: &[PathBuf]) -> Result<Vec<Entry>> {
    let mut seen = HashSet::new();
    let mut entries = Vec::new();
    for directory in directories {
        if !directory.is_dir() {
            return Err(Failure::usage(format!("{}: there is no such directory", directory.display())));
        }
        let whole = directory.canonicalize().unwrap_or_else(|_| directory.clone());
        let name = whole.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut found = Vec::new();
        results(&whole, &name, DEEPEST, &mut found);
        if found.is_empty() {
            return Err(Failure::usage(format!(
                "{} holds no results: give results directories, or directories of such",
                directory.display()
            )));
        }
        found.retain(|(path, _)| seen.insert(path.clone()));
        entries.extend(found.into_iter().map(|(path, name)| entry(&path, name)));
    }
    Ok(entries)
}

/// Results directories with their names. Those of a study's cells are below the study.
fn results(directory: &Path, name: &str, levels: usize, found: &mut Vec<(PathBuf, String)>) {
    let has = |file: &str| directory.join(file).is_file();
    let is_study = has(CELLS);
    if !is_study && [REPORT, SAMPLES, PARITY].into_iter().any(has) {
        found.push((directory.to_path_buf(), name.to_owned()));
        return;
    }
    let before = found.len();
    if levels > 0 {
        let mut inner: Vec<PathBuf> =
            std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        inner.sort();
        for path in inner.into_iter().filter(|path| path.is_dir() && !path.is_symlink()) {
            let own = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            results(&path, &format!("{name}/{own}"), levels - 1, found);
        }
    }
    if is_study && found.len() == before {
        found.push((directory.to_path_buf(), name.to_owned()));
    }
}

fn entry(directory: &Path, name: String) -> Entry {
    // Local paths are not published.
    let place = directory.display().to_string();
    let without_place =
        |text: String| text.replace(&format!("{place}/"), "").replace(&place, "the directory");
    match saved::json(&directory.join(REPORT)) {
        Err(failure) => Entry::unreadable(name, without_place(failure.to_string())),
        Ok(Some(value)) if value.get("study").is_some() => Entry::unreadable(
            name,
            "it is the report of a study, and the directories of its cells are missing".into(),
        ),
        Ok(Some(value)) => Entry::read(name, value),
        Ok(None) if directory.join(CELLS).is_file() => {
            Entry::unreadable(name, "it is a study without a finished cell".into())
        }
        Ok(None) => match judged(directory) {
            Ok((report, _)) => Entry::new(name, report),
            Err(failure) => Entry::unreadable(name, without_place(failure.to_string())),
        },
    }
}

/// Judges the facts of a results directory, even of a run that was killed before it could write its report. A
/// missing file is a warning.
pub fn judged(directory: &Path) -> Result<(Report, Evidence)> {
    let name = directory.file_name().unwrap_or_default().to_string_lossy();
    if name.ends_with("-parity") || directory.join(PARITY).is_file() {
        return Err(Failure::usage(format!(
            "{} is of `photofinish parity`, whose samples alone are no comparison",
            directory.display()
        )));
    }
    let (mut facts, missing) = saved::facts(directory)?;
    facts.evidence = facts.evidence.rejudged(&facts.plan);
    let mut report = Report::new(&facts);
    report.warnings.extend(missing.into_iter().map(Warning::Missing));
    Ok((report, facts.evidence))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path, text: &str) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn read_one(place: &Path) -> Vec<(String, String)> {
        let entries = read(&[place.to_path_buf()]).unwrap();
        entries.into_iter().map(|entry| (entry.name, entry.run.err().unwrap_or_default())).collect()
    }

    #[test]
    fn results_are_found_below_and_what_cannot_be_read_says_why() {
        let directory = tempfile::tempdir().unwrap();
        let all = directory.path().join("all");
        write(&all.join("a/report.json"), "{\"schema\": 99}");
        write(&all.join("b/report.json"), "{");
        write(&all.join("c/samples.jsonl"), "");
        write(&all.join("d/cells.jsonl"), "");
        write(&all.join("d/cell/report.json"), "{\"schema\": 1}");
        write(&all.join("e/report.json"), "{\"schema\": 4, \"study\": \"sweep size\"}");
        write(&all.join("f/notes.txt"), "no results");
        let found = read_one(&all);
        let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["all/a", "all/b", "all/c", "all/d/cell", "all/e"]);
        let said =
            ["its schema is 99", "report.json is not JSON", "holds no plan.json", "its schema is 1", "cells"];
        for ((name, reason), said) in found.iter().zip(said) {
            assert!(reason.contains(said), "{name}: {reason}");
            assert!(!reason.contains("/all/b/"), "{reason}");
        }
        assert_eq!(read(&[all.clone(), all.join("a")]).unwrap().len(), 5, "each once");
    }

    #[test]
    fn a_directory_without_results_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        for (place, said) in
            [(directory.path().to_path_buf(), "holds no results"), ("gone".into(), "no such directory")]
        {
            let refusal = read(&[place]).unwrap_err().to_string();
            assert!(refusal.contains(said), "{refusal}");
        }
    }
}

//! The files of a submission: their names and largest sizes. They are checked before any of them is opened.

use std::path::Path;

use measure::saved::{ENVIRONMENT, PLAN, REPORT, SAMPLES};

use crate::problem::Problem;

/// The sha256 of each other file, in the form of `sha256sum`.
pub(crate) const SUMS: &str = "SHA256SUMS";

/// The files of an archive, and the most bytes of each.
pub(crate) const FILES: [(&str, u64); 5] =
    [(ENVIRONMENT, 100_000), (PLAN, 4_000_000), (REPORT, 10_000_000), (SAMPLES, 20_000_000), (SUMS, 1_000)];
/// Most bytes of all of them.
pub(crate) const MOST: u64 = 25_000_000;
/// Most entries of a directory that are listed.
const NAMED: usize = 5;
/// Longest name of a submission.
const LONGEST_NAME: usize = 100;

const REPACK: &str = "pack the run again with `photofinish report DIR --archive`";

/// The names of the files that every submission has.
pub fn names() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|(name, _)| *name)
}

/// Most bytes of a file of this name; `None` for a name that no submission has.
pub(crate) fn most(name: &str) -> Option<u64> {
    FILES.iter().find(|(known, _)| *known == name).map(|(_, most)| *most)
}

/// Whether a name can be that of a submission's directory, and so a part of a URL.
pub(crate) fn is_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-._".contains(c);
    name.len() <= LONGEST_NAME
        && name.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
        && name.chars().all(fits)
        && !name.contains("..")
}

/// The faults of the files in `directory`, by their names, kinds and sizes alone.
pub(crate) fn check(directory: &Path, entry: &str) -> Vec<Problem> {
    let problem = |file: &str, what: String, remedy: &str| Problem::new(entry, file, what, remedy);
    if !is_name(entry) {
        let what = "its name is not one of lower-case letters, digits, hyphens, dots and underscores";
        return vec![problem("", what.into(), "rename the directory, as `photofinish collection add` would")];
    }
    let read = match std::fs::read_dir(directory) {
        Ok(read) => read,
        Err(error) => {
            return vec![problem("", format!("it cannot be read: {error}"), "give it the usual permissions")];
        }
    };
    let (mut problems, mut total, mut found) = (Vec::new(), 0, Vec::new());
    for file in read.flatten().take(FILES.len() + NAMED) {
        let name = file.file_name().to_string_lossy().into_owned();
        let Some(most) = most(&name) else {
            let listed = names().collect::<Vec<_>>().join(", ");
            problems.push(problem(&name, "no submission has such a file".into(), &format!("keep {listed}")));
            continue;
        };
        // Metadata of the entry itself: a link is not followed.
        match file.metadata() {
            Ok(metadata) if metadata.is_file() => {
                total += metadata.len();
                if metadata.len() > most {
                    problems.push(problem(
                        &name,
                        size(metadata.len(), most),
                        "measure fewer rounds or requests",
                    ));
                }
            }
            _ => problems.push(problem(&name, "it is a link or not a file".into(), REPACK)),
        }
        found.push(name);
    }
    for missing in names().filter(|name| !found.iter().any(|found| found == name)) {
        problems.push(problem(missing, "it is missing".into(), REPACK));
    }
    if total > MOST {
        problems.push(problem("", size(total, MOST), "measure fewer rounds or requests"));
    }
    problems
}

pub(crate) fn size(bytes: u64, most: u64) -> String {
    format!("it has {:.1} MB, and at most {} MB are allowed", bytes as f64 / 1e6, most as f64 / 1e6)
}

/// The faults of the hashes of the files in `directory`.
pub(crate) fn check_sums(directory: &Path, entry: &str) -> Vec<Problem> {
    let problem = |file: &str, what: &str| Problem::new(entry, file, what, REPACK);
    let text = match untrusted::file::read_text(&directory.join(SUMS), most(SUMS).unwrap_or_default()) {
        Ok(text) => text,
        Err(error) => return vec![problem(SUMS, &format!("it cannot be read: {error}"))],
    };
    let lines: Vec<(&str, &str)> = text.lines().filter_map(|line| line.split_once("  ")).collect();
    let mut problems = Vec::new();
    for name in names().filter(|name| *name != SUMS) {
        let Some((listed, _)) = lines.iter().find(|(_, listed)| *listed == name) else {
            problems.push(problem(SUMS, &format!("it has no line for {name}")));
            continue;
        };
        match bundle::sha256_of(&directory.join(name)) {
            Ok(sha256) if sha256 == *listed => {}
            Ok(sha256) => {
                let what = format!(
                    "its sha256 is {sha256}, and {SUMS} has {listed}: it was changed after it was packed"
                );
                problems.push(problem(name, &what));
            }
            Err(error) => problems.push(problem(name, &format!("it cannot be read: {error}"))),
        }
    }
    if text.lines().count() != FILES.len() - 1 {
        problems.push(problem(SUMS, &format!("it has not exactly {} lines", FILES.len() - 1)));
    }
    problems
}

//! `cargo xtask splice`: the table of a real run into README.md, so that no number is typed by hand.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};

use crate::failure::BadInput;
use crate::workspace::Workspace;

const BEGIN: &str = "<!-- table: begin -->";
const END: &str = "<!-- table: end -->";

const REPORT: &str = "report.md";

pub(crate) fn run(workspace: &Workspace, results: Option<PathBuf>) -> Result<ExitCode> {
    let results = match results {
        Some(directory) => directory,
        None => newest(&workspace.root.join("results"))?,
    };
    let file = results.join(REPORT);
    let report = std::fs::read_to_string(&file)
        .map_err(|error| BadInput(format!("cannot read {}: {error}", file.display())))?;
    let readme = workspace.root.join("README.md");
    let text = std::fs::read_to_string(&readme).context("cannot read README.md")?;
    let spliced = splice(&text, &report).context("README.md")?;
    std::fs::write(&readme, spliced).context("cannot write README.md")?;
    eprintln!("README.md now shows {}", file.display());
    Ok(ExitCode::SUCCESS)
}

/// Names begin with the time, so the newest comes last.
fn newest(results: &Path) -> Result<PathBuf> {
    let mut found: Vec<PathBuf> = match std::fs::read_dir(results) {
        Ok(entries) => entries.flatten().map(|entry| entry.path()).collect(),
        Err(_) => Vec::new(),
    };
    found.retain(|directory| directory.join(REPORT).is_file());
    found.sort();
    let none = || {
        BadInput("no results to show: run `cargo xtask compare`, or name a directory with --results".into())
    };
    Ok(found.pop().ok_or_else(none)?)
}

fn splice(text: &str, report: &str) -> Result<String> {
    let Some((before, rest)) = text.split_once(BEGIN) else { bail!("has no line {BEGIN}") };
    let Some((_, after)) = rest.split_once(END) else { bail!("has no line {END} after {BEGIN}") };
    ensure!(!after.contains(BEGIN), "has more than one {BEGIN}");
    Ok(format!("{before}{BEGIN}\n{}\n{END}{after}", report.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_between_the_markers_is_replaced() {
        let text = format!("above\n{BEGIN}\nold\n{END}\nbelow\n");
        let once = splice(&text, "new\n").unwrap();
        assert_eq!(once, format!("above\n{BEGIN}\nnew\n{END}\nbelow\n"));
        assert_eq!(splice(&once, "new").unwrap(), once);
    }

    #[test]
    fn text_without_a_pair_of_markers_is_refused() {
        for text in ["", BEGIN, END, &format!("{END}{BEGIN}"), &format!("{BEGIN}{END}{BEGIN}{END}")] {
            assert!(splice(text, "new").is_err(), "{text:?}");
        }
    }

    #[test]
    fn the_newest_directory_with_a_report_is_taken() {
        let results = tempfile::tempdir().unwrap();
        let make = |name: &str| std::fs::create_dir(results.path().join(name)).unwrap();
        assert!(crate::failure::is_bad_input(&newest(results.path()).unwrap_err()));
        ["2026-01-01-a", "2026-01-02-a", "2026-01-03-a"].into_iter().for_each(make);
        for name in ["2026-01-01-a", "2026-01-02-a"] {
            std::fs::write(results.path().join(name).join(REPORT), "").unwrap();
        }
        assert_eq!(newest(results.path()).unwrap(), results.path().join("2026-01-02-a"));
    }
}

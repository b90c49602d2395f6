//! `cargo xtask splice`: writes the table of a real run, or of a profile, into a block of a page, with its
//! command above, so that no number is typed by hand.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use flate2::read::GzDecoder;
use serde::Deserialize;
use setup::tooling::{BadInput, splice};

use crate::workspace::Workspace;

/// Flags of the driver that name directories.
const PLACES: [&str; 3] = ["--workers", "--configs", "--results-dir"];

const REPORT: &str = "report.md";
/// The answer and the table alone.
const SUMMARY: &str = "summary.md";
const ENVIRONMENT: &str = "environment.json";
/// The output of `photofinish profile`, including its command.
const PROFILE: &str = "profile.md";

/// The part of the recorded environment that is shown.
#[derive(Deserialize)]
struct Environment {
    command: Vec<String>,
}

pub(crate) fn run(
    workspace: &Workspace,
    results: Option<&Path>,
    page: &Path,
    block: &str,
    short: bool,
) -> Result<ExitCode> {
    let name = if short { SUMMARY } else { REPORT };
    let newest = || newest(&workspace.root.join("results"));
    let shown = shown(&results.map_or_else(newest, |given| Ok(given.to_owned()))?, block, name)?;
    let file = workspace.root.join(page);
    let text = read(&file)?;
    let spliced = splice(&text, block, &shown).with_context(|| page.display().to_string())?;
    std::fs::write(&file, spliced).with_context(|| format!("cannot write {}", page.display()))?;
    eprintln!("{block} of {} is written", page.display());
    Ok(ExitCode::SUCCESS)
}

/// `results`: a directory, or an archive of several that has one by the name of the block.
fn shown(results: &Path, block: &str, name: &str) -> Result<String> {
    if results.join(PROFILE).is_file() {
        return read(&results.join(PROFILE));
    }
    let (report, environment) = if results.is_file() {
        let member = |name: &str| from_archive(results, &Path::new(block).join(name));
        (member(name)?, member(ENVIRONMENT)?)
    } else {
        (read(&results.join(name))?, read(&environment_of(results))?)
    };
    let environment: Environment =
        serde_json::from_str(&environment).with_context(|| results.display().to_string())?;
    Ok(format!("```\n{}\n```\n\n{}", command_line(&environment.command), report.trim()))
}

fn from_archive(archive: &Path, name: &Path) -> Result<String> {
    let within = || archive.display().to_string();
    let mut files = tar::Archive::new(GzDecoder::new(File::open(archive).with_context(within)?));
    for file in files.entries().with_context(within)? {
        let mut file = file.with_context(within)?;
        if file.path().with_context(within)?.ends_with(name) {
            let mut text = String::new();
            file.read_to_string(&mut text).with_context(within)?;
            return Ok(text);
        }
    }
    Err(BadInput(format!("{} has no {}", archive.display(), name.display())).into())
}

/// The recorded environment of a run. Of a study, that of its first cell, which has the study's command.
fn environment_of(results: &Path) -> PathBuf {
    let own = results.join(ENVIRONMENT);
    if own.is_file() {
        return own;
    }
    let cells = std::fs::read_dir(results).into_iter().flatten().flatten();
    let of_cells = cells.map(|cell| cell.path().join(ENVIRONMENT)).filter(|file| file.is_file());
    of_cells.min().unwrap_or(own)
}

fn read(file: &Path) -> Result<String> {
    let text = std::fs::read_to_string(file);
    Ok(text.map_err(|error| BadInput(format!("cannot read {}: {error}", file.display())))?)
}

/// The line that repeats the run with an installed program: the driver's own path is that of a machine.
fn command_line(driver: &[String]) -> String {
    let mut args = driver.iter().skip(1).peekable();
    let is_bare = args.peek().is_none_or(|arg| arg.starts_with('-'));
    let mut line = if is_bare { "photofinish compare" } else { "photofinish" }.to_owned();
    while let Some(arg) = args.next() {
        // Where things are on that machine is of no use on another.
        match PLACES.iter().find(|place| arg.starts_with(*place)) {
            Some(place) if arg == place => drop(args.next()),
            Some(_) => {}
            None => line += &format!(" {}", quoted(arg)),
        }
    }
    line
}

/// A word quoted for a shell. shlex also quotes commas and equals signs, without which lists of names stay
/// readable.
fn quoted(word: &str) -> String {
    let bare = word.replace([',', '='], "");
    let is_plain = !bare.is_empty() && shlex::try_quote(&bare).is_ok_and(|quoted| quoted == bare);
    if is_plain { word.to_owned() } else { shlex::try_quote(word).unwrap_or_default().into_owned() }
}

/// Names of runs begin with the time, so that the newest is last. Directories with other names were named by
/// hand, and are not considered.
fn newest(results: &Path) -> Result<PathBuf> {
    let mut found: Vec<PathBuf> = match std::fs::read_dir(results) {
        Ok(entries) => entries.flatten().map(|entry| entry.path()).collect(),
        Err(_) => Vec::new(),
    };
    let is_run = |directory: &Path| {
        let name = directory.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(|first: char| first.is_ascii_digit()) && directory.join(REPORT).is_file()
    };
    found.retain(|directory| is_run(directory));
    found.sort();
    let none = || {
        BadInput("no results to show: run `cargo xtask compare`, or name a directory with --results".into())
    };
    Ok(found.pop().ok_or_else(none)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_shown_without_the_path_of_the_driver() {
        for (args, shown) in [
            (&["x/driver"][..], ""),
            (&["x/driver", "compare", "--prompt", "it's new"], r#" --prompt "it's new""#),
            // Places of that machine are left out.
            (&["driver", "--workers", "/a", "--configs=/b", "--results-dir", "/c", "--quick"], " --quick"),
            (&["driver", "--frameworks=candle,tch"], " --frameworks=candle,tch"),
        ] {
            let args: Vec<String> = args.iter().map(|arg| arg.to_string()).collect();
            assert_eq!(command_line(&args), format!("photofinish compare{shown}"));
        }
    }

    #[test]
    fn every_figure_of_the_performance_page_is_of_a_kept_run() {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        let page = std::fs::read_to_string(root.join("docs/evidence/performance.md")).unwrap();
        let mut prose = String::new();
        let mut rest = page.as_str();
        while let Some((before, after)) = rest.split_once("<!-- ") {
            let (block, after) = after.split_once(": begin -->\n").unwrap();
            let (text, after) = after.split_once(&format!("\n<!-- {block}: end -->")).unwrap();
            let archive = root.join("results/published/performance.tar.gz");
            assert_eq!(text, shown(&archive, block, SUMMARY).unwrap(), "{block}");
            prose += before;
            rest = after;
        }
        prose += rest;
        let is_typed = |word: &&str| word.trim_matches(|c: char| !c.is_ascii_digit()).parse::<f64>().is_ok();
        // Names have digits, too: f32, llama-160m.
        let is_name = |word: &&str| {
            word.trim_start_matches('(').starts_with(|c: char| c.is_ascii_alphabetic() || c == '`')
        };
        let typed: Vec<&str> =
            prose.split_whitespace().filter(is_typed).filter(|word| !is_name(word)).collect();
        assert!(typed.is_empty(), "typed by hand: {typed:?}");
    }

    #[test]
    fn a_profile_is_shown_as_it_is() {
        let results = tempfile::tempdir().unwrap();
        std::fs::write(results.path().join(PROFILE), "its command and table").unwrap();
        assert_eq!(shown(results.path(), "block", REPORT).unwrap(), "its command and table");
    }

    #[test]
    fn a_study_s_command_is_read_from_its_first_cell() {
        let study = tempfile::tempdir().unwrap();
        std::fs::write(study.path().join(REPORT), "figures\n").unwrap();
        assert!(setup::tooling::is_bad_input(&shown(study.path(), "block", REPORT).unwrap_err()));
        std::fs::create_dir(study.path().join("cell-1")).unwrap();
        let environment =
            r#"{"command": ["x/driver", "sweep", "generate", "--workers", "/a", "--context", "48,2048"]}"#;
        std::fs::write(study.path().join("cell-1").join(ENVIRONMENT), environment).unwrap();
        assert_eq!(
            shown(study.path(), "block", REPORT).unwrap(),
            "```\nphotofinish sweep generate --context 48,2048\n```\n\nfigures"
        );
    }

    #[test]
    fn the_newest_directory_with_a_report_is_taken() {
        let results = tempfile::tempdir().unwrap();
        let make = |name: &str| std::fs::create_dir(results.path().join(name)).unwrap();
        assert!(setup::tooling::is_bad_input(&newest(results.path()).unwrap_err()));
        ["2026-01-01-a", "2026-01-02-a", "2026-01-03-a", "published"].into_iter().for_each(make);
        for name in ["2026-01-01-a", "2026-01-02-a", "published"] {
            std::fs::write(results.path().join(name).join(REPORT), "").unwrap();
        }
        assert_eq!(newest(results.path()).unwrap(), results.path().join("2026-01-02-a"));
    }
}

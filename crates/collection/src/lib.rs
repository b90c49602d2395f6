//! The public collection of results, `results/collection`: a directory for each submission, made from the
//! archive of a run and added by a pull request. Submissions are not trusted: files are read within limits,
//! samples are judged again by the functions that `photofinish report` calls, and the report must agree.

mod archive;
mod cleaned;
mod compared;
mod entry;
mod fields;
mod files;
mod problem;
mod several;
#[cfg(test)]
mod tests;
mod tiers;

use std::path::Path;

use judge::records::collection::Published;
use plan::{Failure, Result};

pub use archive::pack;
pub use files::names;
pub use problem::Problem;

use files::SUMS;
use tiers::TIERS;

/// Files of a collection other than its entries.
const OWN: [&str; 2] = ["README.md", TIERS];

/// A collection, and its problems.
#[derive(Debug, Default)]
pub struct Checked {
    /// In the order of their names.
    pub entries: Vec<Published>,
    pub problems: Vec<Problem>,
}

/// Checks every submission of the collection in `directory`, and the file about them.
///
/// # Errors
/// If there is no such directory.
pub fn check(directory: &Path) -> Result<Checked> {
    let cannot = |error: std::io::Error| {
        Failure::usage(format!("cannot read the collection {}: {error}", directory.display()))
    };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(cannot)? {
        let entry = entry.map_err(cannot)?;
        names.push((entry.file_name().to_string_lossy().into_owned(), entry.file_type().map_err(cannot)?));
    }
    names.sort_by(|a, b| a.0.cmp(&b.0));
    let mut checked = Checked::default();
    let tiers = tiers::read(directory).unwrap_or_else(|problem| {
        checked.problems.push(problem);
        Default::default()
    });
    for (name, kind) in names {
        if kind.is_file() && OWN.contains(&name.as_str()) {
            continue;
        }
        if !kind.is_dir() {
            let what = "a collection has one directory for each submission";
            checked.problems.push(Problem::new(&name, "", what, "remove the file or link"));
            continue;
        }
        checked.entries.extend(entry::read(&directory.join(&name), &name, &tiers, &mut checked.problems));
    }
    checked.problems.extend(several::check(&checked.entries));
    checked.problems.extend(tiers.check(&checked.entries));
    Ok(checked)
}

/// Adds the run of an archive to the collection in `directory`, unless it has problems. Returns the name of
/// its new directory, or the problems.
///
/// # Errors
/// If the archive cannot be read or contains anything but a run, or the collection cannot be written.
pub fn add(archive: &Path, directory: &Path) -> Result<std::result::Result<String, Vec<Problem>>> {
    let cannot = |error: std::io::Error| {
        Failure::usage(format!("cannot write to the collection {}: {error}", directory.display()))
    };
    let place = tempfile::Builder::new().prefix("new-").tempdir_in(directory).map_err(cannot)?;
    archive::unpack(archive, place.path())?;
    let mut problems = Vec::new();
    let entry = entry::read(place.path(), "submission", &Default::default(), &mut problems);
    let Some(entry) = entry.filter(|_| problems.is_empty()) else { return Ok(Err(problems)) };
    let name = name(&entry, &bundle::sha256_of(&place.path().join(SUMS)).map_err(cannot)?);
    let to = directory.join(&name);
    if to.exists() {
        return Err(Failure::usage(format!("{} is there already: the run was added before", to.display())));
    }
    let place = place.keep();
    std::fs::rename(&place, &to).map_err(cannot)?;
    // A temporary directory is private.
    #[cfg(unix)]
    std::fs::set_permissions(&to, std::os::unix::fs::PermissionsExt::from_mode(0o755)).map_err(cannot)?;
    let of_entry = |problem: &Problem| problem.entry.as_str() == name;
    let problems: Vec<Problem> = check(directory)?.problems.into_iter().filter(of_entry).collect();
    if problems.is_empty() {
        return Ok(Ok(name));
    }
    std::fs::remove_dir_all(&to).map_err(cannot)?;
    Ok(Err(problems))
}

/// Day, model, precision and the beginning of a hash: unique, and the same wherever the archive is added.
fn name(entry: &Published, sha256: &str) -> String {
    let report = &entry.report;
    let day: String = report.environment.started.chars().take(10).collect();
    let parts = [&day, &report.model.name, report.plan.precision.name(), &sha256[..8]];
    parts.map(judge::records::collection::slug).join("-")
}

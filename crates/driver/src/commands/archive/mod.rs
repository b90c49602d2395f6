//! The archive of a run: `photofinish report DIR --archive` packs it without paths and names, and `photofinish check
//! ARCHIVE` judges it again. An archive is not trusted: files are read within limits, samples are judged by the functions
//! that `photofinish report` calls, and the report must agree.

mod cleaned;
mod compared;
#[cfg(test)]
mod tests;

use std::fmt::Display;
use std::fs::File;
use std::io::{Error, ErrorKind, Read};
use std::path::{Path, PathBuf};

use facts::Evidence;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use judge::{Report, report};
use measure::saved::{self, ENVIRONMENT, PLAN, REPORT, SAMPLES};
use plan::{Failure, Result};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::output::print;
use cleaned::{cleaned, personal};
use compared::{each, first_difference};

/// The sha256 of each other file, in the form of `sha256sum`.
const SUMS: &str = "SHA256SUMS";
/// The files of an archive, and the most bytes of each.
const FILES: [(&str, u64); 5] =
    [(ENVIRONMENT, 100_000), (PLAN, 4_000_000), (REPORT, 10_000_000), (SAMPLES, 20_000_000), (SUMS, 1_000)];
/// Most bytes of all of them.
const MOST: u64 = 25_000_000;
/// Most characters of a text. A prompt of 32,000 tokens has fewer.
const LONGEST_TEXT: usize = 200_000;
/// Most faults of one kind and file that are listed.
const LISTED: usize = 3;

const REPACK: &str = "pack the run with `photofinish report DIR --archive`, and change nothing in it";
const REJUDGE: &str = "judge it again with `photofinish report DIR --rejudge --in-place`, then pack it";

/// The directory in the archive.
const ROOT: &str = "run";
/// Shorter names are parts of words.
const SHORTEST_NAME: usize = 3;

/// Packs the run in `directory` into `DIRECTORY.tar.gz`, without paths and names, and returns that file.
///
/// # Errors
/// If there are no samples, or a file cannot be read or written.
pub(crate) fn pack(directory: &Path) -> Result<PathBuf> {
    if !directory.join(SAMPLES).is_file() {
        return Err(Failure::usage(format!(
            "{} holds no {SAMPLES}: there is nothing to pack",
            directory.display()
        )));
    }
    let directory = std::path::absolute(directory).map_err(|error| Failure::failed(error.to_string()))?;
    // The name of a directory may hold a dot.
    let mut name = directory.file_name().unwrap_or_default().to_owned();
    name.push(".tar.gz");
    let archive = directory.with_file_name(name);
    let names = names(&measure::environment::host(), std::env::var("USER").ok(), std::env::var("HOME").ok());
    write(&directory, &archive, &names)
        .map_err(|error| Failure::failed(format!("cannot write {}: {error}", archive.display())))?;
    Ok(archive)
}

fn names(host: &str, user: Option<String>, home: Option<String>) -> Vec<String> {
    let home = home.and_then(|home| Some(Path::new(&home).file_name()?.to_str()?.to_owned()));
    let mut names: Vec<String> = [Some(host.to_owned()), user, home].into_iter().flatten().collect();
    names.retain(|name| name.len() >= SHORTEST_NAME && name != "root");
    names
}

fn write(directory: &Path, archive: &Path, names: &[String]) -> std::io::Result<()> {
    let mut tar = tar::Builder::new(GzEncoder::new(File::create(archive)?, Compression::default()));
    let mut add = |name: &str, text: &str| {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, Path::new(ROOT).join(name), text.as_bytes())
    };
    let mut sums = String::new();
    for (name, _) in FILES.iter().filter(|(name, _)| *name != SUMS) {
        let path = directory.join(name);
        if !path.is_file() {
            continue;
        }
        let text = cleaned(&untrusted::file::read_text(&path, untrusted::file::RESULTS)?, names);
        sums += &format!("{}  {name}\n", bundle::hexadecimal(&Sha256::digest(&text)));
        add(name, &text)?;
    }
    add(SUMS, &sums)?;
    tar.into_inner()?.finish()?;
    Ok(())
}

/// Writes the files of an archive into `directory`, which exists. Only the files of a submission are written,
/// each under its own name and within its size limit.
///
/// # Errors
/// The first member that no archive of this program has, by its name.
fn unpack(archive: &Path, directory: &Path) -> Result<()> {
    let refused = |what: String| {
        Failure::usage(format!(
            "{}: {what}; make the archive with `photofinish report DIR --archive`",
            archive.display()
        ))
    };
    let unreadable = |error: Error| refused(format!("it cannot be read: {error}"));
    let file = untrusted::file::open(archive).map_err(unreadable)?;
    // Headers and padding add to the size of the files.
    let mut tar = tar::Archive::new(GzDecoder::new(file).take(MOST + 1_000_000));
    for member in tar.entries().map_err(unreadable)? {
        let member = member.map_err(unreadable)?;
        let path = String::from_utf8_lossy(&member.path_bytes()).into_owned();
        let name = path.strip_prefix(ROOT).and_then(|name| name.strip_prefix('/')).unwrap_or_default();
        let known = FILES.iter().find(|(known, _)| *known == name && member.header().entry_type().is_file());
        let Some(&(_, most)) = known else {
            return Err(refused(format!(
                "it holds {:?}, which no archive of a run has",
                untrusted::line(&path)
            )));
        };
        let size = member.size();
        if size > most {
            let (has, most) = (size as f64 / 1e6, most as f64 / 1e6);
            return Err(refused(format!("{name}: it has {has:.1} MB, and at most {most} MB are allowed")));
        }
        write_new(&directory.join(name), member.take(most)).map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => refused(format!("it holds {name} twice")),
            _ => refused(format!("{name} cannot be unpacked: {error}")),
        })?;
    }
    Ok(())
}

fn write_new(path: &Path, mut content: impl Read) -> std::io::Result<()> {
    std::io::copy(&mut content, &mut File::create_new(path)?).map(drop)
}

/// Judges the run in an archive again: every figure and verdict of its report must follow from its samples.
pub(crate) fn check(archive: &Path) -> Result<u8> {
    let place = tempfile::tempdir().map_err(|error| Failure::failed(error.to_string()))?;
    unpack(archive, place.path())?;
    let faults = faults(place.path());
    for fault in &faults {
        untrusted::say!("error: {}", untrusted::line(fault));
    }
    if !faults.is_empty() {
        return Err(Failure::Spoken(1));
    }
    print(&format!("{}: all as its samples say\n", archive.display()))?;
    Ok(0)
}

/// What is wrong with the files of an archive, a sentence for each fault.
fn faults(directory: &Path) -> Vec<String> {
    for (name, _) in FILES {
        if !directory.join(name).is_file() {
            return vec![format!("{name}: it is missing; {REPACK}")];
        }
    }
    let mut faults = of_sums(directory);
    for name in [ENVIRONMENT, PLAN, REPORT, SAMPLES] {
        faults.extend(of_texts(directory, name));
    }
    if faults.is_empty() {
        faults = judged_again(directory).unwrap_or_else(|fault| vec![fault]);
    }
    faults
}

/// A message without the directory that the archive was unpacked to.
fn unreadable(directory: &Path, name: &str, why: impl Display) -> String {
    format!("{name}: {}; {REPACK}", why.to_string().replace(&format!("{}/", directory.display()), ""))
}

fn of_sums(directory: &Path) -> Vec<String> {
    let text = match untrusted::file::read_text(&directory.join(SUMS), untrusted::file::INPUT) {
        Ok(text) => text,
        Err(error) => return vec![unreadable(directory, SUMS, error)],
    };
    let mut faults = Vec::new();
    for (name, _) in FILES.iter().filter(|(name, _)| *name != SUMS) {
        let mut lines = text.lines().filter_map(|line| line.split_once("  "));
        let listed = lines.find(|(_, listed)| listed == name).map(|(sha256, _)| sha256);
        match (bundle::sha256_of(&directory.join(name)), listed) {
            (Err(error), _) => faults.push(unreadable(directory, name, error)),
            (_, None) => faults.push(format!("{SUMS}: it has no line for {name}; {REPACK}")),
            (Ok(sha256), Some(listed)) if sha256 != listed => faults.push(format!(
                "{name}: its sha256 is {sha256}, and {SUMS} has {listed}: it was changed after it was packed; {REPACK}"
            )),
            _ => {}
        }
    }
    faults
}

/// The faults in the texts of a file: invalid JSON, a text that is too long, a path or a name.
fn of_texts(directory: &Path, name: &str) -> Vec<String> {
    let text = match untrusted::file::read_text(&directory.join(name), MOST) {
        Ok(text) => text,
        Err(error) => return vec![unreadable(directory, name, error)],
    };
    let lines: Vec<&str> = if name == SAMPLES { text.lines().collect() } else { vec![&text] };
    let (mut broken, mut long, mut named) = (Vec::new(), Vec::new(), Vec::new());
    for (index, line) in lines.iter().enumerate() {
        let at = if lines.len() > 1 { format!("{name}, line {}", index + 1) } else { name.to_owned() };
        let value: Value = match serde_json::from_str(line) {
            Ok(value) => value,
            Err(error) => {
                broken.push(format!("{at}: it is not JSON: {error}; {REPACK}"));
                continue;
            }
        };
        each(&value, &mut |place, _, value| {
            let length = value.as_str().map_or(0, |text| text.chars().count());
            if length > LONGEST_TEXT {
                long.push(format!(
                    "{at}: {place} has {length} characters, and at most {LONGEST_TEXT} are allowed; measure with \
                     shorter prompts"
                ));
            }
        });
        for place in personal(&value) {
            named.push(format!("{at}: {place} holds a path, or the name of a host or kernel; {REPACK}"));
        }
    }
    [broken, long, named].into_iter().flat_map(|kind| kind.into_iter().take(LISTED)).collect()
}

/// Where the report differs from what today's rules say of the samples, and the reasons not to publish the run at all.
fn judged_again(directory: &Path) -> std::result::Result<Vec<String>, String> {
    let submitted = saved::json(&directory.join(REPORT)).map_err(|why| unreadable(directory, REPORT, why))?;
    let submitted = submitted.unwrap_or_default();
    let recorded = report::read(submitted.clone()).map_err(|why| unreadable(directory, REPORT, why))?;
    let (judged, evidence) =
        measure::collection::judged(directory).map_err(|why| unreadable(directory, SAMPLES, why))?;
    let mut faults = unfit(&judged);
    if let Some(what) = first_difference(&submitted, &judged) {
        let (theirs, today) = (recorded.rules.len(), report::fairness::ids().len());
        let rules = match theirs == today {
            true => String::new(),
            false => format!(" (it was judged by {theirs} rules, and today there are {today})"),
        };
        faults.push(format!("{REPORT}: {what}{rules}; {REJUDGE}"));
    }
    faults.extend(foreign_weights(&judged, &evidence));
    Ok(faults)
}

/// The reasons not to publish a run, whatever its figures.
fn unfit(report: &Report) -> Vec<String> {
    let Report { environment, plan, model, .. } = report;
    let mut faults = Vec::new();
    let mut add = |file: &str, what: &str, remedy: &str| faults.push(format!("{file}: {what}; {remedy}"));
    if version(&environment.driver_version) > version(env!("CARGO_PKG_VERSION")) {
        let what = format!("it was measured by Photofinish {}, which is newer", environment.driver_version);
        add(ENVIRONMENT, &what, "check it with that version");
    }
    if environment.git_modified == Some(true) {
        let what = "it was measured by a checkout with changes, which cannot be repeated";
        add(ENVIRONMENT, what, "commit the changes, or use a release, and measure again");
    }
    if plan.request.quick {
        add(PLAN, "it is a first look (--quick)", "measure again without --quick");
    }
    let labels = plan.contenders.iter().map(|contender| contender.label.as_str());
    for named in labels.chain([model.name.as_str(), plan.model.as_str()]) {
        if named.contains("..") || named.contains('\\') || named.starts_with(['/', '.']) {
            let what = format!("a contender or model is named {named:?}, which is a path");
            add(PLAN, &what, "measure a release, or a revision that others can fetch");
        }
    }
    if report.interrupted {
        add(SAMPLES, "the run was interrupted", "measure it to its end");
    }
    if report.pairs().is_empty() {
        add(REPORT, "no two contenders have figures", "pack a comparison");
    }
    faults
}

/// Weights that this program hashed before the run, and that the bundle's manifest does not name.
fn foreign_weights(report: &Report, evidence: &Evidence) -> Option<String> {
    let known = &report.model.manifest.files;
    let is_known = |sha256: &str| known.values().any(|record| record.sha256 == sha256);
    let (_, foreign) = evidence.hashed.iter().find(|(_, sha256)| !is_known(sha256))?;
    Some(format!(
        "{SAMPLES}: the weights have sha256 {foreign}, which the bundle's manifest does not name; measure again with a \
         bundle that `prepare` made"
    ))
}

/// The numbers of a version.
fn version(text: &str) -> Vec<u64> {
    text.split(['.', '-', '+']).map_while(|part| part.parse().ok()).collect()
}

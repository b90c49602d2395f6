//! The archive of a run: `photofinish report DIR --archive` packs it without paths, names and secrets, and `photofinish
//! check ARCHIVE` judges it again. An archive is not trusted: files are read within limits, samples are judged by the
//! functions that `photofinish report` calls, and the report must agree.

pub(super) mod signature;
#[cfg(test)]
mod tests;

use std::fmt::Display;
use std::fs::File;
use std::io::{Error, ErrorKind, Read};
use std::path::{Path, PathBuf};

use comparison::facts::Evidence;
use comparison::judge::report::verdicts::Verdict;
use comparison::judge::{Report, report};
use comparison::plan::{Failure, Result};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use protocol::untrusted::{self, secrets, shortened};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::measure;
use crate::measure::results::{self, ENVIRONMENT, PLAN, REPORT, SAMPLES};
use crate::output::{print, shown};

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
    let archive = path_of(directory)?;
    let names = names(&measure::places::host(), std::env::var("USER").ok(), std::env::var("HOME").ok());
    write(directory, &archive, &names)
        .map_err(|error| Failure::failed(format!("cannot write {}: {error}", archive.display())))?;
    Ok(archive)
}

/// The archive of a directory: `DIRECTORY.tar.gz` beside it.
pub(super) fn path_of(directory: &Path) -> Result<PathBuf> {
    let directory = std::path::absolute(directory).map_err(|error| Failure::failed(error.to_string()))?;
    // The name of a directory may hold a dot.
    let mut name = directory.file_name().unwrap_or_default().to_owned();
    name.push(".tar.gz");
    Ok(directory.with_file_name(name))
}

fn names(host: &str, user: Option<String>, home: Option<String>) -> Vec<String> {
    let home = home.and_then(|home| Some(Path::new(&home).file_name()?.to_str()?.to_owned()));
    let mut names: Vec<String> = [Some(host.to_owned()), user, home].into_iter().flatten().collect();
    names.retain(|name| name.len() >= SHORTEST_NAME && name != "root");
    names
}

fn write(directory: &Path, archive: &Path, names: &[String]) -> std::io::Result<()> {
    let mut packed = tempfile::NamedTempFile::new_in(archive.parent().unwrap_or(Path::new(".")))?;
    let mut tar = tar::Builder::new(GzEncoder::new(packed.as_file_mut(), Compression::default()));
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
    packed.persist(archive).map_err(|error| error.error)?;
    results::readable_by_all(archive);
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
        let written = File::create_new(directory.join(name))
            .and_then(|mut file| std::io::copy(&mut member.take(most), &mut file));
        written.map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => refused(format!("it holds {name} twice")),
            _ => refused(format!("{name} cannot be unpacked: {error}")),
        })?;
    }
    Ok(())
}

/// Judges the run in an archive again: every figure and verdict of its report must follow from its samples.
pub(crate) fn check(archive: &Path) -> Result<u8> {
    let place = tempfile::tempdir().map_err(|error| Failure::failed(error.to_string()))?;
    unpack(archive, place.path())?;
    let faults = faults(place.path());
    for fault in &faults {
        protocol::say!("error: {}", untrusted::line(fault));
    }
    if !faults.is_empty() {
        return Err(Failure::Spoken(1));
    }
    print(&format!("{}: all as its samples say\n", shown(archive)))?;
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
        each(&value, "", "", &mut |place, _, value| {
            let length = value.as_str().map_or(0, |text| text.chars().count());
            if length > LONGEST_TEXT {
                long.push(format!(
                    "{at}: {place} has {length} characters, and at most {LONGEST_TEXT} are allowed; measure with \
                     shorter prompts"
                ));
            }
        });
        for place in personal(&value) {
            named.push(format!(
                "{at}: {place} holds a path, a secret, or the name of a host or kernel; {REPACK}"
            ));
        }
    }
    [broken, long, named].into_iter().flat_map(|kind| kind.into_iter().take(LISTED)).collect()
}

/// Where the report differs from what today's rules say of the samples, and the reasons not to publish the run at all.
fn judged_again(directory: &Path) -> std::result::Result<Vec<String>, String> {
    let text = results::text(&directory.join(REPORT)).map_err(|why| unreadable(directory, REPORT, why))?;
    let text = text.unwrap_or_default();
    let recorded = report::read(&text).map_err(|why| unreadable(directory, REPORT, why))?;
    let mut submitted: Value =
        serde_json::from_str(&text).map_err(|why| unreadable(directory, REPORT, why))?;
    // An earlier version described the model in another form.
    submitted["model"]["config"] = json!(recorded.model.config);
    let (judged, evidence) =
        measure::results::judged(directory).map_err(|why| unreadable(directory, SAMPLES, why))?;
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

fn version(text: &str) -> Vec<u64> {
    text.split(['.', '-', '+']).map_while(|part| part.parse().ok()).collect()
}

// Text that can be published: without paths, and without the names of a machine and of its user.

/// Replace a path and a name.
const PATH: &str = "(path)";

const NAME: &str = "(name)";

/// Every value of JSON in the text, one a line or one in all, without paths, names and secrets. An incomplete line is
/// left out: its content is not known.
fn cleaned(text: &str, names: &[String]) -> String {
    let clean = |text: &str| {
        let value: Value = serde_json::from_str(text).ok()?;
        Some(without(value, names).to_string() + "\n")
    };
    clean(text).unwrap_or_else(|| text.lines().filter_map(clean).collect())
}

/// The value without paths and names, also in the names of its fields: a contender's label may contain
/// either.
fn without(value: Value, names: &[String]) -> Value {
    match value {
        Value::String(text) => Value::String(plain(&text, names)),
        Value::Array(values) => values.into_iter().map(|value| without(value, names)).collect(),
        Value::Object(fields) => {
            let clean = |(field, value): (String, Value)| {
                let value = match (field.as_str(), value) {
                    ("host", Value::String(_)) => NAME.into(),
                    // A kernel may be named after the person who built it.
                    ("kernel", _) => Value::Null,
                    ("env" | "options", Value::Object(settings)) => without(masked(settings), names),
                    (_, value) => without(value, names),
                };
                (plain(&field, names), value)
            };
            Value::Object(fields.into_iter().map(clean).collect())
        }
        other => other,
    }
}

fn plain(text: &str, names: &[String]) -> String {
    without_names(&without_paths(&secrets::without_credentials(text)), names)
}

/// Settings or variables of an engine as today's results have them.
fn masked(mut settings: serde_json::Map<String, Value>) -> Value {
    for (name, value) in &mut settings {
        *value = value.as_str().map_or_else(|| value.clone(), |text| secrets::setting(name, text).into());
    }
    Value::Object(settings)
}

/// A text without absolute paths, and without those that begin at a home directory or above.
fn without_paths(text: &str) -> String {
    if ["/", "~/"].iter().any(|start| text.starts_with(start)) && !text.contains('\n') {
        // The path may contain spaces.
        return PATH.to_owned();
    }
    let ends = |c: char| c.is_whitespace() || "\"'`,;:()<>|=".contains(c);
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let word = rest.find(ends).unwrap_or(rest.len());
        kept += if is_path(&rest[..word]) { PATH } else { &rest[..word] };
        let end = rest[word..].chars().next().map_or(word, |c| word + c.len_utf8());
        kept += &rest[word..end];
        rest = &rest[end..];
    }
    kept
}

/// `GB/s` and `1/2` are no paths.
fn is_path(word: &str) -> bool {
    let begins = ["/", "~/", "./", "../", "\\\\"].iter().any(|start| word.starts_with(start));
    let windows = word.len() > 2 && word.as_bytes()[0].is_ascii_alphabetic() && word[1..].starts_with('\\');
    (begins && word.len() > 1) || windows || word.matches('/').count() > 1
}

fn without_names(text: &str, names: &[String]) -> String {
    names.iter().fold(text.to_owned(), |text, name| text.replace(name, NAME))
}

/// The fields of a value that still hold a path, the name of a host, a kernel, or a secret.
fn personal(value: &Value) -> Vec<String> {
    let is_open = |text: &str| without_paths(text) != text || secrets::without_credentials(text) != text;
    let mut found = Vec::new();
    each(value, "", "", &mut |place, name, value| {
        let is_kept = match (name, value) {
            ("host", Value::String(host)) => !host.is_empty() && host != NAME,
            ("kernel", kernel) => !kernel.is_null(),
            ("env" | "options", Value::Object(settings)) => masked(settings.clone()) != *value,
            (_, Value::String(text)) => is_open(text),
            _ => false,
        };
        if is_kept || is_open(name) {
            found.push(place.to_owned());
        }
    });
    found
}

// Compares a report with the one that today's rules make from the same samples.

/// Sentences. Their wording changes from version to version, and pages use today's.
const SENTENCES: [&str; 12] = [
    "alone",
    "cold_unavailable",
    "finding",
    "obstacle",
    "reason",
    "reasons",
    "remarks",
    "remedy",
    "results",
    "sentence",
    "summary",
    "warnings",
];

/// Unverified rules and mere notes are in words, too. What other runs gave is in no samples.
const NOTES: [&str; 3] = ["notes", "other_runs", "unverified"];

const ROWS: &str = "rows";

/// Results of two machines' mathematical functions may differ by this share.
const SAME: f64 = 1e-9;

/// Most characters of a value that is quoted.
const QUOTED: usize = 60;

/// The first field of a submitted report that the samples do not give, in a sentence.
fn first_difference(submitted: &Value, judged: &Report) -> Option<String> {
    // Serialised to text and back, as the submitted report was: an f32 has fewer digits there.
    let judged = serde_json::to_string(judged).expect("a report has string keys and no failing serialiser");
    let mut judged: Value = serde_json::from_str(&judged).expect("what was just written is JSON");
    with_both_sides(&mut judged);
    // Figures first: everything else follows from them.
    let of_rows = submitted.get(ROWS).zip(judged.get(ROWS));
    let of_rows = of_rows.and_then(|(submitted, judged)| difference(submitted, judged, ROWS));
    of_rows.or_else(|| difference(submitted, &judged, ""))
}

/// Adds the verdict for `b` to every comparison, as files have it.
fn with_both_sides(judged: &mut Value) {
    let mut add = |found: &mut Value| {
        let verdict =
            found.get("verdict").cloned().and_then(|name| serde_json::from_value::<Verdict>(name).ok());
        if let (Some(verdict), Some(found)) = (verdict, found.as_object_mut()) {
            let turned = serde_json::to_value(verdict.turned()).expect("a verdict is a word");
            found.insert("verdict_of_b".to_owned(), turned);
        }
    };
    let pairs = judged.get_mut("comparisons").and_then(Value::as_array_mut);
    pairs.into_iter().flatten().for_each(&mut add);
    let hybrids = judged.get_mut("hybrids").and_then(Value::as_array_mut);
    hybrids.into_iter().flatten().filter_map(|hybrid| hybrid.get_mut("verdict")).for_each(&mut add);
}

fn difference(submitted: &Value, judged: &Value, place: &str) -> Option<String> {
    let other = || Some(format!("{place} is {}, and the samples give {}", quoted(submitted), quoted(judged)));
    match (submitted, judged) {
        (Value::Object(submitted), Value::Object(judged)) => submitted.iter().find_map(|(name, value)| {
            if SENTENCES.contains(&name.as_str()) || NOTES.contains(&name.as_str()) {
                return None;
            }
            // A field that today's reports leave out is empty.
            difference(value, judged.get(name).unwrap_or(&Value::Null), &inner(place, name))
        }),
        (Value::Array(submitted), Value::Array(judged)) => {
            if submitted.len() != judged.len() {
                let (has, given) = (submitted.len(), judged.len());
                return Some(format!("{place} has {has} entries, and the samples give {given}"));
            }
            let mut both = submitted.iter().zip(judged).enumerate();
            both.find_map(|(index, (submitted, judged))| {
                difference(submitted, judged, &format!("{place}[{index}]"))
            })
        }
        (Value::Number(submitted), Value::Number(judged)) => {
            let (submitted, judged) = (submitted.as_f64()?, judged.as_f64()?);
            let is_same = (submitted - judged).abs() <= SAME * submitted.abs().max(judged.abs());
            if is_same { None } else { other() }
        }
        (submitted, Value::Null) if is_empty(submitted) => None,
        (submitted, judged) if submitted == judged => None,
        _ => other(),
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(values) => values.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

fn quoted(value: &Value) -> String {
    match value {
        Value::Null => "not there".to_owned(),
        value => shortened(&value.to_string(), QUOTED),
    }
}

/// Calls `visit` with the place, the field's own name and the value of everything below `value`, which has this place and
/// name.
fn each(value: &Value, place: &str, name: &str, visit: &mut dyn FnMut(&str, &str, &Value)) {
    if !place.is_empty() {
        visit(place, name, value);
    }
    match value {
        Value::Array(values) => {
            for (index, value) in values.iter().enumerate() {
                each(value, &format!("{place}[{index}]"), "", visit);
            }
        }
        Value::Object(fields) => {
            for (name, value) in fields {
                each(value, &inner(place, name), name, visit);
            }
        }
        _ => {}
    }
}

fn inner(place: &str, name: &str) -> String {
    if place.is_empty() { name.to_owned() } else { format!("{place}.{name}") }
}

//! `photofinish report --archive`: the facts of a run in one file that can be given away: without paths, and without the
//! names of the machine and of its user.

use std::fs::File;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use measure::saved::{REPORT, SAMPLES};
use plan::{Failure, Result};
use serde_json::Value;

/// What is packed, as far as it is there. Every other output is made again from these by `photofinish report DIR`.
const FILES: [&str; 4] = ["environment.json", "plan.json", SAMPLES, REPORT];
/// What stands for a path, and for a name.
const PATH: &str = "(path)";
const NAME: &str = "(name)";
/// Shorter names are parts of words.
const SHORTEST_NAME: usize = 3;

/// Packs the run in `directory` into `DIRECTORY.tar.gz` beside it, and returns that file.
pub(crate) fn pack(directory: &Path) -> Result<PathBuf> {
    if !directory.join(SAMPLES).is_file() {
        return Err(Failure::usage(format!(
            "{} holds no {SAMPLES}: there is nothing to pack",
            directory.display()
        )));
    }
    let directory = std::path::absolute(directory).map_err(|error| Failure::failed(error.to_string()))?;
    let archive = directory.with_extension("tar.gz");
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
    for name in FILES {
        let path = directory.join(name);
        if !path.is_file() {
            continue;
        }
        let text = cleaned(&foreign::file::read_text(&path, foreign::file::RESULTS)?, names);
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, Path::new("run").join(name), text.as_bytes())?;
    }
    tar.into_inner()?.finish()?;
    Ok(())
}

/// Every value of JSON in the text, one a line or one in all, without paths and names. A line that was cut short is left
/// out: nobody knows what it holds.
fn cleaned(text: &str, names: &[String]) -> String {
    let clean = |text: &str| {
        let mut value: Value = serde_json::from_str(text).ok()?;
        clean(&mut value, names);
        Some(value.to_string() + "\n")
    };
    clean(text).unwrap_or_else(|| text.lines().filter_map(clean).collect())
}

fn clean(value: &mut Value, names: &[String]) {
    match value {
        Value::String(text) => *text = without_names(&without_paths(text), names),
        Value::Array(values) => values.iter_mut().for_each(|value| clean(value, names)),
        Value::Object(fields) => {
            for (field, value) in fields {
                match (field.as_str(), value) {
                    ("host", Value::String(host)) => NAME.clone_into(host),
                    // A kernel may be named after who built it.
                    ("kernel", kernel) => *kernel = Value::Null,
                    (_, value) => clean(value, names),
                }
            }
        }
        _ => {}
    }
}

/// A text without absolute paths, and without those that begin at a home directory or above.
fn without_paths(text: &str) -> String {
    if ["/", "~/"].iter().any(|start| text.starts_with(start)) && !text.contains('\n') {
        // It may hold spaces.
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

/// `GB/s` and `1/2` are none.
fn is_path(word: &str) -> bool {
    let begins = ["/", "~/", "./", "../", "\\\\"].iter().any(|start| word.starts_with(start));
    let windows = word.len() > 2 && word.as_bytes()[0].is_ascii_alphabetic() && word[1..].starts_with('\\');
    (begins && word.len() > 1) || windows || word.matches('/').count() > 1
}

fn without_names(text: &str, names: &[String]) -> String {
    names.iter().fold(text.to_owned(), |text, name| text.replace(name, NAME))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_names_are_taken_out_and_units_are_not() {
        let names = names("carols-box", Some("carol".into()), Some("/srv/people/carol".into()));
        let said = |text: &str| without_names(&without_paths(text), &names);
        assert_eq!(said("cannot read /srv/people/carol/models/x: gone"), "cannot read (path): gone");
        assert_eq!(said("/srv/people/carol/my models/x"), "(path)");
        assert_eq!(said("2000 GB/s at 1/2, tok/s"), "2000 GB/s at 1/2, tok/s");
        assert_eq!(said("--model=~/models/a --configs ../mine"), "--model=(path) --configs (path)");
        assert_eq!(said("carols-box, by carol"), "(name), by (name)");
    }

    #[test]
    fn what_is_packed_can_be_read_and_holds_no_name_or_path() {
        let directory = tempfile::tempdir().unwrap();
        let run = directory.path().join("run");
        std::fs::create_dir(&run).unwrap();
        let lines = "{\"fact\": \"a\", \"file\": \"/srv/x/y.bin\"}\n{\"fact\": \"b\", \"n\": 1.5}\n{\"cut";
        std::fs::write(run.join(SAMPLES), lines).unwrap();
        let environment = "{\n \"host\": \"carols-box\", \"kernel\": \"6.1-carol\", \"cpu\": \"EPYC\"\n}";
        std::fs::write(run.join("environment.json"), environment).unwrap();
        std::fs::write(run.join("report.html"), "carol").unwrap();
        let archive = directory.path().join("run.tar.gz");
        write(&run, &archive, &["carol".to_owned()]).unwrap();
        let mut unpacked = tar::Archive::new(flate2::read::GzDecoder::new(File::open(archive).unwrap()));
        unpacked.unpack(directory.path().join("out")).unwrap();
        let read = |name: &str| std::fs::read_to_string(directory.path().join("out/run").join(name));
        let samples = read(SAMPLES).unwrap();
        assert_eq!(samples.lines().count(), 2, "{samples}");
        assert!(
            samples.contains("(path)") && samples.contains("1.5") && !samples.contains("srv"),
            "{samples}"
        );
        let environment: Value = serde_json::from_str(&read("environment.json").unwrap()).unwrap();
        assert_eq!(environment, serde_json::json!({"cpu": "EPYC", "host": "(name)", "kernel": null}));
        assert!(read("report.html").is_err());
    }
}

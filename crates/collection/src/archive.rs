//! The archive of a run, `photofinish report DIR --archive`: a submission in one file.

use std::fs::File;
use std::io::{Error, ErrorKind, Read};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use measure::saved::SAMPLES;
use plan::{Failure, Result};
use sha2::{Digest, Sha256};

use crate::cleaned::cleaned;
use crate::files::{self, SUMS};

/// The directory in the archive.
const ROOT: &str = "run";
/// Shorter names are parts of words.
const SHORTEST_NAME: usize = 3;

/// Packs the run in `directory` into `DIRECTORY.tar.gz`, without paths and names, and returns that file.
///
/// # Errors
/// If there are no samples, or a file cannot be read or written.
pub fn pack(directory: &Path) -> Result<PathBuf> {
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
    for name in files::names().filter(|name| *name != SUMS) {
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
pub(crate) fn unpack(archive: &Path, directory: &Path) -> Result<()> {
    let refused = |what: String| {
        Failure::usage(format!(
            "{}: {what}; make the archive with `photofinish report DIR --archive`",
            archive.display()
        ))
    };
    let unreadable = |error: Error| refused(format!("it cannot be read: {error}"));
    let file = untrusted::file::open(archive).map_err(unreadable)?;
    // Headers and padding add to the size of the files.
    let mut tar = tar::Archive::new(GzDecoder::new(file).take(files::MOST + 1_000_000));
    for member in tar.entries().map_err(unreadable)? {
        let member = member.map_err(unreadable)?;
        let path = String::from_utf8_lossy(&member.path_bytes()).into_owned();
        let name = path.strip_prefix(ROOT).and_then(|name| name.strip_prefix('/')).unwrap_or_default();
        let Some(most) = files::most(name).filter(|_| member.header().entry_type().is_file()) else {
            return Err(refused(format!(
                "it holds {:?}, which no archive of a run has",
                untrusted::line(&path)
            )));
        };
        let size = member.size();
        if size > most {
            return Err(refused(format!("{name}: {}", files::size(size, most))));
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

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn what_is_packed_can_be_unpacked_and_holds_no_name_or_path() {
        let directory = tempfile::tempdir().unwrap();
        let [run, out] = ["run", "out"].map(|name| directory.path().join(name));
        std::fs::create_dir_all(&run).unwrap();
        std::fs::create_dir_all(&out).unwrap();
        let lines = "{\"fact\": \"a\", \"file\": \"/srv/x/y.bin\"}\n{\"fact\": \"b\", \"n\": 1.5}\n{\"cut";
        std::fs::write(run.join(SAMPLES), lines).unwrap();
        let environment = "{\n \"host\": \"carols-box\", \"kernel\": \"6.1-carol\", \"cpu\": \"EPYC\"\n}";
        std::fs::write(run.join("environment.json"), environment).unwrap();
        std::fs::write(run.join("report.html"), "carol").unwrap();
        let archive = directory.path().join("run.tar.gz");
        write(&run, &archive, &["carol".to_owned()]).unwrap();
        unpack(&archive, &out).unwrap();
        let read = |name: &str| std::fs::read_to_string(out.join(name));
        let samples = read(SAMPLES).unwrap();
        assert_eq!(samples.lines().count(), 2, "{samples}");
        assert!(
            samples.contains("(path)") && samples.contains("1.5") && !samples.contains("srv"),
            "{samples}"
        );
        let environment: Value = serde_json::from_str(&read("environment.json").unwrap()).unwrap();
        assert_eq!(environment, serde_json::json!({"cpu": "EPYC", "host": "(name)", "kernel": null}));
        assert!(read("report.html").is_err());
        let sums = read(SUMS).unwrap();
        assert_eq!(sums.lines().count(), 2, "{sums}");
        assert!(sums.contains(&bundle::sha256_of(&out.join(SAMPLES)).unwrap()), "{sums}");
    }

    /// An archive of one member, whose name is not checked while it is written.
    fn archive_of(directory: &Path, name: &str, kind: tar::EntryType, bytes: &[u8]) -> PathBuf {
        let path = directory.join("forged.tar.gz");
        let mut header = tar::Header::new_gnu();
        header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
        header.set_entry_type(kind);
        header.set_size(bytes.len() as u64);
        header.set_cksum();
        let mut tar = tar::Builder::new(GzEncoder::new(File::create(&path).unwrap(), Compression::fast()));
        tar.append(&header, bytes).unwrap();
        tar.into_inner().unwrap().finish().unwrap();
        path
    }

    #[test]
    fn an_archive_writes_nothing_but_the_files_of_a_run() {
        let directory = tempfile::tempdir().unwrap();
        let out = directory.path().join("out");
        std::fs::create_dir(&out).unwrap();
        let file = tar::EntryType::Regular;
        for name in
            ["run/../../x.json", "/tmp/plan.json", "run/notes.txt", "plan.json", "run/", "other/plan.json"]
        {
            let why = unpack(&archive_of(directory.path(), name, file, b"{}"), &out).unwrap_err().to_string();
            assert!(why.contains(name) && why.contains("no archive of a run has"), "{why}");
        }
        let link = archive_of(directory.path(), "run/plan.json", tar::EntryType::Symlink, b"");
        assert!(unpack(&link, &out).unwrap_err().to_string().contains("run/plan.json"));
        let large = vec![b' '; 30_000_000];
        let large = archive_of(directory.path(), "run/samples.jsonl", file, &large);
        let why = unpack(&large, &out).unwrap_err().to_string();
        assert!(why.contains("samples.jsonl: it has 30.0 MB, and at most 20 MB"), "{why}");
        assert_eq!(std::fs::read_dir(&out).unwrap().count(), 0);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 2, "nothing beside it");
    }
}

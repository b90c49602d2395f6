//! A repository on the Hugging Face hub, in the cache that all of Hugging Face's tools share. The program
//! `hub` fetches missing files.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bundle::ModelConfig;
use protocol::untrusted;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::huggingface::{self, INDEX, indexed_files};
use crate::model::{CONFIG, SourceFile, TEMPLATE, TOKENIZER, TOKENIZER_CONFIG, WEIGHTS};
use crate::tokenizer_files::{BESIDE, VOCABULARIES};
use crate::{PrepareError, Progress, modules};

/// The directory of a snapshot of `repository`. A snapshot that is complete in the cache is used as it is;
/// otherwise the newest one is fetched, unless `HF_HUB_OFFLINE` forbids it.
pub(crate) fn fetch(repository: &str, progress: Progress) -> Result<PathBuf, PrepareError> {
    let cached = Cached::find(repository)?;
    let newest = |lacking: &str| download(&cached, &cached.hub(lacking, progress)?);
    let Some(snapshot) = cached.main() else { return newest("it") };
    match needed(&snapshot, |file| snapshot.join(file).is_file())? {
        Err(missing) => newest(&format!("its {missing}")),
        Ok(_) if offline() => Ok(snapshot),
        // Without a tokenizer it may be complete.
        Ok(files) if !files.iter().any(|file| is_vocabulary(file)) => newest(&format!("its {TOKENIZER}")),
        // An encoder may be complete without modules, but what fetched it may not have asked for them.
        Ok(files) if encodes(&snapshot) && !files.iter().any(|file| file == modules::MODULES) => {
            newest(&format!("its {}", modules::MODULES)).or(Ok(snapshot))
        }
        Ok(_) => Ok(snapshot),
    }
}

/// The directory of a snapshot that holds the configuration of `repository`: nothing else is fetched.
pub(crate) fn fetch_config(repository: &str, progress: Progress) -> Result<PathBuf, PrepareError> {
    let cached = Cached::find(repository)?;
    if let Some(snapshot) = cached.main().filter(|snapshot| snapshot.join(CONFIG).is_file()) {
        return Ok(snapshot);
    }
    let hub = cached.hub(&format!("its {CONFIG}"), progress)?;
    // Of a commit, as in `download`, so that the file is also found there.
    let commit = hub.list(repository, &cached.cache).map_err(|reason| cached.error(reason))?.commit;
    let snapshot = cached.snapshot(&commit)?;
    cached.add(&hub, &commit, &snapshot, [CONFIG.to_owned()])?;
    Ok(snapshot)
}

fn is_vocabulary(file: &str) -> bool {
    file == TOKENIZER || VOCABULARIES.contains(&file)
}

/// The files that a model needs, of those for which `is_there` is true; or else the missing file. The files
/// of an index are among them as soon as the index is in `snapshot`.
fn needed(
    snapshot: &Path,
    is_there: impl Fn(&str) -> bool,
) -> Result<Result<Vec<String>, String>, PrepareError> {
    if !is_there(CONFIG) {
        return Ok(Err(CONFIG.into()));
    }
    let older = VOCABULARIES.iter().chain(&BESIDE).filter(|_| !is_there(TOKENIZER)).copied();
    let optional = [TOKENIZER, TOKENIZER_CONFIG, TEMPLATE].into_iter().chain(older).chain(modules::FILES);
    let optional = optional.filter(|file| is_there(file));
    let mut files: Vec<_> = [CONFIG].into_iter().chain(optional).map(str::to_owned).collect();
    if let Some(listed) = modules::listed(snapshot, &mut Vec::new())? {
        for file in listed.files() {
            if !is_there(&file) {
                return Ok(Err(file));
            }
            files.push(file);
        }
    }
    if is_there(WEIGHTS) {
        files.push(WEIGHTS.into());
        return Ok(Ok(files));
    }
    if !is_there(INDEX) {
        return Ok(Err(format!("{WEIGHTS} (or {INDEX})")));
    }
    files.push(INDEX.into());
    let index = snapshot.join(INDEX);
    if index.is_file() {
        for shard in indexed_files(&SourceFile::open(&index)?)? {
            if !is_there(&shard) {
                return Ok(Err(shard));
            }
            files.push(shard);
        }
    }
    Ok(Ok(files))
}

/// Whether the model of a snapshot turns texts into vectors.
fn encodes(snapshot: &Path) -> bool {
    let config = huggingface::config_json(snapshot).ok();
    config.is_some_and(|config| ModelConfig::from_json(&config).is_ok_and(|config| config.encodes()))
}

/// Fetches from one commit, so that no two files are of different versions, and moves the cache's `main`
/// there once all of them have arrived.
fn download(cached: &Cached<'_>, hub: &Program) -> Result<PathBuf, PrepareError> {
    let listing = hub.list(cached.repository, &cached.cache).map_err(|reason| cached.error(reason))?;
    let snapshot = cached.snapshot(&listing.commit)?;
    let is_there = |file: &str| listing.files.contains(file) || snapshot.join(file).is_file();
    // An index and modules.json are fetched before the files that they list.
    for _ in 0..2 {
        let files = needed(&snapshot, is_there)?;
        let files = files.map_err(|missing| cached.error(format!("it has no {missing}")))?;
        cached.add(hub, &listing.commit, &snapshot, files)?;
    }
    cached
        .move_main(&listing.commit)
        .map_err(|e| cached.error(format!("cannot note its commit in the cache: {e}")))?;
    Ok(snapshot)
}

/// A repository's part of the cache, which may not be there yet.
struct Cached<'a> {
    repository: &'a str,
    cache: PathBuf,
    directory: PathBuf,
}

impl<'a> Cached<'a> {
    fn find(repository: &'a str) -> Result<Self, PrepareError> {
        check_name(repository)?;
        let cache = cache().ok_or_else(|| {
            error(repository, "neither HF_HOME nor HOME names the directory of its cache".into())
        })?;
        let directory = cache.join(format!("models--{}", repository.replace('/', "--")));
        Ok(Cached { repository, cache, directory })
    }

    fn reference(&self) -> PathBuf {
        self.directory.join("refs").join("main")
    }

    /// The snapshot that the cache knows as the newest.
    fn main(&self) -> Option<PathBuf> {
        let commit = untrusted::file::read_text(&self.reference(), untrusted::file::CONFIG).ok()?;
        self.snapshot(commit.trim()).ok()
    }

    fn move_main(&self, commit: &str) -> std::io::Result<()> {
        let reference = self.reference();
        std::fs::create_dir_all(reference.parent().expect("it was joined"))?;
        std::fs::write(reference, commit)
    }

    /// The directory of a commit. The commit is checked, because it becomes part of a path.
    fn snapshot(&self, commit: &str) -> Result<PathBuf, PrepareError> {
        if is_commit(commit) {
            return Ok(self.directory.join("snapshots").join(commit));
        }
        let commit = untrusted::shortened(commit, 80);
        Err(self.error(format!("the hub names {commit:?} as its commit, which is not 40 hexadecimal digits")))
    }

    /// The program to fetch `lacking`, if that is allowed and the program is there.
    fn hub(&self, lacking: &str, progress: Progress) -> Result<Program, PrepareError> {
        let program = match offline() {
            true => Err("HF_HUB_OFFLINE forbids fetching it".to_owned()),
            false => Program::find(progress),
        };
        program.map_err(|why| self.error(format!("{lacking} is not in the local cache, and {why}")))
    }

    /// Fetches those of `files` that the snapshot lacks.
    fn add(
        &self,
        hub: &Program,
        commit: &str,
        snapshot: &Path,
        files: impl IntoIterator<Item = String>,
    ) -> Result<(), PrepareError> {
        let is_absent = |file: &String| !snapshot.join(file).is_file();
        let absent: Vec<_> = files.into_iter().filter(is_absent).collect();
        if absent.is_empty() {
            return Ok(());
        }
        hub.fetch(self.repository, &self.cache, commit, &absent).map_err(|reason| self.error(reason))?;
        match absent.iter().find(|file| is_absent(file)) {
            Some(file) => Err(self.error(format!("the hub gave a {file} of another commit than {commit}"))),
            None => Ok(()),
        }
    }

    fn error(&self, reason: String) -> PrepareError {
        error(self.repository, reason)
    }
}

fn check_name(repository: &str) -> Result<(), PrepareError> {
    let plain = |part: &str| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        !part.is_empty() && !part.starts_with('.') && part.chars().all(allowed)
    };
    match repository.split_once('/') {
        Some((owner, name)) if plain(owner) && plain(name) => Ok(()),
        _ => Err(error(repository, "a repository is named owner/name".into())),
    }
}

fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// `HF_HUB_CACHE`, else `HF_HOME`/hub, else the default, as in `huggingface_hub`.
fn cache() -> Option<PathBuf> {
    let given = |name: &str| std::env::var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from);
    given("HF_HUB_CACHE").or_else(|| {
        let home = || std::env::home_dir().filter(|home| !home.as_os_str().is_empty());
        let given = given("HF_HOME").or_else(|| Some(home()?.join(".cache").join("huggingface")));
        given.map(|home| home.join("hub"))
    })
}

/// As `huggingface_hub` reads it.
fn offline() -> bool {
    let value = std::env::var("HF_HUB_OFFLINE").unwrap_or_default();
    ["1", "ON", "YES", "TRUE"].contains(&value.to_uppercase().as_str())
}

fn error(repository: &str, reason: String) -> PrepareError {
    PrepareError::Hub { repository: repository.to_owned(), reason }
}

// The program `hub`, which fetches files. It is in the directory of this program, if it was built or
// installed.

struct Program {
    path: PathBuf,
    progress: Progress,
}

#[derive(Deserialize)]
struct Listing {
    commit: String,
    files: BTreeSet<String>,
}

#[derive(Deserialize)]
struct Refusal {
    error: String,
}

impl Program {
    /// The error says how to get the program.
    fn find(progress: Progress) -> Result<Program, String> {
        let own = std::env::current_exe()
            .map_err(|e| format!("the directory of `hub`, which downloads models, cannot be told: {e}"))?;
        let path = own.with_file_name(format!("hub{}", std::env::consts::EXE_SUFFIX));
        if path.is_file() { Ok(Program { path, progress }) } else { Err(absence(&own)) }
    }

    fn list(&self, repository: &str, cache: &Path) -> Result<Listing, String> {
        let output = self.run(cache, &["--", repository])?;
        parse(output.lines().next().unwrap_or_default())
    }

    /// Puts these files of one commit into the cache.
    fn fetch(&self, repository: &str, cache: &Path, commit: &str, files: &[String]) -> Result<(), String> {
        let mut arguments = vec!["--revision", commit, "--", repository];
        arguments.extend(files.iter().map(String::as_str));
        self.run(cache, &arguments).map(drop)
    }

    /// Returns its stdout. Its progress is shown.
    fn run(&self, cache: &Path, arguments: &[&str]) -> Result<String, String> {
        #[expect(clippy::disallowed_methods, reason = "what fetches is a program of its own")]
        let mut command = Command::new(&self.path);
        command.arg("--cache").arg(cache);
        if self.progress == Progress::Silent {
            command.arg("--quiet");
        }
        command.args(arguments).stdin(Stdio::null()).stderr(Stdio::inherit());
        let output = command.output().map_err(|e| format!("cannot start {}: {e}", self.path.display()))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            return Ok(text);
        }
        let last = text.lines().next_back().unwrap_or_default();
        Err(match parse::<Refusal>(last) {
            Ok(refusal) => refusal.error,
            Err(_) => format!("the program `hub` gave no reason why it ended with {}", output.status),
        })
    }
}

fn parse<T: DeserializeOwned>(line: &str) -> Result<T, String> {
    serde_json::from_str(line).map_err(|e| format!("the program `hub` printed something unexpected: {e}"))
}

/// The message for a missing `hub` next to `own`. An installation has its workers next to its configurations.
fn absence(own: &Path) -> String {
    let directory = own.parent().unwrap_or(own);
    let is_installed =
        directory.ends_with("workers") && directory.with_file_name("configs").join("engines").is_dir();
    let remedy = if is_installed {
        "installed: install it with `cargo xtask install --hub`"
    } else {
        "built: run `cargo xtask build --hub`"
    };
    format!("the program `hub`, which downloads models, is not {remedy}")
}

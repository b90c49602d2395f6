//! A repository on the Hugging Face hub, fetched into the cache that all of Hugging Face's tools share.

use std::path::{Path, PathBuf};

use hf_hub::api::sync::{Api, ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, Repo, RepoType};

use crate::chat::{TEMPLATE, TOKENIZER_CONFIG};
use crate::error::PrepareError;
use crate::huggingface::{INDEX, WEIGHTS, indexed_files};
use crate::model::{CONFIG, SourceFile, TOKENIZER};
use crate::progress::Progress;

/// The directory of a snapshot of `repository`. A snapshot that is complete in the cache is used as it is;
/// otherwise the newest one is fetched, unless `HF_HUB_OFFLINE` forbids it.
pub(crate) fn fetch(repository: &str, progress: Progress) -> Result<PathBuf, PrepareError> {
    check_name(repository)?;
    let cache = cache();
    let snapshots = cache.path().join(model(repository, "main").folder_name()).join("snapshots");
    let reference = snapshots.with_file_name("refs").join("main");
    let cached = std::fs::read_to_string(reference).ok();
    let cached = cached.filter(|commit| is_commit(commit.trim())).map(|commit| snapshots.join(commit.trim()));

    if offline() {
        let forbidden = "is not in the local cache, and HF_HUB_OFFLINE forbids fetching it";
        let snapshot = cached.ok_or_else(|| error(repository, format!("it {forbidden}")))?;
        let local = |file: &str| Ok(Some(snapshot.join(file)).filter(|path| path.is_file()));
        return match complete(local)? {
            Ok(()) => Ok(snapshot),
            Err(missing) => Err(error(repository, format!("its {missing} {forbidden}"))),
        };
    }
    if let Some(snapshot) = cached {
        let local = |file: &str| Ok(Some(snapshot.join(file)).filter(|path| path.is_file()));
        if local(TOKENIZER)?.is_some() && complete(local)?.is_ok() {
            return Ok(snapshot);
        }
    }
    download(repository, &cache, &snapshots, progress)
}

/// The directory of a snapshot that holds the configuration of `repository`: nothing else is fetched.
pub(crate) fn fetch_config(repository: &str, progress: Progress) -> Result<PathBuf, PrepareError> {
    check_name(repository)?;
    let cache = cache();
    let cached = cache.repo(model(repository, "main")).get(CONFIG);
    let config = match cached {
        Some(path) => path,
        None if offline() => {
            let reason =
                format!("its {CONFIG} is not in the local cache, and HF_HUB_OFFLINE forbids fetching it");
            return Err(error(repository, reason));
        }
        None => {
            let failed = |e: &dyn std::fmt::Display| error(repository, format!("cannot fetch {CONFIG}: {e}"));
            let api = api(&cache, progress).map_err(|e| failed(&e))?;
            // Of a commit, as `download` does it: what is kept here serves there.
            let info = api.repo(model(repository, "main")).info().map_err(|e| failed(&e))?;
            check_commit(repository, &info.sha)?;
            api.repo(model(repository, &info.sha)).download(CONFIG).map_err(|e| failed(&e))?
        }
    };
    Ok(config.parent().expect("a file lies in a directory").to_path_buf())
}

/// Whether `get` finds all that a model needs, else what is missing.
fn complete(
    get: impl Fn(&str) -> Result<Option<PathBuf>, PrepareError>,
) -> Result<Result<(), String>, PrepareError> {
    if get(CONFIG)?.is_none() {
        return Ok(Err(CONFIG.into()));
    }
    for optional in [TOKENIZER, TOKENIZER_CONFIG, TEMPLATE] {
        get(optional)?;
    }
    if get(WEIGHTS)?.is_some() {
        return Ok(Ok(()));
    }
    let Some(index) = get(INDEX)? else {
        return Ok(Err(format!("{WEIGHTS} (or {INDEX})")));
    };
    for shard in indexed_files(&SourceFile::open(&index)?)? {
        if get(&shard)?.is_none() {
            return Ok(Err(shard));
        }
    }
    Ok(Ok(()))
}

/// Fetches from one commit, so that no two files are of different versions, and moves the cache's `main`
/// there once all of them have arrived.
fn download(
    repository: &str,
    cache: &Cache,
    snapshots: &Path,
    progress: Progress,
) -> Result<PathBuf, PrepareError> {
    let failed = |what: &str, e: &dyn std::fmt::Display| error(repository, format!("cannot {what}: {e}"));
    let api = api(cache, progress).map_err(|e| failed("reach the hub", &e))?;
    let info = api.repo(model(repository, "main")).info();
    let info = info.map_err(|e| failed("find it on the hub", &e))?;
    check_commit(repository, &info.sha)?;
    let commit: ApiRepo = api.repo(model(repository, &info.sha));
    let snapshot = snapshots.join(&info.sha);
    let get = |file: &str| {
        let path = snapshot.join(file);
        if path.is_file() {
            return Ok(Some(path));
        }
        if !info.siblings.iter().any(|sibling| sibling.rfilename == file) {
            return Ok(None);
        }
        commit.download(file).map(Some).map_err(|e| failed(&format!("fetch {file}"), &e))
    };
    if let Err(missing) = complete(get)? {
        return Err(error(repository, format!("it has no {missing}")));
    }
    let main = cache.repo(model(repository, "main"));
    main.create_ref(&info.sha).map_err(|e| failed("note its commit in the cache", &e))?;
    Ok(snapshot)
}

fn api(cache: &Cache, progress: Progress) -> Result<Api, ApiError> {
    let mut builder =
        ApiBuilder::from_env().with_cache_dir(cache.path().clone()).with_progress(progress == Progress::Bar);
    if let Ok(token) = std::env::var("HF_TOKEN") {
        builder = builder.with_token(Some(token));
    }
    builder.build()
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

/// A commit becomes part of a path.
fn check_commit(repository: &str, commit: &str) -> Result<(), PrepareError> {
    if is_commit(commit) {
        return Ok(());
    }
    let commit = foreign::shortened(commit, 80);
    Err(error(
        repository,
        format!("the hub names {commit:?} as its commit, which is not 40 hexadecimal digits"),
    ))
}

fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn model(repository: &str, revision: &str) -> Repo {
    Repo::with_revision(repository.to_owned(), RepoType::Model, revision.to_owned())
}

/// `HF_HUB_CACHE`, else `HF_HOME`/hub, else the default, as `huggingface_hub` has it.
fn cache() -> Cache {
    match std::env::var_os("HF_HUB_CACHE").filter(|path| !path.is_empty()) {
        Some(path) => Cache::new(path.into()),
        None => Cache::from_env(),
    }
}

/// As `huggingface_hub` reads it.
fn offline() -> bool {
    let value = std::env::var("HF_HUB_OFFLINE").unwrap_or_default();
    ["1", "ON", "YES", "TRUE"].contains(&value.to_uppercase().as_str())
}

fn error(repository: &str, reason: String) -> PrepareError {
    PrepareError::Hub { repository: repository.to_owned(), reason }
}

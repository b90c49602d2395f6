//! `hf:owner/name`, from a cache. Downloads by the program `hub` are tested in that crate.

use std::path::{Path, PathBuf};

use assert_cmd::Command;
use assert_cmd::cargo::cargo_bin;
use tempfile::TempDir;

use crate::repository::{COMMIT, content, failure, snapshot, success};

/// A directory with `prepare` alone: there may be a `hub` where cargo builds.
fn alone() -> TempDir {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    install(directory.path());
    directory
}

/// Puts `prepare` into a directory. A link, because a program that is still being written cannot be started.
fn install(directory: &Path) -> PathBuf {
    let program = directory.join(format!("prepare{}", std::env::consts::EXE_SUFFIX));
    std::fs::hard_link(cargo_bin("prepare"), &program).unwrap();
    program
}

/// Prepares `hf:owner/tiny` with the cache under `home`, by the program in `programs`.
fn prepare(programs: &Path, home: &Path) -> Command {
    let mut command = Command::new(programs.join("prepare"));
    command.args(["hf:owner/tiny", "--precision", "f32", "--quiet", "--bundles"]).arg(home.join("bundles"));
    command.env("HF_HOME", home).env_remove("HF_HUB_CACHE").env_remove("HF_HUB_OFFLINE");
    command
}

/// A cache as `huggingface_hub` lays it out, with those of `files` that the tiny model has.
fn cache(files: &[&str]) -> TempDir {
    let home = tempfile::tempdir().unwrap();
    let repository = home.path().join("hub/models--owner--tiny");
    let snapshot = snapshot(home.path());
    std::fs::create_dir_all(&snapshot).unwrap();
    std::fs::create_dir_all(repository.join("refs")).unwrap();
    std::fs::write(repository.join("refs/main"), COMMIT).unwrap();
    for file in files {
        std::fs::write(snapshot.join(file), content(file)).unwrap();
    }
    home
}

#[test]
fn offline_the_cache_is_enough() {
    let (programs, home) = (alone(), cache(&["config.json", "model.safetensors"]));
    let line = success(prepare(programs.path(), home.path()).env("HF_HUB_OFFLINE", "1"));
    assert_eq!(line["name"], "tiny");
}

#[test]
fn offline_what_the_cache_lacks_is_named() {
    let programs = alone();
    let offline = |home: &TempDir| failure(prepare(programs.path(), home.path()).env("HF_HUB_OFFLINE", "1"));
    let empty = offline(&tempfile::tempdir().unwrap());
    assert!(empty.contains("HF_HUB_OFFLINE"), "{empty}");
    let partial = offline(&cache(&["config.json"]));
    assert!(partial.contains("model.safetensors") && partial.contains("HF_HUB_OFFLINE"), "{partial}");
}

#[test]
fn a_complete_cache_needs_no_program_that_fetches() {
    let (programs, home) = (alone(), cache(&["config.json", "model.safetensors", "tokenizer.json"]));
    success(&mut prepare(programs.path(), home.path()));
}

#[test]
fn an_absent_program_is_told_with_what_the_cache_lacks() {
    let (programs, empty) = (alone(), tempfile::tempdir().unwrap());
    let lacking = |programs: &Path, home: &TempDir| failure(&mut prepare(programs, home.path()));
    let nothing = lacking(programs.path(), &empty);
    let built = "the program `hub`, which downloads models, is not built: run `cargo xtask build --hub`";
    assert!(nothing.contains(&format!(": it is not in the local cache, and {built}")), "{nothing}");
    let partial = lacking(programs.path(), &cache(&["config.json"]));
    assert!(partial.contains("its model.safetensors (or model.safetensors.index.json) is not"), "{partial}");
    let tokenizer = lacking(programs.path(), &cache(&["config.json", "model.safetensors"]));
    assert!(tokenizer.contains("its tokenizer.json is not"), "{tokenizer}");

    let workers = programs.path().join("workers");
    std::fs::create_dir(&workers).unwrap();
    std::fs::create_dir_all(programs.path().join("configs/engines")).unwrap();
    install(&workers);
    let installed = lacking(&workers, &empty);
    assert!(
        installed.contains("is not installed: install it with `cargo xtask install --hub`"),
        "{installed}"
    );
}

#[test]
#[cfg(unix)]
fn a_program_that_says_nothing_is_told() {
    let (programs, empty) = (alone(), tempfile::tempdir().unwrap());
    for (stand_in, told) in [("/bin/false", "gave no reason"), ("/bin/true", "printed something unexpected")]
    {
        let hub = programs.path().join("hub");
        std::os::unix::fs::symlink(stand_in, &hub).unwrap();
        let error = failure(&mut prepare(programs.path(), empty.path()));
        assert!(error.contains(&format!("the program `hub` {told}")), "{error}");
        std::fs::remove_file(hub).unwrap();
    }
}

#[test]
fn a_commit_in_the_cache_joins_a_path_only_as_forty_hexadecimal_digits() {
    let (programs, home) = (alone(), cache(&["config.json", "model.safetensors", "tokenizer.json"]));
    let elsewhere = home.path().join("hub/models--owner--tiny");
    std::fs::rename(snapshot(home.path()), home.path().join("elsewhere")).unwrap();
    std::fs::write(elsewhere.join("refs/main"), "../../../elsewhere").unwrap();
    let error = failure(prepare(programs.path(), home.path()).env("HF_HUB_OFFLINE", "1"));
    assert!(error.contains("is not in the local cache"), "{error}");
}

#[test]
#[cfg(unix)]
fn the_links_of_the_hub_s_cache_are_followed() {
    let (programs, home) = (alone(), cache(&["config.json", "model.safetensors", "tokenizer.json"]));
    let repository = home.path().join("hub/models--owner--tiny");
    std::fs::create_dir(repository.join("blobs")).unwrap();
    for (number, file) in ["config.json", "model.safetensors", "tokenizer.json"].iter().enumerate() {
        let snapshot = snapshot(home.path()).join(file);
        std::fs::rename(&snapshot, repository.join(format!("blobs/{number}"))).unwrap();
        std::os::unix::fs::symlink(format!("../../blobs/{number}"), &snapshot).unwrap();
    }
    success(prepare(programs.path(), home.path()).env("HF_HUB_OFFLINE", "1"));
}

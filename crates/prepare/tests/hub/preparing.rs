//! `prepare` with `hub` in its directory: only files that the cache lacks are fetched.

use std::path::Path;

use assert_cmd::Command;
use assert_cmd::cargo::cargo_bin;
use tempfile::TempDir;

use crate::entries;
use crate::repository::{COMMIT, content, failure, snapshot, success};
use crate::server::Hub;

/// Prepares `hf:owner/tiny` with the cache under `home`. Without an endpoint, any use of the network fails.
fn prepare(home: &Path, endpoint: Option<&str>) -> Command {
    let mut command = bare(home, endpoint);
    command.args(["--precision", "f32", "--bundles"]).arg(home.join("bundles"));
    command
}

fn bare(home: &Path, endpoint: Option<&str>) -> Command {
    let mut command = Command::new(cargo_bin("prepare"));
    command.args(["hf:owner/tiny", "--quiet"]).env("HF_HOME", home);
    command.env_remove("HF_HUB_CACHE").env_remove("HF_HUB_OFFLINE").env_remove("HF_TOKEN");
    command.env("HF_ENDPOINT", endpoint.unwrap_or("http://127.0.0.1:9"));
    command
}

fn home() -> TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn a_hub_that_cannot_be_reached_is_one_sentence() {
    let unreachable = failure(&mut prepare(home().path(), None));
    assert!(unreachable.contains("hf:owner/tiny: cannot find it on the hub: "), "{unreachable}");
}

#[test]
fn what_is_not_in_the_cache_is_fetched_once() {
    let hub = Hub::start(&["config.json", "model.safetensors", "tokenizer.json", "pytorch_model.bin"]);
    let home = home();
    let line = success(&mut prepare(home.path(), Some(&hub.endpoint)));
    assert_eq!(entries(Path::new(line["bundle"].as_str().unwrap())).len(), 4, "with its tokenizer");
    assert_eq!(entries(&snapshot(home.path())), ["config.json", "model.safetensors", "tokenizer.json"]);
    assert_eq!(success(&mut prepare(home.path(), None)), line, "from the cache");
}

#[test]
fn the_shards_of_an_index_are_fetched() {
    let shard = "model-00001-of-00001.safetensors";
    let index = "model.safetensors.index.json";
    let hub = Hub::start(&["config.json", index, shard, "tokenizer.json", "of-another.safetensors.bin"]);
    let home = home();
    success(&mut prepare(home.path(), Some(&hub.endpoint)));
    assert_eq!(entries(&snapshot(home.path())), ["config.json", shard, index, "tokenizer.json"]);
    let hub = Hub::start(&["config.json", index]);
    let home = tempfile::tempdir().unwrap();
    let error = failure(&mut prepare(home.path(), Some(&hub.endpoint)));
    assert!(error.contains(&format!("it has no {shard}")), "{error}");
    assert!(!home.path().join("hub/models--owner--tiny/refs/main").exists());
}

#[test]
fn what_the_cache_has_is_not_fetched_again() {
    let home = home();
    let directory = snapshot(home.path());
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join("config.json"), content("config.json")).unwrap();
    let hub = Hub::giving(&["model.safetensors"], COMMIT, &["config.json", "model.safetensors"]);
    success(&mut prepare(home.path(), Some(&hub.endpoint)));
}

#[test]
fn for_the_configuration_nothing_else_is_fetched() {
    let hub = Hub::start(&["config.json", "model.safetensors", "tokenizer.json"]);
    let home = home();
    let configuration = success(bare(home.path(), Some(&hub.endpoint)).arg("--config"));
    assert_eq!(configuration["model_type"], "qwen2");
    assert_eq!(entries(&snapshot(home.path())), ["config.json"]);
}

#[test]
fn a_repository_without_safetensors_is_refused() {
    let hub = Hub::start(&["config.json", "pytorch_model.bin"]);
    let error = failure(&mut prepare(home().path(), Some(&hub.endpoint)));
    assert!(error.contains("hf:owner/tiny: it has no model.safetensors"), "{error}");
}

#[test]
fn a_commit_of_the_hub_joins_a_path_only_as_forty_hexadecimal_digits() {
    for commit in ["../../../../escaped", "main", "/tmp/escaped", ""] {
        let hub = Hub::at(commit, &["config.json", "model.safetensors"]);
        let home = home();
        let error = failure(&mut prepare(home.path(), Some(&hub.endpoint)));
        assert!(error.contains("not 40 hexadecimal digits"), "{error}");
        assert!(!home.path().join("escaped").exists() && !home.path().join("hub").exists());
    }
}

#[test]
fn a_file_of_another_commit_is_refused() {
    let listed = "f".repeat(40);
    // The server claims `COMMIT` for every file, independent of the request.
    let hub = Hub::at(&listed, &["config.json", "model.safetensors"]);
    let error = failure(&mut prepare(home().path(), Some(&hub.endpoint)));
    assert!(error.contains("config.json of another commit"), "{error}");
}

#[test]
#[cfg(target_os = "linux")]
fn a_download_ends_with_whoever_started_it() {
    use std::io::Read;

    // A server that accepts requests and answers none.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", silent.local_addr().unwrap());
    let home = home();
    #[expect(clippy::disallowed_methods, reason = "it is killed in mid-work")]
    let mut prepare = std::process::Command::new(cargo_bin("prepare"))
        .args(["hf:owner/tiny", "--config", "--quiet"])
        .env("HF_HOME", home.path())
        .env_remove("HF_HUB_CACHE")
        .env_remove("HF_HUB_OFFLINE")
        .env("HF_ENDPOINT", endpoint)
        .spawn()
        .unwrap();
    let (mut connection, _) = silent.accept().unwrap();
    connection.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
    let mut verb = [0; 4];
    connection.read_exact(&mut verb).unwrap();
    assert_eq!(&verb, b"GET ");
    prepare.kill().unwrap();
    prepare.wait().unwrap();
    // The rest of the request, and then the end: no process has the other side open.
    connection.read_to_end(&mut Vec::new()).unwrap();
}

//! `hf:owner/name`: from the cache where it is complete, else from the hub, of which a small part runs here.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;

use assert_cmd::Command;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::{entries, tiny};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// Prepares `hf:owner/tiny` with the cache under `home`.
fn prepare(home: &Path, endpoint: Option<&str>) -> Command {
    let mut command = Command::cargo_bin("prepare").unwrap();
    command.args(["hf:owner/tiny", "--precision", "f32", "--quiet", "--bundles"]).arg(home.join("bundles"));
    command.env("HF_HOME", home).env_remove("HF_HUB_CACHE").env_remove("HF_TOKEN");
    // A port on which no one listens: whoever goes to the network although it must not, fails.
    command.env("HF_ENDPOINT", endpoint.unwrap_or("http://127.0.0.1:9"));
    command
}

/// A cache as `huggingface_hub` lays it out, with those of `files` that the tiny model has.
fn cache(files: &[&str]) -> TempDir {
    let home = tempfile::tempdir().unwrap();
    let repository = home.path().join("hub/models--owner--tiny");
    let snapshot = repository.join("snapshots").join(COMMIT);
    std::fs::create_dir_all(&snapshot).unwrap();
    std::fs::create_dir_all(repository.join("refs")).unwrap();
    std::fs::write(repository.join("refs/main"), COMMIT).unwrap();
    for file in files {
        std::fs::write(snapshot.join(file), content(file)).unwrap();
    }
    home
}

fn content(file: &str) -> Vec<u8> {
    match file {
        "tokenizer.json" => b"{}".to_vec(),
        file => std::fs::read(tiny("qwen2-bias").join(file)).unwrap(),
    }
}

fn success(command: &mut Command) -> Value {
    let output = command.assert().success().get_output().stdout.clone();
    serde_json::from_slice(&output).unwrap()
}

fn failure(command: &mut Command) -> String {
    let output = command.assert().code(2).stdout("").get_output().stderr.clone();
    String::from_utf8(output).unwrap()
}

#[test]
fn offline_the_cache_is_enough() {
    let home = cache(&["config.json", "model.safetensors"]);
    let line = success(prepare(home.path(), None).env("HF_HUB_OFFLINE", "1"));
    assert_eq!(line["name"], "tiny");
}

#[test]
fn offline_what_the_cache_lacks_is_named() {
    let offline = |home: &TempDir| failure(prepare(home.path(), None).env("HF_HUB_OFFLINE", "1"));
    let empty = offline(&tempfile::tempdir().unwrap());
    assert!(empty.contains("hf:owner/tiny") && empty.contains("HF_HUB_OFFLINE"), "{empty}");
    let partial = offline(&cache(&["config.json"]));
    assert!(partial.contains("model.safetensors") && partial.contains("HF_HUB_OFFLINE"), "{partial}");
}

#[test]
fn a_complete_cache_needs_no_network() {
    let home = cache(&["config.json", "model.safetensors", "tokenizer.json"]);
    success(&mut prepare(home.path(), None));
    let home = cache(&["config.json"]);
    let unreachable = failure(&mut prepare(home.path(), None));
    assert!(unreachable.contains("hf:owner/tiny: cannot"), "{unreachable}");
}

#[test]
fn what_is_not_in_the_cache_is_fetched_once() {
    let hub = Hub::start(&["config.json", "model.safetensors", "tokenizer.json", "pytorch_model.bin"]);
    let home = tempfile::tempdir().unwrap();
    let line = success(&mut prepare(home.path(), Some(&hub.endpoint)));
    assert_eq!(entries(Path::new(line["bundle"].as_str().unwrap())).len(), 4, "with its tokenizer");
    let snapshot = home.path().join("hub/models--owner--tiny/snapshots").join(COMMIT);
    assert_eq!(entries(&snapshot), ["config.json", "model.safetensors", "tokenizer.json"]);
    assert_eq!(success(&mut prepare(home.path(), None)), line, "from the cache");
}

#[test]
fn for_the_configuration_nothing_else_is_fetched() {
    let hub = Hub::start(&["config.json", "model.safetensors", "tokenizer.json"]);
    let home = tempfile::tempdir().unwrap();
    let configuration = |endpoint: &str| {
        let mut command = Command::cargo_bin("prepare").unwrap();
        command.args(["hf:owner/tiny", "--config", "--quiet"]).env("HF_HOME", home.path());
        command.env_remove("HF_HUB_CACHE").env_remove("HF_TOKEN").env("HF_ENDPOINT", endpoint);
        success(&mut command)
    };
    assert_eq!(configuration(&hub.endpoint)["model_type"], "qwen2");
    let snapshot = home.path().join("hub/models--owner--tiny/snapshots").join(COMMIT);
    assert_eq!(entries(&snapshot), ["config.json"]);
}

#[test]
fn a_repository_without_safetensors_is_refused() {
    let hub = Hub::start(&["config.json", "pytorch_model.bin"]);
    let home = tempfile::tempdir().unwrap();
    let error = failure(&mut prepare(home.path(), Some(&hub.endpoint)));
    assert!(error.contains("hf:owner/tiny: it has no model.safetensors"), "{error}");
}

#[test]
fn a_commit_of_the_hub_joins_a_path_only_as_forty_hexadecimal_digits() {
    for commit in ["../../../../escaped", "main", "/tmp/escaped", ""] {
        let hub = Hub::at(commit, &["config.json", "model.safetensors"]);
        let home = tempfile::tempdir().unwrap();
        let error = failure(&mut prepare(home.path(), Some(&hub.endpoint)));
        assert!(error.contains("not 40 hexadecimal digits"), "{error}");
        assert!(!home.path().join("escaped").exists() && !home.path().join("hub").exists());
    }
    // What somebody wrote into the cache is not followed either.
    let home = cache(&["config.json", "model.safetensors", "tokenizer.json"]);
    let elsewhere = home.path().join("hub/models--owner--tiny");
    std::fs::rename(elsewhere.join("snapshots").join(COMMIT), home.path().join("elsewhere")).unwrap();
    std::fs::write(elsewhere.join("refs/main"), "../../../elsewhere").unwrap();
    let error = failure(prepare(home.path(), None).env("HF_HUB_OFFLINE", "1"));
    assert!(error.contains("is not in the local cache"), "{error}");
}

#[test]
#[cfg(unix)]
fn the_links_of_the_hub_s_cache_are_followed() {
    let home = cache(&["config.json", "model.safetensors", "tokenizer.json"]);
    let repository = home.path().join("hub/models--owner--tiny");
    std::fs::create_dir(repository.join("blobs")).unwrap();
    for (number, file) in ["config.json", "model.safetensors", "tokenizer.json"].iter().enumerate() {
        let snapshot = repository.join("snapshots").join(COMMIT).join(file);
        std::fs::rename(&snapshot, repository.join(format!("blobs/{number}"))).unwrap();
        std::os::unix::fs::symlink(format!("../../blobs/{number}"), &snapshot).unwrap();
    }
    success(prepare(home.path(), None).env("HF_HUB_OFFLINE", "1"));
}

/// As much of the hub as is needed to fetch one repository.
struct Hub {
    endpoint: String,
}

impl Hub {
    fn start(files: &[&str]) -> Hub {
        Hub::at(COMMIT, files)
    }

    /// One that gives its newest commit this name.
    fn at(commit: &str, files: &[&str]) -> Hub {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let siblings: Vec<_> = files.iter().map(|file| json!({ "rfilename": file })).collect();
        let info = json!({ "sha": commit, "siblings": siblings }).to_string().into_bytes();
        let mut pages = HashMap::from([("/api/models/owner/tiny/revision/main".to_owned(), info)]);
        for file in files.iter().filter(|file| !file.ends_with(".bin")) {
            pages.insert(format!("/owner/tiny/resolve/{COMMIT}/{file}"), content(file));
        }
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                answer(stream.unwrap(), &pages);
            }
        });
        Hub { endpoint }
    }
}

fn answer(mut stream: TcpStream, pages: &HashMap<String, Vec<u8>>) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
    let Some(request) = lines.next() else { return };
    let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
    let range = lines.take_while(|line| !line.is_empty()).find_map(|line| {
        let range = line.to_lowercase().strip_prefix("range: bytes=")?.to_owned();
        let (first, last) = range.split_once('-')?;
        Some((first.parse::<usize>().ok()?, last.parse::<usize>().ok()))
    });
    let Some(page) = pages.get(&path) else {
        let _ = stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        return;
    };
    let (first, last) = range.unwrap_or((0, None));
    let body = &page[first..last.map_or(page.len(), |last| last + 1)];
    let head = format!(
        "HTTP/1.1 206 Partial Content\r\nContent-Length: {}\r\nContent-Range: bytes {first}-{}/{}\r\n\
         ETag: \"{}\"\r\nX-Repo-Commit: {COMMIT}\r\nConnection: close\r\n\r\n",
        body.len(),
        first + body.len() - 1,
        page.len(),
        path.rsplit('/').next().unwrap_or_default().replace('.', "-"),
    );
    // Whoever hangs up early has what it wanted.
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
}

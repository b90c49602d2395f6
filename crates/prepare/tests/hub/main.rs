//! `hub` alone and as `prepare` starts it, against a small part of the Hugging Face hub that runs here.

#[path = "../prepare/repository.rs"]
mod repository;

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;

use assert_cmd::Command;
use assert_cmd::cargo::cargo_bin;
use serde_json::{Value, json};

use crate::repository::{COMMIT, content, failure, snapshot, success};

// `hub` as a program: lines of JSON on stdout, files in the cache.

fn hub(home: &Path, endpoint: &str) -> Command {
    let mut command = Command::cargo_bin("hub").unwrap();
    command.args(["owner/tiny", "--quiet", "--cache"]).arg(home.join("hub"));
    command.env("HF_HOME", home).env_remove("HF_TOKEN").env("HF_ENDPOINT", endpoint);
    command
}

fn lines(output: &[u8]) -> Vec<Value> {
    String::from_utf8_lossy(output).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn without_a_file_it_lists_what_there_is() {
    let (hub_, home) = (Hub::start(&["config.json", "pytorch_model.bin"]), tempfile::tempdir().unwrap());
    let output = hub(home.path(), &hub_.endpoint).assert().success().stderr("").get_output().stdout.clone();
    assert_eq!(lines(&output), [json!({ "commit": COMMIT, "files": ["config.json", "pytorch_model.bin"] })]);
    assert!(!home.path().join("hub").exists());
}

#[test]
fn it_fetches_what_is_named_and_says_where_it_lies() {
    let hub_ = Hub::start(&["config.json", "model.safetensors", "tokenizer.json"]);
    let home = tempfile::tempdir().unwrap();
    let mut command = hub(home.path(), &hub_.endpoint);
    command.args(["--revision", COMMIT, "config.json", "tokenizer.json"]);
    let output = command.assert().success().stderr("").get_output().stdout.clone();
    let snapshot = snapshot(home.path());
    let line = |file: &str| json!({ "file": file, "path": snapshot.join(file) });
    assert_eq!(lines(&output), [line("config.json"), line("tokenizer.json")]);
    assert_eq!(entries(&snapshot), ["config.json", "tokenizer.json"]);
    assert_eq!(std::fs::read(snapshot.join("config.json")).unwrap(), content("config.json"));
}

#[test]
fn what_goes_wrong_is_the_last_line_and_exit_code_2() {
    let (hub_, home) = (Hub::start(&["config.json", "none.bin"]), tempfile::tempdir().unwrap());
    let mut command = hub(home.path(), &hub_.endpoint);
    command.args(["--revision", COMMIT, "config.json", "none.bin"]);
    let output = command.assert().code(2).stderr("").get_output().stdout.clone();
    let [file, error] = &lines(&output)[..] else { panic!("{output:?}") };
    assert_eq!(file["file"], "config.json");
    assert!(error["error"].as_str().unwrap().starts_with("cannot fetch none.bin: "), "{error}");

    // A port on which no one listens.
    let output = hub(home.path(), "http://127.0.0.1:9").assert().code(2).get_output().stdout.clone();
    let error = lines(&output)[0]["error"].as_str().unwrap().to_owned();
    assert!(error.starts_with("cannot find it on the hub: "), "{error}");
}

#[test]
fn a_server_that_accepts_and_says_nothing_is_not_awaited_for_ever() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (endpoint, home) =
        (format!("http://{}", listener.local_addr().unwrap()), tempfile::tempdir().unwrap());
    let mut command = hub(home.path(), &endpoint);
    command.env("PHOTOFINISH_HUB_SILENCE_S", "1");
    let output = command.assert().code(2).get_output().stdout.clone();
    assert_eq!(lines(&output), [json!({ "error": "the hub has said nothing for 1 s; try again later" })]);
}

// `prepare` with `hub` in its directory: only files that the cache lacks are fetched.

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

#[test]
fn a_hub_that_cannot_be_reached_is_one_sentence() {
    let unreachable = failure(&mut prepare(tempfile::tempdir().unwrap().path(), None));
    assert!(unreachable.contains("hf:owner/tiny: cannot find it on the hub: "), "{unreachable}");
}

#[test]
fn what_is_not_in_the_cache_is_fetched_once() {
    let hub = Hub::start(&["config.json", "model.safetensors", "tokenizer.json", "pytorch_model.bin"]);
    let home = tempfile::tempdir().unwrap();
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
    let home = tempfile::tempdir().unwrap();
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
    let home = tempfile::tempdir().unwrap();
    let directory = snapshot(home.path());
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join("config.json"), content("config.json")).unwrap();
    let hub = Hub::giving(&["model.safetensors"], COMMIT, &["config.json", "model.safetensors"]);
    success(&mut prepare(home.path(), Some(&hub.endpoint)));
}

#[test]
fn for_the_configuration_nothing_else_is_fetched() {
    let hub = Hub::start(&["config.json", "model.safetensors", "tokenizer.json"]);
    let home = tempfile::tempdir().unwrap();
    let configuration = success(bare(home.path(), Some(&hub.endpoint)).arg("--config"));
    assert_eq!(configuration["model_type"], "qwen2");
    assert_eq!(entries(&snapshot(home.path())), ["config.json"]);
}

#[test]
fn a_repository_without_safetensors_is_refused() {
    let hub = Hub::start(&["config.json", "pytorch_model.bin"]);
    let error = failure(&mut prepare(tempfile::tempdir().unwrap().path(), Some(&hub.endpoint)));
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
}

#[test]
fn a_file_of_another_commit_is_refused() {
    let listed = "f".repeat(40);
    // The server claims `COMMIT` for every file, independent of the request.
    let hub = Hub::at(&listed, &["config.json", "model.safetensors"]);
    let error = failure(&mut prepare(tempfile::tempdir().unwrap().path(), Some(&hub.endpoint)));
    assert!(error.contains("config.json of another commit"), "{error}");
}

#[test]
#[cfg(target_os = "linux")]
fn a_download_ends_with_the_program_that_started_it() {
    // A server that accepts requests and answers none.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", silent.local_addr().unwrap());
    let home = tempfile::tempdir().unwrap();
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

// The part of the Hugging Face hub that is needed to fetch one repository.

struct Hub {
    endpoint: String,
}

impl Hub {
    /// A hub with these files of the repository owner/tiny; it does not serve files that end in `.bin`.
    fn start(files: &[&str]) -> Hub {
        Hub::at(COMMIT, files)
    }

    /// A hub with this name of its newest commit.
    fn at(commit: &str, files: &[&str]) -> Hub {
        let given: Vec<_> = files.iter().copied().filter(|file| !file.ends_with(".bin")).collect();
        Hub::giving(&given, commit, files)
    }

    /// A hub with these files only, even if it lists others.
    fn giving(given: &[&str], commit: &str, listed: &[&str]) -> Hub {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let siblings: Vec<_> = listed.iter().map(|file| json!({ "rfilename": file })).collect();
        let info = json!({ "sha": commit, "siblings": siblings }).to_string().into_bytes();
        let mut pages = HashMap::from([("/api/models/owner/tiny/revision/main".to_owned(), info)]);
        for file in given {
            pages.insert(format!("/owner/tiny/resolve/{commit}/{file}"), content(file));
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
    // A client that hangs up early has all it needs.
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
}

/// Names of the files in a directory, sorted.
fn entries(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

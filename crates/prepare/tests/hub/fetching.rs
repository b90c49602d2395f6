//! `hub` as a program: lines of JSON on stdout, files in the cache.

use std::path::Path;

use assert_cmd::Command;
use serde_json::{Value, json};

use crate::entries;
use crate::repository::{COMMIT, content, snapshot};
use crate::server::Hub;

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
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (endpoint, home) =
        (format!("http://{}", listener.local_addr().unwrap()), tempfile::tempdir().unwrap());
    let mut command = hub(home.path(), &endpoint);
    command.env("PHOTOFINISH_HUB_SILENCE_S", "1");
    let output = command.assert().code(2).get_output().stdout.clone();
    assert_eq!(lines(&output), [json!({ "error": "the hub has said nothing for 1 s; try again later" })]);
}

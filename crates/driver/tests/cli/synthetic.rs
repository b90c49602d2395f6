//! Models of published shapes, whose weights `prepare` draws.

use crate::common::Installation;

const TINY: &str = "synthetic:llama-tiny";

fn installation() -> Installation {
    let binary = assert_cmd::cargo::cargo_bin("photofinish");
    let tool = binary.with_file_name(format!("prepare{}", std::env::consts::EXE_SUFFIX));
    assert!(tool.is_file(), "build it first: cargo build --release -p prepare");
    Installation::new().engine("one", &[])
}

#[test]
fn a_synthetic_model_is_prepared_and_compared_like_any_other() {
    let installation = installation();
    let arguments = ["--frameworks", "one", "--rounds", "1", "--model", TINY, "--format", "json"];
    let report = installation.run(&arguments).json();
    assert_eq!(report["model"]["name"], "synthetic-llama-tiny");
    assert_eq!(report["rows"][0]["state"], "measured");
    let bundles = std::fs::read_dir(installation.path("cache/photofinish/bundles")).unwrap();
    let names = bundles.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(names.filter(|name| name.starts_with("synthetic-llama-tiny-")).count(), 1);
}

#[test]
fn without_a_tokenizer_text_is_taken_byte_by_byte_and_that_is_said() {
    let installation = installation();
    let generate = |arguments: &[&str]| {
        let all = [&["generate", "--framework", "one", "--new-tokens", "2", "--format", "json"], arguments]
            .concat();
        installation.run(&all)
    };
    let ran = generate(&["--model", TINY, "--prompt", "Hé"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert_eq!(ran.json()["prompt_tokens"], serde_json::json!([0x48, 0xc3, 0xa9]));
    assert_eq!(ran.json()["text"], serde_json::Value::Null);
    assert_eq!(ran.stderr.matches("byte by byte").count(), 1, "{}", ran.stderr);
    // The other model has a vocabulary of 16.
    assert_eq!(generate(&["--prompt", "Hé"]).json()["prompt_tokens"], serde_json::json!([8, 3, 9]));
    assert!(!generate(&["--tokens", "1"]).stderr.contains("byte by byte"), "ids are no text");
}

#[test]
fn prompts_are_extended_to_a_length_without_a_tokenizer_too() {
    let installation = installation();
    let arguments =
        ["--frameworks", "one", "--rounds", "1", "--prompt", "ab", "--prompt-tokens", "5", "--model", TINY];
    assert_eq!(installation.run(&arguments).code, Some(0));
    let plan = std::fs::read_to_string(installation.results().join("plan.json")).unwrap();
    let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
    let tokens = plan["prompts"][0]["tokens"].as_array().unwrap();
    assert_eq!((tokens.len(), &tokens[..2]), (5, &[97.into(), 98.into()][..]));
}

#[test]
fn an_unknown_name_is_answered_with_those_there_are() {
    installation().run(&["--frameworks", "one", "--model", "synthetic:huge"]).refused(&[
        "unknown synthetic model \"huge\"",
        "llama-160m",
        "gpt2-124m",
        "llama-70b",
    ]);
}

/// In f32 282 GB: more than the machines have that run these tests. One that has more is told so.
#[test]
fn a_model_too_large_is_refused_before_anything_is_written() {
    let installation = installation();
    let ran = installation.run(&["--frameworks", "one", "--model", "synthetic:llama-70b"]);
    ran.refused(&["synthetic:llama-70b: it does not fit into memory: weights 282.21 GB at f32"]);
    assert!(!installation.path("cache/photofinish/bundles").exists());
}

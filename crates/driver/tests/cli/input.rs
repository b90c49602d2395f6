//! Bad input gets one clear sentence and exit code 2, before anything is measured.

use crate::common::{self, Installation};

fn installation() -> Installation {
    Installation::new().engine("one", &[])
}

#[test]
fn unknown_names_are_answered_with_those_there_are() {
    let installation = installation().engine("two", &[]);
    installation.run(&["--frameworks", "one,three"]).refused(&["unknown framework \"three\"", "one, two"]);
    std::fs::write(installation.path("configs/models/tiny.toml"), "summary = \"\"\nsource = \"x\"\n")
        .unwrap();
    installation.run(&["--model", "huge"]).refused(&["unknown model \"huge\"", "tiny", ".gguf"]);
    installation.run(&["--suite", "other"]).refused(&["unknown suite \"other\"", "default"]);
    installation.run(&["--frameworks", "one", "--reference", "two"]).refused(&["--reference"]);
    installation.run(&["--model", "no/such.gguf"]).refused(&["no model at no/such.gguf"]);
}

#[test]
fn numbers_that_make_no_sense_are_refused() {
    let installation = installation();
    installation.run(&["--rounds", "0"]).refused(&["--rounds"]);
    installation.run(&["--new-tokens", "0"]).refused(&["--new-tokens"]);
    installation.run(&["--threads", "0"]).refused(&["--threads"]);
    installation.run(&["--batch", "-1"]).refused(&["-1"]);
    installation.run(&["--precision", "f8"]).refused(&["f32, bf16, f16, int8, int4, nf4"]);
    installation.run(&["--quantize", "int8,int3"]).refused(&["int3", "nf4"]);
    installation.run(&["--quantize", "int8", "--precision", "f32"]).refused(&["--quantize", "--precision"]);
    installation.run(&["--device", "tpu"]).refused(&["cuda[:N]"]);
    // No machine has so many.
    let absent = installation.run(&["--frameworks", "one", "--device", "cuda:60000"]);
    assert_eq!(absent.code, Some(1), "{}", absent.stderr);
    assert!(absent.stderr.contains("one: no device cuda:60000 was found: "), "{}", absent.stderr);
}

#[test]
fn prompts_are_checked_before_anything_starts() {
    let installation = installation();
    installation.run(&["--frameworks", "one", "--new-tokens", "61"]).refused(&["context of 64 tokens"]);
    let file = installation.path("prompts.toml");
    let path = file.to_str().unwrap();
    for (text, expected) in [
        ("[[prompts]]\ntokens = [1, 99]\n", "token id 99 is outside the model's vocabulary of 16"),
        ("[[prompts]]\ntokens = []\n", "prompt 1 is empty"),
        ("[[prompts]]\n", "needs either a text or tokens"),
        ("", "holds no prompts"),
        ("[[prompts]]\ntoken = [1]\n", "prompts.toml, line 2: unknown field `token`"),
    ] {
        std::fs::write(&file, text).unwrap();
        installation.run(&["--frameworks", "one", "--prompts", path]).refused(&[expected]);
    }
    installation.run(&["--frameworks", "one", "--prompts", "nowhere.txt"]).refused(&["nowhere.txt"]);
}

#[test]
fn weights_that_changed_are_refused() {
    let installation = installation();
    let path = installation.path("model/f32.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    installation.run(&["--frameworks", "one"]).refused(&["sha256", "manifest"]);
}

#[test]
fn a_precision_that_the_model_does_not_hold_is_refused() {
    installation()
        .run(&["--frameworks", "one", "--precision", "int4"])
        .refused(&["no int4 weights", "f32, bf16, f16, int8"]);
}

#[test]
fn a_results_directory_that_cannot_be_written_is_refused() {
    let installation = installation();
    let file = installation.path("file");
    std::fs::write(&file, "").unwrap();
    let mut command = installation.driver(&["generate", "--framework", "one", "--tokens", "1"]);
    assert!(command.output().unwrap().status.success(), "generate needs no results directory");
    let command = installation.driver(&["--frameworks", "one"]);
    let arguments: Vec<_> = command.get_args().map(|a| a.to_string_lossy().into_owned()).collect();
    let at = arguments.iter().position(|a| a == "--results-dir").unwrap() + 1;
    let mut other = std::process::Command::new(command.get_program());
    other.args(&arguments[..at]).arg(file.join("below")).args(&arguments[at + 1..]);
    other.env("PHOTOFINISH_PROVISIONED", "1");
    common::Ran::from(other.output().unwrap()).refused(&["cannot write results to", "--results-dir"]);
}

#[test]
fn generate_continues_and_refuses() {
    let installation = installation();
    let ran = installation.run(&[
        "generate",
        "--framework",
        "one",
        "--tokens",
        "1,2",
        "--new-tokens",
        "3",
        "--format",
        "json",
    ]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let object = ran.json();
    assert_eq!(object["framework"], "one");
    assert_eq!(object["precision"], "f32");
    assert_eq!(object["prompt_tokens"], serde_json::json!([1, 2]));
    assert_eq!(object["tokens"].as_array().unwrap().len(), 3);
    installation.run(&["generate", "--framework", "one", "--tokens", "16"]).refused(&["vocabulary"]);
    installation.run(&["generate", "--framework", "one", "--tokens", "one"]).refused(&["invalid value"]);
    installation.run(&["generate", "--framework", "one"]).refused(&["--prompt"]);
    let long = vec!["1"; 60].join(",");
    installation.run(&["generate", "--framework", "one", "--tokens", &long]).refused(&["context of 64"]);
}

#[test]
fn score_writes_the_file_whole_or_not_at_all() {
    let installation = installation();
    let (ids, out) = (installation.path("ids.json"), installation.path("out.safetensors"));
    let score = |text: &str, more: &[&str]| {
        std::fs::write(&ids, text).unwrap();
        let mut all = vec!["score", "--framework", "one", "--tokens-file", ids.to_str().unwrap()];
        all.extend_from_slice(&["--out", out.to_str().unwrap()]);
        all.extend_from_slice(more);
        installation.run(&all)
    };
    score("[[1, 2], [3]]", &[]).refused(&["sequence 1 has 1 tokens, the first has 2"]);
    score("[]", &[]).refused(&["holds no tokens"]);
    score("{}", &[]).refused(&["[[id, ..], ..]"]);
    score("[[1, 16]]", &[]).refused(&["token id 16"]);
    score("[[1, 2]]", &["--hidden-states"]).refused(&["no layers"]);
    assert!(!out.exists());
    let ran = score("[[1, 2, 3], [3, 2, 1]]", &[]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), ""), "{}", ran.stderr);
    let bytes = std::fs::read(&out).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(tensors.tensor("logits").unwrap().shape(), [2, 3, 16]);
}

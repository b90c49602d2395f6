//! Bad input gets one clear sentence and exit code 2, before anything is measured.

use serde_json::json;

use crate::common::{Installation, array};

fn installation() -> Installation {
    Installation::new().engine("one", &[])
}

#[test]
fn what_there_is_not_and_what_makes_no_sense_is_refused() {
    let installation = installation().engine("two", &[]);
    let tiny = "summary = \"\"\nsource = \"x\"\n";
    std::fs::write(installation.path("configs/models/tiny.toml"), tiny).unwrap();
    installation.refuses(&[
        // Unknown names are answered with those there are.
        ("--frameworks one,three", &["\"three\"", "one, two"]),
        ("--model huge", &["\"huge\"", "tiny", ".gguf"]),
        ("--model synthetic:huge", &["\"huge\"", "llama-160m", "gpt2-124m", "llama-70b"]),
        ("--suite other", &["\"other\"", "default"]),
        ("--frameworks one --parity-reference two", &["--parity-reference"]),
        ("--model no/such.gguf", &["no/such.gguf"]),
        ("--rounds 0", &["--rounds"]),
        ("--new-tokens 0", &["--new-tokens"]),
        ("--threads 0", &["--threads"]),
        ("--batch -1", &["-1"]),
        ("--frameworks one --batch 1,2", &["--batch takes one value", "photofinish sweep"]),
        ("--precision f8", &["f32, bf16, f16, int8, int4, nf4"]),
        ("--quantize int8,int3", &["int3", "nf4"]),
        ("--quantize int8 --precision f32", &["--quantize", "--precision"]),
        ("--frameworks one --kv-type int8", &["auto, f32, bf16, f16"]),
        ("--frameworks one --precision int4", &["no int4 weights", "f32, bf16, f16, int8"]),
        ("--device tpu", &["no column computes there"]),
        ("--device disc", &["cuda[:N]"]),
        ("--precision mixed", &["no single precision"]),
        ("--frameworks one --new-tokens 61", &["context of 64 tokens"]),
        ("--frameworks one --prompt-file nowhere.txt", &["nowhere.txt"]),
        // In f32 282 GB: more than the machines of these tests have. On a larger machine this line fails.
        ("--frameworks one --model synthetic:llama-70b", &["does not fit into memory", "282.21 GB at f32"]),
        ("generate --framework one --tokens 16", &["vocabulary"]),
        ("generate --framework one --tokens one", &["invalid value"]),
        ("generate --framework one", &["--prompt"]),
        (&format!("generate --framework one --tokens {}", ["1"; 60].join(",")), &["context of 64"]),
    ]);
    assert!(!installation.path("cache/photofinish/bundles").exists(), "nothing was written");
    // No machine has so many.
    let absent = installation.run("--frameworks one --device cuda:60000").exits(1);
    assert!(absent.stderr.contains("one: no device cuda:60000 was found: "), "{}", absent.stderr);

    let file = installation.path("prompts.toml");
    for (text, expected) in [
        ("[[prompts]]\ntokens = [1, 99]\n", "token id 99"),
        ("[[prompts]]\ntokens = []\n", "prompt 1 is empty"),
        ("[[prompts]]\n", "either a text or tokens"),
        ("", "no prompts"),
        ("[[prompts]]\ntoken = [1]\n", "prompts.toml, line 2: unknown field `token`"),
    ] {
        std::fs::write(&file, text).unwrap();
        installation.refuses(&[(&format!("--frameworks one --prompt-file {}", file.display()), &[expected])]);
    }
}

/// 2^28 tokens of 2 · 32 values of 4 bytes each: 68.7 GB for each sequence.
#[test]
fn a_batch_that_does_not_fit_is_refused_with_the_arithmetic() {
    let installation = installation();
    let config = installation.path("model/config.json");
    let mut value = crate::common::read(&config);
    value["max_position_embeddings"] = 268_435_455.into();
    std::fs::write(&config, value.to_string()).unwrap();
    let line = "--frameworks one --batch 4096 --new-tokens 268435000";
    installation.refuses(&[(line, &["weights 0.00 GB at f32", "KV cache 281474", "smaller batch"])]);
}

#[test]
fn a_results_directory_that_cannot_be_written_is_refused() {
    let installation = installation();
    std::fs::remove_dir(installation.path("results")).unwrap();
    std::fs::write(installation.path("results"), "").unwrap();
    installation.run("generate --framework one --tokens 1").exits(0);
    installation.refuses(&[("--frameworks one", &["cannot write results to", "--results-dir"])]);
}

#[test]
fn generate_continues() {
    let object = installation().json(0, "generate --framework one --tokens 1,2 --new-tokens 3");
    assert_eq!((&object["framework"], &object["precision"]), (&"one".into(), &"f32".into()));
    assert_eq!((&object["prompt_tokens"], array(&object["tokens"]).len()), (&json!([1, 2]), 3));
}

#[test]
fn score_writes_the_file_whole_or_not_at_all() {
    let installation = installation();
    let (ids, out) = (installation.path("ids.json"), installation.path("out.safetensors"));
    let line = format!("score --framework one --tokens-file {} --output {}", ids.display(), out.display());
    for (text, more, said) in [
        ("[[1, 2], [3]]", "", "sequence 1 has 1 tokens"),
        ("[]", "", "no tokens"),
        ("{}", "", "[[id, ..], ..]"),
        ("[[1, 16]]", "", "token id 16"),
        ("[[1, 2]]", "--hidden-states", "no layers"),
    ] {
        std::fs::write(&ids, text).unwrap();
        installation.refuses(&[(&format!("{line} {more}"), &[said])]);
    }
    assert!(!out.exists());
    std::fs::write(&ids, "[[1, 2, 3], [3, 2, 1]]").unwrap();
    assert_eq!(installation.run(&line).exits(0).stdout, "");
    let bytes = std::fs::read(&out).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(tensors.tensor("logits").unwrap().shape(), [2, 3, 16]);
}

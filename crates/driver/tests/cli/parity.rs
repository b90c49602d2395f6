//! `photofinish parity` on mocks: where two engines part ways, and what is said of it.

use serde_json::Value;

use crate::common::{Installation, Ran};

const LAYERS: (&str, &str) = ("layers", "true");
/// A tokenizer of seven words, and a text of more than one window of the model's context.
const TOKENIZER: &str = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
    "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null, "decoder": null, "model": {"type": "WordLevel",
    "vocab": {"<unk>": 0, "the": 1, "sea": 2, "is": 3, "a": 4, "light": 5, "and": 6, "wide": 7}, "unk_token": "<unk>"}}"#;

fn parity(installation: &Installation, frameworks: &str, more: &[&str]) -> Ran {
    let results = installation.path("results");
    let mut arguments =
        vec!["parity", "--frameworks", frameworks, "--results-dir", results.to_str().unwrap()];
    arguments.extend_from_slice(more);
    installation.run(&arguments)
}

fn rows(installation: &Installation, frameworks: &str, code: i32) -> Vec<Value> {
    let ran = parity(installation, frameworks, &["--format", "json"]);
    assert_eq!(ran.code, Some(code), "{}{}", ran.stdout, ran.stderr);
    let report = ran.json();
    assert_eq!(report["schema"], 1);
    report["rows"].as_array().unwrap().clone()
}

/// Adds the tokenizer to the model and to its manifest.
pub(crate) fn add_tokenizer(installation: &Installation) {
    let path = installation.path("model/tokenizer.json");
    std::fs::write(&path, TOKENIZER).unwrap();
    let manifest = installation.path("model").join(bundle::MANIFEST);
    let mut value: Value = serde_json::from_str(&std::fs::read_to_string(&manifest).unwrap()).unwrap();
    value["files"]["tokenizer.json"] = serde_json::json!({"sha256": bundle::sha256_of(&path).unwrap(), "bytes": TOKENIZER.len(), "derived": "written"});
    std::fs::write(&manifest, value.to_string()).unwrap();
}

#[test]
fn engines_that_compute_the_same_agree_at_every_layer_and_repeat_themselves() {
    let installation = Installation::new().engine("one", &[LAYERS]).engine("two", &[LAYERS]);
    for row in rows(&installation, "one,two", 0) {
        assert_eq!((&row["state"], &row["repeatable"]), (&"agrees".into(), &true.into()), "{row}");
        let layers: Vec<_> =
            row["layers"].as_array().unwrap().iter().map(|layer| layer["layer"].as_str().unwrap()).collect();
        assert_eq!(layers, ["embeddings", "final norm", "logits"]);
        assert!(row["layers"].as_array().unwrap().iter().all(|layer| layer["relative_rmse"] == 0.0), "{row}");
        assert_eq!((&row["continuation"]["common"], &row["variation"]["processes"]), (&6.into(), &3.into()));
    }
    let results = installation.results();
    for name in ["parity.json", "parity.md", "plan.json", "environment.json", "samples.jsonl"] {
        assert!(results.join(name).is_file(), "{name}");
    }
}

#[test]
fn the_first_layer_that_diverges_is_named() {
    let off = [LAYERS, ("perturb", "2"), ("perturb_from", "1")];
    let installation = Installation::new().engine("one", &[LAYERS]).engine("off", &off);
    let rows = rows(&installation, "one,off", 1);
    assert_eq!(rows[0]["state"], "agrees");
    assert_eq!((&rows[1]["state"], &rows[1]["first_beyond"]), (&"diverges".into(), &"final norm".into()));
    assert_eq!(
        (&rows[1]["layers"][0]["beyond"], &rows[1]["layers"][1]["beyond"]),
        (&false.into(), &true.into())
    );
    // Every second number is off by 2.
    assert!((rows[1]["layers"][1]["rmse"].as_f64().unwrap() - 2f64.sqrt()).abs() < 1e-5, "{}", rows[1]);
    assert!(rows[1]["reasons"][0].as_str().unwrap().starts_with("final norm is the first"), "{}", rows[1]);
}

#[test]
fn the_table_fits_a_terminal() {
    let off = [LAYERS, ("perturb", "2")];
    let installation =
        Installation::new().engine("one", &[LAYERS]).engine("two", &[LAYERS]).engine("off", &off);
    let ran = parity(&installation, "one,two,off", &[]);
    let table = ran.stdout.lines().filter(|line| line.starts_with('│'));
    assert!(
        table.clone().count() > 3 && table.into_iter().all(|line| line.chars().count() <= 100),
        "{}",
        ran.stdout
    );
    assert!(ran.stdout.contains("off: embeddings is the first to diverge beyond 1e-4"), "{}", ran.stdout);
}

#[test]
fn without_hidden_states_logits_are_compared_and_the_reason_is_given() {
    let installation = Installation::new().engine("one", &[LAYERS]).engine("flat", &[]);
    let rows = rows(&installation, "flat,one", 0);
    // The one that gives hidden states is the reference, although it is not the first.
    assert_eq!(rows[0]["layers"].as_array().unwrap().len(), 1, "{}", rows[0]);
    assert!(rows[0]["no_layers"].as_str().unwrap().contains("no layers"), "{}", rows[0]);
    assert_eq!(rows[1]["layers"].as_array().unwrap().len(), 3, "{}", rows[1]);
}

#[test]
fn what_cannot_run_is_a_row_with_its_reason() {
    let installation = Installation::new()
        .engine("one", &[LAYERS])
        .engine("none", &[("unsupported", "no such weights")])
        .engine("dead", &[LAYERS, ("fault", "crash"), ("fault_at", "1")]);
    let rows = rows(&installation, "one,none,dead", 1);
    let states: Vec<_> = rows.iter().map(|row| row["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["agrees", "unsupported", "failed"]);
    assert_eq!(rows[1]["reasons"][0], "no such weights");
}

#[test]
fn a_speed_that_varies_is_warned_of_and_changes_no_exit_code() {
    let shaky =
        [LAYERS, ("process_noise", "0.6"), ("noise", "0.3"), ("token_ms", "1"), ("clock", "scripted")];
    let installation = Installation::new().engine("shaky", &shaky);
    let ran = parity(&installation, "shaky", &["--format", "json"]);
    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    let warning = ran.json()["warnings"][0].as_str().unwrap().to_owned();
    assert!(
        warning.contains("shaky: its throughput varied") && warning.contains("--new-tokens"),
        "{warning}"
    );
}

#[test]
fn the_bundled_text_is_scored_where_there_is_a_tokenizer() {
    let installation = Installation::new().engine("one", &[]).engine("off", &[("perturb", "0.001")]);
    let without = parity(&installation, "one", &["--format", "json"]).json();
    assert!(without["no_text"].as_str().unwrap().contains("prose.txt"), "{without}");
    std::fs::create_dir(installation.path("configs/texts")).unwrap();
    std::fs::write(installation.path("configs/texts/prose.txt"), "the sea is wide and ".repeat(20)).unwrap();
    let without = parity(&installation, "one", &["--format", "json"]).json();
    assert!(without["no_text"].as_str().unwrap().contains("no tokenizer"), "{without}");
    add_tokenizer(&installation);
    let report = parity(&installation, "one,off", &["--format", "json"]).json();
    let (one, off) = (&report["rows"][0]["text"], &report["rows"][1]["text"]);
    // 100 tokens in windows of 64 and 36, whose first tokens nothing predicts.
    assert_eq!((&one["predicted"], &one["mean_kl"], &one["top1"]), (&98.into(), &0.0.into(), &1.0.into()));
    assert!(off["mean_kl"].as_f64().unwrap() > 0.0 && off["perplexity"] != one["perplexity"], "{report}");
}

#[test]
fn a_prompt_can_be_given_as_ids_and_mistakes_are_refused() {
    let installation = Installation::new().engine("one", &[LAYERS]);
    let ran = parity(&installation, "one", &["--tokens", "1,2,3", "--new-tokens", "2", "--format", "json"]);
    assert_eq!(ran.json()["plan"]["prompts"][0]["tokens"], serde_json::json!([1, 2, 3]));
    parity(&installation, "one", &["--tokens", "1,99"]).refused(&["token id 99"]);
    parity(&installation, "one", &["--tokens", "1", "--prompt", "x"]).refused(&["--prompt"]);
    parity(&installation, "one", &["--format", "csv"]).refused(&["table, json or markdown"]);
    parity(&installation, "one", &["--reference", "two"]).refused(&["--reference"]);
}

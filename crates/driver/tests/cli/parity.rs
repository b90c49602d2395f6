//! `photofinish parity` on mocks: where two engines diverge, and how that is reported.

use serde_json::Value;

use crate::common::{Installation, array, keep, read};

const LAYERS: (&str, &str) = ("layers", "true");
/// A tokenizer of seven words, and a text of more than one window of the model's context.
const TOKENIZER: &str = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
    "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null, "decoder": null, "model": {"type": "WordLevel",
    "vocab": {"<unk>": 0, "the": 1, "sea": 2, "is": 3, "a": 4, "light": 5, "and": 6, "wide": 7}, "unk_token": "<unk>"}}"#;

fn rows(installation: &Installation, frameworks: &str, code: i32) -> Vec<Value> {
    let report = installation.json(code, &format!("parity --frameworks {frameworks}"));
    assert_eq!(report["schema"], 2);
    array(&report["rows"]).to_vec()
}

pub(crate) fn add_tokenizer(installation: &Installation) {
    keep(installation, "tokenizer.json", TOKENIZER);
}

#[test]
fn engines_that_compute_the_same_agree_at_every_layer_and_the_first_layer_that_diverges_is_named() {
    let off = [LAYERS, ("perturb", "2"), ("perturb_from", "1")];
    let all = Installation::new().engine("one", &[LAYERS]).engine("two", &[LAYERS]).engine("off", &off);
    let ran = all.run("parity --frameworks one,two,off").exits(1);
    let table: Vec<&str> = ran
        .stdout
        .lines()
        .skip_while(|line| !line.contains("Layer "))
        .take_while(|line| line.starts_with("  "))
        .collect();
    assert!(table.len() > 3 && table.iter().all(|line| line.chars().count() <= 100), "{}", ran.stdout);
    let report = read(&all.results().join("parity.json"));
    let [same @ .., diverging] = array(&report["rows"]) else { panic!("{report}") };
    for row in same {
        assert_eq!((&row["state"], &row["repeatable"]), (&"agrees".into(), &true.into()), "{row}");
        let layers = array(&row["layers"]);
        let names: Vec<_> = layers.iter().map(|layer| layer["layer"].as_str().unwrap()).collect();
        assert_eq!(names, ["embeddings", "final norm", "logits"]);
        assert!(layers.iter().all(|layer| layer["relative_rmse"] == 0.0), "{row}");
        assert_eq!((&row["continuation"]["common"], &row["variation"]["processes"]), (&6.into(), &3.into()));
    }
    assert_eq!((&diverging["state"], &diverging["first_beyond"]), (&"diverges".into(), &"final norm".into()));
    let layers = array(&diverging["layers"]);
    assert_eq!((&layers[0]["beyond"], &layers[1]["beyond"]), (&false.into(), &true.into()));
    // Every second number is off by 2.
    assert!((layers[1]["rmse"].as_f64().unwrap() - 2f64.sqrt()).abs() < 1e-5, "{diverging}");
    assert!(diverging["reasons"][0].as_str().unwrap().starts_with("final norm"), "{diverging}");
    for name in ["parity.json", "parity.md", "plan.json", "environment.json", "samples.jsonl"] {
        assert!(all.results().join(name).is_file(), "{name}");
    }
}

#[test]
fn without_hidden_states_logits_are_compared_and_what_cannot_run_is_a_row_with_its_reason() {
    let installation = Installation::new()
        .engine("flat", &[])
        .engine("one", &[LAYERS])
        .engine("none", &[("unsupported", "no such weights")])
        .engine("dead", &[LAYERS, ("fault", "crash"), ("fault_at", "1")]);
    let rows = rows(&installation, "flat,one,none,dead", 1);
    // The framework with hidden states is the reference, although it is not the first.
    assert_eq!((array(&rows[0]["layers"]).len(), array(&rows[1]["layers"]).len()), (1, 3), "{rows:?}");
    assert!(rows[0]["no_layers"].as_str().unwrap().contains("no layers"), "{}", rows[0]);
    let states: Vec<_> = rows.iter().map(|row| row["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["agrees", "agrees", "unsupported", "failed"]);
    assert_eq!(rows[2]["reasons"][0], "no such weights");
}

#[test]
fn a_reference_that_is_not_among_the_frameworks_is_a_row_behind_them_and_held_against_none_but_itself() {
    let off = [LAYERS, ("perturb", "2"), ("perturb_from", "1")];
    let installation = Installation::new().engine("one", &[LAYERS]).engine("off", &off);
    let rows = rows(&installation, "one --parity-reference off", 1);
    let states: Vec<_> = rows.iter().map(|row| (&row["framework"], &row["state"])).collect();
    assert_eq!(states, [(&"one".into(), &"diverges".into()), (&"off".into(), &"agrees".into())], "{rows:?}");
}

#[test]
fn a_speed_that_varies_is_warned_of_and_changes_no_exit_code() {
    let shaky =
        [LAYERS, ("process_noise", "0.6"), ("noise", "0.3"), ("token_ms", "1"), ("clock", "scripted")];
    let report = Installation::new().engine("shaky", &shaky).json(0, "parity --frameworks shaky");
    let warning = report["warnings"][0].as_str().unwrap();
    assert!(warning.starts_with("shaky: ") && warning.contains("--new-tokens"), "{warning}");
}

#[test]
fn the_bundled_text_is_scored_where_there_is_a_tokenizer() {
    let installation = Installation::new().engine("one", &[]).engine("off", &[("perturb", "0.001")]);
    let no_text = |missing: &str| {
        let report = installation.json(0, "parity --frameworks one");
        assert!(report["no_text"].as_str().unwrap().contains(missing), "{report}");
    };
    no_text("prose.txt");
    std::fs::create_dir(installation.path("configs/texts")).unwrap();
    std::fs::write(installation.path("configs/texts/prose.txt"), "the sea is wide and ".repeat(20)).unwrap();
    no_text("has no tokenizer: its source has none");
    installation.refuses(&[("parity --frameworks one --prompt x", &["has no tokenizer"])]);
    add_tokenizer(&installation);
    let report = installation.run("parity --frameworks one,off --format json").json();
    let (one, off) = (&report["rows"][0]["text"], &report["rows"][1]["text"]);
    // 100 tokens in windows of 64 and 36; the first token of a window is not predicted.
    assert_eq!((&one["predicted"], &one["mean_kl"], &one["top1"]), (&98.into(), &0.0.into(), &1.0.into()));
    assert!(off["mean_kl"].as_f64().unwrap() > 0.0 && off["perplexity"] != one["perplexity"], "{off}");
}

#[test]
fn a_prompt_can_be_given_as_ids_and_mistakes_are_refused() {
    let installation = Installation::new().engine("one", &[LAYERS]);
    let report = installation.json(0, "parity --frameworks one --tokens 1,2,3 --new-tokens 2");
    assert_eq!(report["plan"]["work"]["generate"]["prompts"][0]["tokens"], serde_json::json!([1, 2, 3]));
    installation.refuses(&[
        ("parity --frameworks one --tokens 1,99", &["token id 99"]),
        ("parity --frameworks one --tokens 1 --prompt x", &["--prompt"]),
        ("parity --frameworks one --format csv", &["table, json or markdown"]),
        ("parity --frameworks one --parity-reference two", &["unknown framework \"two\""]),
    ]);
}

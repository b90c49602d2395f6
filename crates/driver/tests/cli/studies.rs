//! Sweeps, A/B studies and `--quantize`: whole comparisons, one after the other.

use serde_json::{Value, json};

use crate::common::Installation;

fn cells(document: &Value) -> &Vec<Value> {
    document["cells"].as_array().unwrap()
}

#[test]
fn a_sweep_measures_every_combination_on_every_framework_and_tells_the_parity_of_each() {
    let installation = Installation::new().engine("one", &[]).engine("wrong", &[("perturb", "6")]);
    let sweep = ["sweep", "forward", "--frameworks", "one,wrong", "--batch", "1,2", "--seq", "4,8"];
    let ran = installation.run(&[&sweep[..], &["--rounds", "1", "--format", "json"]].concat());
    assert_eq!(ran.code, Some(1), "the wrong one is struck: {}", ran.stderr);
    let document = ran.json();
    let places: Vec<Value> = cells(&document).iter().map(|cell| cell["settings"].clone()).collect();
    assert_eq!(places.len(), 4);
    assert_eq!((&places[1]["batch"], &places[1]["prompt_tokens"]), (&json!(1), &json!(8)));
    for cell in cells(&document) {
        let row = |name: &str| {
            cell["rows"].as_array().unwrap().iter().find(|row| row["framework"] == name).unwrap()
        };
        assert_eq!(
            (row("one")["parity"].as_str(), row("one")["state"].as_str()),
            (Some("ok, Δ = 0"), Some("measured"))
        );
        assert_eq!(
            (row("wrong")["parity"].as_str(), row("wrong")["state"].as_str()),
            (Some("BROKEN"), Some("struck"))
        );
        assert!(row("one")["metrics"]["prefill_throughput"]["median"].as_f64().unwrap() > 0.0);
    }
    let ran = installation.run(&[&sweep[..], &["--rounds", "1", "--format", "csv"]].concat());
    let header = "model,batch,prompt,new_tokens,contender,state,parity,metric,median,min,max,rounds";
    assert_eq!(ran.stdout.lines().next(), Some(header));
}

#[test]
fn an_interrupted_sweep_goes_on_where_it_was() {
    let installation = Installation::new().engine("one", &[]);
    let sweep = [
        "sweep",
        "generate",
        "--frameworks",
        "one",
        "--prompt-tokens",
        "4,6,8",
        "--seed",
        "1",
        "--rounds",
        "1",
        "--format",
        "json",
    ];
    let whole = installation.run(&sweep).json();
    let directory = installation.results();
    // As if the driver had been killed while it wrote the second cell.
    let file = directory.join("cells.jsonl");
    let text = std::fs::read_to_string(&file).unwrap();
    let first = text.find('\n').unwrap() + 1;
    std::fs::write(&file, &text[..first + 40]).unwrap();

    let resume = directory.display().to_string();
    let ran = installation.run(&[&sweep[..], &["--resume", &resume]].concat());
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let resumed = ran.json();
    assert_eq!(cells(&resumed).len(), 3);
    assert_eq!(cells(&resumed)[0], cells(&whole)[0], "what was measured is not measured again");
    assert_ne!(cells(&resumed)[1]["results"], cells(&whole)[1]["results"]);
    assert!(!ran.stderr.contains("cell 1 of 3") && ran.stderr.contains("cell 2 of 3"), "{}", ran.stderr);
    assert_eq!(std::fs::read_to_string(&file).unwrap().lines().count(), 3);

    let mut other = sweep;
    other[5] = "4,6";
    let refused = installation.run(&[&other[..], &["--resume", &resume]].concat());
    refused.refused(&["cannot be resumed by this command: it has other cells"]);
}

#[test]
fn a_cell_that_cannot_run_is_a_row_with_its_reason() {
    let installation = Installation::new().engine("one", &[]);
    let sweep = ["sweep", "forward", "--frameworks", "one", "--batch", "1", "--seq", "8,80", "--rounds", "1"];
    let ran = installation.run(&[&sweep[..], &["--format", "json"]].concat());
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let document = ran.json();
    assert_eq!(cells(&document)[0]["refused"], Value::Null);
    let reason = cells(&document)[1]["refused"].as_str().unwrap();
    assert!(reason.contains("exceed the model's context of 64 tokens"), "{reason}");
    let ran = installation.run(&sweep);
    assert!(ran.stdout.contains("not run"), "{}", ran.stdout);
    assert!(ran.stdout.contains("batch 1, prompt 80: not run: a prompt of 80 tokens"), "{}", ran.stdout);
}

#[test]
fn what_is_wrong_with_every_cell_is_a_mistake_and_leaves_nothing() {
    let installation = Installation::new().engine("one", &[]);
    let ran = installation.run(&["sweep", "forward", "--frameworks", "none", "--batch", "1,2"]);
    ran.refused(&["unknown framework \"none\""]);
    assert_eq!(std::fs::read_dir(installation.path("results")).unwrap().count(), 0);
}

#[test]
fn several_values_in_a_comparison_are_told_to_be_a_sweep() {
    let installation = Installation::new().engine("one", &[]);
    installation
        .run(&["--frameworks", "one", "--batch", "1,2"])
        .refused(&["--batch takes one value here", "photofinish sweep"]);
}

#[test]
fn the_kv_cache_is_worth_more_the_longer_the_text_and_changes_no_token() {
    let installation = Installation::new().timed("one", &[("token_ms", "1"), ("prefill_token_ms", "1")]);
    let study = ["ab", "kv-cache", "--frameworks", "one", "--prompt-tokens", "2", "--new-tokens", "4,24"];
    let ran = installation.run(&[&study[..], &["--rounds", "6", "--format", "json"]].concat());
    assert_eq!(ran.code, Some(0), "departures in what is compared strike nobody: {}", ran.stderr);
    let document = ran.json();
    let outcomes = document["outcomes"].as_array().unwrap();
    for (outcome, tokens) in outcomes.iter().zip([4, 24]) {
        assert_eq!((&outcome["tokens"], &outcome["same_tokens"]), (&json!(tokens), &json!(tokens)));
        assert_eq!(outcome["parity"], json!(["ok, Δ = 0", "ok, Δ = 0"]));
    }
    // A step over n tokens takes n ms rather than 1.
    let speedup = |index: usize| outcomes[index]["speedup"].as_f64().unwrap();
    assert!(speedup(0) > 1.0 && speedup(1) > speedup(0), "{} {}", speedup(0), speedup(1));
}

#[test]
fn a_framework_without_the_other_side_is_a_row_with_its_reason() {
    let installation = Installation::new().engine("one", &[]).engine("two", &[]).engine("two-base", &[]);
    let ran = installation.run(&[
        "ab",
        "fused",
        "--frameworks",
        "one,two",
        "--rounds",
        "1",
        "--prompt-tokens",
        "4",
        "--new-tokens",
        "4",
    ]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stdout.contains("one: not run: one has no variant to hold it against"), "{}", ran.stdout);
}

#[test]
fn two_variants_are_held_against_each_other_in_the_order_they_were_named() {
    let installation =
        Installation::new().timed("quick", &[("token_ms", "2")]).timed("slow", &[("token_ms", "20")]);
    let study = [
        "ab",
        "slow",
        "quick",
        "--prompt-tokens",
        "4",
        "--new-tokens",
        "6",
        "--rounds",
        "6",
        "--format",
        "json",
    ];
    let document = installation.run(&study).json();
    let outcome = &document["outcomes"][0];
    let speedup = outcome["speedup"].as_f64().unwrap();
    assert!(speedup < 1.0, "{speedup}");
    installation.run(&["ab", "slow"]).refused(&["\"slow\" alone is no study"]);
}

#[test]
fn a_suite_that_names_a_study_is_that_study_with_the_flags_typed_beside_it() {
    let installation = Installation::new().engine("one", &[]);
    let suite = "command = \"sweep generate --prompt-tokens 4,8 --rounds 2\"\n";
    std::fs::write(installation.path("configs/suites/lengths.toml"), suite).unwrap();
    let ran = installation.run(&[
        "compare",
        "--suite",
        "lengths",
        "--frameworks",
        "one",
        "--rounds",
        "1",
        "--format",
        "json",
    ]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let document = ran.json();
    assert_eq!(cells(&document).len(), 2);
    assert_eq!(cells(&document)[0]["rows"][0]["framework"], "one");
    let sweep = ["sweep", "generate", "--suite", "lengths", "--frameworks", "one"];
    installation
        .run(&sweep)
        .refused(&["suite \"lengths\" has no prompts", "sweep generate --prompt-tokens 4,8"]);
}

#[test]
fn a_sweep_over_precisions_compares_each_and_tells_what_quantising_costs() {
    let installation = Installation::new()
        .engine("one", &[("quantised", "3")])
        .engine("wrong", &[("quantised", "3"), ("perturb", "6")]);
    let sweep = ["--frameworks", "one,wrong", "--quantize", "f32,int8", "--rounds", "1", "--format"];
    let ran = installation.run(&[&sweep[..], &["json"]].concat());
    assert_eq!(ran.code, Some(1), "the wrong one is struck: {}", ran.stderr);
    let all = ran.json();
    let reports = all["reports"].as_array().unwrap();
    let precisions: Vec<_> =
        reports.iter().map(|report| report["plan"]["precision"].as_str().unwrap()).collect();
    assert_eq!(precisions, ["f32", "int8"]);
    let agreement = |report: usize, name: &str| {
        let rows = reports[report]["rows"].as_array().unwrap();
        rows.iter().find(|row| row["framework"] == name).unwrap()["agreement"].clone()
    };
    assert_eq!(agreement(0, "one")["quantisation_loss"], Value::Null);
    // Held against the same codes in f32 nothing differs; against the model before, much.
    assert_eq!(
        (agreement(1, "one")["max_abs"].as_f64(), &agreement(1, "one")["broken"]),
        (Some(0.0), &Value::Null)
    );
    assert!(agreement(1, "one")["quantisation_loss"]["mean_kl"].as_f64().unwrap() > 0.1);
    assert!(agreement(1, "wrong")["broken"].is_string());

    let ran = installation.run(&[&sweep[..], &["table"]].concat());
    let summary = ran.stdout.rsplit("\n\n").find(|part| part.contains("KL from f32")).unwrap();
    // The table is wider than a terminal of 120 columns: each row is a block, headed by its precision and framework.
    let rows: Vec<_> = summary.lines().filter(|line| line.ends_with(" · one")).collect();
    assert_eq!(rows, ["f32 · one", "int8 · one"], "{summary}");
    let ran = installation.run(&[&sweep[..], &["csv"]].concat());
    assert_eq!(ran.stdout.lines().filter(|line| line.starts_with("framework,")).count(), 1);
    assert!(ran.stdout.contains("\none,measured,int8,load,"), "{}", ran.stdout);
}

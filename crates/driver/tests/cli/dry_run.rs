//! `--dry-run`: the plan of a command, and nothing else.

use serde_json::{Value, json};

use crate::common::Installation;

/// With an engine whose worker does not exist: a plan starts none.
fn installation() -> Installation {
    let installation = Installation::new().timed("quick", &[("token_ms", "1")]);
    let absent = "framework = \"mock\"\nworker = \"engine-absent\"\nsummary = \"\"\n";
    std::fs::write(installation.path("configs/engines/absent.toml"), absent).unwrap();
    installation
}

fn planned(installation: &Installation, arguments: &[&str]) -> Value {
    let ran = installation.run(&[arguments, &["--format", "json", "--dry-run"]].concat());
    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    assert_eq!(std::fs::read_dir(installation.path("results")).unwrap().count(), 0, "nothing was measured");
    ran.json()
}

#[test]
fn a_plan_has_the_values_of_the_run() {
    let installation = installation();
    let asked =
        ["compare", "--frameworks", "quick", "--rounds", "2", "--precision", "bf16", "--threads", "1"];
    let planned = planned(&installation, &asked);
    assert_eq!(installation.run(&[&asked[..], &["--quiet"]].concat()).code, Some(0));
    let text = std::fs::read_to_string(installation.results().join("plan.json")).unwrap();
    let ran: Value = serde_json::from_str(&text).unwrap();
    let plan = &planned["comparisons"][0]["plan"];
    for value in
        ["contenders", "threads", "batch", "context", "new_tokens", "rounds", "iterations", "device", "suite"]
    {
        assert_eq!(plan[value], ran[value], "{value}");
    }
    assert_eq!(planned["request"], ran["request"]);
    let tokens = ran["prompts"][0]["tokens"].as_array().unwrap().len();
    assert_eq!(plan["prompts"][0]["tokens"], tokens);
}

#[test]
fn a_study_is_planned_cell_by_cell() {
    let installation = installation();
    let sweep = [
        "sweep",
        "generate",
        "--frameworks",
        "quick,absent",
        "--prompt-tokens",
        "4,6",
        "--new-tokens",
        "4,8",
    ];
    let cells = planned(&installation, &sweep)["comparisons"].clone();
    let lengths: Vec<_> =
        cells.as_array().unwrap().iter().map(|cell| cell["settings"]["prompt_tokens"].clone()).collect();
    assert_eq!(lengths, [4, 4, 6, 6]);
    assert_eq!(cells[3]["plan"]["contenders"][1]["label"], "absent");
    assert_eq!(cells[3]["plan"]["prompts"][0]["tokens"], 6);
    let study = planned(&installation, &["ab", "kv-cache", "--frameworks", "quick"]);
    let arms = &study["comparisons"][0]["plan"]["contenders"];
    assert_eq!((&arms[0]["kv_cache"], &arms[1]["kv_cache"]), (&json!("on"), &json!("off")));
    let each = planned(&installation, &["compare", "--frameworks", "quick", "--quantize", "int8,int4"]);
    let precision = |index: usize| each["comparisons"][index]["plan"]["contenders"][0]["precision"].clone();
    assert_eq!((precision(0), precision(1)), (json!("int8"), json!("int4")));
}

#[test]
fn what_is_known_only_with_the_model_is_said() {
    let installation = installation();
    let text = |arguments: &[&str]| {
        let ran = installation.run(&[arguments, &["--dry-run"]].concat());
        assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
        ran.stdout
    };
    let open = "prompts are counted once the model is prepared";
    let asked = ["compare", "--frameworks", "quick", "--prompt", "a"];
    assert!(text(&asked).contains(open));
    assert!(!text(&[&asked[..], &["--prompt-tokens", "3"]].concat()).contains(open));
    assert!(text(&["generate", "--framework", "absent", "--prompt", "a"]).contains(open));
}

#[test]
fn a_mistake_is_one_sentence() {
    let installation = installation();
    let refused = |arguments: &[&str], parts: &[&str]| {
        installation.run(&[arguments, &["--dry-run"]].concat()).refused(parts);
    };
    refused(&["compare", "--frameworks", "none"], &["unknown framework \"none\""]);
    refused(&["compare", "--suite", "none"], &["unknown suite \"none\""]);
    refused(&["compare", "--model", "no/such.gguf"], &["no model at no/such.gguf"]);
    refused(&["compare", "--batch", "1,2"], &["--batch takes one value here"]);
    refused(&["sweep", "forward", "--frameworks", "quick", "--reference", "absent"], &["--reference"]);
    refused(&["ab", "jit", "--frameworks", "quick"], &["neither a JIT"]);
    refused(&["generate", "--framework", "none", "--tokens", "1"], &["none"]);
    refused(&["run", "--plan", "absent.json"], &["absent.json is not a plan"]);
    refused(&["bundles", "prune", "--unused-for", "x"], &["invalid value"]);
}

#[test]
fn what_measures_nothing_does_nothing() {
    let installation = installation();
    let out = installation.path("plan.json").display().to_string();
    let ran =
        installation.run(&["plan", "--shards", "1", "--out", &out, "--dry-run", "--", "sweep", "memory"]);
    assert_eq!((ran.code, installation.path("plan.json").exists()), (Some(0), false), "{}", ran.stderr);
    let cached = installation.path("cache/photofinish/bundles/x");
    std::fs::create_dir_all(&cached).unwrap();
    let ran = installation.run(&["bundles", "prune", "--unused-for", "0", "--yes", "--dry-run"]);
    assert_eq!((ran.code, cached.exists()), (Some(0), true), "{}", ran.stderr);
}

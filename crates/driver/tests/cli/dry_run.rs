//! `--dry-run`: the plan of a command, and nothing else.

use std::path::Path;

use serde_json::{Value, json};

use crate::common::{Installation, Ran, array, photofinish, read};

/// With an engine without a worker: a plan starts none.
fn installation() -> Installation {
    let installation = Installation::new().timed("quick", &[("token_ms", "1")]);
    installation.of_worker("absent", "mock", "engine-absent", "");
    installation
}

fn planned(installation: &Installation, line: &str) -> Value {
    let plan = installation.json(0, &format!("{line} --dry-run"));
    assert!(installation.all_results().is_empty(), "nothing was measured");
    plan
}

#[test]
fn a_plan_has_the_values_of_the_run() {
    let installation = installation();
    let asked = "compare --frameworks quick --rounds 2 --precision bf16 --threads 1";
    let planned = planned(&installation, asked);
    installation.run(&format!("{asked} --quiet")).exits(0);
    let ran = read(&installation.results().join("plan.json"));
    let plan = &planned["comparisons"][0]["plan"];
    let work = &ran["work"]["generate"];
    for value in ["contenders", "threads", "rounds", "iterations", "device", "suite"] {
        assert_eq!(plan[value], ran[value], "{value}");
    }
    for value in ["batch", "context", "new_tokens"] {
        assert_eq!(plan[value], work[value], "{value}");
    }
    assert_eq!(planned["request"], ran["request"]);
    assert_eq!(plan["prompts"][0]["tokens"], array(&work["prompts"][0]["tokens"]).len());
}

#[test]
fn a_plan_is_registered_by_its_digest_and_another_is_refused() {
    let installation = installation();
    let asked = "compare --frameworks quick --rounds 6 --seed 7";
    let digest = planned(&installation, asked)["registered"].as_str().unwrap().to_owned();
    assert!(planned(&installation, "compare --frameworks quick --rounds 6")["registered"].is_null());
    installation.run(&format!("{asked} --registered {digest}")).exits(0);
    let summary = std::fs::read_to_string(installation.results().join("report.md")).unwrap();
    let told = summary.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(told.contains(&format!("plan {}, begun ", &digest[..12])), "the report names it: {told}");
    for other in [asked.replace("--seed 7", "--seed 8"), asked.replace("--rounds 6", "--rounds 7")] {
        let refused = installation.run(&format!("{other} --registered {digest}")).exits(2).stderr;
        assert!(
            refused.contains("was registered: something else was asked for, or another seed"),
            "{refused}"
        );
    }
    installation.run(&format!("compare --frameworks quick --registered {digest}")).exits(2);
}

#[test]
fn a_study_is_planned_cell_by_cell() {
    let installation = installation();
    let sweep = "sweep generate --frameworks quick,absent --prompt-tokens 4,6 --new-tokens 4,8";
    let cells = planned(&installation, sweep)["comparisons"].take();
    let lengths: Vec<_> = array(&cells).iter().map(|cell| &cell["settings"]["prompt_tokens"]).collect();
    assert_eq!(lengths, [&json!(4), &json!(4), &json!(6), &json!(6)]);
    assert_eq!(cells[3]["plan"]["contenders"][1]["label"], "absent");
    assert_eq!(cells[3]["plan"]["prompts"][0]["tokens"], 6);
    let study = planned(&installation, "sweep kv-cache --frameworks quick");
    let arms = &study["comparisons"][0]["plan"]["contenders"];
    assert_eq!((&arms[0]["kv_cache"], &arms[1]["kv_cache"]), (&json!("on"), &json!("off")));
    let each = planned(&installation, "compare --frameworks quick --quantize int8,int4");
    let precision = |index: usize| &each["comparisons"][index]["plan"]["contenders"][0]["precision"];
    assert_eq!([precision(0), precision(1)], ["int8", "int4"]);
}

#[test]
fn what_is_known_only_with_the_model_is_said() {
    let installation = installation();
    let is_open = |line: &str| {
        let told = installation.run(&format!("{line} --dry-run")).exits(0).stdout;
        told.contains("prompts are counted once the model is prepared")
    };
    assert!(is_open("compare --frameworks quick --prompt a"));
    assert!(!is_open("compare --frameworks quick --prompt a --prompt-tokens 3"));
    assert!(is_open("run --framework absent --prompt a"));
}

#[test]
fn a_mistake_is_one_sentence() {
    installation().refuses(&[
        ("compare --frameworks none --dry-run", &["unknown framework \"none\""]),
        ("compare --suite none --dry-run", &["unknown suite \"none\""]),
        ("compare --model no/such.gguf --dry-run", &["no/such.gguf"]),
        ("compare --batch 1,2 --dry-run", &["--batch takes one value"]),
        ("sweep forward --frameworks quick --parity-reference absent --dry-run", &["--parity-reference"]),
        ("sweep jit --frameworks quick --dry-run", &["neither a JIT"]),
        ("run --framework none --tokens 1 --dry-run", &["none"]),
        ("list cache --prune --unused-for x --dry-run", &["invalid value"]),
    ]);
}

#[test]
fn a_gate_finds_its_checkout_and_its_commits() {
    let installation = installation();
    let git = |words: &str, within: &str| {
        let identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always"];
        let mut git = std::process::Command::new("git");
        git.args(identity).args(words.split(' ')).current_dir(installation.path(within));
        assert!(git.output().unwrap().status.success(), "git {words}");
    };
    for directory in ["whole", "none"] {
        std::fs::create_dir(installation.path(directory)).unwrap();
    }
    git("init -q -b base", "whole");
    git("commit -q --allow-empty -m one", "whole");
    git("checkout -q -b other", "whole");
    git("commit -q --allow-empty -m two", "whole");
    let url = format!("file://{}", installation.path("whole").display());
    git(&format!("clone -q --depth 1 -b other {url} shallow"), ".");
    let gate = |at: &str, more: &str| {
        let at = installation.path(at);
        installation.run(&format!("check --frameworks quick {more} --checkout {} --dry-run", at.display()))
    };
    let told = gate("whole", "--base base").exits(0).stdout;
    assert!(told.contains("the checkout as it is, against commit "), "{told}");
    for (at, more, expected) in [
        ("shallow", "--base origin/base", "fetch-depth: 0"),
        ("whole", "--base origin/base", "has no commit origin/base"),
        ("whole", "--base base --head absent", "has no commit absent"),
        ("none", "--base base", "no checkout of a git repository"),
        ("absent", "--base base", "no checkout of a git repository"),
    ] {
        let ran = gate(at, more).exits(2);
        assert!(ran.stderr.contains(expected), "{at}, {more}: {}", ran.stderr);
    }
}

#[test]
fn what_measures_nothing_does_nothing() {
    let installation = installation();
    let cached = installation.path("cache/photofinish/bundles/x");
    std::fs::create_dir_all(&cached).unwrap();
    installation.run("list cache --prune --unused-for 0 --dry-run").exits(0);
    assert!(cached.exists());
}

#[test]
fn every_command_of_a_claim_is_a_study_that_can_be_planned() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for claim in std::fs::read_dir(root.join("configs/claims")).unwrap() {
        let claim: toml::Table = std::fs::read_to_string(claim.unwrap().path()).unwrap().parse().unwrap();
        for run in claim["run"].as_array().unwrap() {
            let command = run["command"].as_str().unwrap();
            let mut plan = photofinish(command.strip_prefix("photofinish ").unwrap());
            let ran = Ran::output_of(plan.args(["--dry-run", "--configs"]).arg(root.join("configs")));
            assert_eq!(ran.code, Some(0), "{command}: {}", ran.stderr);
        }
    }
}

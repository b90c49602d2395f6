//! Several callers: every request answered, modes of serving compared, a rate that is too high.

use serde_json::{Value, json};

use crate::common::{Installation, array, figure, row};
use crate::graphs::{file, inputs};

/// The row, which must be sound.
fn is_measured<'a>(report: &'a Value, label: &str) -> &'a Value {
    let row = row(report, label);
    assert_eq!((&row["state"], &row["agreement"]["broken"]), (&json!("measured"), &json!(null)), "{label}");
    row
}

#[test]
fn callers_are_answered_in_every_mode() {
    let installation = Installation::encoder().engine("one", &[]);
    let report = installation.json(
        0,
        "--frameworks one --callers 3 --serve shared,pool:2,batch:4:1ms --threads 2 --quick --requests 40",
    );
    for label in ["one", "one pool:2", "one batch:4:1ms"] {
        let row = is_measured(&report, label);
        // A turn of forty requests in each round; every vector is compared.
        assert_eq!(row["agreement"]["vectors"]["compared"], 40, "{label}");
        for metric in ["request_throughput", "call_latency", "latency_p95"] {
            assert!(figure(&report, label, metric).is_some_and(|value| value > 0.0), "{label} {metric}");
        }
    }
}

#[test]
fn callers_have_prompts_continued() {
    let installation = Installation::new().engine("one", &[]);
    let report = installation
        .json(0, "--frameworks one --callers 3 --serve shared,batch:4:1ms --quick --new-tokens 4");
    for label in ["one", "one batch:4:1ms"] {
        let row = is_measured(&report, label);
        // A turn of eight prompts in each round, of four tokens each.
        assert_eq!(row["agreement"]["timed_tokens"], 32, "{label}");
        assert!(figure(&report, label, "request_throughput").is_some_and(|value| value > 0.0), "{label}");
    }
    installation.refuses(&[
        ("--frameworks one --callers 2 --batch 4", &["leave --batch out"]),
        ("--frameworks one --callers 2 --kv-cache off", &["leave --kv-cache off out"]),
        ("--frameworks one --requests 2", &["add --callers, --rate or --slo"]),
    ]);
}

#[test]
fn callers_have_an_onnx_file_run() {
    let installation = Installation::new().engine("one", &[("load_ms", "0.1")]).engine("two", &[]);
    let joined = format!("{} --dim rows=1", file("external"));
    let line = format!("--frameworks one --callers 3 --serve shared,batch:4:1ms --quick {joined}");
    let report = installation.json(0, &line);
    for label in ["one", "one batch:4:1ms"] {
        let row = is_measured(&report, label);
        assert!(row["agreement"]["vectors"]["numbers"].as_u64().unwrap() > 0, "{label}");
        assert!(figure(&report, label, "call_latency").is_some_and(|value| value > 0.0), "{label}");
    }
    let study = installation.json(0, &format!("--frameworks one,two --callers 1,2 --rounds 1 {joined}"));
    assert_eq!(array(&study["cells"]).len(), 2);
    installation.refuses(&[
        (
            &format!("--frameworks one --callers 2 --serve batch:4:1ms {}", inputs()),
            &["no free first dimension"],
        ),
        (&format!("--frameworks one --callers 2 {} --dim rows=1,2", file("external")), &["runs of one size"]),
    ]);
}

#[test]
fn a_contender_that_does_not_keep_up_with_a_rate_is_overloaded() {
    let installation = Installation::encoder().engine("slow", &[("prefill_token_ms", "2")]);
    let report = installation.json(0, "--frameworks slow --rate 2000 --requests 60 --quick");
    let kept = figure(&report, "slow", "kept_up").unwrap();
    assert!(kept < 50.0, "{kept}");
    let warnings = report["warnings"].to_string();
    assert!(warnings.contains("slow is overloaded: of 2000 requests a second"), "{warnings}");
}

#[test]
fn the_highest_rate_within_a_limit_is_searched_for() {
    let installation = Installation::encoder()
        .engine("quick", &[("prefill_token_ms", "0.02")])
        .engine("slow", &[("prefill_token_ms", "20")]);
    let report =
        installation.json(0, "--frameworks quick,slow --slo 50ms --rounds 1 --iterations 1 --requests 4");
    assert!(figure(&report, "quick", "goodput").is_some_and(|rate| rate > 0.0));
    let slow = row(&report, "slow");
    assert_eq!(slow["state"], "unsupported");
    assert!(slow["reasons"].to_string().contains("a single caller waits longer than 50 ms"));
    installation.run("--frameworks slow --slo 1ms --rounds 1 --requests 4").exits(2);
}

#[test]
fn several_numbers_of_callers_are_a_study() {
    let installation = Installation::encoder().engine("one", &[]).engine("two", &[]);
    let study = installation.json(0, "--frameworks one,two --callers 1,2 --rounds 1 --requests 8");
    let cells = array(&study["cells"]);
    let callers: Vec<&Value> = cells.iter().map(|cell| &cell["settings"]["callers"]).collect();
    assert_eq!(callers, [&json!(1), &json!(2)]);
}

#[test]
fn what_callers_cannot_ask_for_is_refused_in_a_sentence() {
    let installation = Installation::encoder().engine("one", &[]).engine("two", &[]);
    installation.refuses(&[
        ("--frameworks one,two --serve pool:2", &["add --callers, --rate or --slo"]),
        ("--frameworks one,two --callers 2 --batch 4", &["leave --batch out"]),
        ("--frameworks one,two --callers 0", &["--callers"]),
        ("--frameworks one,two --rate 0", &["--rate"]),
        ("--frameworks one,two --rate 5 --slo 50ms", &["--slo"]),
        ("--frameworks one,two --slo 50", &["with its unit, such as 50ms"]),
        ("--frameworks one,two --callers 2 --serve pool", &["none of shared, pool:K and batch:B:W"]),
    ]);
}

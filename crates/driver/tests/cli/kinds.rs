//! Every kind of work is compared: a known difference is found with its size, and a wrong output strikes its
//! row.

use serde_json::json;

use crate::common::{Installation, array, figure, row, verdict};
use crate::graphs;

struct Kind {
    installation: Installation,
    /// The option that sets the time of a request, and its unit in milliseconds.
    time: (&'static str, f64),
    flags: String,
    metrics: &'static [&'static str],
    /// The beginning of the answer.
    answer: &'static str,
    /// What is added to outputs of the third row, and the reason that it gets.
    wrong: (&'static str, &'static str),
    /// Their names, if they are fixed.
    requests: &'static [&'static str],
}

fn compared(kind: Kind) -> serde_json::Value {
    let (option, ms) = kind.time;
    let times = [1.0, 2.0, 0.5].map(|factor| format!("{}", factor * ms));
    let [quick, slow, wrong] = times.each_ref().map(|time| (option, time.as_str()));
    let installation = kind
        .installation
        .timed("quick", &[quick])
        .timed("slow", &[slow])
        .timed("wrong", &[wrong, ("perturb", kind.wrong.0)]);
    let line = format!("--frameworks quick,slow,wrong --rounds 6 --seed 7 {}", kind.flags);
    let report = installation.json(1, &line);
    for metric in kind.metrics {
        let found = verdict(&report, metric);
        assert_eq!((&found["verdict"], &found["a"]), (&json!("faster"), &json!("quick")), "{found}");
        assert!((1.99..2.01).contains(&found["advantage"].as_f64().unwrap()), "{found}");
    }
    let is_decoded = |one: &&serde_json::Value| one["metric"] == "throughput";
    assert_eq!(array(&report["comparisons"]).iter().filter(is_decoded).count(), 0, "nothing is decoded");
    for name in ["quick", "slow"] {
        let row = row(&report, name);
        assert_eq!((&row["state"], &row["reasons"]), (&json!("measured"), &json!([])), "{row}");
        assert_eq!(row["agreement"]["broken"], json!(null), "{row}");
    }
    let reasons = row(&report, "wrong")["reasons"].to_string();
    assert!(reasons.contains("R11") && reasons.contains(kind.wrong.1), "{reasons}");
    let answer = report["summary"]["answer"].to_string();
    assert!(answer.contains(kind.answer), "{answer}");
    let names: Vec<_> = array(&report["prompts"]).iter().map(|request| &request["name"]).collect();
    assert!(kind.requests.is_empty() || names == kind.requests, "{names:?}");
    report
}

#[test]
fn texts_are_compared_by_texts_a_second_and_by_every_vector() {
    let report = compared(Kind {
        installation: Installation::encoder(),
        time: ("prefill_token_ms", 0.1),
        flags: String::new(),
        metrics: &["encoding_throughput", "single_text"],
        answer: "quick embeds batches fastest: ",
        wrong: ("1", "a number of a vector differs by"),
        requests: &["1 text", "32 texts"],
    });
    assert_eq!(row(&report, "quick")["agreement"]["vectors"]["max_abs"], 0.0);
    assert_eq!(figure(&report, "quick", "padding_share"), Some(0.0));
}

#[test]
fn an_onnx_file_is_compared_by_runs_a_second_and_by_every_output() {
    let report = compared(Kind {
        installation: Installation::new(),
        time: ("token_ms", 0.1),
        flags: graphs::inputs(),
        metrics: &["run_time", "run_throughput"],
        answer: "quick runs it fastest: ",
        wrong: ("0.01", "whole numbers of its outputs are not the reference's"),
        requests: &[],
    });
    // Outputs of three types, of which floats differ by nothing.
    let vectors = &row(&report, "slow")["agreement"]["vectors"];
    assert_eq!(vectors["max_abs"], 0.0);
    assert!(vectors["numbers"].as_u64().unwrap() > 0, "{vectors}");
    let throughput = figure(&report, "quick", "run_throughput").unwrap();
    assert!((9_990.0..10_010.0).contains(&throughput), "{throughput}");
}

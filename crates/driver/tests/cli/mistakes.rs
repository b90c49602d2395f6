//! Common mistakes: each is made for real, the most expensive is first, and a mistake that cannot be made has
//! its reason.

use serde_json::{Value, json};

use crate::common::{Installation, array};

/// The mistakes of a study in its order, with how many times as long a request takes.
fn costs(study: &Value) -> Vec<(&str, Option<f64>)> {
    let of = |outcome: &'_ Value| outcome["speedup"].as_f64();
    let outcomes = array(&study["outcomes"]).iter();
    outcomes.map(|outcome| (outcome["settings"]["mistake"].as_str().unwrap(), of(outcome))).collect()
}

#[test]
fn mistakes_are_made_and_told_by_their_cost() {
    let installation = Installation::new()
        .timed("one", &[("load_ms", "90"), ("token_ms", "1"), ("prefill_token_ms", "1")])
        .timed("one-growing", &[("load_ms", "90"), ("token_ms", "2"), ("prefill_token_ms", "1")]);
    let study = installation.json(0, "ab mistakes --framework one --new-tokens 3 --prompt-tokens 4 --seed 7");
    let costs = costs(&study);
    let cost = |name: &str| costs.iter().find(|(mistake, _)| *mistake == name).unwrap().1;
    // Four tokens of prompt and two steps take 6 ms, and two slower steps 2 ms more.
    assert!((cost("a new session per request").unwrap() - 96.0 / 6.0).abs() < 0.1, "{costs:?}");
    assert!((cost("a growing cache").unwrap() - 8.0 / 6.0).abs() < 0.01, "{costs:?}");
    assert_eq!(cost("twice as many threads").map(f64::round), Some(1.0));
    assert_eq!((costs[0].0, costs[1].0), ("a new session per request", "a growing cache"));
    let verdicts: Vec<&Value> = array(&study["outcomes"]).iter().map(|outcome| &outcome["verdict"]).collect();
    assert_eq!(verdicts[..2], [&json!("faster"), &json!("faster")]);
    let of_build = array(&study["cells"]).iter().find(|cell| cell["settings"]["mistake"] == "debug build");
    let reason = of_build.unwrap()["refused"].as_str().unwrap();
    assert!(reason.contains("no variant that makes this mistake"), "{reason}");
}

#[test]
fn mistakes_of_encoders_are_theirs() {
    let installation =
        Installation::encoder().engine("one", &[]).engine("one-padded-512", &[("padded", "true")]);
    let study = installation.json(0, "ab mistakes --framework one --rounds 1");
    let made: Vec<&str> = costs(&study).into_iter().map(|(mistake, _)| mistake).collect();
    assert!(made.contains(&"padding to 512 tokens") && !made.contains(&"a growing cache"), "{made:?}");
    installation.refuses(&[
        ("ab mistakes --frameworks one --callers 2", &["has one caller"]),
        ("ab mistakes --frameworks one --model x.onnx", &["x.onnx"]),
    ]);
}

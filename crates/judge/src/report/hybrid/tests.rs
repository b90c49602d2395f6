use std::collections::BTreeMap;

use protocol::{Event, Marks, Output, Sample, Usage};

use super::*;
use crate::report::{Facts, Prepared};
use facts::environment::Environment;
use facts::evidence::End;
use facts::testing;

const TOKENS: usize = 5;
const PREFILL_MS: [f64; 6] = [20.0, 20.2, 19.8, 20.0, 20.1, 19.9];

fn parts(first_token: f64, latency: f64, hand_over: f64, new_tokens: usize) -> Parts {
    Parts { first_token, latency, hand_over, new_tokens }
}

#[test]
fn a_prediction_is_the_prompt_of_one_the_gaps_of_the_other_and_the_copy() {
    let parts = parts(20.0, 10.0, 2.0, 5);
    assert_eq!(parts.predict(Metric::FirstToken), Some(20.0));
    assert_eq!(parts.predict(Metric::Latency), Some(10.5), "the copy is part of the first of four gaps");
    assert_eq!(parts.predict(Metric::Total), Some(62.0));
    assert_eq!(parts.predict(Metric::PeakMemory), None);
}

#[test]
fn a_request_for_one_token_hands_nothing_over() {
    let parts = parts(20.0, 0.0, 2.0, 1);
    assert_eq!(parts.predict(Metric::FirstToken), Some(20.0));
    assert_eq!((parts.predict(Metric::Latency), parts.predict(Metric::Total)), (None, None));
}

/// Processes of `label` with a prompt and gaps of so many milliseconds, times those of the round.
fn runs(label: &str, first_ms: f64, gap_ms: f64, hand_over: Option<protocol::HandOver>) -> Vec<Run> {
    let run = |(round, scale): (usize, f64)| {
        let ns = |ms: f64| (ms * 1e6 * scale / 20.0) as u64;
        let marks_ns = Marks::new(ns(first_ms), [ns(gap_ms); TOKENS - 1]);
        let sample = Sample { marks_ns, output: Output::Tokens(vec![vec![1; TOKENS]]), ..Sample::default() };
        let usage =
            Usage { peak_bytes: Some(1_000_000_000), hand_over: hand_over.clone(), ..testing::usage() };
        let events = vec![
            Event::Hello(testing::hello(label)),
            Event::Loaded(testing::loaded(500_000_000)),
            Event::Usage(usage),
        ];
        testing::measured(label, round, events, vec![vec![sample]])
    };
    PREFILL_MS.into_iter().enumerate().map(run).collect()
}

fn plan(labels: &[&str]) -> Plan {
    let mut plan = testing::plan(labels);
    testing::prompted(&mut plan).new_tokens = TOKENS;
    for contender in &mut plan.contenders {
        if contender.label == "hybrid-a-b" {
            contender.engine.framework = configs::HYBRID.into();
            let option = |name: &str, value: &str| (name.to_owned(), value.to_owned());
            contender.engine.options = BTreeMap::from([option("prefill", "a"), option("decode", "b")]);
        }
    }
    plan
}

/// A copy of two megabytes in two milliseconds by request, told of four requests.
fn copied() -> protocol::HandOver {
    let obstacle = Some("a wants one piece".into());
    protocol::HandOver {
        times: 4,
        bytes: 8_000_000,
        ns: 8_000_000,
        prefill_address: 0x10,
        decode_address: 0x20,
        obstacle,
    }
}

/// What is said of a hybrid whose parts need 20 and 40 ms for the prompt, and 30 and 10 for a token.
fn judged(labels: &[&str], hybrid: (f64, f64), hand_over: protocol::HandOver) -> Hybrid {
    let plan = plan(labels);
    let evidence = Evidence {
        runs: [
            runs("a", 20.0, 30.0, None),
            runs("b", 40.0, 10.0, None),
            runs("hybrid-a-b", hybrid.0, hybrid.1, Some(hand_over)),
        ]
        .concat(),
        rounds: PREFILL_MS.len(),
        end: End::Planned,
        ..Evidence::default()
    };
    let facts = Facts {
        environment: Environment::default(),
        plan: plan.clone(),
        model: Prepared {
            name: "made up".into(),
            architecture: "llama".into(),
            bundle: String::new(),
            manifest: serde_json::from_str(
                r#"{"format": 1, "name": "", "source": {"kind": "", "sha256": {}}, "files": {}}"#,
            )
            .unwrap(),
            config: testing::config(),
        },
        evidence: evidence.clone(),
        results: String::new(),
    };
    let rows: Vec<Row> =
        plan.contenders.iter().map(|contender| Row::new(contender, &facts, &[], None)).collect();
    hybrids(&plan, &evidence, &rows, None).pop().expect("one hybrid")
}

#[test]
fn prediction_and_measurement_stand_side_by_side() {
    let hybrid = judged(&["a", "b", "hybrid-a-b"], (21.0, 10.5), copied());
    let near = |metric: Metric| {
        let found = hybrid.figures.iter().find(|figure| figure.metric == metric).unwrap();
        (found.predicted, found.measured, 100.0 * found.difference)
    };
    let close = |(a, b, c): (f64, f64, f64), expected: (f64, f64, f64)| {
        let within = |x: f64, y: f64| (x - y).abs() < 0.02;
        assert!(within(a, expected.0) && within(b, expected.1) && within(c, expected.2), "{a} {b} {c}");
    };
    close(near(Metric::FirstToken), (20.0, 21.0, 5.0));
    close(near(Metric::Latency), (10.5, 10.5, 0.0));
    close(near(Metric::Total), (62.0, 63.0, 1.61));
    let hand_over = hybrid.hand_over.as_ref().unwrap();
    assert_eq!((hand_over.bytes, hand_over.ms), (2e6, 2.0), "of one request");
    let told = hybrid.sentences();
    assert_eq!(told.len(), 4, "{told:#?}");
    assert!(told[0].starts_with(
        "hybrid-a-b: predicted from a's prompts, b's gaps and the hand-over, and measured: time to first token 20.0 and \
         21.0 ms (+5.0 %)"
    ), "{}", told[0]);
    assert!(told[1].contains("one copy, 2.0 MB in 2.00 ms: a wants one piece"), "{}", told[1]);
    assert!(told[2].contains("two sets of weights of 0.50 GB"), "{}", told[2]);
    // The better of its parts takes 80 ms, the other 140.
    assert!(told[3].starts_with("hybrid-a-b: it pays: "), "{}", told[3]);
    assert!(told[3].contains("completes whole requests") && told[3].contains("sooner than b"), "{}", told[3]);
}

#[test]
fn memory_that_is_shared_is_told_by_its_address() {
    let shared = protocol::HandOver { bytes: 0, ns: 4_000, decode_address: 0x10, obstacle: None, ..copied() };
    let told = judged(&["a", "b", "hybrid-a-b"], (40.0, 10.0), shared).sentences();
    assert!(told[1].contains("without a copy, in 0.001 ms: both engines keep them at 0x10"), "{}", told[1]);
    assert!(told[3].contains("it does not pay, being no faster than the better of its parts"), "{}", told[3]);
}

#[test]
fn a_hybrid_slower_than_a_part_does_not_pay() {
    let told = judged(&["a", "b", "hybrid-a-b"], (60.0, 20.0), copied()).sentences();
    assert!(told[3].contains("it does not pay: b"), "{}", told[3]);
}

#[test]
fn without_its_parts_nothing_is_predicted_and_the_reader_is_told() {
    let hybrid = judged(&["a", "hybrid-a-b"], (20.0, 10.0), copied());
    assert_eq!((hybrid.prefill.as_deref(), hybrid.decode.as_deref()), (Some("a"), None));
    assert!(hybrid.figures.is_empty() && hybrid.verdict.is_none());
    let told = hybrid.sentences();
    assert!(told[0].contains("compare its parts as well"), "{}", told[0]);
    assert!(told[1].contains("one copy"), "what was handed over is a fact all the same");
}

#[test]
fn what_is_written_is_read_back() {
    let hybrid = judged(&["a", "b", "hybrid-a-b"], (21.0, 10.5), copied());
    let json = serde_json::to_string(&hybrid).unwrap();
    assert_eq!(serde_json::from_str::<Hybrid>(&json).unwrap(), hybrid);
}

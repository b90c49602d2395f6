use std::collections::BTreeMap;

use protocol::{Event, Marks, Output, Sample, Usage};

use super::*;
use crate::facts::evidence::End;
use crate::facts::run::Environment;
use crate::facts::testing;
use crate::judge::report::verdicts::Verdict;
use crate::judge::report::warnings::Figures;
use crate::judge::report::{Facts, Prepared};

const TOKENS: usize = 5;
const PREFILL_MS: [f64; 6] = [20.0, 20.2, 19.8, 20.0, 20.1, 19.9];

fn parts(first_token: f64, latency: f64, hand_over: f64, marks: usize) -> Parts {
    Parts { first_token, latency, hand_over, marks }
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

/// Processes of `label` with a prompt and gaps of so many milliseconds, times the factor of the round.
fn runs(label: &str, first_ms: f64, gap_ms: f64, hand_over: Option<protocol::HandOver>) -> Vec<Run> {
    let run = |(round, scale): (usize, f64)| {
        let ns = |ms: f64| (ms * 1e6 * scale / 20.0) as u64;
        let marks_ns = Marks::new(ns(first_ms), [ns(gap_ms); TOKENS - 1]);
        let sample = Sample { marks_ns, output: Output::Tokens(vec![vec![1; TOKENS]]), ..Sample::default() };
        let mut usage = Usage { peak_bytes: Some(1_000_000_000), ..testing::usage() };
        usage.cache.hand_over.clone_from(&hand_over);
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

/// A copy of two megabytes in two milliseconds per request, reported for four requests.
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

/// The judgement of a hybrid; its parts need 20 and 40 ms for the prompt, and 30 and 10 for a token.
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
            parameters: None,
        },
        evidence: evidence.clone(),
        results: String::new(),
    };
    let all = Metric::all(plan.work.kind()).into_iter();
    let figures: Vec<_> = all.map(|metric| (metric, Figures::new(metric, &plan, &evidence))).collect();
    let rows: Vec<Row> =
        (0..plan.contenders.len()).map(|place| Row::new(place, &figures, &facts, &[], None)).collect();
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
    assert_eq!(hand_over.obstacle.as_deref(), Some("a wants one piece"));
    assert_eq!(hybrid.memory.as_ref().unwrap().weights, 0.5);
    // The better of its parts needs 80 ms, the other 140.
    let verdict = hybrid.verdict.as_ref().unwrap();
    let found = (verdict.verdict, verdict.a.as_str(), verdict.b.as_str());
    assert_eq!(found, (Verdict::Faster, "hybrid-a-b", "b"));
}

#[test]
fn one_as_fast_as_the_better_of_its_parts_is_equivalent_to_it() {
    let shared = protocol::HandOver { bytes: 0, ns: 4_000, decode_address: 0x10, obstacle: None, ..copied() };
    let hybrid = judged(&["a", "b", "hybrid-a-b"], (40.0, 10.0), shared);
    let hand_over = hybrid.hand_over.as_ref().unwrap();
    assert_eq!((hand_over.bytes, hand_over.addresses), (0.0, [0x10, 0x10]));
    assert_eq!(hybrid.verdict.as_ref().unwrap().verdict, Verdict::Equivalent);
}

#[test]
fn one_slower_than_a_part_is_behind_it() {
    let hybrid = judged(&["a", "b", "hybrid-a-b"], (60.0, 20.0), copied());
    let verdict = hybrid.verdict.as_ref().unwrap();
    assert_eq!((verdict.verdict, verdict.a.as_str()), (Verdict::Faster, "b"));
}

#[test]
fn without_its_parts_nothing_is_predicted() {
    let hybrid = judged(&["a", "hybrid-a-b"], (20.0, 10.0), copied());
    assert_eq!((hybrid.prefill.as_deref(), hybrid.decode.as_deref()), (Some("a"), None));
    assert!(hybrid.figures.is_empty() && hybrid.verdict.is_none());
    assert!(hybrid.hand_over.is_some(), "what was handed over is a fact without a prediction, too");
}

#[test]
fn what_is_written_is_read_back() {
    let hybrid = judged(&["a", "b", "hybrid-a-b"], (21.0, 10.5), copied());
    let json = serde_json::to_string(&hybrid).unwrap();
    assert_eq!(serde_json::from_str::<Hybrid>(&json).unwrap(), hybrid);
}

use std::collections::BTreeMap;

use protocol::{Alignment, Interval, ProfileEvent, Profiler, Traced, TracedRequest};
use serde_json::{Value, json};

use super::*;

fn event(name: &str, thread: &str, (start_ns, end_ns): (u64, u64)) -> ProfileEvent {
    ProfileEvent {
        name: name.into(),
        part: None,
        thread: thread.into(),
        start_ns,
        duration_ns: end_ns - start_ns,
        details: BTreeMap::new(),
    }
}

/// A load and a request of two tokens, the prefill from 20 to 30 µs and the decode step from 30 to 34.
fn traced() -> Traced {
    let phase = |name: &str, start_ns, end_ns| Interval { name: name.into(), start_ns, end_ns };
    Traced {
        phases: vec![phase("load", 10_000, 20_000), phase("request", 20_000, 34_000)],
        requests: vec![TracedRequest {
            phase: "request".into(),
            start_ns: 20_000,
            tokens_ns: vec![30_000, 34_000],
            tokens: vec![vec![7, 8]],
        }],
        profiler: Some(Profiler {
            name: "a profiler".into(),
            file: Default::default(),
            events: 0,
            alignment: Alignment { clock: "CLOCK_MONOTONIC".into(), error_ns: Some(0), overhang_ns: 0 },
        }),
        notes: Default::default(),
    }
}

fn written(profile: Vec<ProfileEvent>) -> String {
    let about = BTreeMap::from([("framework".to_owned(), "mock".to_owned())]);
    TraceFile { framework: "mock", steps: Steps::TOKENS, traced: &traced(), profile, about }
        .json(|id| Some(format!("word {id}")))
}

fn found<'a>(trace: &'a Value, name: &str) -> &'a Value {
    let events = trace["traceEvents"].as_array().unwrap();
    events.iter().find(|event| event["name"] == name).unwrap_or_else(|| panic!("no {name} in {trace}"))
}

#[test]
fn phases_requests_and_tokens_stand_at_their_times_from_the_first_phase_on() {
    let text = written(Vec::new());
    assert_eq!(check(&text), Ok(Checked { events: 5, tokens: 2 }));
    let trace: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&trace["displayTimeUnit"], &trace["otherData"]["framework"]), (&json!("ms"), &json!("mock")));
    assert_eq!((&found(&trace, "load")["ts"], &found(&trace, "load")["dur"]), (&json!(0.0), &json!(10.0)));
    let decode = found(&trace, "decode 1");
    assert_eq!((&decode["ts"], &decode["dur"]), (&json!(20.0), &json!(4.0)));
    assert_eq!(decode["args"], json!({"ids": "8", "phase": "request", "text": "word 8", "token": "2"}));
}

#[test]
fn a_framework_s_event_is_named_by_its_part() {
    let mut told = event("MatMul", "thread 1", (21_000, 22_500));
    told.part = Some("layer 3 mlp".into());
    let trace: Value = serde_json::from_str(&written(vec![told])).unwrap();
    let shown = found(&trace, "layer 3 mlp: MatMul");
    assert_eq!((&shown["pid"], &shown["ts"], &shown["dur"]), (&json!(2), &json!(11.0), &json!(1.5)));
    assert_eq!(shown["args"]["part"], "layer 3 mlp");
}

#[test]
fn events_that_overlap_on_a_thread_get_tracks_of_their_own() {
    let events = vec![
        event("inner", "main", (21_000, 24_000)),
        event("outer", "main", (20_000, 25_000)),
        event("across", "main", (24_000, 29_000)),
        event("elsewhere", "other", (24_000, 29_000)),
    ];
    let text = written(events);
    assert_eq!(check(&text).unwrap().events, 5 + 4);
    let trace: Value = serde_json::from_str(&text).unwrap();
    let track = |name: &str| found(&trace, name)["tid"].as_u64().unwrap();
    assert_eq!(track("inner"), track("outer"));
    assert!(track("across") != track("outer") && track("across") != track("elsewhere"));
}

#[test]
fn an_event_that_rounding_puts_over_the_end_of_another_is_cut_there() {
    let text =
        written(vec![event("outer", "main", (20_000, 25_000)), event("inner", "main", (24_000, 26_000))]);
    check(&text).unwrap();
    let trace: Value = serde_json::from_str(&text).unwrap();
    let inner = found(&trace, "inner");
    assert_eq!((&inner["dur"], &inner["tid"]), (&json!(1.0), &found(&trace, "outer")["tid"]));
}

/// Each rule of the format, broken.
#[test]
fn a_trace_that_breaks_a_rule_is_refused() {
    let refusal = |events: Value| check(&json!({"traceEvents": events}).to_string()).unwrap_err().0;
    let one = |changes: Value| {
        let mut event = json!({"name": "a", "ph": "X", "pid": 1, "tid": 1, "ts": 1.0, "dur": 2.0});
        for (name, value) in changes.as_object().unwrap() {
            event[name] = value.clone();
        }
        json!([event])
    };
    assert_eq!(check("[").unwrap_err().0.split(':').next(), Some("it is not JSON"));
    assert_eq!(check("{}").unwrap_err().0, "it has no list traceEvents");
    assert_eq!(check(&json!({"traceEvents": one(json!({}))}).to_string()).unwrap().events, 1);
    for (changes, expected) in [
        (json!({"name": ""}), "has no name"),
        (json!({"ph": null}), "has no ph"),
        (json!({"ph": "Z"}), "unknown ph \"Z\""),
        (json!({"ts": "1"}), "has no ts"),
        (json!({"pid": null}), "has no whole pid"),
        (json!({"tid": 1.5}), "has no whole tid"),
        (json!({"dur": -1.0}), "without a dur of 0 or more"),
        (json!({"ph": "M"}), "names nothing"),
        (json!({"ph": "B"}), "unknown ph \"B\""),
    ] {
        let reason = refusal(one(changes));
        assert!(reason.contains(expected), "{expected:?} is not in {reason:?}");
    }
    let over = json!([
        {"name": "a", "ph": "X", "pid": 1, "tid": 1, "ts": 0, "dur": 10},
        {"name": "b", "ph": "X", "pid": 1, "tid": 1, "ts": 5, "dur": 10},
    ]);
    assert_eq!(refusal(over), "process 1, track 1: b reaches over the end of a, which it began in");
    let lacking = json!([
        {"name": "request", "cat": "request", "ph": "X", "pid": 1, "tid": 2, "ts": 0, "dur": 10, "args": {"tokens": "2"}},
        {"name": "prefill", "cat": "token", "ph": "X", "pid": 1, "tid": 3, "ts": 0, "dur": 5, "args": {"phase": "request"}},
    ]);
    assert_eq!(refusal(lacking), "request has 2 tokens, and 1 of them are there");
}

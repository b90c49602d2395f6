use protocol::{CaseSample, Event, Iteration};
use serde_json::{Value, json};

use super::*;
use crate::testing;

fn process() -> Process {
    Process { round: 0, attempt: 0, framework: "a".into() }
}

/// One of every kind, with figures that take all digits of a float and all bits of an integer.
fn facts() -> Vec<Fact> {
    let case =
        CaseSample { first_token_ns: u64::MAX, gaps_ns: vec![(1 << 53) + 1, 1], tokens: vec![vec![7]] };
    let events = vec![
        Event::Loaded(testing::loaded(u64::MAX - 1)),
        Event::Iteration(Iteration { index: 0, cases: vec![case] }),
        Event::Usage(testing::usage()),
    ];
    let mut cold = testing::run("a", 0, Vec::new());
    cold.purpose = Purpose::ColdLoad;
    let mut failed = testing::run("b", 0, Vec::new());
    let failure = RunFailure {
        kind: FailureKind::Failed,
        reason: "it ended".into(),
        last_words: Some("no".into()),
        repeat: None,
    };
    failed.failure = Some(failure.clone());
    failed.noise = Some(Noise { seconds: 0.1 + 0.2, thermal_events: Some(u64::MAX), ..Noise::default() });
    let score = TextScore { predicted: 3, nll: 1.0 / 3.0, perplexity: 1e300, mean_kl: None, top1: Some(1.0) };
    let run = |run: Run| Fact::Run(Box::new(run));
    vec![
        Fact::Quota { cpus: Some(1.5) },
        Fact::Before { noise: Noise { seconds: 5e-324, ..Noise::default() } },
        run(cold),
        run(testing::run("a", 0, events)),
        Fact::PutAside { round: 0 },
        Fact::Probe(testing::probe(1e11 / 3.0, 2e10 / 7.0)),
        Fact::ProbedBefore { process: process() },
        run(testing::run("a", 0, vec![Event::Done])),
        run(failed),
        Fact::Absent { framework: "b".into(), failure },
        Fact::NoReference { reason: "nobody can".into() },
        Fact::NoProbe { reason: Some("too old".into()) },
        Fact::Watched { noise: Noise::default() },
        Fact::Complaint { reason: "round 1: loud".into() },
        Fact::RoundDone,
        Fact::Text { framework: "a".into(), score: Ok(score) },
        Fact::Text { framework: "b".into(), score: Err("it did not run".into()) },
        Fact::End { end: End::Noisy { reason: "loud".into() } },
    ]
}

#[test]
fn a_journal_read_back_is_the_same_evidence() {
    let lines: Vec<String> = facts().iter().map(|fact| serde_json::to_string(fact).unwrap()).collect();
    let read: Vec<Fact> = lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(read, facts());
    let evidence = Evidence::from_facts(read);
    assert_eq!(evidence, Evidence::from_facts(facts()));
    assert_eq!((evidence.runs.len(), evidence.repeated.len(), evidence.cold_loads.len()), (2, 1, 1));
    assert_eq!((evidence.rounds, evidence.probes[0].before.clone()), (1, Some(process())));
}

#[test]
fn a_journal_without_an_end_is_of_a_run_that_was_killed() {
    let evidence = Evidence::from_facts(facts().into_iter().filter(|fact| !matches!(fact, Fact::End { .. })));
    assert_eq!(evidence.end, End::Killed);
}

#[test]
fn a_process_keeps_its_fields_at_the_top_of_its_line() {
    let line = serde_json::to_value(&facts()[3]).unwrap();
    assert_eq!((&line["fact"], &line["purpose"]), (&json!("run"), &json!("measure")));
    assert_eq!((&line["framework"], &line["failure"]), (&json!("a"), &Value::Null));
    assert_eq!(line["events"][1]["cases"][0]["first_token_ns"], json!(u64::MAX));
}

#[test]
fn a_line_of_schema_2_is_a_process() {
    let mut line = serde_json::to_value(&facts()[3]).unwrap();
    let fields = line.as_object_mut().unwrap();
    fields.remove("fact");
    fields.remove("derived");
    assert_eq!(Fact::read(&line.to_string()), Ok(facts().swap_remove(3)));
}

#[test]
fn a_line_that_is_no_fact_is_refused_with_the_reason() {
    let read = |line: &str| Fact::read(line).unwrap_err();
    assert_eq!(read(r#"{"fact":"end"}"#), "not a fact of a run: missing field `end`");
    assert!(read(r#"{"fact":"rumour"}"#).starts_with("not a fact of a run: unknown variant `rumour`"));
    assert_eq!(read(r#"{"round":1}"#), "not a fact of a run: missing field `purpose`");
    assert!(read("{").starts_with("not a fact of a run: EOF"), "{}", read("{"));
}

#[test]
fn rounds_of_schema_2_are_those_that_everybody_who_can_has_run_in() {
    let labels = ["a", "b", "unsupported"].map(str::to_owned);
    let run = |label: &str, round| testing::run(label, round, Vec::new());
    let mut again = run("a", 1);
    again.attempt = 1;
    let runs = vec![run("a", 0), run("b", 0), run("a", 1), again, run("b", 1), run("a", 2)];
    let runs: Vec<Run> = runs
        .into_iter()
        .map(|run| if run.framework == "b" && run.round == 1 { Run { attempt: 1, ..run } } else { run })
        .collect();
    let evidence = Evidence::from_runs(runs, &labels);
    assert_eq!((evidence.rounds, evidence.runs.len(), evidence.repeated.len()), (2, 5, 1));
    assert_eq!(evidence.end, End::Killed);
    let first = Evidence::from_runs(vec![run("a", 0), run("b", 0)], &labels);
    assert_eq!(first.rounds, 0, "whoever has not run yet may still come");
}

use protocol::{Event, FileIdentity, Marks, Output, Sample};
use serde_json::{Value, json};

use super::*;
use crate::facts::agreement::TokenAgreement;
use crate::facts::agreement::{RetrievalScore, TextScore};
use crate::facts::arithmetic::Multiplied;
use crate::facts::run::{FailureKind, Seen, SeenLoad, Turn, Waited};
use crate::facts::testing;

fn process() -> Process {
    Process { round: 0, attempt: 0, framework: "a".into() }
}

/// In nanoseconds: the longest possible request has its first mark and one gap of this length.
const HALF_A_DAY: u64 = 43_199_999_999_999;

fn sample(ns: u64) -> Sample {
    Sample { marks_ns: Marks::new(ns, [ns, 1]), output: Output::Tokens(vec![vec![7]]), ..Sample::default() }
}

fn block(number: usize, stands: bool) -> Fact {
    let turn = Turn { stands, ..Turn::alone(number, sample(HALF_A_DAY)) };
    let turns = vec![("a".to_owned(), turn)];
    Fact::Block(Block { round: 0, turns, passes: vec![vec![1, 0], vec![0]], noise: Noise::default() })
}

/// The events of a process after its last turn.
fn ended() -> Ended {
    Ended {
        process: process(),
        events: vec![Event::Usage(testing::usage()), Event::Done],
        failure: None,
        seen: Some(Seen {
            events_ns: vec![1, 2],
            peak_bytes: Some(3),
            family_bytes: None,
            cpu_ns: Some(7),
            program: None,
            nice: Some(-5),
            load: Some(SeenLoad { ready_ns: Some(1), cpu_ns: Some([2, 3]) }),
        }),
        waited: Some(Waited { seconds: 1.5, cpu_s: Some(0.1 + 0.2), was_stopped: true }),
        agreement: None,
        tokens: Some(TokenAgreement { timed: 3, ..TokenAgreement::default() }),
        derived: None,
        left_behind: Vec::new(),
        unused_caches: Vec::new(),
        kernel_cache_bytes: None,
        no_agreement: None,
    }
}

/// One fact of every kind, with figures that need all digits of a float and all bits of an integer.
fn facts() -> Vec<Fact> {
    let events = vec![Event::Loaded(testing::loaded(u64::MAX - 1)), Event::Usage(testing::usage())];
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
    let found = RetrievalScore {
        compared: 2,
        mean_cosine: 0.9,
        min_cosine: 0.8,
        top10: Some(0.7),
        kendall_tau: None,
    };
    let arithmetic = Arithmetic { rows: 16, multiplied: Multiplied::Int8(32), adds_in_f32: true };
    let run = |run: Run| Fact::Run(Box::new(run));
    vec![
        Fact::Quota { cpus: Some(1.5) },
        Fact::Hashed {
            identity: FileIdentity { device: 1, inode: 2, bytes: 3, modified_ns: -4 },
            sha256: "a".into(),
        },
        Fact::Before { noise: Noise { seconds: 5e-324, ..Noise::default() } },
        run(cold),
        run(testing::measured("a", 0, events, vec![vec![sample(u64::MAX)]])),
        Fact::PutAside { round: 0, framework: None },
        Fact::Probe(testing::probe(1e11 / 3.0, 2e10 / 7.0)),
        Fact::ProbedBefore { process: process() },
        Fact::Blocks(BlocksChosen {
            from_round: 0,
            blocks: 8,
            process_s: 4.5,
            block_s: 1.0 / 3.0,
            within: 0.06,
            between: 0.021,
            most: 32,
        }),
        Fact::Slices { slices: Slices::Whole { reason: "asked".into() } },
        Fact::Slices { slices: Slices::Tokens { tokens: 8, lead_in: 1 } },
        Fact::Warm(Box::new(testing::run("a", 0, Vec::new()))),
        block(0, true),
        block(1, false),
        block(1, true),
        Fact::Ended(Box::new(ended())),
        Fact::Time { stages: [(Stage::Requests, 1.0 / 7.0)].into() },
        run(failed),
        Fact::Absent { framework: "b".into(), failure },
        Fact::NoReference { reason: "nobody can".into() },
        Fact::OwnTraces { reason: "too long".into() },
        Fact::NoProbe { reason: Some("too old".into()) },
        Fact::Watched { noise: Noise::default() },
        Fact::Complaint { reason: "round 1: loud".into() },
        Fact::Tokenised { ns: Ok(vec![1, 2]) },
        Fact::Tokenised { ns: Err("it took too long".into()) },
        Fact::RoundDone,
        Fact::Arithmetic { framework: "a".into(), observed: Ok(vec![arithmetic]) },
        Fact::Arithmetic { framework: "b".into(), observed: Err("it did not run".into()) },
        Fact::OwnCode { framework: "a".into(), observed: Ok(configs::OwnCode::default()) },
        Fact::OwnCode { framework: "b".into(), observed: Err("perf is not installed".into()) },
        Fact::Text { framework: "a".into(), score: Ok(QualityScore::Text(score)) },
        Fact::Text { framework: "c".into(), score: Ok(QualityScore::Retrieval(found)) },
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
    assert_eq!((evidence.rounds, evidence.probes[0].before.clone()), (1, vec![process()]));
    let run = evidence.run(&process()).unwrap();
    assert_eq!((run.turns.len(), run.requests().count(), run.all_requests().len()), (3, 2, 3));
    assert!(run.is_complete() && run.usage().is_some() && run.waited.is_some());
}

#[test]
fn a_journal_with_a_reading_that_cannot_be_is_of_a_contender_that_failed() {
    let said = |ns| {
        let loaded = vec![Event::Loaded(testing::loaded(1))];
        let run = testing::measured("a", 0, loaded, vec![vec![sample(ns)]]);
        Evidence::from_facts([Fact::Run(Box::new(run))])
    };
    assert_eq!(said(1).absent.len(), 0);
    let evidence = said(u64::MAX);
    let reason = "its event `sample` has an impossible reading: marks_ns is 18446744073709551615";
    assert_eq!(evidence.absent["a"].sentence(), reason);
    assert!(!evidence.runs[0].is_complete() && evidence.runs[0].requests().count() == 0);
    let late = |ns| {
        let turn = Turn { seen_ns: vec![1, 2], ..Turn::alone(0, sample(ns)) };
        let turns = vec![("a".to_owned(), turn)];
        Fact::Block(Block { round: 0, turns, passes: Vec::new(), noise: Noise::default() })
    };
    let warm = Fact::Warm(Box::new(testing::run("a", 0, Vec::new())));
    let ended = || Fact::Ended(Box::new(ended()));
    let evidence = Evidence::from_facts([warm, late(1), late(0), late(1), ended()]);
    assert_eq!(evidence.runs[0].turns.len(), 1, "what it said from then on is left out");
    assert!(evidence.absent["a"].sentence().ends_with("`sample` has an impossible reading: marks_ns is 0"));
}

#[test]
fn a_share_of_own_code_that_cannot_be_is_none() {
    let shares = [0.0, 1.0, 1.01, -0.1];
    let fact = |decode: f64| Fact::OwnCode {
        framework: decode.to_string(),
        observed: Ok(configs::OwnCode { decode, ..Default::default() }),
    };
    let kept = Evidence::from_facts(shares.map(fact)).own_code;
    assert_eq!(kept.keys().collect::<Vec<_>>(), ["0", "1"]);
}

#[test]
fn a_journal_without_an_end_is_of_a_run_that_was_killed() {
    let evidence = Evidence::from_facts(facts().into_iter().filter(|fact| !matches!(fact, Fact::End { .. })));
    assert_eq!(evidence.end, End::Killed);
}

#[test]
fn a_process_keeps_its_fields_at_the_top_of_its_line() {
    let line = serde_json::to_value(&facts()[4]).unwrap();
    assert_eq!((&line["fact"], &line["purpose"]), (&json!("run"), &json!("measure")));
    assert_eq!((&line["framework"], &line["failure"]), (&json!("a"), &Value::Null));
    assert_eq!(line["turns"][0]["sample"]["marks_ns"][0], json!(u64::MAX));
}

#[test]
fn a_line_that_is_no_fact_is_refused_with_the_reason() {
    let read = |line: &str| Fact::read(line).unwrap_err();
    let of_before = r#"{"fact":"block","round":0,"noise":{},"turns":[["a",{"first_token_ns":1}]]}"#;
    assert!(read(of_before).ends_with("(it is of a worker before protocol 8: measure again)"));
    assert_eq!(read(r#"{"fact":"end"}"#), "not a fact of a run: missing field `end`");
    assert!(read(r#"{"fact":"rumour"}"#).starts_with("not a fact of a run: unknown variant `rumour`"));
    assert_eq!(read(r#"{"round":1}"#), "not a fact of a run: missing field `fact`");
    assert!(read("{").starts_with("not a fact of a run: EOF"), "{}", read("{"));
}

#[test]
fn an_iteration_has_all_prompts_in_their_own_order_whichever_came_first() {
    let mut run = testing::run("a", 0, Vec::new());
    let turn = |block, case, ns| Turn::alone(block, Sample { case, ..sample(ns) });
    run.turns = vec![turn(0, 1, 1), turn(1, 0, 2), turn(2, 1, 3), turn(3, 0, 4), turn(4, 1, 5)];
    let cases = |iteration: protocol::Iteration| -> Vec<(usize, u64)> {
        iteration.cases.iter().map(|sample| (sample.case, sample.marks_ns.first())).collect()
    };
    let iterations: Vec<_> = run.iterations().into_iter().map(cases).collect();
    assert_eq!(iterations, [[(0, 2), (1, 1)], [(0, 4), (1, 3)]], "the last was cut short");
}

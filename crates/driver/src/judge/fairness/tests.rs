//! The rules that are judged from several facts at once; the others are tested end to end.

use std::collections::BTreeMap;

use protocol::{Event, Loaded, Usage};

use super::*;
use crate::evidence::End;
use crate::judge::testing::{self, loaded, usage};

/// Two processes of each label, taking turns; `change` may alter each (label, round).
fn evidence(labels: &[&str], change: impl Fn(&str, &mut Loaded, &mut Usage)) -> Evidence {
    let mut evidence = Evidence { rounds: labels.len(), ..Evidence::default() };
    for round in 0..labels.len() {
        for (place, label) in labels.iter().enumerate() {
            let (mut loaded, mut usage) = (loaded(1), usage());
            change(label, &mut loaded, &mut usage);
            let mut run = testing::run(label, round, vec![Event::Loaded(loaded), Event::Usage(usage)]);
            run.position = (place + round) % labels.len();
            evidence.runs.push(run);
        }
    }
    evidence
}

fn state(id: &str, plan: &Plan, evidence: &Evidence) -> RuleState {
    let source = bundle::Source { kind: "test".into(), sha256: BTreeMap::new() };
    let manifest = Manifest { format: 1, name: "m".into(), source, files: BTreeMap::new() };
    let judged = Judged { plan, manifest: &manifest, evidence, runs: evidence.runs.iter().collect() };
    judge(&judged).into_iter().find(|state| state.id == id).unwrap()
}

fn breakers(state: &RuleState) -> Vec<&str> {
    state.broken_by.iter().map(|breach| breach.framework.as_str()).collect()
}

#[test]
fn r5_strikes_who_runs_more_threads_and_notes_who_runs_fewer() {
    let plan = testing::plan(&["a", "b"]);
    assert_eq!(breakers(&state("R5", &plan, &evidence(&["a", "b"], |_, _, _| {}))), [""; 0]);
    let more = evidence(&["a", "b"], |label, _, usage| {
        if label == "b" {
            usage.run_queue_ns = Some(1_900_000_000);
        }
    });
    assert_eq!(breakers(&state("R5", &plan, &more)), ["b"]);
    let fewer = evidence(&["a", "b"], |label, _, usage| {
        if label == "b" {
            usage.cpu_ns = Some(900_000_000);
        }
    });
    let state = state("R5", &plan, &fewer);
    assert_eq!((breakers(&state).len(), state.notes[0].framework.as_str()), (0, "b"));
}

#[test]
fn r5_strikes_a_thread_variable_of_a_configuration_whatever_came_of_it() {
    let mut plan = testing::plan(&["a", "b"]);
    plan.contenders[0].engine.env.insert("OMP_NUM_THREADS".into(), "4".into());
    let state = state("R5", &plan, &evidence(&["a", "b"], |_, _, _| {}));
    assert_eq!(breakers(&state), ["a"]);
    assert!(state.broken_by[0].finding.contains("OMP_NUM_THREADS=4"), "{state:?}");
}

#[test]
fn r5_only_notes_a_variable_that_asks_for_fewer() {
    let mut plan = testing::plan(&["a", "b"]);
    plan.contenders[0].engine.env.insert("OMP_NUM_THREADS".into(), "1".into());
    let state = state("R5", &plan, &evidence(&["a", "b"], |_, _, _| {}));
    assert_eq!(breakers(&state), [""; 0]);
    assert!(state.notes[0].finding.contains("OMP_NUM_THREADS=1"), "{state:?}");
}

#[test]
fn r5_says_so_where_the_system_does_not_tell() {
    let plan = testing::plan(&["a", "b"]);
    let silent = evidence(&["a", "b"], |_, _, usage| usage.run_queue_ns = None);
    assert!(state("R5", &plan, &silent).unverified.is_some());
}

#[test]
fn r9_counts_rounds_and_places() {
    let plan = testing::plan(&["a", "b"]);
    let good = evidence(&["a", "b"], |_, _, _| {});
    assert_eq!(breakers(&state("R9", &plan, &good)), [""; 0]);
    let mut unbalanced = evidence(&["a", "b"], |_, _, _| {});
    unbalanced.runs.iter_mut().for_each(|run| run.position = usize::from(run.framework == "b"));
    assert_eq!(breakers(&state("R9", &plan, &unbalanced)), ["a", "b"]);
    let mut missing = evidence(&["a", "b"], |_, _, _| {});
    missing.runs.pop();
    assert_eq!(breakers(&state("R9", &plan, &missing)), ["b"]);
}

#[test]
fn r12_is_the_machines_and_strikes_nobody() {
    let plan = testing::plan(&["a", "b"]);
    let mut noisy = evidence(&["a", "b"], |_, _, _| {});
    noisy.end = End::Noisy { reason: "round 1: other processes used 40 %".into() };
    assert_eq!(breakers(&state("R12", &plan, &noisy)), [MACHINE]);
    let starved = Evidence { quota: Some(1.5), ..evidence(&["a", "b"], |_, _, _| {}) };
    assert!(state("R12", &plan, &starved).broken_by[0].finding.contains("allows 1.5 CPUs"));
}

#[test]
fn r12_names_noise_that_was_accepted() {
    let mut plan = testing::plan(&["a", "b"]);
    let mut noisy = evidence(&["a", "b"], |_, _, _| {});
    noisy.complaints = vec!["round 1: other processes used 40 %".into()];
    assert_eq!(breakers(&state("R12", &plan, &noisy)), [""; 0], "the round was done again");
    plan.accept_noise = true;
    assert!(state("R12", &plan, &noisy).broken_by[0].finding.contains("was accepted"));
}

#[test]
fn r14_is_for_those_who_can_optimise() {
    let plan = testing::plan(&["a", "b", "c"]);
    let mixed = evidence(&["a", "b", "c"], |label, loaded, _| {
        loaded.in_effect.optimised = match label {
            "a" => None,
            "b" => Some(true),
            _ => Some(false),
        };
    });
    assert_eq!(breakers(&state("R14", &plan, &mixed)), ["c"]);
    let off = Plan { jit: false, ..plan };
    assert_eq!(breakers(&state("R14", &off, &mixed)), ["b"]);
}

//! The rules that are judged from several facts at once; the others are tested end to end.

use std::collections::BTreeMap;

use bundle::Precision;
use configs::OwnCode;
use protocol::{Event, FileIdentity, Loaded, Sample, Usage};

use super::*;
use crate::facts::arithmetic::{Arithmetic, Multiplied};
use crate::facts::evidence::End;
use crate::facts::run::{DerivedWeights, Seen, Turn, Waited};
use crate::facts::testing::{self, loaded, usage};
use crate::plan::KvPrecision;

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

/// A bundle whose only file has the sha256 "b", made from one with "s".
fn state(id: &str, plan: &Plan, evidence: &Evidence) -> RuleState {
    let sha256 = BTreeMap::from([("s.gguf".into(), "s".into())]);
    let source = bundle::Source { kind: "test".into(), seed: None, stored: None, sha256 };
    let record = bundle::FileRecord { sha256: "b".into(), bytes: 1, derived: String::new() };
    let files = BTreeMap::from([("f32.safetensors".into(), record)]);
    let manifest = Manifest { format: 1, name: "m".into(), source, no_tokenizer: None, files };
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
fn r5_counts_helpers_and_reads_for_itself_what_a_worker_does_not_say() {
    let plan = testing::plan(&["a", "b"]);
    // Of two threads, in a second of turns: CPU time of all, whether there are several processes, and what the worker says.
    let of = |all_ms: u64, are_several: bool, says_ms: Option<u64>| {
        let ns = |ms: u64| ms * 1_000_000;
        let mut evidence = evidence(&["a", "b"], |label, _, usage| {
            if label == "b" {
                (usage.cpu_ns, usage.wall_ns) = (says_ms.map(ns), ns(1000));
            }
        });
        for run in evidence.runs.iter_mut().filter(|run| run.framework == "b") {
            let family_bytes = are_several.then_some(1);
            let seen = Seen { cpu_ns: Some(ns(all_ms)), family_bytes, ..Seen::default() };
            let turn = Turn { seen_ns: vec![ns(1000)], ..Turn::alone(0, Sample::default()) };
            run.waited = Some(Waited { seconds: 1.0, cpu_s: Some(0.0), was_stopped: true });
            (run.seen, run.turns) = (Some(seen), vec![turn]);
        }
        breakers(&state("R5", &plan, &evidence)).contains(&"b")
    };
    assert!(!of(2000, false, Some(2000)) && !of(2000, true, Some(1990)));
    assert!(of(4000, true, Some(2000)), "a helper beside it");
    assert!(of(4000, false, None) && !of(2000, false, None), "it says nothing");
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

/// `ours` by rustc, `python` not; `change` may alter the build of the latter.
fn r10(change: impl Fn(&mut protocol::Build)) -> RuleState {
    let mut evidence = evidence(&["python", "ours", "theirs"], |_, _, _| {});
    for run in &mut evidence.runs {
        let mut hello = testing::hello(&run.framework);
        if run.framework == "python" {
            let toolchain = Some("CPython 3.13.1".into());
            hello.build = protocol::Build {
                profile: "release".into(),
                rustc: None,
                rustflags: None,
                target_features: None,
                target: None,
                toolchain,
            };
            change(&mut hello.build);
        }
        run.events.insert(0, Event::Hello(hello));
    }
    state("R10", &testing::plan(&["python", "ours", "theirs"]), &evidence)
}

#[test]
fn r10_asks_a_worker_that_rustc_did_not_build_for_its_profile_alone() {
    let kept = r10(|_| {});
    assert_eq!(breakers(&kept), [""; 0], "the first worker is no standard for those of another compiler");
    assert_eq!(kept.notes[0].framework, "python");
    assert!(kept.notes[0].finding.contains("not built by rustc (CPython 3.13.1)"), "{kept:?}");
    let debug = r10(|build| build.profile = "debug".into());
    assert_eq!(breakers(&debug), ["python"]);
    let rust = r10(|build| build.rustc = Some("rustc 1.0".into()));
    assert_eq!(breakers(&rust), ["python"], "two compilers are two builds, and the odd one is struck");
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

/// `ours` is an engine, `theirs` a reference.
fn plan_with_reference() -> Plan {
    let mut plan = testing::plan(&["theirs", "ours"]);
    plan.contenders[0].engine.reference = true;
    plan
}

#[test]
fn a_reference_s_own_ways_are_noted_and_those_of_engines_struck() {
    let departing = evidence(&["theirs", "ours"], |label, loaded, _| {
        if label == "theirs" {
            loaded.in_effect.kv_cache = protocol::KvCachePolicy::Growing;
            loaded.in_effect.optimised = Some(false);
        }
    });
    for id in ["R13", "R14"] {
        let of_reference = state(id, &plan_with_reference(), &departing);
        assert_eq!(breakers(&of_reference), [""; 0], "{id}");
        assert_eq!(of_reference.notes[0].framework, "theirs");
        assert!(of_reference.notes[0].finding.contains("a reference"), "{of_reference:?}");
        let of_engine = state(id, &testing::plan(&["theirs", "ours"]), &departing);
        assert!(!of_engine.broken_by.is_empty(), "{id}");
    }
}

#[test]
fn a_cache_is_held_against_what_was_asked_of_its_contender() {
    let kept = |precision: &str| {
        let precision = precision.to_owned();
        evidence(&["theirs", "ours"], move |label, loaded, _| {
            if label == "theirs" {
                loaded.in_effect.kv_cache_precision = precision.as_str().into();
            }
        })
    };
    let asked = |asked: KvPrecision| {
        let mut plan = testing::plan(&["theirs", "ours"]);
        plan.contenders[0].cache.precision = asked;
        plan
    };
    let r17 = |plan: &Plan, precision: &str| state("R17", plan, &kept(precision));
    assert_eq!(breakers(&r17(&asked(KvPrecision::Auto), "f32")), [""; 0]);
    assert_eq!(breakers(&r17(&asked(KvPrecision::F16), "f16")), [""; 0]);
    let broken = r17(&asked(KvPrecision::Auto), "f16");
    assert_eq!(breakers(&broken), ["theirs"]);
    assert_eq!(broken.broken_by[0].finding, "its KV cache is asked to be f32, and is f16");
    let mut half = asked(KvPrecision::Auto);
    half.contenders[0].precision = Precision::Bf16;
    assert_eq!(breakers(&r17(&half, "bf16")), [""; 0], "it follows the weights");
    let of_reference = r17(&plan_with_reference(), "f16");
    assert_eq!((breakers(&of_reference), of_reference.notes.len()), (vec![], 1));
}

#[test]
fn a_reference_is_held_to_threads_and_work_like_everyone() {
    let departing = evidence(&["theirs", "ours"], |label, loaded, _| {
        if label == "theirs" {
            loaded.in_effect.threads = 4;
        }
    });
    for id in ["R4", "R5"] {
        assert!(breakers(&state(id, &plan_with_reference(), &departing)).contains(&"theirs"), "{id}");
    }
}

/// Rule R1 for a reference that loaded a file of its own, with this record next to it.
fn r1_of_derived(reference: bool, record: Option<DerivedWeights>) -> RuleState {
    let mut plan = plan_with_reference();
    plan.contenders[0].engine.reference = reference;
    let mut evidence = evidence(&["theirs", "ours"], |label, loaded, usage| {
        usage.weights_sha256 = Some("b".into());
        if label == "theirs" {
            loaded.weights_file = "/cache/derived.gguf".into();
            usage.weights_sha256 = Some("d".into());
        }
    });
    for run in evidence.runs.iter_mut().filter(|run| run.framework == "theirs") {
        run.derived.clone_from(&record);
    }
    state("R1", &plan, &evidence)
}

fn derived(from_sha256: &str, sha256: &str, same_values: bool) -> DerivedWeights {
    DerivedWeights {
        from: "f32.safetensors".into(),
        from_sha256: from_sha256.into(),
        sha256: sha256.into(),
        by: "x 1".into(),
        same_values,
    }
}

#[test]
fn r1_holds_for_a_reference_by_the_record_of_what_its_file_was_derived_from() {
    let kept = r1_of_derived(true, Some(derived("b", "d", true)));
    assert_eq!(breakers(&kept), [""; 0]);
    assert!(kept.notes[0].finding.contains("derived from the bundle's f32.safetensors by x 1"), "{kept:?}");
    for (record, said) in [
        (None, "no file of the bundle"),
        (Some(derived("other", "d", true)), "another f32.safetensors"),
        (Some(derived("b", "other", true)), "changed since"),
        (Some(derived("b", "d", false)), "x 1's own"),
    ] {
        let broken = r1_of_derived(true, record);
        assert_eq!(breakers(&broken), ["theirs"]);
        assert!(broken.broken_by[0].finding.contains(said), "{broken:?}");
        assert_eq!(broken.notes, []);
    }
}

#[test]
fn r1_takes_no_derived_file_of_an_engine() {
    assert_eq!(breakers(&r1_of_derived(false, Some(derived("b", "d", true)))), ["theirs"]);
}

/// Rule R1 for two processes of one engine; only the first hashed its file.
fn r1_of_one_hash(change: impl Fn(usize, &mut Loaded, &mut Usage)) -> RuleState {
    let identity = FileIdentity { device: 1, inode: 2, bytes: 3, modified_ns: 4 };
    let evidence = evidence(&["a"], |_, _, _| {});
    let mut runs = evidence.runs.clone();
    runs.push(Run { round: 1, ..evidence.runs[0].clone() });
    for (number, run) in runs.iter_mut().enumerate() {
        let (mut loaded, mut usage) = (loaded(1), usage());
        (loaded.weights_identity, usage.weights_identity) = (Some(identity), Some(identity));
        usage.weights_sha256 = (number == 0).then(|| "b".into());
        change(number, &mut loaded, &mut usage);
        run.events = vec![Event::Loaded(loaded), Event::Usage(usage)];
    }
    // The process that hashed was set aside with its round.
    let repeated = vec![runs.remove(0)];
    let evidence = Evidence { runs, repeated, ..evidence };
    state("R1", &testing::plan(&["a"]), &evidence)
}

#[test]
fn r1_knows_a_file_by_its_hash_where_an_archive_does_not_keep_its_name() {
    let renamed = |_: usize, loaded: &mut Loaded, _: &mut Usage| loaded.weights_file = "(path)".into();
    assert_eq!(breakers(&r1_of_one_hash(renamed)), [""; 0]);
    let of_another = r1_of_one_hash(|number, loaded, usage| {
        renamed(number, loaded, usage);
        usage.weights_sha256 = (number == 0).then(|| "c".into());
    });
    assert!(of_another.broken_by[0].finding.contains("no file of the bundle has"), "{of_another:?}");
}

#[test]
fn r1_takes_a_hash_for_all_processes_that_loaded_the_very_same_file() {
    assert_eq!(breakers(&r1_of_one_hash(|_, _, _| {})), [""; 0]);
    let other = FileIdentity { device: 1, inode: 9, bytes: 3, modified_ns: 4 };
    let loaded_another = r1_of_one_hash(|number, loaded, usage| {
        if number == 1 {
            (loaded.weights_identity, usage.weights_identity) = (Some(other), Some(other));
        }
    });
    assert!(loaded_another.broken_by[0].finding.contains("no hash of the file"), "{loaded_another:?}");
    let changed = r1_of_one_hash(|number, _, usage| {
        if number == 1 {
            usage.weights_identity = Some(other);
        }
    });
    assert_eq!(breakers(&changed), ["a"], "the file changed while it was in use");
}

#[test]
fn r15_strikes_who_computes_while_others_have_their_turns() {
    let plan = testing::plan(&["a", "b"]);
    let waiting = |cpu_s: Option<f64>, seconds: f64| {
        let mut evidence = evidence(&["a", "b"], |_, _, _| {});
        let waited = Waited { seconds, cpu_s, was_stopped: true };
        evidence.runs.iter_mut().filter(|run| run.framework == "b").for_each(|run| run.waited = Some(waited));
        state("R15", &plan, &evidence)
    };
    assert_eq!(breakers(&waiting(Some(0.01), 1.0)), [""; 0]);
    assert_eq!(breakers(&waiting(Some(0.9), 1.0)), ["b"]);
    assert_eq!(breakers(&waiting(Some(0.01), 0.1)), [""; 0], "a short wait tells nothing");
    assert!(waiting(None, 1.0).unverified.is_some());
}

#[test]
fn r16_strikes_a_memory_policy_of_a_configuration_and_notes_incomplete_huge_pages() {
    let mut plan = testing::plan(&["a", "b"]);
    let evidence = evidence(&["a", "b"], |label, _, usage| {
        usage.memory.anonymous_bytes = Some(1 << 30);
        usage.memory.huge_bytes = Some(if label == "a" { 1 << 30 } else { 1 << 20 });
    });
    let found = state("R16", &plan, &evidence);
    assert_eq!((breakers(&found).len(), found.notes[0].framework.as_str()), (0, "b"));
    plan.contenders[0].engine.env.insert("GLIBC_TUNABLES".into(), "glibc.malloc.hugetlb=2".into());
    assert_eq!(breakers(&state("R16", &plan, &evidence)), ["a"]);
}

#[test]
fn r2_strikes_products_of_fewer_bits_than_asked_for_and_notes_unlike_ones() {
    let mut plan = testing::plan(&["a", "b"]);
    let mut evidence = evidence(&["a", "b"], |_, _, _| {});
    let mut told = |label: &str, multiplied| {
        let found = Arithmetic { rows: 16, multiplied, adds_in_f32: true };
        evidence.arithmetic.insert(label.into(), Ok(vec![found]));
        evidence.clone()
    };
    told("a", Multiplied::F32);
    let fewer = told("b", Multiplied::Bf16);
    let found = state("R2", &plan, &fewer);
    assert_eq!(breakers(&found), ["b"]);
    assert!(found.broken_by[0].finding.contains("it multiplies in bf16"), "{found:?}");
    plan.contenders.iter_mut().for_each(|contender| contender.precision = Precision::Bf16);
    let found = state("R2", &plan, &fewer);
    assert_eq!(
        (breakers(&found).len(), found.notes[0].finding.as_str()),
        (0, "it multiplies in bf16; a in f32")
    );
    assert_eq!(state("R2", &plan, &told("b", Multiplied::F32)).notes, []);
}

#[test]
fn r2_notes_that_weights_are_dequantised_at_load() {
    let mut plan = testing::plan(&["a", "b"]);
    plan.contenders.iter_mut().for_each(|contender| contender.precision = Precision::Nf4);
    let evidence = evidence(&["a", "b"], |label, loaded, _| {
        if label == "b" {
            loaded.in_effect.weight_storage = Foreign::new("emulated: dequantised to f32 at load; mapped");
        }
    });
    let [note] = &state("R2", &plan, &evidence).notes[..] else { panic!("one is noted") };
    assert_eq!(note.framework, "b");
    assert!(note.finding.starts_with("it emulates nf4"), "{note:?}");
}

#[test]
fn r19_strikes_own_arithmetic_under_a_frameworks_name_and_takes_a_record_where_it_was_not_measured() {
    let mut plan = testing::plan(&["a", "b"]);
    let mut evidence = evidence(&["a", "b"], |_, _, _| {});
    assert_eq!(state("R19", &plan, &evidence).unverified, None, "a run of before says nothing");
    let own = |decode| OwnCode { decode, parts: vec!["own norms".into()], ..OwnCode::default() };
    evidence.own_code.insert("a".into(), Ok(own(0.001)));
    evidence.own_code.insert("b".into(), Ok(own(0.03)));
    let found = state("R19", &plan, &evidence);
    assert_eq!(breakers(&found), ["b"]);
    assert!(found.broken_by[0].finding.contains("3.0 % of the CPU time of steps"), "{found:?}");
    plan.contenders[1].engine.name = "b+".into();
    assert_eq!(breakers(&state("R19", &plan, &evidence)), [""; 0]);
    plan.contenders[1].engine.name = "b".into();
    evidence.own_code.insert("b".into(), Err("perf is not installed".into()));
    assert!(state("R19", &plan, &evidence).unverified.is_some_and(|reason| reason.contains("perf is not")));
    plan.contenders[1].engine.own_code = Some(own(0.0));
    assert_eq!(state("R19", &plan, &evidence).unverified, None);
}

#[test]
fn the_page_for_people_is_printed_from_the_rules() {
    let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/fairness.md");
    let written = std::fs::read_to_string(page).expect("docs/reference/fairness.md is part of the checkout");
    assert_eq!(written, markdown(), "print it anew: photofinish rules > docs/reference/fairness.md");
}

#[test]
fn rules_are_numbered_and_have_a_remedy() {
    for (index, rule) in RULES.iter().enumerate() {
        assert_eq!(rule.id, format!("R{}", index + 1));
        assert!(!rule.remedy.is_empty(), "{}", rule.id);
    }
}

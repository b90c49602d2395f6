//! The protocol in memory: a job in, events out, no process between.

use std::io::Write;
use std::process::Stdio;

use protocol::{
    Answer, Case, Decode, Event, FailureKind, Finish, GenerateWork, Kept, KvCache, Measure, ParityTask,
    Score, Settings, Task, Turn, Usage, Warmup, Work,
};

use crate::{bundle, events_of, first, job, settings};

fn measure() -> Measure {
    measure_of(generate())
}

fn generate() -> GenerateWork {
    GenerateWork {
        cases: vec![Case {
            prompts: vec![vec![1, 2, 3], vec![4, 5, 6]],
            trace: vec![vec![1; 4], vec![2; 4]],
            ..Case::default()
        }],
        new_tokens: 4,
        decode: Decode::Forced,
        kv_cache: KvCache::On,
        prefill_chunk: None,
    }
}

fn measure_of(work: GenerateWork) -> Measure {
    let warmup = Warmup {
        min_iterations: 1,
        max_iterations: 2,
        max_ns: u64::MAX,
        settled_within: 0.5,
        from_cold: false,
    };
    Measure { work: Work::Generate(work), warmup, lead_in: 0, load: None }
}

/// Three requests of the one case, and the end.
fn turns(finish: Finish) -> String {
    let turns = std::iter::repeat_n(Turn::request(0), 3).chain([Turn::Finish(finish)]);
    turns.map(|turn| serde_json::to_string(&turn).unwrap() + "\n").collect()
}

fn serve(settings: Settings, task: Task) -> Vec<Event> {
    serve_to(settings, task, Finish::default())
}

fn serve_to(settings: Settings, task: Task, finish: Finish) -> Vec<Event> {
    let bundle = bundle(1);
    events_of(&job(bundle.path(), settings, task), &turns(finish))
}

fn failure(events: &[Event]) -> (FailureKind, &str) {
    match events.last() {
        Some(Event::Failed(failed)) => (failed.kind, &failed.reason),
        other => panic!("not a failure: {other:?}"),
    }
}

#[test]
fn scores_in_pieces_are_those_in_one() {
    let directory = tempfile::tempdir().unwrap();
    let score = |piece: usize, kept: Option<Kept>| {
        let name = format!("{piece}-{}.safetensors", kept.is_some());
        let file = directory.path().join(name).display().to_string();
        let task = Task::Score(Score {
            sequences: vec![vec![1, 2, 3], vec![3, 2, 1]],
            types: Vec::new(),
            audio: Vec::new(),
            piece,
            kept,
            file: file.clone(),
        });
        serve(settings(&[]), task);
        std::fs::read(file).unwrap()
    };
    let whole = score(0, None);
    assert_eq!(whole, score(2, None));
    let rows = |file: &[u8]| -> Vec<Vec<u8>> {
        let tensors = safetensors::SafeTensors::deserialize(file).unwrap();
        let tensor = tensors.tensor("logits").unwrap();
        tensor.data().chunks(4 * tensor.shape()[2]).map(<[u8]>::to_vec).collect()
    };
    let whole = rows(&whole);
    for piece in [0, 1] {
        let kept = rows(&score(piece, Some(Kept { from: vec![1, 0], count: 2 })));
        assert_eq!(
            kept,
            [1, 2, 3, 4].map(|row| whole[row].clone()),
            "of each sequence those from another on"
        );
    }
}

#[test]
fn prompts_of_different_lengths_give_what_each_gives_alone() {
    let prompts = [vec![1, 2, 3, 4, 5], vec![6], vec![7, 1, 2]];
    let answered = |cases: Vec<Case>, kv_cache| {
        let work =
            GenerateWork { cases, new_tokens: 4, decode: Decode::Greedy, kv_cache, prefill_chunk: None };
        let events = serve(settings(&[]), Task::Answer(Answer { work: Work::Generate(work), parity: None }));
        first(&events, |event| match event {
            Event::Answered(answered) => Some(answered.outputs.clone()),
            _ => None,
        })
    };
    let case = |prompts: Vec<Vec<u32>>| Case { prompts, ..Case::default() };
    for kv_cache in [KvCache::On, KvCache::Off] {
        let alone = answered(prompts.iter().map(|prompt| case(vec![prompt.clone()])).collect(), kv_cache);
        let together = answered(vec![case(prompts.to_vec())], kv_cache);
        let alone: Vec<_> = alone.iter().flat_map(|output| output.tokens().to_vec()).collect();
        assert_eq!(together[0].tokens(), alone, "{kv_cache:?}");
    }
}

#[test]
fn padding_and_the_logits_of_the_first_sequences_are_told_of_prompts_of_different_lengths() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("parity.safetensors").display().to_string();
    let prompts = vec![vec![1, 2, 3], vec![4], vec![5, 6]];
    let mut work = generate();
    work.cases[0] = Case { prompts, trace: vec![vec![1; 4]; 3], ..Case::default() };
    let parity =
        Some(ParityTask { steps: 2, file: file.clone(), prompt_last_only: false, sequences: Some(2) });
    let task = Task::Measure(measure_of(work.clone()));
    let events = serve_to(settings(&[]), task, Finish { hash: false, parity });
    let padding =
        first(&events, |event| if let Event::Usage(usage) = event { usage.cache.padding } else { None });
    assert_eq!((padding.side, padding.computed), (protocol::Side::Left, 0));
    let bytes = std::fs::read(file).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(
        tensors.tensor("case.0").unwrap().shape(),
        [2, 1 + 4, 8],
        "of each prompt the last token alone"
    );
    let events =
        serve(settings(&[]), Task::Measure(measure_of(GenerateWork { prefill_chunk: Some(2), ..work })));
    assert!(failure(&events).1.contains("read at once"), "{events:?}");
}

#[test]
fn what_cannot_be_done_is_a_reason_not_a_crash() {
    let cuda = Settings { device: "cuda:0".into(), ..settings(&[]) };
    let events = serve(cuda, Task::Measure(measure()));
    assert_eq!(failure(&events).0, FailureKind::Unsupported);
    let bf16 = Settings { precision: protocol::Precision::Bf16, ..settings(&[]) };
    let events = serve(bf16, Task::Measure(measure()));
    assert_eq!(failure(&events).0, FailureKind::Input);
    assert!(failure(&events).1.contains("holds f32"));
    let mut long = generate();
    long.cases[0].prompts = vec![vec![1; 70], vec![1; 70]];
    let events = serve(settings(&[]), Task::Measure(measure_of(long)));
    assert!(failure(&events).1.contains("context of 64"));
    let events = serve(settings(&[("speed", "9")]), Task::Measure(measure()));
    assert!(failure(&events).1.contains("`speed`"));
}

#[test]
fn a_job_that_makes_no_sense_is_refused_with_a_reason() {
    assert!(failure(&events_of("{", "")).1.contains("does not parse"));
    let other = serde_json::json!({
        "protocol": 99, "bundle": "", "settings": settings(&[]),
        "task": {"kind": "load"}
    });
    assert!(failure(&events_of(&other.to_string(), "")).1.contains("protocol 99"));
    let empty =
        Case { prompts: vec![vec![1, 2], vec![]], trace: vec![vec![1; 4], vec![1; 4]], ..Case::default() };
    let events =
        serve(settings(&[]), Task::Measure(measure_of(GenerateWork { cases: vec![empty], ..generate() })));
    assert!(failure(&events).1.contains("one token to continue in each prompt"));
}

/// The events of a separate process: readings and the clock of this one are shared by all tests.
fn said(options: &[(&str, &str)]) -> Vec<Event> {
    let bundle = bundle(1);
    #[expect(clippy::disallowed_methods, reason = "the worker under test")]
    let mut worker = std::process::Command::new(env!("CARGO_BIN_EXE_engine-mock"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let job = job(bundle.path(), settings(options), Task::Measure(measure()));
    let lines = job + "\n" + &turns(Finish::default());
    worker.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let output = worker.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn usage(options: &[(&str, &str)]) -> Usage {
    first(&said(options), |event| if let Event::Usage(usage) = event { Some(usage.clone()) } else { None })
}

#[test]
fn the_cold_start_is_the_whole_first_request_with_what_each_step_compiles() {
    let times = [("token_ms", "2"), ("prefill_token_ms", "1"), ("cold_ms", "7"), ("cold_step_ms", "40")];
    let events = said(&[&times[..], &[("clock", "scripted")]].concat());
    let cold =
        first(
            &events,
            |event| {
                if let Event::ColdStart(cold) = event { Some(cold.marks_ns.clone()) } else { None }
            },
        );
    let ms = |ns: u64| ns as f64 / 1e6;
    let gaps: Vec<f64> = cold.gaps().map(|ns| ms(ns).round()).collect();
    assert_eq!((ms(cold.first()).round(), gaps), (3.0 + 7.0, vec![2.0 + 40.0, 2.0, 2.0]));
    let warm = first(&events, |event| {
        if let Event::Warmup(warm) = event {
            Some(warm.iterations[0].cases[0].marks_ns.clone())
        } else {
            None
        }
    });
    let marks: Vec<f64> = warm.0.iter().take(2).map(|&ns| ms(ns).round()).collect();
    assert_eq!(marks, [3.0, 5.0], "it compiled before");
}

#[cfg(target_os = "linux")]
#[test]
fn a_memory_step_is_resident() {
    let peak = |options: &[(&str, &str)]| usage(options).peak_bytes.unwrap();
    let stepped = peak(&[("memory_step_mib", "64"), ("memory_step_at", "9")]);
    assert!(stepped > peak(&[]) + (60 << 20));
}

#[test]
fn a_kv_cache_is_of_the_model_s_shapes_and_told() {
    assert_eq!(usage(&[]).cache.bytes, None);
    // Keys and values of a layer with two heads of 2, 2 sequences of 3 + 4 tokens, 4 bytes each.
    assert_eq!(usage(&[("kv_cache", "true")]).cache.bytes, Some(2 * 2 * 2 * 2 * 7 * 4));
}

#[test]
fn options_that_are_no_numbers_are_refused() {
    for (name, value) in [("token_ms", "often"), ("noise", "inf"), ("optimised", "perhaps")] {
        let events = serve(settings(&[(name, value)]), Task::Measure(measure()));
        assert_eq!(failure(&events).0, FailureKind::Input);
        assert!(failure(&events).1.contains(name), "{}", failure(&events).1);
    }
}

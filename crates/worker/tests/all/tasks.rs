//! The results of each task, in memory: a job in, events out.

use std::path::Path;

use protocol::{
    Answer, Case, Decode, Event, Finish, GenerateWork, KvCache, Marks, Measure, Output, ParityTask, Probe,
    Sample, Sampling, Task, Usage, Warmup, Work,
};

use crate::support::fixture::{bundle, job};
use crate::support::{APPEND, HANDED_OVER, VOCABULARY, first, loaded, refusal, serve, serve_turns};

pub(crate) fn directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    bundle(directory.path(), VOCABULARY, 10_000);
    directory
}

pub(crate) fn measure() -> Measure {
    measure_of(generate())
}

fn generate() -> GenerateWork {
    GenerateWork {
        cases: vec![Case { prompts: vec![vec![1, 2]], trace: vec![vec![3, 4, 5]], ..Case::default() }],
        new_tokens: 3,
        decode: Decode::Forced,
        kv_cache: KvCache::On,
        prefill_chunk: None,
    }
}

fn measure_of(work: GenerateWork) -> Measure {
    let warmup = Warmup {
        min_iterations: 1,
        max_iterations: 1,
        max_ns: u64::MAX,
        settled_within: 0.5,
        from_cold: false,
    };
    Measure { work: Work::Generate(work), warmup, lead_in: 0, load: None }
}

/// The events of so many requests of a measurement.
fn measured(task: Measure, requests: usize) -> Vec<Event> {
    let directory = directory();
    serve_turns(&job(directory.path(), Task::Measure(task)), requests, Finish::default())
}

pub(crate) fn samples(events: &[Event]) -> Vec<&Sample> {
    events
        .iter()
        .filter_map(|event| if let Event::Sample(sample) = event { Some(sample) } else { None })
        .collect()
}

/// The shape and the values of the first case.
fn parity(file: &Path) -> (Vec<usize>, Vec<u8>) {
    let bytes = std::fs::read(file).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let case = tensors.tensor("case.0").unwrap();
    (case.shape().to_vec(), case.data().to_vec())
}

#[test]
fn loading_alone_loads_and_ends() {
    let directory = directory();
    let events = serve(&job(directory.path(), Task::Load));
    assert!(matches!(
        events.as_slice(),
        [Event::Hello(_), Event::Started(_), Event::Loaded(loaded), Event::Done] if loaded.weights_bytes == 10_000
    ));
}

#[test]
fn a_probe_needs_no_bundle_and_initialises_nothing() {
    let task = Task::Probe(Probe { bytes: 1 << 20, sweep_ns: 1, repeats: 2 });
    let events = serve(&job("nowhere".as_ref(), task));
    let [Event::Probed(probed), Event::Done] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!((probed.multiply_adds_ns.len(), probed.threads), (2, 2));
    let times = probed.sweeps_ns.iter().chain(&probed.multiply_adds_ns).chain([&probed.compute_ns]);
    assert!(times.copied().all(|ns| ns > 0), "{probed:?}");
    assert!(probed.bytes >= 1 << 20 && probed.bytes % (1 << 20) == 0, "whole sweeps: {probed:?}");
}

#[test]
fn a_probe_sweeps_until_the_time_is_up() {
    let sweeps = |sweep_ns| {
        let task = Task::Probe(Probe { bytes: 1 << 20, sweep_ns, repeats: 1 });
        let events = serve(&job("nowhere".as_ref(), task));
        let [Event::Probed(probed), Event::Done] = events.as_slice() else { panic!("{events:?}") };
        probed.sweeps_ns.clone()
    };
    assert_eq!(sweeps(0).len(), 1);
    assert!(sweeps(30_000_000).iter().sum::<u64>() >= 30_000_000);
}

#[test]
fn a_buffer_too_small_to_share_is_swept_by_some_of_the_threads() {
    let task = Task::Probe(Probe { bytes: 5, sweep_ns: 0, repeats: 1 });
    assert_eq!(serve(&job("nowhere".as_ref(), task)).last(), Some(&Event::Done));
}

#[test]
fn a_probe_of_nothing_is_refused() {
    for (bytes, repeats) in [(0, 1), (1, 0), (u64::MAX, 1)] {
        let events = serve(&job("nowhere".as_ref(), Task::Probe(Probe { bytes, sweep_ns: 0, repeats })));
        assert!(refusal(&events).starts_with("a probe"), "{events:?}");
    }
    let mut job = job("nowhere".as_ref(), Task::Probe(Probe { bytes: 1, sweep_ns: 0, repeats: 1 }));
    job.settings.threads = 0;
    assert!(refusal(&serve(&job)).contains("threads"));
}

#[test]
fn a_slowed_engine_answers_the_same_and_not_sooner() {
    let directory = directory();
    let run = |slowdown: f64| {
        let file = directory.path().join(format!("{slowdown}.safetensors"));
        let parity = Some(ParityTask {
            steps: 1,
            file: file.display().to_string(),
            prompt_last_only: false,
            sequences: None,
        });
        let mut job = job(directory.path(), Task::Measure(measure()));
        job.settings.slowdown = slowdown;
        (serve_turns(&job, 1, Finish { hash: false, parity }), std::fs::read(file).unwrap())
    };
    let (plain, plain_logits) = run(0.0);
    let (slowed, slowed_logits) = run(2.0);
    assert_eq!(plain_logits, slowed_logits);

    assert_eq!(loaded(&plain).in_effect.kernels, ["counting"]);
    let kernels = &loaded(&slowed).in_effect.kernels;
    assert_eq!(*kernels, ["counting", "slowed by 200 % (positive control)"]);

    assert!(samples(&slowed)[0].marks_ns.gaps().all(|gap| gap >= 3 * APPEND.as_nanos() as u64));
}

const CONTEXT: usize = 20;

/// A batch of two with a context.
fn with_context() -> GenerateWork {
    let case = Case {
        context: vec![vec![6; CONTEXT], vec![7; CONTEXT]],
        prompts: vec![vec![1, 2], vec![3, 4]],
        trace: vec![vec![3, 4, 5], vec![5, 4, 3]],
        audio: None,
    };
    GenerateWork { cases: vec![case], ..generate() }
}

fn usage(events: &[Event]) -> &Usage {
    first(events, |event| if let Event::Usage(usage) = event { Some(usage) } else { None })
}

fn cold_start(events: &[Event]) -> &Marks {
    first(events, |event| if let Event::ColdStart(cold) = event { Some(&cold.marks_ns) } else { None })
}

#[test]
fn a_context_is_in_the_cache_before_the_clock_starts() {
    let first_token = |work: GenerateWork| {
        let events = measured(measure_of(work), 5);
        // The least of several, because a machine under load may delay any of them.
        let first = samples(&events).iter().map(|sample| sample.marks_ns.first()).min().unwrap();
        (first, cold_start(&events).first(), usage(&events).wall_ns / 5)
    };
    let context_ns = CONTEXT as u64 * APPEND.as_nanos() as u64;
    let (warm, cold, used) = first_token(with_context());
    assert!(used < context_ns, "a request used {used} ns, and its context alone takes {context_ns}");
    assert!(cold >= context_ns, "the first request of all computes its context within its time: {cold} ns");
    let without_cache = first_token(GenerateWork { kv_cache: KvCache::Off, ..with_context() }).0;
    assert!(without_cache >= context_ns, "without a cache there is nothing to put a context into");
    assert!(warm < context_ns, "{warm} ns with the context in the cache");
}

#[test]
fn the_cold_start_is_a_request_to_its_last_token() {
    let without_cache = GenerateWork { kv_cache: KvCache::Off, ..generate() };
    let case = Case { trace: vec![vec![3]], ..generate().cases.remove(0) };
    let one_token = GenerateWork { cases: vec![case], new_tokens: 1, ..generate() };
    for (work, gaps) in [(generate(), 2), (with_context(), 2), (without_cache, 2), (one_token, 0)] {
        let events = measured(measure_of(work), 1);
        let told = cold_start(&events);
        assert_eq!(told.gaps().len(), gaps);
        assert!(told.gaps().all(|gap| gap >= APPEND.as_nanos() as u64), "{told:?}");
    }
}

#[test]
fn a_context_is_a_part_of_what_is_continued() {
    let tokens = |work: GenerateWork| {
        let events = measured(measure_of(GenerateWork { decode: Decode::Greedy, ..work }), 1);
        samples(&events)[0].output.clone()
    };
    let mut whole = with_context();
    whole.cases[0] =
        Case { context: Vec::new(), prompts: whole.cases[0].prefixes(), ..whole.cases[0].clone() };
    assert_eq!(tokens(with_context()), tokens(whole.clone()));
    assert_eq!(tokens(GenerateWork { kv_cache: KvCache::Off, ..with_context() }), tokens(whole.clone()));
    assert_eq!(tokens(GenerateWork { prefill_chunk: Some(1), ..with_context() }), tokens(whole), "in chunks");
}

#[test]
fn parity_may_leave_out_all_but_the_last_position_of_context_and_prompt() {
    let directory = directory();
    let parity = |prompt_last_only| {
        let file = directory.path().join("parity.safetensors");
        let task =
            ParityTask { steps: 1, file: file.display().to_string(), prompt_last_only, sequences: None };
        let finish = Finish { hash: false, parity: Some(task) };
        serve_turns(&job(directory.path(), Task::Measure(measure_of(with_context()))), 1, finish);
        parity(&file)
    };
    let (shape, all) = parity(false);
    assert_eq!(shape, [2, CONTEXT + 2 + 3, VOCABULARY]);
    let (shape, last) = parity(true);
    assert_eq!(shape, [2, 1 + 3, VOCABULARY]);
    let kept = 4 * (1 + 3) * VOCABULARY;
    for (all, last) in all.chunks(all.len() / 2).zip(last.chunks(last.len() / 2)) {
        assert_eq!(all[all.len() - kept..], *last);
    }
}

#[test]
fn contexts_without_the_shape_of_their_prompts_are_refused() {
    for context in [vec![vec![1]], vec![vec![1], vec![1, 2]], vec![vec![], vec![]]] {
        let mut work = with_context();
        work.cases[0].context = context;
        assert!(refusal(&measured(measure_of(work), 1)).contains("context"));
    }
}

const SAMPLING: Sampling = Sampling { temperature: 4.0, top_k: None, top_p: None, seed: 42 };

#[test]
fn drawn_tokens_repeat_with_every_request_and_differ_between_rows_and_cases() {
    let case =
        |rows| Case { prompts: vec![vec![1]; rows], trace: vec![vec![0; 20]; rows], ..Case::default() };
    let work = |sampling| GenerateWork {
        cases: vec![case(2), case(1)],
        new_tokens: 20,
        decode: Decode::Sampled(sampling),
        ..generate()
    };
    let tokens = |sampling: Sampling| -> Vec<Vec<Vec<u32>>> {
        let events = measured(measure_of(work(sampling)), 2);
        samples(&events).iter().map(|sample| sample.output.tokens().to_vec()).collect()
    };
    let drawn = tokens(SAMPLING);
    assert_eq!(drawn[..2], drawn[2..], "requests of one case are equal work");
    assert_ne!(drawn[0][0], drawn[1][0], "cases draw from streams of their own");
    assert_eq!(drawn, tokens(SAMPLING));
    assert_ne!(drawn, tokens(Sampling { seed: 43, ..SAMPLING }));
}

#[test]
fn a_measurement_draws_what_an_answer_draws() {
    let directory = directory();
    let answered = |decode| -> Vec<Output> {
        let mut work = GenerateWork { decode, ..generate() };
        work.cases[0].trace.clear();
        let task = Answer { work: Work::Generate(work), parity: None };
        let events = serve(&job(directory.path(), Task::Answer(task)));
        first(&events, |event| if let Event::Answered(it) = event { Some(&it.outputs) } else { None }).clone()
    };
    let drawn = |decode| {
        let events = measured(measure_of(GenerateWork { decode, ..generate() }), 1);
        vec![samples(&events)[0].output.clone()]
    };
    for decode in [Decode::Sampled(SAMPLING), Decode::Greedy] {
        assert_eq!(answered(decode), drawn(decode));
    }
}

#[test]
fn sampling_that_draws_nothing_is_refused() {
    let directory = directory();
    let sampling = Sampling { temperature: 0.0, ..SAMPLING };
    let work = GenerateWork { decode: Decode::Sampled(sampling), ..generate() };
    let answer = Answer { work: Work::Generate(work.clone()), parity: None };
    for task in [Task::Measure(measure_of(work)), Task::Answer(answer)] {
        assert!(refusal(&serve(&job(directory.path(), task))).contains("decode greedily"));
    }
}

#[test]
fn a_slowdown_that_is_no_share_is_refused() {
    let directory = directory();
    for slowdown in [-0.1, 10.5] {
        let mut job = job(directory.path(), Task::Load);
        job.settings.slowdown = slowdown;
        assert!(refusal(&serve(&job)).contains("slowdown"));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn the_use_of_threads_and_cpus_is_told() {
    let events = measured(measure(), 1);
    let usage = usage(&events);
    let threads = usage.thread_cpu_ns.as_ref().unwrap();
    assert!(threads.is_sorted_by(|a, b| a >= b), "{threads:?}");
    assert!(!usage.cpus.as_ref().unwrap().is_empty());
    assert!(usage.memory.pss_bytes.is_some() && usage.memory.gpu.is_none());
}

#[test]
fn the_kv_cache_of_the_last_case_is_told() {
    let directory = directory();
    for slowdown in [0.0, 0.01] {
        let mut job = job(directory.path(), Task::Measure(measure_of(with_context())));
        job.settings.slowdown = slowdown;
        let events = serve(&job);
        assert_eq!(
            usage(&events).cache.bytes,
            Some(2 * (CONTEXT as u64 + 2 + 3)),
            "a byte for each position"
        );
    }
}

#[test]
fn logits_of_no_number_end_the_request_rather_than_choose_token_0() {
    let directory = directory();
    let ends = |task: Measure, breaks: usize| {
        let mut job = job(directory.path(), Task::Measure(task));
        job.settings.options = [("breaks".to_owned(), breaks.to_string())].into();
        serve(&job).pop()
    };
    // In the prompt, and in the last step; warm-up has the first of the requests.
    for breaks in [2, 4] {
        for decode in [Decode::Forced, Decode::Greedy] {
            match ends(measure_of(GenerateWork { decode, ..generate() }), breaks) {
                Some(Event::Failed(failed)) => {
                    assert!(failed.reason.contains("8 logits is NaN"), "{}", failed.reason);
                }
                other => panic!("{decode:?}, {breaks}: {other:?}"),
            }
        }
    }
    assert!(!matches!(ends(measure(), 5), Some(Event::Failed(_))));
}

#[test]
fn what_a_hybrid_hands_over_is_told_of_measured_requests_alone() {
    let directory = directory();
    let told = |task: Measure, options: &[&str]| {
        let mut job = job(directory.path(), Task::Measure(task));
        job.settings.options = options.iter().map(|name| ((*name).to_owned(), String::new())).collect();
        let events = serve_turns(&job, 3, Finish::default());
        (loaded(&events).in_effect.hybrid.clone(), usage(&events).cache.hand_over.clone())
    };
    let (names, handed) = told(Measure { lead_in: 2, ..measure() }, &["hybrid"]);
    let (names, handed) = (names.expect("it is a hybrid"), handed.expect("it hands over"));
    assert_eq!((names.prefill.as_str(), names.decode.as_str(), names.alone), ("one", "other", None));
    assert_eq!((handed.times, handed.bytes), (3, 3 * HANDED_OVER), "neither warm-up nor lead-in");
    assert!(handed.ns >= 3 * APPEND.as_nanos() as u64, "{handed:?}");
    let addresses = (handed.prefill_address, handed.decode_address);
    assert_eq!((addresses, handed.obstacle.as_deref()), ((1, 2), Some("it has no room")));
    assert_eq!(told(measure(), &[]), (None, None), "one engine");
    let without = measure_of(GenerateWork { kv_cache: KvCache::Off, ..generate() });
    assert_eq!(told(without, &["hybrid"]).1, None, "there is nothing to hand over");
}

#[test]
fn a_lead_in_is_not_timed() {
    let used = |lead_in| {
        let events = measured(Measure { lead_in, ..measure_of(with_context()) }, 1);
        (usage(&events).wall_ns, samples(&events).len())
    };
    let ((without, _), (with, answers)) = (used(0), used(9));
    assert!(with < 2 * without, "{with} ns with a lead-in as long as the request, {without} ns without");
    assert_eq!(answers, 1);
}

#[test]
fn the_weights_are_hashed_where_that_is_asked_for_and_always_told_apart() {
    let directory = directory();
    let told = |hash| {
        let events =
            serve_turns(&job(directory.path(), Task::Measure(measure())), 1, Finish { hash, parity: None });
        (loaded(&events).weights_identity, usage(&events).clone())
    };
    let (before, after) = told(true);
    assert_eq!(after.weights_sha256.unwrap().len(), 64);
    assert_eq!(before, after.weights_identity);
    assert_eq!(before.is_some(), cfg!(unix));
    assert_eq!(told(false).1.weights_sha256, None);
}

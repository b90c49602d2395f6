//! What each task yields, in memory: a job in, events out.

mod support;

use protocol::{Case, Decode, Event, FailureKind, Job, KvCache, Measure, ParityTask, Probe, Task, Warmup};
use support::fixture::{bundle, job};
use support::{APPEND, VOCABULARY, serve};

fn directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    bundle(directory.path(), VOCABULARY, 10_000);
    directory
}

fn measure() -> Measure {
    Measure {
        cases: vec![Case { prompts: vec![vec![1, 2]], trace: vec![vec![3, 4, 5]] }],
        new_tokens: 3,
        decode: Decode::Forced,
        kv_cache: KvCache::On,
        warmup: Warmup { min_iterations: 1, max_iterations: 1, max_ns: u64::MAX, settled_within: 0.5 },
        iterations: 1,
        delay_ns: 0,
        parity: None,
    }
}

fn refusal(job: &Job) -> String {
    match serve(job).pop() {
        Some(Event::Failed(failed)) if failed.kind == FailureKind::Input => failed.reason,
        other => panic!("not refused as wrong input: {other:?}"),
    }
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
        let reason = refusal(&job("nowhere".as_ref(), Task::Probe(Probe { bytes, sweep_ns: 0, repeats })));
        assert!(reason.starts_with("a probe"), "{reason}");
    }
    let mut job = job("nowhere".as_ref(), Task::Probe(Probe { bytes: 1, sweep_ns: 0, repeats: 1 }));
    job.settings.threads = 0;
    assert!(refusal(&job).contains("threads"));
}

#[test]
fn a_slowed_engine_answers_the_same_and_not_sooner() {
    let directory = directory();
    let run = |slowdown: f64| {
        let file = directory.path().join(format!("{slowdown}.safetensors"));
        let parity = Some(ParityTask { steps: 1, file: file.display().to_string() });
        let mut job = job(directory.path(), Task::Measure(Measure { parity, ..measure() }));
        job.settings.slowdown = slowdown;
        (serve(&job), std::fs::read(file).unwrap())
    };
    let (plain, plain_logits) = run(0.0);
    let (slowed, slowed_logits) = run(2.0);
    assert_eq!(plain_logits, slowed_logits);

    let kernels = |events: &[Event]| {
        let loaded = events.iter().find_map(|event| match event {
            Event::Loaded(loaded) => Some(loaded.in_effect.kernels.clone()),
            _ => None,
        });
        loaded.unwrap()
    };
    assert_eq!(kernels(&plain), ["counting"]);
    assert_eq!(kernels(&slowed), ["counting", "slowed by 200 % (positive control)"]);

    let gaps = slowed.iter().find_map(|event| match event {
        Event::Iteration(iteration) => Some(iteration.cases[0].gaps_ns.clone()),
        _ => None,
    });
    assert!(gaps.unwrap().iter().all(|&gap| gap >= 3 * APPEND.as_nanos() as u64));
}

#[test]
fn a_slowdown_that_is_no_share_is_refused() {
    let directory = directory();
    for slowdown in [-0.1, 10.5] {
        let mut job = job(directory.path(), Task::Load);
        job.settings.slowdown = slowdown;
        assert!(refusal(&job).contains("slowdown"));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn the_use_of_threads_and_cpus_is_told() {
    let directory = directory();
    let events = serve(&job(directory.path(), Task::Measure(measure())));
    let usage = events.iter().find_map(|event| match event {
        Event::Usage(usage) => Some(usage),
        _ => None,
    });
    let usage = usage.unwrap();
    let threads = usage.thread_cpu_ns.as_ref().unwrap();
    assert!(threads.is_sorted_by(|a, b| a >= b), "{threads:?}");
    assert!(!usage.cpus.as_ref().unwrap().is_empty());
    assert!(usage.memory.pss_bytes.is_some() && usage.memory.gpu.is_none());
}

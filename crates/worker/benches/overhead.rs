//! The overhead of the harness on a decode step of 2 ms: `cargo bench -p worker`.
//!
//! The engine only waits until its step has lasted exactly 2 ms and fills in logits, so that any longer time
//! is the harness: the search for the most likely token, the clock, the choice of the next token, the buffers
//! of a request. Arm A is the bare loop of `begin` and `append`, timed from outside; arm B makes the same
//! calls in the measured requests of a worker. The arms of a pair follow each other in random order; the
//! interval is Student's, of the paired log ratios.
//!
//! Fails if the interval's upper end reaches 0.5 %.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use protocol::{Case, Event, GenerateWork, KvCache, Measure, Task, Warmup, Work};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use statrs::distribution::{ContinuousCDF, StudentsT};
use worker::engine::{
    Bundle, Decode, Device, Foreigns, InEffect, InferenceEngine, KvCachePolicy, Result, Runtime, Settings,
    Want,
};

#[path = "../tests/all/support/fixture.rs"]
mod fixture;

const STEP: Duration = Duration::from_millis(2);
/// SmolLM2's.
const VOCABULARY: usize = 49_152;
const PAIRS: usize = 40;
const ITERATIONS: usize = 4;
const NEW_TOKENS: usize = 32;
const PROMPT: [u32; 4] = [1, 2, 3, 4];
const LIMIT: f64 = 0.005;

/// Takes exactly [`STEP`] for each `append`, by the monotonic clock.
struct Punctual {
    /// Answers in rotation, so that the place of the most likely token varies.
    answers: Vec<Vec<f32>>,
    appends: usize,
    logits: Vec<f32>,
}

impl Punctual {
    fn new() -> Punctual {
        let mut random = ChaCha8Rng::seed_from_u64(1);
        let answer = |_| (0..VOCABULARY).map(|_| random.random::<f32>()).collect();
        Punctual { answers: (0..8).map(answer).collect(), appends: 0, logits: vec![0.0; VOCABULARY] }
    }
}

impl InferenceEngine for Punctual {
    const FRAMEWORK: &'static str = "punctual";

    fn runtime() -> Result<Runtime> {
        let name = || "punctual".to_owned();
        Ok(Runtime { binding: name(), library: name(), library_path: None, cpu_capability: None })
    }

    fn load(_: &Bundle, _: &Settings) -> Result<Self> {
        Ok(Punctual::new())
    }

    fn in_effect(&self) -> InEffect {
        InEffect {
            precision: "f32".into(),
            activations: "none".into(),
            kv_cache_precision: "f32".into(),
            kv_cache: KvCachePolicy::Preallocated,
            device: Device::Cpu.into(),
            threads: 1,
            jit: "none".into(),
            optimised: None,
            weight_storage: "none".into(),
            kernels: vec!["waiting"].into(),
            shard_bytes: None,
            hybrid: None,
            semi_public: Foreigns::default(),
            changed_defaults: Foreigns::default(),
            artefact: None,
        }
    }

    fn decode(&mut self) -> Result<&mut dyn Decode> {
        Ok(self)
    }
}

impl Decode for Punctual {
    fn begin(&mut self, _: usize, _: usize) -> Result<()> {
        Ok(())
    }

    fn append(&mut self, _: &[u32], _: Want) -> Result<&[f32]> {
        let start = now();
        self.appends += 1;
        self.logits.copy_from_slice(&self.answers[self.appends % self.answers.len()]);
        while start.elapsed() < STEP {
            std::hint::spin_loop();
        }
        Ok(&self.logits)
    }
}

#[expect(clippy::disallowed_methods, reason = "what the worker's clock adds is measured by another")]
fn now() -> Instant {
    Instant::now()
}

/// Arm A, in nanoseconds.
fn bare(engine: &mut Punctual) -> f64 {
    let iteration = |engine: &mut Punctual| {
        engine.begin(1, PROMPT.len() + NEW_TOKENS).expect("the engine takes everything");
        engine.append(&PROMPT, Want::Last).expect("the engine takes everything");
        for token in 1..NEW_TOKENS as u32 {
            engine.append(&[token], Want::Last).expect("the engine takes everything");
        }
    };
    // As the worker does before it measures.
    iteration(engine);
    let start = now();
    for _ in 0..ITERATIONS {
        iteration(engine);
    }
    start.elapsed().as_nanos() as f64
}

/// Arm B, in nanoseconds.
fn served(bundle: &Path) -> f64 {
    let work = GenerateWork {
        cases: vec![Case {
            prompts: vec![PROMPT.to_vec()],
            trace: vec![(1..=NEW_TOKENS as u32).collect()],
            ..Case::default()
        }],
        new_tokens: NEW_TOKENS,
        decode: protocol::Decode::Forced,
        kv_cache: KvCache::On,
        prefill_chunk: None,
    };
    let task = Task::Measure(Measure {
        work: Work::Generate(work),
        warmup: Warmup {
            min_iterations: 1,
            max_iterations: 1,
            max_ns: u64::MAX,
            settled_within: 0.05,
            from_cold: false,
        },
        lead_in: 0,
        load: None,
    });
    let job = serde_json::to_string(&fixture::job(bundle, task)).expect("a job has string keys");
    let request = "{\"turn\":\"request\",\"case\":0}\n".repeat(ITERATIONS);
    let turns = request + "{\"turn\":\"finish\"}\n";
    let mut output = Vec::new();
    worker::serve::<Punctual>(&job, &mut turns.as_bytes(), 0, &mut output).expect("the job is sound");
    let output = String::from_utf8(output).expect("events are JSON");
    let usage = output.lines().find_map(|line| match serde_json::from_str(line) {
        Ok(Event::Usage(usage)) => Some(usage),
        _ => None,
    });
    usage.expect("a measurement tells its usage").wall_ns as f64
}

fn main() -> ExitCode {
    let bundle = tempfile::tempdir().expect("a temporary directory");
    fixture::bundle(bundle.path(), VOCABULARY, 64);
    let mut engine = Punctual::new();
    let mut random = ChaCha8Rng::seed_from_u64(2);
    let steps = (ITERATIONS * NEW_TOKENS) as f64;

    let mut log_ratios = Vec::with_capacity(PAIRS);
    let mut added_us = Vec::with_capacity(PAIRS);
    for _ in 0..PAIRS {
        let (a, b) = if random.random() {
            let a = bare(&mut engine);
            (a, served(bundle.path()))
        } else {
            let b = served(bundle.path());
            (bare(&mut engine), b)
        };
        log_ratios.push((b / a).ln());
        added_us.push((b - a) / steps / 1e3);
    }

    added_us.sort_unstable_by(f64::total_cmp);
    let (mean, half_width) = interval(&log_ratios);
    let percent = |log_ratio: f64| log_ratio.exp_m1() * 100.0;
    println!(
        "{PAIRS} pairs of {steps} steps of {STEP:?}, {VOCABULARY} logits: the harness adds {:.2} µs a step (median)",
        added_us[PAIRS / 2]
    );
    let (lower, upper) = (percent(mean - half_width), percent(mean + half_width));
    println!(
        "ratio to the bare loop: +{:.3} % (95 % interval {lower:+.3} % to {upper:+.3} %)",
        percent(mean)
    );
    if upper >= LIMIT * 100.0 {
        println!("the limit is {} %", LIMIT * 100.0);
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// Mean and half the width of Student's 95 % interval around it.
fn interval(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
    let t = StudentsT::new(0.0, 1.0, count - 1.0).expect("there are pairs").inverse_cdf(0.975);
    (mean, t * (variance / count).sqrt())
}

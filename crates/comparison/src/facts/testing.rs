//! Processes, plans and events made up for tests.

use std::collections::BTreeMap;

use bundle::{ModelConfig, Precision};
use configs::Engine;
use protocol::untrusted::Foreigns;
use protocol::{Build, Decode, Event, Hello, InEffect, KvCachePolicy, Loaded, Sample, Usage, Warmup};

use crate::facts::evidence::Probe;
use crate::facts::run::{Ending, Outcome, Place, Purpose, Run, Turn};
use crate::plan::work::{Denoise, Generate};
use crate::plan::{
    self, Contender, HugePages, KernelCache, Plan, Prompt, Prompted, Request, Rounds, Schedule, Work,
};

pub fn run(label: &str, round: usize, events: Vec<Event>) -> Run {
    let place = Place { round, attempt: 0, position: 0 };
    Run::new(
        Purpose::Measure,
        place,
        label,
        Outcome { pid: 1, events, ending: Ending::Done, left_behind: Vec::new() },
    )
}

/// A process with turns: the samples of each iteration's cases.
pub fn measured(label: &str, round: usize, events: Vec<Event>, iterations: Vec<Vec<Sample>>) -> Run {
    let cases = iterations.into_iter().flat_map(|cases| cases.into_iter().enumerate());
    let turns =
        cases.enumerate().map(|(block, (case, sample))| Turn::alone(block, Sample { case, ..sample }));
    Run { turns: turns.collect(), ..run(label, round, events) }
}

/// The shapes of a small llama.
pub fn config() -> ModelConfig {
    let json = serde_json::json!({
        "model_type": "llama", "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 32,
        "max_position_embeddings": 64, "tie_word_embeddings": true
    });
    ModelConfig::from_json(&json).unwrap()
}

/// A framework whose worker rustc built.
pub fn hello(framework: &str) -> Hello {
    Hello {
        protocol: protocol::VERSION,
        framework: framework.into(),
        binding: format!("{framework} 1").into(),
        library: format!("{framework} 1").into(),
        library_path: None,
        cpu_capability: None,
        slices: Some(true),
        build: Build {
            profile: "release".into(),
            rustc: Some("rustc 1.95.0".into()),
            rustflags: Some("-C target-cpu=native".into()),
            target_features: Some(vec!["avx2"].into()),
            target: Some("x86_64-unknown-linux-gnu".into()),
            toolchain: None,
        },
    }
}

pub fn loaded(weights_bytes: u64) -> Loaded {
    let in_effect = InEffect {
        shard_bytes: None,
        hybrid: None,
        semi_public: Foreigns::default(),
        changed_defaults: Foreigns::default(),
        artefact: None,
        precision: "f32".into(),
        activations: "f32".into(),
        kv_cache_precision: "f32".into(),
        kv_cache: KvCachePolicy::Preallocated,
        device: "cpu".into(),
        threads: 2,
        jit: "none".into(),
        optimised: None,
        weight_storage: "none".into(),
        kernels: Foreigns::default(),
    };
    Loaded {
        load_ns: 1_000_000,
        memory: Default::default(),
        in_effect,
        weights_file: "f32.safetensors".into(),
        weights_bytes,
        weights_identity: None,
        page_cache: None,
        shows: Default::default(),
        barred: Vec::new(),
    }
}

/// Two threads that were busy throughout.
pub fn usage() -> Usage {
    Usage {
        memory: Default::default(),
        peak_bytes: None,
        cpu_ns: Some(2_000_000_000),
        wall_ns: 1_000_000_000,
        thread_cpu_ns: Some(vec![1_000_000_000; 2]),
        run_queue_ns: Some(0),
        served: None,
        threads: Some(2),
        cpus: Some(vec![0, 1]),
        cache: Default::default(),
        compiled: None,
        energy: None,
        gpu: None,
        weights_sha256: None,
        weights_identity: None,
    }
}

/// A steady probe, of no process.
pub fn probe(read_bandwidth: f64, arithmetic: f64) -> Probe {
    Probe {
        after: Vec::new(),
        before: Vec::new(),
        compute_ns: 1,
        drift: 0.0,
        read_bandwidth,
        best_read_bandwidth: read_bandwidth,
        arithmetic,
        best_arithmetic: arithmetic,
        bytes: 1,
        threads: 2,
        device: "cpu".into(),
        precision: "f32".into(),
        units: BTreeMap::new(),
    }
}

pub fn contender(label: &str) -> Contender {
    let (name, framework, worker) = (label.into(), label.into(), "engine-mock".into());
    let engine = Engine { name, framework, worker, ..Engine::default() };
    Contender {
        label: label.into(),
        engine,
        precision: Precision::F32,
        jit: true,
        threads: 2,
        cache: Default::default(),
        shards: 1,
        serve: Default::default(),
        anew: false,
        layouts: 0,
    }
}

pub fn plan(labels: &[&str]) -> Plan {
    Plan {
        request: Request::default(),
        contenders: labels.iter().map(|label| contender(label)).collect(),
        model: "a-model".into(),
        precision: Precision::F32,
        device: "cpu".into(),
        threads: 2,
        cpus: Some(vec![0, 1]),
        jit: true,
        work: generate(16),
        rounds: Rounds::Fixed(6),
        schedule: Schedule::Sequential,
        groups: Vec::new(),
        schedule_reason: None,
        expected_memory: Default::default(),
        largest_batch: None,
        slice: plan::SliceAsked::Auto,
        iterations: 2,
        chooses_blocks: false,
        huge_pages: HugePages::On,
        kernel_cache: KernelCache::Keep,
        margin: 0.02,
        max_cv: None,
        accept_noise: false,
        patience_s: 0.0,
        cold_loads: 0,
        warmup: Warmup {
            min_iterations: 1,
            max_iterations: 10,
            max_ns: 1,
            settled_within: 0.05,
            from_cold: false,
        },
        varied: Vec::new(),
        special_tokens: 0,
        drawn: None,
        tokenised: None,
        quality: None,
        fair_comparison: true,
        reference: None,
        seed: 1,
        delay_ns: 0,
        timeout_s: 600,
        suite: Some("default".into()),
        analysis: String::new(),
    }
}

// Work made up for tests.

/// One prompt of so many tokens, and 32 new ones.
pub fn generate(prompt_tokens: usize) -> Work {
    let prompt = Prompt { name: "p".into(), tokens: vec![1; prompt_tokens], ..Prompt::default() };
    let prompted = Prompted {
        batch: 1,
        prompt_last_only: false,
        new_tokens: 32,
        prompts: vec![prompt],
        judged: None,
        mixed: None,
        shared_prefix: 0,
    };
    Work::Generate(Generate {
        prompted,
        context: 0,
        decode: Decode::Forced,
        autoregressive: false,
        prefill_chunk: None,
        load: None,
    })
}

/// The prompts of a plan, to change them.
pub fn prompted(plan: &mut Plan) -> &mut Prompted {
    plan.work.prompted_mut().expect("its work has prompts")
}

/// The same plan with masked diffusion in so many steps, each fed the reference's state.
pub fn denoising(mut plan: Plan, steps: usize) -> Plan {
    let how = serde_json::from_value(serde_json::json!({ "steps": steps, "algorithm": "entropy" }));
    let (prompted, how) = (prompted(&mut plan).clone(), how.expect("these are settings of denoising"));
    Plan { work: Work::Denoise(Denoise { prompted, forced: true, how }), ..plan }
}

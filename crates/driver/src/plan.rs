//! What will be done: the arguments resolved, checked against the model and against each other. Nothing
//! has been measured yet, so every mistake here costs the user nothing but a sentence.

use std::collections::BTreeMap;
use std::time::Duration;

use bundle::{Bundle, Precision};
use protocol::{Case, Decode, KvCache};
use serde::Serialize;
use statistics::Looks;

use crate::cli::{CompareArgs, DecodeArg, ModelArgs, OnOff, RoundsArg};
use crate::configs::{self, Engine};
use crate::failure::{Failure, Result};
use crate::places::Places;
use crate::process::Worker;
use crate::prompts::{self, Prompt, Text};
use crate::{machine, provision};

/// One column of the table: an engine, under a label of its own.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Contender {
    /// The engine's name; numbered where one engine runs under several labels (an A/A control).
    pub(crate) label: String,
    #[serde(flatten)]
    pub(crate) engine: Engine,
    pub(crate) precision: Precision,
    pub(crate) jit: bool,
    pub(crate) threads: usize,
}

/// How much evidence is gathered.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Rounds {
    /// From six to `max`, until the verdicts are clear or the time is up.
    Auto {
        max: usize,
        budget_s: f64,
    },
    Fixed(usize),
}

impl Rounds {
    pub(crate) fn max(self) -> usize {
        match self {
            Rounds::Auto { max, .. } => max,
            Rounds::Fixed(rounds) => rounds,
        }
    }

    pub(crate) fn looks(self) -> Looks {
        match self {
            Rounds::Auto { max, .. } => Looks::automatic(max),
            Rounds::Fixed(rounds) => Looks::fixed(rounds),
        }
    }
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Plan {
    pub(crate) contenders: Vec<Contender>,
    pub(crate) model: String,
    pub(crate) precision: Precision,
    pub(crate) device: String,
    pub(crate) threads: usize,
    /// CPUs that every worker may use; `null` where the system has no such notion.
    pub(crate) cpus: Option<Vec<usize>>,
    pub(crate) jit: bool,
    pub(crate) batch: usize,
    pub(crate) new_tokens: usize,
    pub(crate) rounds: Rounds,
    pub(crate) iterations: usize,
    /// Margin of equivalence, as a share.
    pub(crate) margin: f64,
    pub(crate) accept_noise: bool,
    /// Seconds to wait for a quiet machine.
    pub(crate) patience_s: f64,
    /// Rounds in which models are also loaded from a cold page cache.
    pub(crate) cold_loads: usize,
    pub(crate) decode: Decode,
    pub(crate) kv_cache: KvCache,
    pub(crate) fair_comparison: bool,
    pub(crate) reference: Option<String>,
    pub(crate) seed: u64,
    pub(crate) delay_ns: u64,
    pub(crate) timeout_s: u64,
    pub(crate) suite: Option<String>,
    /// What the suite shows and what it does not.
    pub(crate) analysis: String,
    #[serde(serialize_with = "prompt_summaries")]
    pub(crate) prompts: Vec<Prompt>,
}

fn prompt_summaries<S: serde::Serializer>(
    prompts: &[Prompt],
    serializer: S,
) -> std::result::Result<S::Ok, S::Error> {
    let summaries =
        prompts.iter().map(|p| serde_json::json!({"name": p.name, "text": p.text, "tokens": p.tokens}));
    serializer.collect_seq(summaries)
}

const DEFAULT_SUITE: &str = "default";
const DEFAULT_NEW_TOKENS: u32 = 32;
/// Loading from a cold cache is told with its spread, not tested: three are enough for that.
const COLD_LOADS: usize = 3;
const QUICK_ROUNDS: usize = 2;
const DEFAULT_ITERATIONS: u32 = 2;

/// Resolves arguments, provisioning what is missing on the way.
pub(crate) fn resolve(args: &CompareArgs, places: &Places) -> Result<(Plan, Bundle)> {
    check_device(&args.model)?;
    let engines = engines(&args.frameworks, places)?;
    if let Some(reference) = &args.reference
        && !engines.iter().any(|engine| engine.name == *reference)
    {
        let names: Vec<_> = engines.iter().map(|engine| engine.name.as_str()).collect();
        return Err(Failure::usage(format!(
            "--reference {reference:?} is not among the frameworks compared: {}",
            names.join(", ")
        )));
    }
    let suite_name = args.suite.as_deref().unwrap_or(DEFAULT_SUITE);
    let own_prompts = !args.prompt.is_empty() || args.prompts.is_some();
    let suite = match &args.prompts {
        Some(file) => prompts::read_file(file)?,
        None if !args.prompt.is_empty() => prompts::from_texts(&args.prompt),
        None => configs::suite(&places.configs, suite_name)?,
    };
    provision::workers(places, &engines, args.model.quiet)?;

    let precision = precision(&args.model);
    let contenders = contenders(engines, precision, &args.model);
    // The reference is computed in f32 whatever is measured.
    let mut precisions: Vec<_> = contenders.iter().map(|contender| contender.precision).collect();
    precisions.push(Precision::F32);
    precisions.sort();
    precisions.dedup();
    let bundle = provision::model(places, &args.model.model, &precisions, args.model.quiet)?;
    let text = Text::open(&bundle)?;
    let length = args.prompt_tokens.map(|tokens| tokens as usize);
    let prompts = prompts::resolve(&suite.prompts, length, &bundle, &text)?;
    let new_tokens = args.new_tokens.or(suite.new_tokens).unwrap_or(DEFAULT_NEW_TOKENS) as usize;
    for prompt in &prompts {
        prompts::check_context(prompt.tokens.len(), new_tokens, &bundle)?;
    }
    let rounds = rounds(args, suite.rounds);
    let usual = if args.quick { 1 } else { suite.iterations.unwrap_or(DEFAULT_ITERATIONS) };
    let iterations = args.iterations.unwrap_or(usual);
    if rounds.max() == 0 || iterations == 0 || new_tokens == 0 {
        return Err(Failure::usage(format!(
            "suite {suite_name:?} asks for 0 rounds, iterations or new tokens"
        )));
    }
    let threads = threads(&args.model);
    let plan = Plan {
        contenders,
        model: bundle.manifest().name.clone(),
        precision,
        device: args.model.device.clone(),
        threads,
        cpus: machine::choose(threads),
        jit: !args.model.no_jit,
        batch: args.batch as usize,
        new_tokens,
        rounds,
        iterations: iterations as usize,
        margin: args.margin / 100.0,
        // Two rounds are a look and yield no verdict that noise could spoil; it is told all the same.
        accept_noise: args.accept_noise || args.quick,
        patience_s: args.patience,
        cold_loads: if args.cold_load == OnOff::On && !args.quick { COLD_LOADS } else { 0 },
        decode: match args.decode {
            DecodeArg::Forced => Decode::Forced,
            DecodeArg::Greedy => Decode::Greedy,
        },
        kv_cache: match args.kv_cache {
            OnOff::On => KvCache::On,
            OnOff::Off => KvCache::Off,
        },
        fair_comparison: args.fair_comparison,
        reference: args.reference.clone(),
        seed: args.seed.unwrap_or_else(drawn_seed),
        delay_ns: Duration::from_secs_f64(args.delay).as_nanos() as u64,
        timeout_s: args.model.timeout,
        suite: (!own_prompts).then(|| suite_name.to_owned()),
        analysis: suite.analysis.split_whitespace().collect::<Vec<_>>().join(" "),
        prompts,
    };
    Ok((plan, bundle))
}

impl Plan {
    /// The prompts of each case: one prompt, or a batch of rotations of it, so that the sequences differ
    /// in content and agree in length.
    pub(crate) fn case_prompts(&self) -> Vec<Vec<Vec<u32>>> {
        let batch = |prompt: &Prompt| {
            let rotated = |by: usize| {
                let mut tokens = prompt.tokens.clone();
                let length = tokens.len();
                tokens.rotate_left(by % length);
                tokens
            };
            (0..self.batch).map(rotated).collect()
        };
        self.prompts.iter().map(batch).collect()
    }

    /// The cases with their traces, `[case][batch][new tokens]`.
    pub(crate) fn cases(&self, traces: &[Vec<Vec<u32>>]) -> Vec<Case> {
        let cases = self.case_prompts().into_iter().zip(traces);
        cases.map(|(prompts, trace)| Case { context: Vec::new(), prompts, trace: trace.clone() }).collect()
    }
}

fn rounds(args: &CompareArgs, of_suite: Option<u32>) -> Rounds {
    let auto = Rounds::Auto { max: statistics::DEFAULT_MAX_ROUNDS, budget_s: args.time_budget * 60.0 };
    match (args.rounds, of_suite) {
        (Some(RoundsArg::Fixed(rounds)), _) => Rounds::Fixed(rounds as usize),
        (Some(RoundsArg::Auto), _) => auto,
        (None, _) if args.quick => Rounds::Fixed(QUICK_ROUNDS),
        (None, Some(rounds)) => Rounds::Fixed(rounds as usize),
        (None, None) => auto,
    }
}

fn engines(names: &[String], places: &Places) -> Result<Vec<Engine>> {
    if names.is_empty() {
        return configs::default_engines(&places.configs);
    }
    names.iter().map(|name| configs::engine(&places.configs, name.trim())).collect()
}

fn contenders(engines: Vec<Engine>, precision: Precision, model: &ModelArgs) -> Vec<Contender> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let label = |engine: Engine| {
        let count = seen.entry(engine.name.clone()).or_default();
        *count += 1;
        let label = if *count == 1 { engine.name.clone() } else { format!("{} ({count})", engine.name) };
        contender(label, engine, precision, model)
    };
    engines.into_iter().map(label).collect()
}

pub(crate) fn contender(label: String, engine: Engine, precision: Precision, model: &ModelArgs) -> Contender {
    Contender {
        label,
        precision: engine.settings.precision.unwrap_or(precision),
        jit: !model.no_jit && engine.settings.jit.unwrap_or(true),
        threads: engine.settings.threads.unwrap_or_else(|| threads(model)),
        engine,
    }
}

/// A device that is not there costs a sentence before anything is built or prepared for it.
pub(crate) fn check_device(model: &ModelArgs) -> Result<()> {
    machine::objection(&model.device).map_or(Ok(()), |objection| Err(Failure::usage(objection)))
}

/// `--no-half` is f32 spelt out; without either, f32 on a CPU and f16 on a GPU, where people run that.
pub(crate) fn precision(model: &ModelArgs) -> Precision {
    match model.precision {
        Some(asked) => Precision::from(asked),
        None if model.device.starts_with("cuda") && !model.no_half => Precision::F16,
        None => Precision::F32,
    }
}

pub(crate) fn threads(model: &ModelArgs) -> usize {
    let available = || std::thread::available_parallelism().map_or(1, usize::from);
    model.threads.map_or_else(available, usize::from)
}

pub(crate) fn settings(contender: &Contender, device: &str, hidden_states: bool) -> protocol::Settings {
    protocol::Settings {
        precision: contender.precision.name().into(),
        device: device.into(),
        threads: contender.threads,
        jit: contender.jit,
        hidden_states,
        dequantised: false,
        options: contender.engine.options.clone(),
        slowdown: contender.engine.settings.slowdown,
    }
}

/// Variables that say how many threads to use, one name for each runtime that reads one.
const THREAD_VARIABLES: [&str; 5] =
    ["OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS", "CANDLE_NUM_THREADS"];

/// The worker of an engine with all that it will find: an environment that holds what the system needs, the
/// thread budget and what the engine's configuration sets; and its CPUs.
pub(crate) fn worker(
    contender: &Contender,
    cpus: Option<&[usize]>,
    places: &Places,
    timeout_s: u64,
) -> Worker {
    let engine = &contender.engine;
    let mut environment = BTreeMap::new();
    for name in ["PATH", "TMPDIR", "SYSTEMROOT"] {
        if let Ok(value) = std::env::var(name) {
            environment.insert(name.to_owned(), value);
        }
    }
    for name in THREAD_VARIABLES {
        environment.insert(name.to_owned(), contender.threads.to_string());
    }
    for (name, value) in &engine.env {
        let value = std::env::var(name)
            .ok()
            .filter(|value| !value.is_empty())
            .unwrap_or_else(|| value.replace("{cache}", &places.cache.display().to_string()));
        environment.insert(name.clone(), value);
    }
    Worker {
        binary: places.binary(&engine.worker),
        environment,
        cpus: cpus.map(<[usize]>::to_vec),
        timeout: Duration::from_secs(timeout_s),
    }
}

pub(crate) fn drawn_seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    // Short enough to be typed again.
    (now.as_nanos() as u64 ^ u64::from(std::process::id())) % 1_000_000
}

//! What will be done: the arguments resolved, checked against the model and against each other. Nothing
//! has been measured yet, so every mistake here costs the user nothing but a sentence.

use std::collections::BTreeMap;
use std::time::Duration;

use bundle::{Bundle, Precision};
use protocol::{Case, Decode, KvCache, Warmup};
use serde::Serialize;
use statistics::Looks;

use crate::cli::{CompareArgs, DecodeArg, ModelArgs, OnOff, RoundsArg};
use crate::configs::{self, Engine};
use crate::failure::{Failure, Result};
use crate::machine::{self, memory};
use crate::places::Places;
use crate::prompts::{self, Prompt, Text};
use crate::provision::{self, Wanted};
use crate::{axes, text};

pub(crate) use crate::arms::{Arm, Study};

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
    pub(crate) kv_cache: KvCache,
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
    /// Tokens in the KV cache before each prompt.
    pub(crate) context: usize,
    /// Parity looks at the last position of each prompt alone, and at every new token.
    pub(crate) prompt_last_only: bool,
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
    pub(crate) warmup: Warmup,
    /// Rules whose subject is what is compared.
    pub(crate) varied: Vec<&'static str>,
    /// Ids of a text to be scored after the last round; why it cannot be.
    #[serde(skip)]
    pub(crate) text: Option<std::result::Result<Vec<u32>, String>>,
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

pub(crate) const DEFAULT_SUITE: &str = "default";
const DEFAULT_NEW_TOKENS: u32 = 32;
/// Loading from a cold cache is told with its spread, not tested: three are enough for that.
const COLD_LOADS: usize = 3;
const QUICK_ROUNDS: usize = 2;
/// Logits of one case that parity looks at, at most: 256 MB in each process's file, and in the driver for each of
/// the two that are compared. A position's logits depend on all before it, so the last tells of all.
const MOST_LOGITS: usize = 1 << 26;
const DEFAULT_ITERATIONS: u32 = 2;

/// Resolves arguments, provisioning what is missing on the way.
pub(crate) fn resolve(args: &CompareArgs, places: &Places) -> Result<(Plan, Bundle)> {
    if let Some(reason) = &args.study.refused {
        return Err(Failure::usage(reason));
    }
    axes::check_single(args)?;
    check_device(&args.model)?;
    let engines = engines(args, places)?;
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
    let contenders = contenders(engines, precision, args);
    let precisions: Vec<_> = contenders.iter().map(|contender| contender.precision).collect();
    let new_tokens =
        args.new_tokens.first().copied().or(suite.new_tokens).unwrap_or(DEFAULT_NEW_TOKENS) as usize;
    let context = args.context.first().map_or(0, |&tokens| tokens as usize);
    let batch = args.batch.first().map_or(1, |&batch| batch as usize);
    let wanted = Wanted {
        model: args.model.model(),
        precisions: &precisions,
        // The reference is computed in f32 whatever is measured.
        reference: true,
        device: &args.model.device,
        batch,
        // Prompts can be counted with the model's tokenizer alone.
        capacity: context + args.prompt_tokens.first().map_or(0, |&tokens| tokens as usize) + new_tokens,
    };
    let bundle = provision::model(places, &wanted, args.model.quiet)?;
    let tokenizer = Text::open(&bundle)?;
    let length = args.prompt_tokens.first().map(|&tokens| tokens as usize);
    let prompts = prompts::resolve(&suite.prompts, length, &bundle, &tokenizer)?;
    for prompt in &prompts {
        prompts::check_context(context + prompt.tokens.len(), new_tokens, &bundle)?;
    }
    let capacity =
        prompts.iter().map(|prompt| context + prompt.tokens.len() + new_tokens).max().unwrap_or(new_tokens);
    let objection = memory::objection(bundle.config(), &precisions, wanted.device, wanted.batch, capacity);
    if let Some(objection) = objection {
        return Err(Failure::usage(format!("{}: {objection}", wanted.model)));
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
    // Two rounds are a look and yield no verdict that noise could spoil; it is told all the same.
    let is_look = args.quick || suite.quick;
    let seed = args.seed.unwrap_or_else(drawn_seed);
    let positions =
        prompts.iter().map(|prompt| context + prompt.tokens.len() + new_tokens).max().unwrap_or(0);
    let plan = Plan {
        contenders,
        model: bundle.manifest().name.clone(),
        precision,
        device: args.model.device.clone(),
        threads,
        cpus: machine::choose(threads),
        jit: !args.model.no_jit,
        batch,
        context,
        prompt_last_only: batch * positions * bundle.config().vocab_size > MOST_LOGITS,
        new_tokens,
        rounds,
        iterations: iterations as usize,
        margin: args.margin / 100.0,
        accept_noise: args.accept_noise || is_look,
        patience_s: args.patience,
        cold_loads: if args.cold_load != Some(OnOff::Off) && !is_look { COLD_LOADS } else { 0 },
        decode: match (args.sampling.sampling(|| seed), args.decode) {
            (Some(sampling), _) => Decode::Sampled(sampling),
            (None, DecodeArg::Forced) => Decode::Forced,
            (None, DecodeArg::Greedy) => Decode::Greedy,
        },
        warmup: warmup(args.study.equal_warmup.then_some(iterations as usize)),
        varied: args.study.varied.to_vec(),
        text: args.study.text.then(|| text::bundled(places, &bundle)),
        fair_comparison: args.fair_comparison,
        reference: args.reference.clone(),
        seed,
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
        let case = |(prompts, trace): (Vec<Vec<u32>>, &Vec<Vec<u32>>)| {
            // Each prompt's own tokens, again and again: what they are makes no difference to the work.
            let before = |prompt: &Vec<u32>| prompt.iter().copied().cycle().take(self.context).collect();
            let context = if self.context == 0 { Vec::new() } else { prompts.iter().map(before).collect() };
            Case { context, prompts, trace: trace.clone() }
        };
        self.case_prompts().into_iter().zip(traces).map(case).collect()
    }

    /// `[case][batch][context + prompt tokens]`
    pub(crate) fn prefixes(&self) -> Vec<Vec<Vec<u32>>> {
        let no_trace = vec![Vec::new(); self.prompts.len()];
        self.cases(&no_trace).iter().map(Case::prefixes).collect()
    }

    /// Positions of a case whose logits parity looks at.
    pub(crate) fn judged_positions(&self, case: usize) -> usize {
        let before = if self.prompt_last_only { 1 } else { self.context + self.prompts[case].tokens.len() };
        before + self.new_tokens
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

/// When warm-up ends: see [`Warmup`]. `iterations`: exactly so many.
fn warmup(iterations: Option<usize>) -> Warmup {
    let (min_iterations, max_iterations) = iterations.map_or((1, 10), |iterations| (iterations, iterations));
    Warmup { min_iterations, max_iterations, max_ns: 30_000_000_000, settled_within: 0.05 }
}

pub(crate) fn engines(args: &CompareArgs, places: &Places) -> Result<Vec<Engine>> {
    let arms = args.study.arms.iter().map(|arm| &arm.engine);
    let names: Vec<&String> =
        if args.study.arms.is_empty() { args.frameworks.iter().collect() } else { arms.collect() };
    if names.is_empty() {
        return configs::default_engines(&places.configs);
    }
    names.into_iter().map(|name| configs::engine(&places.configs, name.trim())).collect()
}

fn contenders(engines: Vec<Engine>, precision: Precision, args: &CompareArgs) -> Vec<Contender> {
    let kv_cache = match args.kv_cache {
        OnOff::On => KvCache::On,
        OnOff::Off => KvCache::Off,
    };
    let contender = |label: String, engine: Engine| Contender {
        kv_cache,
        ..contender(label, engine, precision, &args.model)
    };
    if !args.study.arms.is_empty() {
        let side = |(arm, engine): (&Arm, Engine)| {
            let plain = contender(arm.label.clone(), engine);
            Contender {
                precision: arm.precision.unwrap_or(plain.precision),
                jit: arm.jit.unwrap_or(plain.jit),
                kv_cache: arm.kv_cache.unwrap_or(plain.kv_cache),
                engine: arm.built(plain.engine),
                ..plain
            }
        };
        return args.study.arms.iter().zip(engines).map(side).collect();
    }
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let label = |engine: Engine| {
        let count = seen.entry(engine.name.clone()).or_default();
        *count += 1;
        let label = if *count == 1 { engine.name.clone() } else { format!("{} ({count})", engine.name) };
        contender(label, engine)
    };
    engines.into_iter().map(label).collect()
}

pub(crate) fn contender(label: String, engine: Engine, precision: Precision, model: &ModelArgs) -> Contender {
    Contender {
        label,
        precision: engine.settings.precision.unwrap_or(precision),
        jit: !model.no_jit && engine.settings.jit.unwrap_or(true),
        threads: engine.settings.threads.unwrap_or_else(|| threads(model)),
        kv_cache: KvCache::On,
        engine,
    }
}

/// A device that is not there costs a sentence before anything is built or prepared for it.
pub(crate) fn check_device(model: &ModelArgs) -> Result<()> {
    machine::objection(&model.device).map_or(Ok(()), |objection| Err(Failure::usage(objection)))
}

/// `--no-half` is f32 spelt out; without either, f32 on a CPU and f16 on a GPU, where people run that.
pub(crate) fn precision(model: &ModelArgs) -> Precision {
    match model.precision.first() {
        Some(&asked) => asked,
        None if model.device.starts_with("cuda") && !model.no_half => Precision::F16,
        None => Precision::F32,
    }
}

/// The 16 bits that people use: bf16 on a CPU, which has instructions for it where it has any; f16 on a GPU.
pub(crate) fn half(model: &ModelArgs) -> Precision {
    if model.device.starts_with("cuda") { Precision::F16 } else { Precision::Bf16 }
}

pub(crate) fn threads(model: &ModelArgs) -> usize {
    let available = || std::thread::available_parallelism().map_or(1, usize::from);
    model.threads.first().map_or_else(available, |&threads| usize::from(threads))
}

pub(crate) fn drawn_seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    // Short enough to be typed again.
    (now.as_nanos() as u64 ^ u64::from(std::process::id())) % 1_000_000
}

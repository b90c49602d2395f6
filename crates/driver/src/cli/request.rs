//! Flags that decide what to measure. They are applied to a base request: the default one, that of a suite,
//! or that of a run to be measured again. A flag that was not typed leaves the base as it is.

use std::path::PathBuf;

use bundle::Precision;
use clap::{Args, ColorChoice};
use comparison::plan::{
    Failure, HugePages, KernelCache, PromptSource, Request, Result, RoundsAsked, ScheduleAsked, SliceAsked,
};
use protocol::Serve;

use super::help::{COMPARE, EVIDENCE, EXPERT, OUTPUT, SERVING, WORK};
use super::values::{
    BatchArg, OnOff, parse_batch, parse_device, parse_gigabytes, parse_kernel_cache, parse_margin,
    parse_minutes, parse_rounds, parse_schedule, parse_seconds, parse_slice, parse_timeout, precisions,
    seconds, set, set_list,
};
use super::work::{CacheFlags, StepFlags, TokenFlags, WorkFlags};

/// The work to measure, and the way to measure it.
#[derive(Debug, Clone, Default, PartialEq, Args)]
pub(crate) struct RequestArgs {
    /// Names, or sets of them: engines, references, all [default: engines]
    ///
    /// Names are those of configs/engines; -NAME leaves one out; NAME@1.24.4, NAME@PATH and NAME@git:URL#REVISION are
    /// another version of its framework (docs/how-to/versions.md).
    #[arg(long, alias = "framework", value_name = "NAME,…", value_delimiter = ',', help_heading = COMPARE)]
    pub(crate) frameworks: Vec<String>,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// A prompt; may be given several times
    #[arg(long, conflicts_with_all = ["prompts", "suite"], help_heading = WORK)]
    prompt: Vec<String>,
    /// Prompts from a file: one a line, pairs of texts in a .jsonl file, or TOML as in configs/suites
    #[arg(long = "prompt-file", visible_alias = "texts", value_name = "FILE", conflicts_with = "suite", help_heading = WORK, hide_short_help = true)]
    prompts: Option<PathBuf>,
    #[command(flatten)]
    chat: ChatFlag,
    /// Prompts and settings by name from configs/suites
    #[arg(long, value_name = "NAME", help_heading = WORK, hide_short_help = true)]
    pub(crate) suite: Option<String>,
    /// Compare at each of these precisions in turn, and show the costs and savings of each: speed, memory, agreement
    /// with f32. Each precision is a comparison of its own
    #[arg(long, value_name = "int8,int4,nf4", value_parser = precisions(), value_delimiter = ',',
          conflicts_with = "precision", help_heading = COMPARE, hide_short_help = true)]
    quantize: Vec<Precision>,
    // Commands of kept claims have `--seq`.
    /// Cut or extend every prompt to exactly this many tokens
    #[arg(short, long, visible_alias = "length", alias = "seq", value_name = "N", value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(1..), help_heading = WORK, hide_short_help = true)]
    prompt_tokens: Vec<u32>,
    /// The prompt at each of these lengths, in one comparison: shows which framework compiles anew for another length
    #[arg(long, value_name = "N,…", value_delimiter = ',', conflicts_with = "prompt_tokens",
          value_parser = clap::value_parser!(u32).range(1..), help_heading = WORK, hide_short_help = true)]
    prompt_lengths: Vec<u32>,
    #[command(flatten)]
    tokens: TokenFlags,
    /// Rounds; in each, every framework runs once in a process of its own. auto adds rounds, from 6 to 30, until the
    /// verdicts on throughput are clear or --time-budget ends [default: auto]
    #[arg(long, value_name = "auto|N", value_parser = parse_rounds, help_heading = EVIDENCE, hide_short_help = true)]
    rounds: Option<RoundsAsked>,
    /// Time after which automatic rounds end: 90s, 3m [default: 3m]
    ///
    /// At least 6 rounds run, if they fit.
    #[arg(long, value_name = "TIME", value_parser = parse_minutes, help_heading = EVIDENCE)]
    time_budget: Option<f64>,
    /// Margin of equivalence: smaller differences count as none [default: 2%]
    #[arg(long, value_name = "PERCENT", value_parser = parse_margin, help_heading = EVIDENCE, hide_short_help = true)]
    margin: Option<f64>,
    /// Give verdicts on a noisy machine too; every disturbance is printed
    #[arg(long, help_heading = EVIDENCE, hide_short_help = true)]
    accept_noise: bool,
    /// Longest wait for a quiet machine before the start, and before a disturbed block is measured again [default: 10s]
    #[arg(long = "quiet-timeout", value_name = "TIME", value_parser = parse_seconds, help_heading = EVIDENCE, hide_short_help = true)]
    patience: Option<f64>,
    /// Also load from a cold page cache, in separate processes [default: on; in sweeps off]
    #[arg(long, value_enum, help_heading = EXPERT, hide_short_help = true)]
    cold_load: Option<OnOff>,
    /// Measured iterations in each process [default: chosen from costs and variances; 2 if rounds are fixed, or if frameworks take no
    /// turns]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000), help_heading = EVIDENCE, hide_short_help = true)]
    iterations: Option<u32>,
    /// Order of the measured requests: interleaved takes them in turns, all workers in memory at once; sequential
    /// measures one worker after another; auto interleaves what fits into memory together, else in groups that share the
    /// first framework [default: auto]
    #[arg(long, value_parser = parse_schedule, value_name = "auto|interleaved|sequential", help_heading = EXPERT, hide_short_help = true)]
    schedule: Option<ScheduleAsked>,
    /// Have the mock engine return so many bytes: the toy that tests how a kind of work is added
    #[arg(long, hide = true, value_delimiter = ',', value_name = "BYTES")]
    echo: Vec<u32>,
    /// Tokens that a framework decodes before the next has its turn: auto chooses as many as take 50 to 200 ms; off
    /// alternates whole requests [default: auto]
    #[arg(long, value_parser = parse_slice, value_name = "auto|off|N", help_heading = EXPERT, hide_short_help = true)]
    slice: Option<SliceAsked>,
    /// Memory that all workers of a round may take together, in GB [default: the free memory]
    #[arg(long, value_parser = parse_gigabytes, value_name = "GB", help_heading = EXPERT, hide_short_help = true)]
    memory: Option<f64>,
    /// Ask for huge pages under large allocations, for every worker alike [default: on]
    #[arg(long, value_enum, help_heading = EXPERT, hide_short_help = true)]
    huge_pages: Option<OnOff>,
    /// Compiled kernels that a framework keeps on disk: keep finds those of earlier processes, as its users have them;
    /// fresh gives every process an empty cache of its own, so that its first request compiles everything
    /// [default: keep]
    #[arg(long, value_parser = parse_kernel_cache, value_name = "keep|fresh", help_heading = EXPERT, hide_short_help = true)]
    kernel_cache: Option<KernelCache>,
    /// Warm-up iterations in each process, exactly this many; careful guides ask for at least as many as are measured
    /// [default: until times settle, up to 10]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000), help_heading = EXPERT, hide_short_help = true)]
    warmup: Option<u32>,
    /// Sequences computed together [default: 1]; max searches the largest number that fits into memory; of encoders,
    /// sizes of batches of texts [default: 1,32]
    #[arg(long, value_name = "N|max", value_delimiter = ',', value_parser = parse_batch, help_heading = WORK, hide_short_help = true)]
    batch: Vec<BatchArg>,
    /// Devices that the weights are divided over, a column for each number: 1,2,4 [default: 1]
    #[arg(long = "tensor-parallel", value_name = "N,…", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=64), help_heading = WORK, hide_short_help = true)]
    shards: Vec<u32>,
    #[command(flatten)]
    steps: StepFlags,
    #[command(flatten)]
    kinds: WorkFlags,
    #[command(flatten)]
    serving: ServingFlags,
    #[command(flatten)]
    cache: CacheFlags,
    /// Strike what breaks a fairness rule: it has no part in verdicts. This is the default
    #[arg(long, conflicts_with = "allow_unfair", help_heading = EXPERT, hide_short_help = true)]
    fair_comparison: bool,
    /// Only label what breaks a fairness rule, and let it take part in verdicts [default: it is struck]
    #[arg(long, help_heading = EXPERT, hide_short_help = true)]
    allow_unfair: bool,
    /// Framework whose f32 logits are the reference [default: the first that runs]
    #[arg(long = "parity-reference", value_name = "FRAMEWORK", help_heading = EXPERT, hide_short_help = true)]
    reference: Option<String>,
    /// Seed of the order of the rounds and of drawn tokens [default: random, and recorded]
    #[arg(long, value_name = "N", help_heading = EXPERT, hide_short_help = true)]
    seed: Option<u64>,
    /// Pause before each block of requests [default: 0s]
    #[arg(long, value_name = "TIME", value_parser = parse_seconds, help_heading = EXPERT, hide_short_help = true)]
    delay: Option<f64>,
    /// A first look in under a minute, without verdicts: 2 rounds
    ///
    /// One iteration each: too little evidence for a verdict.
    #[arg(long, help_heading = EVIDENCE)]
    quick: bool,
}

impl RequestArgs {
    /// The typed flags applied to the defaults.
    pub(crate) fn request(&self) -> Request {
        self.applied_to(Request::default())
    }

    /// The typed flags without the name of a suite.
    pub(crate) fn without_suite(&self) -> RequestArgs {
        RequestArgs { suite: None, ..self.clone() }
    }

    /// The typed flags without those for the conditions of the measurement: noise and the seed.
    pub(crate) fn without_conditions(&self) -> RequestArgs {
        RequestArgs { accept_noise: false, patience: None, seed: None, ..self.clone() }
    }

    /// `request` with the typed flags applied to it.
    pub(crate) fn applied_to(&self, mut request: Request) -> Request {
        self.model.apply_to(&mut request);
        self.apply_work_to(&mut request);
        self.apply_measuring_to(&mut request);
        request
    }

    /// Applies the flags that decide the work.
    fn apply_work_to(&self, request: &mut Request) {
        set_list(&mut request.frameworks, &self.frameworks);
        let prompts = match (self.prompt.as_slice(), &self.prompts, &self.suite) {
            ([], None, None) => None,
            ([], Some(file), _) => Some(PromptSource::File(file.clone())),
            ([], None, Some(suite)) => Some(PromptSource::Suite(suite.clone())),
            (texts, _, _) => Some(PromptSource::Texts(texts.to_vec())),
        };
        set(&mut request.prompts, prompts.as_ref());
        if !self.quantize.is_empty() {
            (request.quantize, request.precisions) = (self.quantize.clone(), Vec::new());
        }
        request.chat |= self.chat.chat;
        set_list(&mut request.prompt_tokens, &self.prompt_tokens);
        set_list(&mut request.prompt_lengths, &self.prompt_lengths);
        self.tokens.apply_to(request);
        apply_batches(request, &self.batch);
        set_list(&mut request.shards, &self.shards);
        self.steps.apply_to(request);
        self.kinds.apply_to(request);
        self.serving.apply_to(request);
        self.cache.apply_to(request);
    }

    /// Applies the flags that decide how it is measured.
    fn apply_measuring_to(&self, request: &mut Request) {
        request.rounds = self.rounds.or(request.rounds);
        set(&mut request.time_budget_min, self.time_budget.as_ref());
        set(&mut request.margin_percent, self.margin.as_ref());
        request.accept_noise |= self.accept_noise;
        set(&mut request.patience_s, self.patience.as_ref());
        request.cold_load = self.cold_load.map(|on| on == OnOff::On).or(request.cold_load);
        request.iterations = self.iterations.or(request.iterations);
        set(&mut request.schedule, self.schedule.as_ref());
        set(&mut request.slice, self.slice.as_ref());
        set_list(&mut request.echo, &self.echo);
        request.memory_gb = self.memory.or(request.memory_gb);
        if let Some(huge_pages) = self.huge_pages {
            request.huge_pages = if huge_pages == OnOff::On { HugePages::On } else { HugePages::Off };
        }
        set(&mut request.kernel_cache, self.kernel_cache.as_ref());
        request.warmup = self.warmup.or(request.warmup);
        request.fair_comparison = (request.fair_comparison || self.fair_comparison) && !self.allow_unfair;
        request.reference = self.reference.clone().or_else(|| request.reference.take());
        request.seed = self.seed.or(request.seed);
        set(&mut request.delay_s, self.delay.as_ref());
        request.quick |= self.quick;
    }
}

/// Sizes of batches take the place of others, and of a search.
fn apply_batches(request: &mut Request, typed: &[BatchArg]) {
    if typed.is_empty() {
        return;
    }
    let numbers = typed.iter().filter_map(|batch| match batch {
        BatchArg::Number(number) => Some(*number),
        BatchArg::Max => None,
    });
    request.batch = numbers.collect();
    request.batch_max = request.batch.len() < typed.len();
    if request.batch_max && typed.len() > 1 {
        request.study.refused = Some("--batch max is one size: leave the others out".into());
    }
}

// Flags that say which model runs, and on what: all commands that run one share them.

/// Settings that every command shares.
#[derive(Debug, Clone, Default, PartialEq, Args)]
pub(crate) struct ModelArgs {
    /// Name, directory, .gguf or .onnx file, hf:owner/name [default: smollm2-135m]
    ///
    /// Names are those of configs/models; synthetic:NAME is a published shape with drawn weights.
    #[arg(short, long, value_name = "MODEL,…", value_delimiter = ',', help_heading = COMPARE)]
    model: Vec<String>,
    /// f32, bf16, f16, int8, int4 or nf4 [default: f32; on CUDA f16]
    #[arg(long, value_parser = precisions(), value_delimiter = ',', help_heading = COMPARE, hide_possible_values = true)]
    precision: Vec<Precision>,
    /// auto, cpu or cuda[:N] (or gpu) [default: cpu]
    ///
    /// auto is the first GPU, if every selected framework supports it.
    #[arg(long, value_parser = parse_device, help_heading = COMPARE)]
    device: Option<String>,
    /// Threads that may compute at once [default: all cores]
    ///
    /// All are those that this process may use.
    #[arg(short, long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1024), help_heading = COMPARE)]
    threads: Vec<u32>,
    /// Turn off graph optimisation and JIT for all frameworks
    #[arg(long, help_heading = EXPERT, hide_short_help = true)]
    no_jit: bool,
    /// Time limit of one worker process: 90s, 10m [default: 600s]
    #[arg(long, value_name = "TIME", value_parser = parse_timeout, help_heading = EXPERT, hide_short_help = true)]
    timeout: Option<u64>,
}

impl ModelArgs {
    /// A request for commands that are not comparisons.
    pub(crate) fn request(&self) -> Request {
        let mut request = Request::default();
        self.apply_to(&mut request);
        request
    }

    pub(crate) fn apply_to(&self, request: &mut Request) {
        set_list(&mut request.models, &self.model);
        if !self.precision.is_empty() {
            (request.precisions, request.quantize) = (self.precision.clone(), Vec::new());
        }
        set(&mut request.device, self.device.as_ref());
        set_list(&mut request.threads, &self.threads);
        request.jit &= !self.no_jit;
        set(&mut request.timeout_s, self.timeout.as_ref());
    }
}

// Flags for several callers.

#[derive(Debug, Clone, Default, PartialEq, Args)]
pub(crate) struct ServingFlags {
    /// Callers, of which each makes a request for one text, one prompt or one run when its last is answered; several numbers
    /// are a study: 1,4,16,64
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1024),
          help_heading = SERVING, hide_short_help = true)]
    callers: Vec<u32>,
    /// Requests a second that come at random, whatever becomes of those before; latency counts from when they were due
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=100_000),
          help_heading = SERVING, hide_short_help = true)]
    rate: Vec<u32>,
    /// Requests of a turn of callers [default: some for each caller; at a rate those of two seconds]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096), help_heading = SERVING,
          hide_short_help = true)]
    requests: Option<u32>,
    /// How callers are served, a column for each: shared (one model, a request at a time), pool:K (K models), or
    /// batch:B:W (up to B waiting requests at once; the first waits at most W for others) [default: shared]
    #[arg(long, value_name = "shared|pool:K|batch:B:W", value_delimiter = ',', help_heading = SERVING, hide_short_help = true)]
    serve: Vec<Serve>,
    /// Find the highest rate at which 99 of 100 answers come within this time, such as 50ms
    #[arg(long, value_name = "TIME", value_parser = parse_limit, conflicts_with = "rate", help_heading = SERVING,
          hide_short_help = true)]
    slo: Option<u64>,
}

/// A time in microseconds.
fn parse_limit(text: &str) -> std::result::Result<u64, String> {
    let within = seconds(text, None).map(|seconds| 1e6 * seconds).filter(|us| (1.0..=6e7).contains(us));
    within.map(|us| us as u64).ok_or_else(|| "a time from 1us to 60s with its unit, such as 50ms".to_owned())
}

impl ServingFlags {
    pub(crate) fn apply_to(&self, request: &mut Request) {
        set_list(&mut request.serving.callers, &self.callers);
        set_list(&mut request.serving.rate, &self.rate);
        set_list(&mut request.serving.serve, &self.serve);
        request.serving.requests = self.requests.or(request.serving.requests);
        request.serving.slo_us = self.slo.or(request.serving.slo_us);
    }
}

// How much is shown, and in what colours. These flags may follow every command.

#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct ScreenArgs {
    /// Show everything: figures by prompt, spreads, memory by part, every warning
    #[arg(short, long, global = true, help_heading = OUTPUT, hide_short_help = true)]
    pub(crate) verbose: bool,
    /// Colours in tables and sentences; auto: on a terminal, unless NO_COLOR is set
    #[arg(long, global = true, value_name = "auto|always|never", default_value_t = ColorChoice::Auto,
          hide_default_value = true, hide_possible_values = true, help_heading = OUTPUT, hide_short_help = true)]
    pub(crate) color: ColorChoice,
}

// The flag that puts prompts through the model's chat template.

#[derive(Debug, Clone, Copy, Default, PartialEq, Args)]
pub(crate) struct ChatFlag {
    /// Put every prompt through the model's own chat template, as a message of the user's
    #[arg(long, help_heading = WORK, hide_short_help = true)]
    pub(crate) chat: bool,
}

impl ChatFlag {
    /// Refuses a chat without a text.
    pub(crate) fn check(self, prompt: Option<&str>) -> Result<()> {
        if self.chat && prompt.is_none() {
            return Err(Failure::usage("--chat needs a text: give --prompt, not --tokens"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args, Command};

    use super::*;

    #[test]
    fn help_tells_the_defaults_of_a_request() {
        let Request { models, timeout_s, time_budget_min, margin_percent, patience_s, delay_s, .. } =
            Request::default();
        let defaults = [
            ("model", models[0].clone()),
            ("timeout", format!("{timeout_s}s")),
            ("time_budget", format!("{time_budget_min}m")),
            ("margin", format!("{margin_percent}%")),
            ("patience", format!("{patience_s}s")),
            ("delay", format!("{delay_s}s")),
        ];
        let command = RequestArgs::augment_args(Command::new("compare"));
        for (name, default) in defaults {
            let flag = command.get_arguments().find(|flag| flag.get_id() == name).unwrap();
            let help = flag.get_help().unwrap().to_string();
            assert!(help.ends_with(&format!("[default: {default}]")), "{name}: {help}");
        }
    }

    #[test]
    fn what_is_not_typed_stays_as_it_was() {
        let earlier = Request { margin_percent: 7.0, jit: false, batch: vec![4], ..Request::default() };
        assert_eq!(RequestArgs::default().applied_to(earlier.clone()), earlier);
        let typed = RequestArgs { batch: vec![BatchArg::Number(2)], ..RequestArgs::default() };
        assert_eq!(typed.applied_to(earlier.clone()), Request { batch: vec![2], ..earlier });
    }

    #[test]
    fn a_search_for_the_largest_batch_takes_the_place_of_sizes_and_stands_alone() {
        let earlier = Request { batch: vec![4], ..Request::default() };
        let typed = |batch: Vec<BatchArg>| RequestArgs { batch, ..RequestArgs::default() };
        let searched = typed(vec![BatchArg::Max]).applied_to(earlier);
        assert_eq!((searched.batch.len(), searched.batch_max), (0, true));
        let again = typed(vec![BatchArg::Number(2)]).applied_to(searched);
        assert_eq!((again.batch, again.batch_max), (vec![2], false));
        let both = typed(vec![BatchArg::Number(2), BatchArg::Max]).applied_to(Request::default());
        assert!(both.study.refused.is_some());
    }

    #[test]
    fn one_way_to_name_prompts_takes_the_place_of_another() {
        let earlier = Request { prompts: PromptSource::Suite("smoke".into()), ..Request::default() };
        let typed = RequestArgs { prompt: vec!["a".into()], ..RequestArgs::default() };
        assert_eq!(typed.applied_to(earlier).prompts, PromptSource::Texts(vec!["a".into()]));
    }

    #[test]
    fn one_way_to_name_a_precision_takes_the_place_of_another() {
        let mut request = Request { quantize: vec![Precision::Int8], ..Request::default() };
        ModelArgs { precision: vec![Precision::F32], ..ModelArgs::default() }.apply_to(&mut request);
        assert_eq!((request.precisions, request.quantize), (vec![Precision::F32], Vec::new()));
    }
}

//! A request that is checked before anything is built, prepared or measured, and the plan made from it. A mistake found
//! here costs the user only an error message.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use bundle::{ModelConfig, Pooled, Precision};
use configs::{Engine, Suite};
use protocol::Warmup;

use crate::plan::axes::{self, contenders};
use crate::plan::chat;
use crate::plan::plan::{self, threads};
use crate::plan::work::{self, Lengths};
use crate::plan::{
    Contender, DecodeAsked, Plan, Prompt, PromptSource, Request, Rounds, RoundsAsked, USUAL_BUDGET_MIN, Work,
    prompts, workers,
};

const DEFAULT_ITERATIONS: u32 = 2;

/// Rounds with a cold cache. The cold load is shown but not tested, and takes time from the tested figures.
const COLD_LOADS: usize = 1;

const QUICK_ROUNDS: usize = 2;

/// On a machine with varying memory speed, a narrower limit would often be missed for that reason alone.
const SETTLED_WITHIN: f64 = 0.1;

/// The part of a comparison that is known without its model.
#[derive(Debug, Clone)]
pub struct Draft {
    /// The request that was checked.
    pub request: Request,
    /// It gives prompts and settings.
    pub suite: Suite,
    /// Name of the suite, if it is one of `configs/suites`.
    pub suite_name: Option<String>,
    /// The columns of the comparison.
    pub contenders: Vec<Contender>,
    /// The thread budget.
    pub threads: usize,
    pub rounds: Rounds,
    iterations: u32,
    /// Whether no number of iterations was asked for.
    iterations_are_open: bool,
    /// The lengths of prompts, and of their continuations.
    pub lengths: Lengths,
}

/// Rejects a request that is not a single comparison, whatever engines and models exist.
pub fn check(request: &Request) -> Result<()> {
    if let Some(reason) = &request.study.refused {
        return Err(Failure::usage(reason));
    }
    if !request.quantize.is_empty() {
        return Err(Failure::usage("--quantize is for `compare`, a comparison for each precision"));
    }
    if request.shards.len() > 1 && !request.study.arms.is_empty() {
        return Err(Failure::usage("--tensor-parallel takes one number here: both sides are divided alike"));
    }
    if request.mixed && request.prompt_tokens.len() > 1 {
        return Err(Failure::usage(
            "--prompt-tokens is one length of all prompts: the lengths of --mixed are --prompt-lengths 16,64,256",
        ));
    }
    ranges(request)?;
    devices(request)?;
    axes::check_single(request)
}

/// Rejects what no server can do, and servers of other machines that were not asked for.
fn servers(request: &Request, engines: &[Engine]) -> Result<()> {
    let mut servers = engines.iter().filter(|engine| engine.is_server());
    let Some(Engine { name: first, .. }) = servers.next() else { return Ok(()) };
    if request.decode == Some(DecodeAsked::Forced) {
        return Err(Failure::usage(format!(
            "{first} chooses its own tokens, and --decode forced feeds others: leave it out"
        )));
    }
    if servers.count() + 1 == engines.len() {
        return Err(Failure::usage(
            "servers show no logits to compare their tokens with: name a framework, too, such as --frameworks \
             candle,http://127.0.0.1:8080",
        ));
    }
    let is_here = |url: &&str| {
        let rest = url.split_once("://").map_or("", |(_, rest)| rest);
        let address = rest.split(['/', '?', '#']).next().and_then(|address| address.rsplit('@').next());
        let host = address.map_or("", |address| address.rsplit_once(':').map_or(address, |(host, _)| host));
        let is_loopback = host.parse::<Ipv4Addr>().is_ok_and(|address| address.is_loopback());
        is_loopback || host == "localhost" || host == "[::1]"
    };
    match engines.iter().filter_map(Engine::server).find(|url| !is_here(url)).filter(|_| !request.remote) {
        None => Ok(()),
        Some(_) => Err(Failure::usage(
            "a server of another machine is asked only with --remote: the network is then part of what is compared",
        )),
    }
}

#[derive(Debug, Clone)]
pub struct Given<'a> {
    /// The model's name, from its manifest.
    pub name: &'a str,
    pub config: &'a ModelConfig,
    /// The prompts, or the texts to encode.
    pub prompts: Vec<Prompt>,
    /// A sentence about why the model has no tokenizer, if it has none.
    pub no_tokenizer: Option<String>,
    /// How vectors of tokens are pooled, if the model's files say so.
    pub pooled: Option<Pooled>,
    /// Arrays from files for an ONNX file's inputs, by input.
    pub arrays: BTreeMap<String, work::graph::Given>,
    /// CPUs for the workers; `None` where the system does not report.
    pub cpus: Option<Vec<usize>>,
    /// Bytes of memory that a process can use; `None` where the system does not report.
    pub available_memory: Option<u64>,
    /// The seed to use if the request has none.
    pub drawn_seed: u64,
    /// The data for judging quality if the request asks for it, or why there is none.
    pub quality: Option<std::result::Result<QualityData, String>>,
}

impl Draft {
    /// Checks `request`. `engines` are those that it names, in the same order; `suite` has its prompts and
    /// settings.
    pub fn new(
        request: &Request,
        engines: Vec<Engine>,
        suite: Suite,
        available_threads: usize,
    ) -> Result<Draft> {
        let request = &Request { has_servers: engines.iter().any(Engine::is_server), ..request.clone() };
        check(request)?;
        servers(request, &engines)?;
        reference(request, &engines)?;
        artefacts(request, &engines)?;
        if suite.prompts.is_empty() {
            let name = match &request.prompts {
                PromptSource::Suite(name) => format!("suite {name:?}"),
                _ => "the request".to_owned(),
            };
            let instead = match suite.command.as_str() {
                "" => String::new(),
                command => format!("; it is `photofinish {command}`, run as `photofinish --suite`"),
            };
            return Err(Failure::usage(format!("{name} has no prompts{instead}")));
        }
        prompts::check_count(&suite)?;
        self::lengths(request, &suite)?;
        chat::check(request, &suite)?;
        let suite_name = match &request.prompts {
            PromptSource::Usual => Some(configs::DEFAULT_SUITE.to_owned()),
            PromptSource::Suite(name) => Some(name.clone()),
            PromptSource::Texts(_) | PromptSource::File(_) | PromptSource::Tokens(_) => None,
        };
        let rounds = rounds(request, suite.rounds);
        let usual = if request.quick { 1 } else { suite.iterations.unwrap_or(DEFAULT_ITERATIONS) };
        let iterations = request.iterations.unwrap_or(usual);
        let iterations_are_open = request.iterations.or(suite.iterations).is_none();
        let lengths = Lengths::new(request, &suite);
        if rounds.max() == 0 || iterations == 0 || lengths.new_tokens == 0 {
            let who = suite_name.map_or_else(|| "the request".to_owned(), |name| format!("suite {name:?}"));
            return Err(Failure::usage(format!("{who} asks for 0 rounds, iterations or new tokens")));
        }
        Ok(Draft {
            contenders: contenders(engines, request, available_threads),
            threads: threads(request, available_threads),
            request: request.clone(),
            suite,
            suite_name,
            rounds,
            iterations,
            iterations_are_open,
            lengths,
        })
    }

    /// The same with this number of sequences computed together.
    pub fn with_batch(&self, batch: usize) -> Draft {
        let request = Request { batch: vec![batch as u32], ..self.request.clone() };
        Draft { request, ..self.clone() }
    }

    /// The same with this number of new tokens.
    pub fn with_new_tokens(&self, new_tokens: usize) -> Draft {
        let lengths = Lengths { new_tokens, ..self.lengths };
        Draft { lengths, ..self.clone() }
    }

    /// The precisions that the engines will hold, by contender.
    pub fn precisions(&self) -> Vec<Precision> {
        self.contenders.iter().map(|contender| contender.precision).collect()
    }

    /// Measured iterations in each process, unless their number is left open.
    pub fn iterations(&self) -> Option<u32> {
        let is_open = self.iterations_are_open && matches!(self.rounds, Rounds::Auto { .. });
        (!is_open).then_some(self.iterations)
    }

    pub fn engines(&self) -> Vec<Engine> {
        self.contenders.iter().map(|contender| contender.engine.clone()).collect()
    }

    /// Largest number of sequences that are computed together.
    pub fn batch(&self) -> usize {
        let mixed = match (self.request.mixed, self.request.prompt_lengths.len()) {
            (false, _) => 1,
            (true, 0) => self.suite.prompts.len(),
            (true, lengths) => lengths,
        };
        self.request.batch.iter().max().map_or(mixed, |&batch| batch as usize)
    }

    /// Length of a sequence in tokens, as far as it is known before the model's tokenizer counts the prompts.
    pub fn least_capacity(&self) -> usize {
        self.lengths.capacity(&self.request.prompt_lengths)
    }

    /// Rejects a model that does not fit into memory with these sequences.
    fn check_fits(&self, given: &Given<'_>, work: &Work) -> Result<()> {
        let Some(available) = given.available_memory else { return Ok(()) };
        let (sequences, activations) =
            ((work.batch(), work.capacity()), work.least_activations(given.config));
        if activations > available {
            let [needed, there] = [activations, available].map(|bytes| workers::gigabytes(bytes.into()));
            return Err(Failure::usage(format!(
                "{}: {} do not fit into memory: a layer's numbers take {needed} at least, and {there} are available; \
                 take a smaller batch",
                self.request.model(),
                work.words()
            )));
        }
        let held = (&self.precisions()[..], self.request.cache());
        match workers::refusal(given.config, held, sequences, available) {
            None => Ok(()),
            Some(why) => Err(Failure::usage(format!("{}: {why}", self.request.model()))),
        }
    }

    /// Checks the prompts against the model, and resolves the rest of the plan.
    pub fn plan(self, given: Given<'_>) -> Result<Plan> {
        let seed = self.request.seed.unwrap_or(given.drawn_seed);
        let prompts = (given.prompts.clone(), &self.lengths, given.pooled.clone());
        let work = work::resolve(&self.request, given.config, prompts, &given.arrays, seed)?;
        let tokenised = work.tokenised(&self.request, &given.prompts)?;
        let (sequences, available) = ((work.batch(), work.capacity()), given.available_memory);
        self.check_fits(&given, &work)?;
        let (schedule, groups, schedule_reason) =
            plan::choose(&self.request, &self.contenders, given.config, sequences, available)?;
        // Nothing is known for a GPU.
        let expected_memory = match self.request.is_on_gpu() {
            true => BTreeMap::new(),
            false => workers::expected(given.config, &self.contenders, sequences),
        };
        let chooses_blocks =
            schedule.has_turns() && self.iterations_are_open && matches!(self.rounds, Rounds::Auto { .. });
        let special_tokens = given.prompts.iter().map(|prompt| prompt.special.iter().sum()).max();
        let has_texts = given.prompts.iter().any(|prompt| prompt.text.is_some());
        let Draft { request, suite, suite_name, contenders, threads, rounds, iterations, .. } = self;
        // Two rounds never give a verdict, so noise cannot invalidate one; it is still reported.
        let is_look = request.quick || suite.quick;
        // The default suite's analysis is of decoding after its own prompts.
        let is_analysed =
            suite_name.as_deref() != Some(configs::DEFAULT_SUITE) || matches!(work, work::Work::Generate(_));
        let mut plan = Plan {
            contenders,
            model: given.name.to_owned(),
            precision: request.precision(),
            device: request.device.clone(),
            threads,
            cpus: given.cpus,
            jit: request.jit,
            work,
            rounds,
            schedule,
            groups,
            schedule_reason,
            expected_memory,
            largest_batch: None,
            slice: request.slice,
            iterations: iterations as usize,
            chooses_blocks,
            huge_pages: request.huge_pages,
            kernel_cache: request.kernel_cache,
            margin: request.margin_percent / 100.0,
            max_cv: request.max_cv,
            accept_noise: request.accept_noise || is_look,
            patience_s: request.patience_s,
            cold_loads: if request.cold_load != Some(false) && !is_look { COLD_LOADS } else { 0 },
            warmup: warmup(&request, iterations),
            varied: request.study.varied.clone(),
            special_tokens: special_tokens.unwrap_or(0),
            drawn: given.no_tokenizer.filter(|_| has_texts),
            tokenised,
            quality: given.quality,
            fair_comparison: request.fair_comparison,
            reference: request.reference.clone(),
            seed,
            delay_ns: Duration::from_secs_f64(request.delay_s).as_nanos() as u64,
            timeout_s: request.timeout_s,
            suite: suite_name,
            analysis: match is_analysed {
                true => suite.analysis.split_whitespace().collect::<Vec<_>>().join(" "),
                false => String::new(),
            },
            request,
        };
        plan.limit_warmup();
        Ok(plan)
    }
}

fn rounds(request: &Request, of_suite: Option<u32>) -> Rounds {
    let budget_min = request.time_budget_min.unwrap_or(USUAL_BUDGET_MIN);
    let auto = Rounds::Auto { max: statistics::DEFAULT_MAX_ROUNDS, budget_s: budget_min * 60.0 };
    match (request.rounds, of_suite) {
        (Some(RoundsAsked::Fixed(rounds)), _) => Rounds::Fixed(rounds as usize),
        (Some(RoundsAsked::Auto), _) => auto,
        (None, _) if request.quick => Rounds::Fixed(QUICK_ROUNDS),
        (None, Some(rounds)) => Rounds::Fixed(rounds as usize),
        (None, None) => auto,
    }
}

/// The end of warm-up: see [`Warmup`]. `measured` is the number of measured iterations that follow.
fn warmup(request: &Request, measured: u32) -> Warmup {
    let fixed = request.warmup.or(request.study.equal_warmup.then_some(measured)).map(|count| count as usize);
    // With several callers, a turn has many requests.
    let most = if request.serving.is_default() { 10 } else { 3 };
    let (min_iterations, max_iterations) = fixed.map_or((1, most), |count| (count, count));
    // An explicit number is used as it is; only the process's time limit can end it.
    let max_s = if request.warmup.is_some() { request.timeout_s } else { 30 };
    Warmup {
        min_iterations,
        max_iterations,
        max_ns: max_s * 1_000_000_000,
        settled_within: SETTLED_WITHIN,
        from_cold: fixed.is_none(),
    }
}

// The bundled text or texts by which a study judges an engine's output, or the cost of a precision.

/// Data that is computed once, apart from the timed requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QualityData {
    /// A text, each token of which is predicted from those before it.
    Text(Prose),
    /// Texts that become vectors, or scores.
    Retrieval(Retrieval),
}

/// Token ids of a text, without special ones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prose {
    pub tokens: Vec<u32>,
    /// The special tokens that every part of the text begins with.
    pub before: Vec<u32>,
}

/// Texts that queries are to find.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Retrieval {
    /// Token ids. For vectors: the queries, then the documents. For scores of texts: each query with every
    /// document, query by query.
    pub texts: Vec<Vec<u32>>,
    /// The type of each token; all 0 if empty.
    pub types: Vec<Vec<u32>>,
    /// Number of queries; 0 if nothing is searched, because a text has several scores.
    pub queries: usize,
    /// Whether each text is a query with a document.
    pub pairs: bool,
}

// Limits of requests that do not depend on the model.

/// The limits of the flags of the same names.
const LONGEST_PAUSE_S: f64 = 3600.0;

const LONGEST_BUDGET_MIN: f64 = 10_080.0;

const MOST_MEMORY_GB: f64 = 1e6;

const WIDEST_MARGIN_PERCENT: f64 = 50.0;

const LONGEST_TIMEOUT_S: u64 = 86_400;

const LARGEST_BATCH: u32 = 4096;

/// Rejects numbers that no flag accepts: a request may come from a file.
pub(crate) fn ranges(request: &Request) -> Result<()> {
    let within = |value: f64, most: f64| (0.0..=most).contains(&value);
    let none = |values: &[u32]| !values.contains(&0);
    let ranges = [
        ("delay_s", within(request.delay_s, LONGEST_PAUSE_S)),
        ("patience_s", within(request.patience_s, LONGEST_PAUSE_S)),
        ("time_budget_min", request.time_budget_min.is_none_or(|asked| within(asked, LONGEST_BUDGET_MIN))),
        ("memory_gb", request.memory_gb.is_none_or(|asked| within(asked, MOST_MEMORY_GB))),
        ("margin_percent", within(request.margin_percent, WIDEST_MARGIN_PERCENT)),
        ("timeout_s", (1..=LONGEST_TIMEOUT_S).contains(&request.timeout_s)),
        ("threads", none(&request.threads)),
        ("batch", request.batch.iter().all(|batch| (1..=LARGEST_BATCH).contains(batch))),
        ("prompt_tokens", none(&request.prompt_tokens)),
        ("prompt_lengths", none(&request.prompt_lengths)),
        ("shards", none(&request.shards)),
    ];
    match ranges.iter().find(|(_, is_within)| !is_within) {
        None => Ok(()),
        Some((name, _)) => Err(Failure::usage(format!("the request's {name} is out of range"))),
    }
}

/// Rejects more parts of the weights than GPUs, and GPUs without a part.
pub(crate) fn devices(request: &Request) -> Result<()> {
    let (device, count) = (&request.device, request.devices());
    match request.shards[..] {
        [] => Ok(()),
        [asked] if asked == count => Ok(()),
        _ if !request.is_on_gpu() => Ok(()),
        _ => Err(Failure::usage(format!(
            "--tensor-parallel: on GPUs each holds one part of the weights, and --device {device} names {count}; leave --tensor-parallel out \
             and name as many GPUs as there shall be parts, such as --device cuda:0,cuda:1"
        ))),
    }
}

/// Rejects several lengths for several prompts, and two flags for the length.
pub(crate) fn lengths(request: &Request, suite: &Suite) -> Result<()> {
    if request.prompt_lengths.is_empty() {
        return Ok(());
    }
    if !request.prompt_tokens.is_empty() {
        return Err(Failure::usage(
            "--prompt-lengths and --prompt-tokens both say how long prompts are: leave one out",
        ));
    }
    if suite.prompts.len() > 1 && request.names_prompts() {
        return Err(Failure::usage(
            "--prompt-lengths takes one prompt, whose lengths they are: name one with --prompt",
        ));
    }
    Ok(())
}

/// Rejects a file for a framework that is not compared.
fn artefacts(request: &Request, engines: &[Engine]) -> Result<()> {
    let is_absent = |name: &&String| !engines.iter().any(|engine| engine.name == **name);
    match request.graph.artefacts.keys().find(is_absent) {
        None => Ok(()),
        Some(name) => {
            let names: Vec<_> = engines.iter().map(|engine| engine.name.as_str()).collect();
            let names = names.join(", ");
            Err(Failure::usage(format!("--artefact {name:?} is not among the frameworks compared: {names}")))
        }
    }
}

pub(crate) fn reference(request: &Request, engines: &[Engine]) -> Result<()> {
    match &request.reference {
        Some(reference) if !engines.iter().any(|engine| engine.name == *reference) => {
            let names: Vec<_> = engines.iter().map(|engine| engine.name.as_str()).collect();
            Err(Failure::usage(format!(
                "--parity-reference {reference:?} is not among the frameworks compared: {}",
                names.join(", ")
            )))
        }
        _ => Ok(()),
    }
}

// Knowledge about engines and models that a study needs.

/// The known engines, files of `configs/engines`, and models, read by the caller.
pub trait Engines {
    /// The engine with this name; the error lists the names that exist.
    fn engine(&self, name: &str) -> Result<Engine>;

    /// The engines that these names and sets of names ask for; the default ones without a name.
    fn selected(&self, names: &[String]) -> Result<Vec<Engine>>;

    /// Whether the model of this name encodes texts, rather than continuing them.
    fn encodes(&self, model: &str) -> Result<bool>;

    /// Whether it is an ONNX file, as far as its name tells.
    fn is_onnx(&self, model: &str) -> bool {
        configs::is_onnx(model)
    }
}

// The ways in which the program can fail. Each kind has an exit code (`docs/reference/cli.md`).

/// An error: one sentence for people, and the kind that decides the exit code.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Failure {
    /// Bad usage or input: exit 2.
    #[error("{0}")]
    Usage(String),
    /// A framework or the machine failed: exit 1.
    #[error("{0}")]
    Failed(String),
    /// A program that explains itself on stderr (prepare, xtask) ended with this exit code.
    #[error("")]
    Spoken(u8),
    /// Ctrl-C.
    #[error("interrupted")]
    Interrupted,
}

impl Failure {
    pub fn usage(text: impl Into<String>) -> Failure {
        Failure::Usage(text.into())
    }

    /// Makes a failure of a framework or of the machine.
    pub fn failed(text: impl Into<String>) -> Failure {
        Failure::Failed(text.into())
    }

    /// The exit code of this kind of failure.
    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::Failed(_) => 1,
            Failure::Usage(_) => 2,
            Failure::Spoken(code) => *code,
            Failure::Interrupted => 130, // as in shells: 128 + SIGINT
        }
    }
}

impl From<configs::ConfigError> for Failure {
    fn from(error: configs::ConfigError) -> Failure {
        Failure::Usage(error.to_string())
    }
}

/// A result with an error that ends the program.
pub type Result<T> = std::result::Result<T, Failure>;

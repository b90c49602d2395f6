//! The plan of a comparison, resolved to the last token id.

use std::collections::BTreeMap;

use bundle::{ModelConfig, Precision};
use configs::Engine;
use protocol::{KvCache, Serve, Warmup};
use serde::{Deserialize, Serialize};

use crate::plan::chat::Written;
use crate::plan::sweep::SweepKind;
use crate::plan::{
    CacheAsked, Failure, HugePages, KernelCache, QualityData, Request, Result, ScheduleAsked, Settings,
    SliceAsked, Work, workers,
};

/// One column of the table: an engine, under a label of its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Contender {
    /// The engine's name; numbered if one engine runs under several labels (an A/A control).
    pub label: String,
    #[serde(flatten)]
    pub engine: Engine,
    pub precision: Precision,
    pub jit: bool,
    /// Number of threads; 0 for the framework's own default.
    pub threads: usize,
    #[serde(flatten)]
    pub cache: CacheAsked,
    /// Number of devices that the weights are divided over.
    pub shards: usize,
    /// How several callers are served.
    #[serde(default, skip_serializing_if = "Serve::is_shared")]
    pub serve: Serve,
    /// Whether every request loads the model again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub anew: bool,
    /// Number of layouts of its program, which the rounds take in turn; 0 if it has one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub layouts: usize,
}

/// The layout of a round, of so many; `None` if there is one.
pub fn layout(layouts: usize, round: usize) -> Option<usize> {
    round.checked_rem(layouts)
}

impl Contender {
    /// An engine with the settings of `request`. Its configuration takes precedence.
    pub fn new(label: String, engine: Engine, request: &Request, available_threads: usize) -> Contender {
        Contender {
            label,
            precision: engine.settings.precision.unwrap_or(request.precision()),
            jit: request.jit && engine.settings.jit.unwrap_or(true),
            threads: engine.settings.threads.unwrap_or_else(|| threads(request, available_threads)),
            cache: CacheAsked { policy: KvCache::On, ..request.cache() },
            shards: 1,
            serve: Serve::Shared,
            anew: false,
            layouts: 0,
            engine,
        }
    }

    /// The file that it runs in place of the model's.
    pub fn artefact(&self) -> Option<&str> {
        self.engine.options.get(configs::ARTEFACT).map(String::as_str)
    }

    /// The element type asked for keys and values: f32, bf16 or f16.
    pub fn asked_cache(&self) -> Precision {
        self.cache.element(self.precision)
    }
}

/// The thread budget: the requested number, or all available threads.
pub(crate) fn threads(request: &Request, available: usize) -> usize {
    request.threads.first().map_or(available, |&threads| threads as usize)
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rounds {
    /// Automatic: from six rounds to `max`, until the verdicts are clear or the time is up.
    Auto {
        max: usize,
        budget_s: f64,
    },
    Fixed(usize),
}

impl Rounds {
    pub fn max(self) -> usize {
        match self {
            Rounds::Auto { max, .. } => max,
            Rounds::Fixed(rounds) => rounds,
        }
    }
}

/// The order in which the requests of a round are measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Schedule {
    /// All processes of a round are alive together and take turns, request by request.
    Interleaved,
    /// Not all fit into memory: groups of processes are alive together and take turns, one group after
    /// another ([`Plan::groups`]).
    Grouped,
    /// One process after another, each from start to end.
    #[default]
    Sequential,
}

impl Schedule {
    /// The error rate of the table of a comparison that is measured in this order.
    pub fn significance(self) -> f64 {
        match self {
            Schedule::Interleaved | Schedule::Grouped => statistics::SIGNIFICANCE,
            Schedule::Sequential => statistics::SEQUENTIAL_SIGNIFICANCE,
        }
    }

    /// Whether processes take turns, request by request.
    pub fn has_turns(self) -> bool {
        self != Schedule::Sequential
    }
}

/// Time in which a comparison ends after its budget, in seconds: for what has begun, verdicts and table.
const GRACE_S: f64 = 30.0;

/// Time in which a first look ends, in seconds.
const LOOK_S: f64 = 60.0;

/// Share of that time for warm-up.
const WARM_UP: f64 = 0.25;

/// New tokens of the untimed request before each timed one of a process that has waited. Chosen by measurement:
/// `docs/reference/measures.md`.
const LEAD_IN: usize = 2;

/// Fewest tokens of a prompt, of all its sequences together, that need no lead-in: `docs/explanation/architecture.md`.
const LONG_PROMPT: usize = 512;

/// A comparison, ready to be measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    pub request: Request,
    pub contenders: Vec<Contender>,
    pub model: String,
    pub precision: Precision,
    pub device: String,
    /// Thread budget, in threads.
    pub threads: usize,
    /// CPUs that every worker may use; `null` if the system has no CPU affinity.
    pub cpus: Option<Vec<usize>>,
    pub jit: bool,
    pub work: Work,
    pub rounds: Rounds,
    #[serde(default)]
    pub schedule: Schedule,
    /// The groups of the grouped schedule, by label, the anchor first in each; empty under the others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<Vec<String>>,
    /// Expected peak memory of each contender's worker, in bytes, by label; only of those with measured
    /// memory.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub expected_memory: BTreeMap<String, u64>,
    /// How the batch was found, if the largest that fits was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub largest_batch: Option<String>,
    /// The reason for that schedule, if it is not the default.
    pub schedule_reason: Option<String>,
    #[serde(default)]
    pub slice: SliceAsked,
    /// Measured iterations in each process, if their number is not left open.
    pub iterations: usize,
    /// Whether the number of blocks of a round is chosen from costs and variances.
    pub chooses_blocks: bool,
    /// Memory policy of all workers.
    pub huge_pages: HugePages,
    #[serde(default)]
    pub kernel_cache: KernelCache,
    /// Margin of equivalence, as a share.
    pub margin: f64,
    /// Largest coefficient of variation of a column's steady-state latency, as a share, if one was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_cv: Option<f64>,
    pub accept_noise: bool,
    /// Longest wait for a quiet machine, in seconds.
    pub patience_s: f64,
    /// Rounds in which models are also loaded from a cold page cache.
    pub cold_loads: usize,
    pub warmup: Warmup,
    /// Ids of the rules that the comparison itself varies.
    pub varied: Vec<String>,
    /// Most special tokens that the model's tokenizer puts around a prompt, such as its beginning token.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub special_tokens: usize,
    /// Why ids were drawn from the vocabulary in place of the prompts' texts, if they were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drawn: Option<String>,
    /// The texts of each case, if tokenising is timed.
    #[serde(skip)]
    pub tokenised: Option<Vec<Vec<Written>>>,
    /// The data for judging quality after the last round, or why there is none.
    #[serde(skip)]
    pub quality: Option<std::result::Result<QualityData, String>>,
    pub fair_comparison: bool,
    pub reference: Option<String>,
    /// Seed of the order of the rounds, and of drawn tokens.
    pub seed: u64,
    /// Pause before each block of requests, in nanoseconds.
    pub delay_ns: u64,
    /// Time limit of one worker process, in seconds.
    pub timeout_s: u64,
    pub suite: Option<String>,
    /// The suite's analysis: its conclusions and their limits.
    pub analysis: String,
}

pub(super) fn is_zero(count: &usize) -> bool {
    *count == 0
}

impl Plan {
    /// The size of requests, for people, and what their ids are besides text.
    pub fn input_words(&self) -> String {
        let special = match self.special_tokens {
            0 => String::new(),
            1 => ", with 1 special token each".to_owned(),
            count => format!(", with {count} special tokens each"),
        };
        let drawn = self.drawn.as_ref();
        let drawn = drawn.map(|why| format!(", ids drawn from the vocabulary in place of texts ({why})"));
        format!("{}{special}{}", self.work.words(), drawn.unwrap_or_default())
    }

    /// Seconds in which the comparison ends, whatever else the machine does; `None` if the rounds were asked for.
    pub fn limit_s(&self) -> Option<f64> {
        match self.rounds {
            Rounds::Auto { budget_s, .. } => Some(budget_s + GRACE_S),
            Rounds::Fixed(_) => (self.request.quick && self.request.rounds.is_none()).then_some(LOOK_S),
        }
    }

    /// Limits warm-up so that that of all processes takes a quarter of the time limit, if its end is left open.
    pub(crate) fn limit_warmup(&mut self) {
        let (Some(limit_s), true) = (self.limit_s(), self.warmup.from_cold) else { return };
        let processes = self.rounds.max().min(statistics::MIN_ROUNDS) * self.contenders.len();
        let each_s = limit_s * WARM_UP / processes.max(1) as f64;
        self.warmup.max_ns = self.warmup.max_ns.min((each_s * 1e9) as u64);
    }

    /// Whether the work is computed on a GPU.
    pub fn is_on_gpu(&self) -> bool {
        !protocol::gpus(&self.device).is_empty()
    }

    /// Number of groups that a contender takes part in.
    pub fn groups_of(&self, label: &str) -> usize {
        let of_label = self.groups.iter().filter(|group| group.iter().any(|member| member == label));
        of_label.count().max(1)
    }

    /// The contender that is in every group, if there are groups: the others are compared with it, and across
    /// groups with one another through it.
    pub fn anchor(&self) -> Option<&str> {
        self.groups.first()?.first().map(String::as_str)
    }

    /// New tokens of the untimed request before each timed one. On a CPU a context longer than that request
    /// replaces it: the context is computed right before the clock starts, and a lead-in would compute it
    /// twice. There, a long prompt has none either: the wait before it no longer shows in its first token, and a
    /// lead-in would take as long as the request. With several callers, it would compute all requests of a turn twice.
    pub fn lead_in(&self, contender: &Contender) -> usize {
        let context_leads = self.work.has_longer_context(LEAD_IN) && contender.cache.is_on();
        let needs_none = context_leads || self.work.shortest_pass() >= LONG_PROMPT;
        let has_callers = self.work.load().is_some();
        if !self.schedule.has_turns() || has_callers || (self.device == "cpu" && needs_none) {
            return 0;
        }
        if contender.engine.is_server() {
            // It cannot be stopped within an answer.
            return self.work.marks();
        }
        LEAD_IN
    }

    /// Why each turn is a whole request; `None` if contenders take turns within requests. A GPU's clock drops
    /// while others have their turns, so there each request follows an untimed one.
    pub fn whole_requests(&self) -> Option<&'static str> {
        if self.slice == SliceAsked::Off {
            Some("--slice off")
        } else if !self.schedule.has_turns() {
            Some("frameworks are measured one after another")
        } else if self.device != "cpu" {
            Some("a GPU's clock falls during a pause")
        } else {
            None
        }
    }

    pub fn contender(&self, label: &str) -> Option<&Contender> {
        self.contenders.iter().find(|contender| contender.label == label)
    }
}

// The choice of a schedule: turns of all, in groups, or one after another.

/// Labels of contenders that are measured together.
pub(crate) type Groups = Vec<Vec<String>>;

/// The schedule, its groups, and the reason for it if it is not the default. `sequences`: how many there are
/// at once, and their longest in tokens; `machine`: bytes of memory that a process can use, where the system
/// reports it.
pub(crate) fn choose(
    request: &Request,
    contenders: &[Contender],
    config: &ModelConfig,
    sequences: (usize, usize),
    machine: Option<u64>,
) -> Result<(Schedule, Groups, Option<String>)> {
    let sequential = |why: Option<String>| Ok((Schedule::Sequential, Groups::new(), why));
    if contenders.len() < 2 {
        return sequential(None);
    }
    if request.schedule == ScheduleAsked::Sequential {
        return sequential(Some("--schedule sequential".to_owned()));
    }
    let asked = request.memory_gb.map(|gigabytes| (gigabytes * 1e9) as u64);
    let available = [machine, asked].into_iter().flatten().min();
    let together = available.filter(|_| !request.is_on_gpu()).map(|available| {
        let kinds = contenders.iter().map(|contender| {
            let kind = workers::WorkerKind::new(&contender.engine, contender.precision);
            (contender.precision, contender.cache.precision, kind)
        });
        let kinds: Vec<_> = kinds.collect();
        workers::MemoryFit::new(config, &kinds, sequences, available)
    });
    let obstacle = match (&together, request.is_on_gpu()) {
        // On a GPU, an explicit --schedule interleaved skips the check of memory.
        (_, true) if request.schedule == ScheduleAsked::Interleaved => None,
        (_, true) => Some("how much of a GPU's memory each takes is not known before".to_owned()),
        (Some(together), false) => together.obstacle(),
        (None, false) => None,
    };
    let Some(why) = obstacle else { return Ok((Schedule::Interleaved, Groups::new(), None)) };
    if request.schedule == ScheduleAsked::Interleaved {
        return Err(Failure::usage(format!(
            "--schedule interleaved: {why}; compare fewer frameworks, or leave the flag out"
        )));
    }
    let Some(groups) = together.and_then(|together| together.groups()) else {
        return sequential(Some(why));
    };
    let labels = |group: Vec<usize>| group.into_iter().map(|place| contenders[place].label.clone());
    let groups = groups.into_iter().map(|group| labels(group).collect()).collect();
    Ok((Schedule::Grouped, groups, Some(why)))
}

// Studies: a comparison that is repeated while settings change.

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StudyKind {
    Sweep(SweepKind),
    /// The name of a switch, or two engines.
    Ab(Vec<String>),
}

/// A study as requested. Shards and `--resume` store and compare it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StudyRequest {
    pub kind: StudyKind,
    pub request: Request,
}

/// The layout of the cells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StudyView {
    Sweep(SweepKind),
    /// Names of the two arms.
    Ab([String; 2]),
}

#[derive(Debug, Clone, PartialEq)]
pub struct StudyPlan {
    /// Name of the study: "sweep forward", "ab kv-cache".
    pub name: String,
    pub view: StudyView,
    pub cells: Vec<CellPlan>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct CellPlan {
    /// The cell's place on the axes.
    pub settings: Settings,
    pub request: Request,
}

impl StudyRequest {
    /// Whether both ask for the same measurements. Settings that affect no figure are not part of a request;
    /// the suite's analysis and published figures do not affect any either and are ignored here.
    pub fn measures_the_same(&self, other: &StudyRequest) -> bool {
        let plain = |study: &StudyRequest| {
            let mut study = study.clone();
            study.request.study.analysis.clear();
            study.request.study.published = None;
            study
        };
        plain(self) == plain(other)
    }
}

impl StudyPlan {
    pub fn settings(&self) -> Vec<Settings> {
        self.cells.iter().map(|cell| cell.settings.clone()).collect()
    }
}

//! The output of one process: the unit of evidence, kept whole.

use std::collections::BTreeSet;

use protocol::untrusted::{Foreign, ForeignText};
use protocol::{
    ColdStart, Event, FileIdentity, Hello, Iteration, Loaded, Memory, Sample, Started, Usage, WarmupDone,
};
use serde::{Deserialize, Serialize};

use crate::facts::agreement::{Agreement, TokenAgreement, VectorAgreement};

#[derive(Debug, Clone, PartialEq)]
pub enum Ending {
    /// The job was done.
    Done,
    /// The worker reported that it could not go on.
    Reported(protocol::Failed),
    /// It ended, or was ended, without a report by the protocol: why, and its last words.
    Broken { reason: String, last_words: Option<Foreign> },
    /// A signal that this program did not send ended the process.
    Killed { reason: String, last_words: Option<Foreign> },
    /// It could not allocate, or was killed for lack of memory.
    OutOfMemory { reason: String },
    /// The user interrupted.
    Interrupted,
    /// The time limit of the run was reached.
    OutOfTime,
}

/// The sentence about fresh kernel caches that a process left empty; `None` if there are none.
pub fn unused_caches(variables: &[String]) -> Option<String> {
    (!variables.is_empty()).then(|| {
        format!(
            "it wrote nothing into its fresh kernel cache ({}): it compiled nothing, or it reads another variable than \
             `kernel_cache` in configs/engines names",
            variables.join(", ")
        )
    })
}

/// The processes that a worker left behind, in words; `None` if there are none.
pub fn left_behind(processes: &[String]) -> Option<String> {
    (!processes.is_empty())
        .then(|| format!("processes that it started outlived it and were killed: {}", processes.join(", ")))
}

#[derive(Debug, Clone)]
pub struct Outcome {
    pub pid: u32,
    pub events: Vec<Event>,
    pub ending: Ending,
    /// Processes that outlived it and were killed, each by number and name.
    pub left_behind: Vec<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// The measurement of a round.
    #[default]
    Measure,
    /// A load after the weights were dropped from the page cache.
    ColdLoad,
}

/// One process of one contender in one round.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Run {
    pub purpose: Purpose,
    pub round: usize,
    /// A process is started again if its start was disturbed: counts from 0, and the last one counts.
    pub attempt: usize,
    /// Place within the order in which the round's processes were started, from 0.
    pub position: usize,
    pub framework: String,
    /// Process id of the worker.
    pub pid: u32,
    /// `None` when the job was done.
    pub failure: Option<RunFailure>,
    /// Every event as the worker sent it, except its answers to turns.
    pub events: Vec<Event>,
    /// Its turns, in the order they were taken.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub turns: Vec<Turn>,
    /// The stretches in which it waited for a turn; `None` if it never waited for another's.
    pub waited: Option<Waited>,
    pub seen: Option<Seen>,
    /// Its logits compared with the reference's, in the rounds in which it was asked for them.
    pub agreement: Option<Agreement>,
    /// Why there are none, although it was asked for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_agreement: Option<String>,
    /// Its timed tokens compared with the reference's.
    pub tokens: Option<TokenAgreement>,
    /// The record next to its weights, if they are derived from the bundle's.
    pub derived: Option<DerivedWeights>,
    /// Processes that outlived it and were killed, each by number and name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_behind: Vec<String>,
    /// Variables that named a fresh kernel cache for it, if it wrote nothing there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unused_caches: Vec<String>,
    /// Bytes of its fresh kernel cache on disk when it ended; `None` if it was given none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_cache_bytes: Option<u64>,
    /// Other activity of the machine while the process started, up to the end of its warm-up.
    pub noise: Option<Noise>,
}

/// The driver's observations of a process, by its own clock and its own reading of the system.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// When each event up to the end of warm-up arrived, in nanoseconds since the process was started.
    pub events_ns: Vec<u64>,
    /// Highest resident memory of one of its processes since the turns began, in bytes, before it was asked to finish; `None` where
    /// the system does not report it.
    pub peak_bytes: Option<u64>,
    /// CPU time of it and of all processes that it started, from the end of warm-up to the last turn, waits included; `None` where the
    /// system does not report it.
    pub cpu_ns: Option<u64>,
    /// The most memory of all its processes together at a change of turn, in bytes; `None` if it had only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub family_bytes: Option<u64>,
    /// The file that was started.
    pub program: Option<FileIdentity>,
    /// Its nice value (nice(2)) before it was asked to finish: the lower, the more of the CPUs it gets.
    pub nice: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<SeenLoad>,
}

/// What the driver saw of a load. `None` where the system does not tell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenLoad {
    /// Time in which the system gave as much memory before, so that the load finds it ready.
    pub ready_ns: Option<u64>,
    /// CPU time of all threads in the program's own code, and in the system on its behalf, to a hundredth of a second.
    pub cpu_ns: Option<[u64; 2]>,
}

/// One turn of a process: a request, and its place in the order.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    /// Number of the block, from 0.
    pub block: usize,
    /// A block on a noisy machine is repeated: counts from 0.
    pub repeat: usize,
    /// Place within the block's order, from 0.
    pub position: usize,
    /// Whether its figures count. Those of a repeated block do not.
    pub stands: bool,
    pub sample: Sample,
    /// Time from the driver's line to the answer that the request can begin, in nanoseconds. `None` in journals of an
    /// earlier protocol, whose first time in `seen_ns` has it, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prepared_ns: Option<u64>,
    /// Time from the driver's line to the answer, for each slice of the request, in nanoseconds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub seen_ns: Vec<u64>,
    /// Whether each step was fed the token that the request chose itself, although others are fed given ones.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub feeds_itself: bool,
    /// How far the request's vectors were from the reference's. The vectors themselves would fill a journal
    /// and are not kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vectors: Option<VectorAgreement>,
}

impl Turn {
    /// The only turn of its block, which counts.
    pub fn alone(block: usize, sample: Sample) -> Turn {
        Turn { block, stands: true, sample, ..Turn::default() }
    }
}

/// The stretches in which a process had to wait while others had their turns.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Waited {
    pub seconds: f64,
    /// CPU time that it used in them nevertheless; `None` where the system does not report it.
    pub cpu_s: Option<f64>,
    /// Whether it was stopped by a signal, and not only asked to wait.
    pub was_stopped: bool,
}

/// `FILE.json` next to a weights FILE that was derived from the bundle's, for a reference that cannot read a
/// bundle. The program that derived it recorded this; see docs/reference/frameworks.md.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DerivedWeights {
    /// A file of the bundle, by name.
    pub from: Foreign,
    pub from_sha256: Foreign,
    /// The hash of the derived file.
    pub sha256: Foreign,
    pub by: Foreign,
    /// Whether it holds exactly the numbers of the bundle's file.
    pub same_values: bool,
}

/// When a process ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Number of the round, from 0.
    pub round: usize,
    /// Number of the attempt at the round, from 0.
    pub attempt: usize,
    /// Place in the order of the round, from 0.
    pub position: usize,
}

/// A failure: the reason why a process did not do its job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunFailure {
    pub kind: FailureKind,
    pub reason: ForeignText,
    /// The last line of the worker's stderr, where it ended without reporting.
    pub last_words: Option<Foreign>,
    /// The shell line that repeats it.
    pub repeat: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    Unsupported,
    OutOfMemory,
    /// A signal that this program did not send ended the process.
    Killed,
    Failed,
    Interrupted,
}

impl RunFailure {
    pub fn new(kind: FailureKind, reason: impl Into<ForeignText>) -> RunFailure {
        RunFailure { kind, reason: reason.into(), last_words: None, repeat: None }
    }

    /// One sentence.
    pub fn sentence(&self) -> String {
        match &self.last_words {
            Some(words) if !self.reason.contains(words.as_str()) => {
                format!("{}; its last words: {words}", self.reason)
            }
            _ => self.reason.to_string(),
        }
    }

    /// The reason why the job was not done, if it was not.
    pub fn from_ending(ending: Ending) -> Option<RunFailure> {
        let (kind, reason, last_words) = match ending {
            Ending::Done => return None,
            Ending::Interrupted => (FailureKind::Interrupted, "interrupted".to_owned(), None),
            Ending::OutOfTime => {
                (FailureKind::Interrupted, "the time limit of the run was reached".to_owned(), None)
            }
            Ending::OutOfMemory { reason } => (FailureKind::OutOfMemory, reason, None),
            Ending::Killed { reason, last_words } => (FailureKind::Killed, reason, last_words),
            Ending::Broken { reason, last_words } => (FailureKind::Failed, reason, last_words),
            Ending::Reported(failed) => {
                let kind = match failed.kind {
                    protocol::FailureKind::Unsupported => FailureKind::Unsupported,
                    protocol::FailureKind::Input | protocol::FailureKind::Failed => FailureKind::Failed,
                };
                let reason = failed.reason.trim_start_matches("unsupported: ").to_owned();
                (kind, reason, None)
            }
        };
        Some(RunFailure { kind, reason: reason.into(), last_words, repeat: None })
    }
}

/// The first event of one kind.
macro_rules! event {
    ($name:ident, $variant:ident, $type:ty) => {
        /// The event of this kind, if it came.
        pub fn $name(&self) -> Option<&$type> {
            self.events.iter().find_map(|event| match event {
                Event::$variant(inner) => Some(inner),
                _ => None,
            })
        }
    };
}

impl Run {
    /// A process that has ended, before it is judged.
    pub fn new(purpose: Purpose, place: Place, framework: &str, outcome: Outcome) -> Run {
        let Outcome { pid, events, ending, left_behind } = outcome;
        let failure = RunFailure::from_ending(ending);
        Run { failure, left_behind, ..Run::of_events(purpose, place, framework, pid, events) }
    }

    /// A process that has sent these events so far.
    pub fn of_events(purpose: Purpose, place: Place, framework: &str, pid: u32, events: Vec<Event>) -> Run {
        let Place { round, attempt, position } = place;
        Run {
            purpose,
            round,
            attempt,
            position,
            framework: framework.to_owned(),
            pid,
            events,
            ..Run::default()
        }
    }

    event!(hello, Hello, Hello);
    event!(started, Started, Started);
    event!(loaded, Loaded, Loaded);
    event!(cold_start, ColdStart, ColdStart);
    event!(warmup, Warmup, WarmupDone);
    event!(usage, Usage, Usage);

    /// The measured requests that count, each with the number of its case, in order.
    pub fn requests(&self) -> impl Iterator<Item = (usize, &Sample)> {
        self.turns.iter().filter(|turn| turn.stands).map(|turn| (turn.sample.case, &turn.sample))
    }

    /// Whether no other activity disturbed its start.
    pub fn is_quiet(&self) -> bool {
        self.noise.as_ref().is_none_or(|noise| noise.complaints().is_empty())
    }

    /// Every measured request, including those of repeated blocks.
    pub fn all_requests(&self) -> Vec<&Sample> {
        let aside = self.turns.iter().filter(|turn| !turn.stands).map(|turn| &turn.sample);
        self.requests().map(|(_, sample)| sample).chain(aside).collect()
    }

    /// The measured requests that count, by iterations: each holds every case once, in order of their numbers. An iteration
    /// that was cut short is left out.
    pub fn iterations(&self) -> Vec<Iteration> {
        let requests: Vec<(usize, &Sample)> = self.requests().collect();
        let warm = self.warmup().and_then(|warmup| warmup.iterations.first());
        let different = || requests.iter().map(|(case, _)| case).collect::<BTreeSet<_>>().len();
        let whole = warm.map_or_else(different, |iteration| iteration.cases.len());
        let mut iterations: Vec<Iteration> = Vec::new();
        for requests in requests.chunks_exact(whole.max(1)) {
            let mut cases: Vec<(usize, &Sample)> = requests.to_vec();
            cases.sort_by_key(|(case, _)| *case);
            if cases.iter().enumerate().all(|(place, (case, _))| *case == place) {
                let cases = cases.into_iter().map(|(_, sample)| sample.clone()).collect();
                iterations.push(Iteration { index: iterations.len(), cases });
            }
        }
        iterations
    }

    /// The device that the worker computed on, as it observed it; a worker that never loaded has none.
    pub fn device(&self) -> Option<&str> {
        Some(self.loaded()?.in_effect.device.as_str())
    }

    /// The turns whose figures count, each with the round and the contender's label.
    pub fn standing_turns(&self) -> impl Iterator<Item = (usize, &str, &Turn)> {
        let stand = self.turns.iter().filter(|turn| turn.stands);
        stand.map(|turn| (self.round, self.framework.as_str(), turn))
    }

    /// Spawn → weights resident, less the worker's own readings, in nanoseconds: what is loaded before the framework is
    /// said to be ready counts, too. If the worker does not say when that was, the driver does.
    pub fn load_ns(&self) -> Option<u64> {
        let told = self.started().and_then(|started| started.startup_ns);
        let saw = || self.arrived_ns(|event| matches!(event, Event::Started(_)));
        Some(self.loaded()?.load_ns.saturating_add(told.or_else(saw).unwrap_or(0)))
    }

    /// When an event arrived, in nanoseconds since the spawn, by the driver's clock.
    pub fn arrived_ns(&self, is_it: fn(&Event) -> bool) -> Option<u64> {
        let place = self.events.iter().position(is_it)?;
        self.seen.as_ref()?.events_ns.get(place).copied()
    }

    /// Highest memory, in bytes. On the host: that of the process by its own reading or the driver's,
    /// whichever is larger. On a GPU: the most that the process was seen to hold there at the end of a phase
    /// or after a request. `None` where the system or the GPU's driver does not report it.
    pub fn peak_bytes(&self) -> Option<u64> {
        if self.device().is_none_or(|device| device == "cpu") {
            let own = self.usage()?.peak_bytes?;
            let seen = self.seen.as_ref().and_then(|seen| seen.peak_bytes.max(seen.family_bytes));
            return Some(own.max(seen.unwrap_or(0)));
        }
        let after_loading = [
            self.loaded().map(|loaded| &loaded.memory),
            self.cold_start().map(|cold| &cold.memory),
            self.warmup().map(|warmup| &warmup.memory),
        ];
        let held = |memory: &Memory| memory.gpu.as_ref().map(|gpu| gpu.bytes);
        let usage = self.usage()?;
        let last = held(&usage.memory)?;
        let between = usage.gpu.as_ref().and_then(|gpu| gpu.held_most_bytes);
        after_loading.into_iter().flatten().filter_map(held).chain([last]).chain(between).max()
    }

    pub fn is_complete(&self) -> bool {
        self.failure.is_none()
    }
}

// Other activity of the machine while a worker was measured (rule R12), and the limits of noise.

/// The limits of noise. Shares are of the time of the CPUs that the workers may use.
pub struct Limits {
    /// Share used by other processes.
    pub foreign: f64,
    /// Share that the hypervisor took for other machines.
    pub stolen: f64,
    /// Share that a cgroup's quota withheld.
    pub throttled: f64,
    /// Slowdown of fixed arithmetic against its best time in this comparison, as a share.
    pub drift: f64,
}

/// A background process that takes a tenth of the CPUs slows a worker on all CPUs by a tenth, which is five times the
/// margin of equivalence. Interrupts, timers and a monitoring agent stay far below these limits.
pub const LIMITS: Limits = Limits { foreign: 0.10, stolen: 0.05, throttled: 0.02, drift: 0.10 };

/// Other activity of the machine in a stretch of time. `None` means "not available".
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Noise {
    /// Length of the stretch.
    pub seconds: f64,
    /// Share of the CPUs' time that other processes used.
    pub foreign: Option<f64>,
    /// Share that the hypervisor took for other machines.
    pub stolen: Option<f64>,
    /// Share that a cgroup's quota withheld.
    pub throttled: Option<f64>,
    /// Number of times that the CPU slowed down because of heat.
    pub thermal_events: Option<u64>,
    /// Number of other processes that computed on the GPU.
    pub foreign_gpu_processes: Option<usize>,
    /// Causes that slowed the GPU down at the end, in words; only unintended ones: heat, not the power limit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpu_held_back: Vec<String>,
    /// What another program did to a worker while that waited, in words: it changed its CPUs or its priority, or continued
    /// it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changed: Vec<String>,
    /// Number of tasks that ran or wanted to run, at the end.
    pub runnable: Option<u64>,
    /// The one-minute load average at the end.
    pub load: Option<f64>,
}

impl Noise {
    /// The values above the limits, in words. Empty on a quiet machine.
    pub fn complaints(&self) -> Vec<String> {
        let mut complaints = Vec::new();
        let mut share = |value: Option<f64>, limit: f64, what: &str| {
            if let Some(value) = value.filter(|&value| value > limit) {
                complaints.push(format!("{what} {:.0} % of the CPUs' time", value * 100.0));
            }
        };
        share(self.foreign, LIMITS.foreign, "other processes used");
        share(self.stolen, LIMITS.stolen, "the hypervisor took");
        share(self.throttled, LIMITS.throttled, "a cgroup's quota withheld");
        if let Some(events) = self.thermal_events.filter(|&events| events > 0) {
            complaints.push(format!("the CPU slowed down because of heat ({events} events)"));
        }
        if let Some(count) = self.foreign_gpu_processes.filter(|&count| count > 0) {
            complaints.push(match count {
                1 => "another process computed on the GPU".to_owned(),
                count => format!("{count} other processes computed on the GPU"),
            });
        }
        if !self.gpu_held_back.is_empty() {
            complaints.push(format!("the GPU was slowed down by {}", self.gpu_held_back.join(" and ")));
        }
        if !self.changed.is_empty() {
            let what = self.changed.join(" and ");
            complaints.push(format!("another program acted on a worker that waited: it {what}"));
        }
        complaints
    }
}

// The machine and the checkout of a result. A value that the system does not report is `null`.

/// The facts that a result depends on, besides the plan.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// Name of the machine.
    pub host: String,
    /// The operating system, with its version.
    pub os: Option<String>,
    pub kernel: Option<String>,
    /// The processor's own name for itself.
    pub cpu: String,
    /// Which processor it is, where its name does not say that: "AuthenticAMD, family 25, model 17, stepping 1"; `null`
    /// where the system does not report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_family: Option<String>,
    /// Caches that a core can use, with their sizes: "L1d 32K", "L3 32768K".
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cpu_caches: Vec<String>,
    /// Threads that share a core, and so its units of matrix products; `null` where the system does not report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads_per_core: Option<usize>,
    /// Extensions of the processor that products may use, as Linux names them: `avx512_bf16`, `amx_int8`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cpu_extensions: Vec<String>,
    /// Whether the processor says that a hypervisor runs below the system; `null` where the system does not report.
    pub is_virtual: Option<bool>,
    pub physical_cores: Option<usize>,
    /// Cores that this process may use, by affinity and quota.
    pub available_cores: usize,
    /// The CPUs' frequency governor; `null` where there is none.
    pub governor: Option<String>,
    /// Quota of a cgroup, in CPUs; `null` without a limit.
    pub cpu_quota: Option<f64>,
    /// Priority of the processes, from -20, the highest, to 19 (`nice`); `null` where the system does not report.
    pub priority: Option<i32>,
    /// Memory modules with their speed: "4 of DDR5 at 4800 MT/s"; `null` where the system does not report.
    pub memory_modules: Option<String>,
    pub memory_bytes: u64,
    /// NVIDIA's GPUs, as NVML lists them.
    pub gpus: Vec<Gpu>,
    /// The commit that is checked out; `None` outside a checkout with git.
    pub git_commit: Option<String>,
    /// Whether tracked files differ from the commit.
    pub git_modified: Option<bool>,
    pub driver_version: String,
    /// The command as it was given, without values that may be secret.
    pub command: Vec<String>,
    /// Start of the run, RFC 3339, UTC.
    pub started: String,
}

impl Environment {
    /// The hardware that computes, in words.
    pub fn processor(&self, device: &str) -> String {
        let number = protocol::gpus(device).first().copied();
        match number.and_then(|number| self.gpus.get(number)) {
            Some(gpu) => gpu.name.clone(),
            None if self.is_virtual == Some(true) => format!("{} (virtual machine)", self.cpu),
            None => self.cpu.clone(),
        }
    }
}

/// One GPU, as its driver describes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Gpu {
    pub name: String,
    pub memory_bytes: Option<u64>,
    pub driver: Option<String>,
    /// Newest CUDA that the driver can run, for example `13.0`.
    pub cuda: Option<String>,
}

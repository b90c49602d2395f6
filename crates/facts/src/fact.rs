//! The facts that a comparison consists of. Each is a line of `samples.jsonl`.

use std::collections::BTreeMap;

use protocol::{Event, FileIdentity, Probed};
use serde::{Deserialize, Serialize};
use untrusted::Foreign;

use crate::agreement::{Agreement, TokenAgreement};
use crate::noise::Noise;
use crate::run::{DerivedWeights, Run, RunFailure, Seen, Turn, Waited};
use crate::text::QualityScore;

/// One fact found while measuring: a line of `samples.jsonl`. All evidence consists of these, measured just
/// now or read back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "fact", rename_all = "snake_case")]
pub enum Fact {
    /// Quota of a cgroup, in CPUs, if it has a limit.
    Quota {
        /// The quota in CPUs; `None` without a limit.
        cpus: Option<f64>,
    },
    /// A weights file of the bundle that this program has hashed before the run.
    Hashed { identity: FileIdentity, sha256: String },
    /// The machine before the first round.
    Before { noise: Noise },
    /// A contender that cannot run, or cannot continue.
    Absent { framework: String, failure: RunFailure },
    /// The files needed to run a contender without its model.
    Shipped { framework: String, shipped: Shipped },
    /// The reason why no contender can give the reference.
    NoReference { reason: String },
    /// Why requests are fed the reference's own continuation, traces of earlier rounds, or their own tokens, so that their
    /// answers could be known without computing.
    OwnTraces { reason: String },
    /// A process of a worker that has ended.
    Run(Box<Run>),
    /// A measuring process that is warm and waits for its turns. Until its end is recorded it counts as
    /// interrupted.
    Warm(Box<Run>),
    /// A block: each process of a round that waits had one turn.
    Block(Block),
    /// The end of a process that was warm.
    Ended(Box<Ended>),
    /// The number of blocks of this round and those after it, and the basis of that choice.
    Blocks(BlocksChosen),
    /// The most rounds that the time budget allows, from the costs of the first two. The error rate is spent over these.
    Allowed { rounds: usize },
    /// How contenders take turns in every block.
    Slices { slices: Slices },
    /// Where the wall time went so far, in seconds by stage. The latest one counts.
    Time { stages: Stages },
    /// The machine's own speed at one moment.
    Probe(Probe),
    /// The latest probe is also the one right before this process.
    ProbedBefore { process: Process },
    /// Whether the machine can be probed: the reason why not, or `null` if a worker can.
    NoProbe { reason: Option<String> },
    /// Other activity during a round, from its first process to its last.
    Watched { noise: Noise },
    /// The guard's complaints.
    Complaint { reason: String },
    /// The round is repeated, or one process of it if that is named: its figures so far are set aside.
    PutAside {
        round: usize,
        #[serde(default)]
        framework: Option<String>,
    },
    /// The round is complete: every remaining contender has run in it.
    RoundDone,
    /// How long turning the texts of each case into token ids takes, in nanoseconds: the median of a round, or the reason
    /// why it is not known.
    Tokenised { ns: Result<Vec<u64>, String> },
    /// Score of the plan's text by a contender, or the reason why there is none.
    Text { framework: String, score: Result<QualityScore, String> },
    /// The reason why no more rounds were run.
    End { end: End },
}

impl Fact {
    /// Reads a line of `samples.jsonl`. The error completes "the line is not …"; the caller adds its number.
    pub fn read(line: &str) -> Result<Fact, String> {
        serde_json::from_str(line).map_err(|error| {
            let text = error.to_string();
            let end = text.rfind(" at line ").unwrap_or(text.len());
            let hint = if line.contains("\"first_token_ns\"") {
                " (it is of a worker before protocol 8: measure again)"
            } else {
                ""
            };
            format!("not a fact of a run: {}{hint}", &text[..end])
        })
    }
}

/// Size of the files needed to run a contender without its model (`docs/how-to/footprint.md`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shipped {
    pub bytes: u64,
    pub files: usize,
}

/// One block of a round: the turn of each process, and the machine's activity meanwhile.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Block {
    /// Number of the round, from 0.
    pub round: usize,
    /// The turns, each with the label of its contender, in the order they were taken.
    pub turns: Vec<(String, Turn)>,
    /// For each pass over the members, the order in which they had their slices, each by its contender's place in the
    /// plan. Empty if each had one turn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub passes: Vec<Vec<usize>>,
    /// Other activity during the block.
    pub noise: Noise,
}

/// The end of a process that was warm.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    pub process: Process,
    /// The events after its last turn.
    pub events: Vec<Event>,
    /// `None` when the job was done.
    pub failure: Option<RunFailure>,
    pub waited: Option<Waited>,
    #[serde(default)]
    pub seen: Option<Seen>,
    pub agreement: Option<Agreement>,
    /// Why there is none, although the process was asked for logits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_agreement: Option<String>,
    pub tokens: Option<TokenAgreement>,
    pub derived: Option<DerivedWeights>,
    /// Processes that outlived it and were killed, each by number and name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_behind: Vec<String>,
    /// Variables that named a fresh kernel cache for it, if it wrote nothing there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unused_caches: Vec<String>,
}

/// The number of blocks of a round, chosen from costs and variances (Kalibera & Jones 2013): before the first block, and
/// again after each round.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct BlocksChosen {
    /// The first round that has so many.
    #[serde(default)]
    pub from_round: usize,
    pub blocks: usize,
    /// Seconds of a round up to its first block, and of each block.
    pub process_s: f64,
    pub block_s: f64,
    /// Standard deviation of a pair's log ratio from block to block, as far as it is known: the measured
    /// value pooled with the prior.
    pub within: f64,
    /// The same from round to round, beyond the part that blocks explain.
    pub between: f64,
    /// The most that the time budget leaves room for.
    pub most: usize,
}

/// How contenders take turns within requests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Slices {
    /// After so many tokens each that count for decoding, preceded by so many that do not.
    Tokens { tokens: usize, lead_in: usize },
    /// No turns within requests: each turn is a whole request.
    Whole { reason: String },
}

/// Seconds of wall time, by stage.
pub type Stages = BTreeMap<Stage, f64>;

/// The stages on which the wall time of a comparison is spent.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, strum::IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Stage {
    /// Handshakes with workers, and waiting for a quiet machine.
    Before,
    /// The reference run.
    Reference,
    /// Loads from a cold page cache.
    ColdLoads,
    /// Blocks that only served to choose their number: in journals from before November 2026.
    Pilot,
    /// Starting processes: load, cold start, warm-up.
    Starts,
    /// Probing the machine.
    Probes,
    /// Timed requests.
    Requests,
    /// The rest of the turns: untimed passes, pauses, handing over.
    Turns,
    /// After the last sample: usage, hashes, logits.
    Finishing,
    /// Comparing outputs with the reference's, and deciding whether to go on.
    Judging,
}

/// A measuring process, by the values that identify it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Number of the round, from 0.
    pub round: usize,
    /// Number of the attempt at it, from 0.
    pub attempt: usize,
    pub framework: String,
}

impl Process {
    /// The name of a run's process.
    pub fn new(run: &Run) -> Process {
        let Run { round, attempt, ref framework, .. } = *run;
        Process { round, attempt, framework: framework.clone() }
    }

    /// Whether this is the run's process.
    pub fn is(&self, run: &Run) -> bool {
        (self.round, self.attempt) == (run.round, run.attempt) && self.framework == run.framework
    }
}

/// The reason why no more rounds were run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum End {
    /// All requested rounds were run, or the most that automatic rounds allow.
    #[default]
    Planned,
    /// Every verdict on throughput was clear, or its interval narrower than the margin.
    Clear,
    /// The time budget was used up.
    Budget,
    /// No contender was left to measure.
    NobodyLeft,
    /// The machine stayed noisy: no verdict is possible.
    Noisy { reason: String },
    /// The user interrupted.
    Interrupted,
    /// The program itself was ended before it could say why.
    Killed,
}

impl End {
    /// Whether the decision to stop was independent of the figures. If so, the rest of the error rate may be spent.
    pub fn is_last_look(&self) -> bool {
        matches!(self, End::Planned | End::Budget)
    }
}

/// The machine's speed at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    /// The processes measured just before it, and those measured next if nothing ran in between.
    pub after: Vec<Process>,
    pub before: Vec<Process>,
    /// Time of a fixed piece of arithmetic.
    pub compute_ns: u64,
    /// Slowdown against the fastest so far, as a share.
    pub drift: f64,
    /// Bytes per second: over all sweeps, and in the fastest.
    pub read_bandwidth: f64,
    pub best_read_bandwidth: f64,
    /// Operations per second: over all bursts, and in the fastest.
    pub arithmetic: f64,
    pub best_arithmetic: f64,
    /// Bytes that one sweep read.
    pub bytes: u64,
    /// Number of threads of the probe.
    pub threads: usize,
    /// The probed device: `cpu`, or a GPU.
    #[serde(default = "cpu")]
    pub device: Foreign,
    /// The element type of the arithmetic.
    #[serde(default = "f32_name")]
    pub precision: Foreign,
}

fn cpu() -> Foreign {
    "cpu".into()
}

fn f32_name() -> Foreign {
    "f32".into()
}

impl Probe {
    /// A worker's readings, not yet assigned to a process.
    pub fn new(probed: &Probed, drift: f64) -> Probe {
        let rate = |work: u64, times: &[u64]| {
            let (mean, best) = (times.iter().sum::<u64>() as f64, times.iter().min().copied().unwrap_or(0));
            let per_second = |ns: f64, count: usize| work as f64 * count as f64 / (ns.max(1.0) / 1e9);
            (per_second(mean, times.len()), per_second(best as f64, 1))
        };
        let (read_bandwidth, best_read_bandwidth) = rate(probed.bytes, &probed.sweeps_ns);
        let (arithmetic, best_arithmetic) = rate(probed.operations, &probed.multiply_adds_ns);
        Probe {
            after: Vec::new(),
            before: Vec::new(),
            compute_ns: probed.compute_ns,
            drift,
            read_bandwidth,
            best_read_bandwidth,
            arithmetic,
            best_arithmetic,
            bytes: probed.bytes,
            threads: probed.threads,
            device: probed.device.clone().unwrap_or_else(cpu),
            precision: probed.precision.clone().unwrap_or_else(f32_name),
        }
    }
}

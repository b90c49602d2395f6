//! All measurements of one comparison, and how it ended.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use configs::OwnCode;
use protocol::untrusted::Foreign;
use protocol::{Event, FileIdentity, Probed, Unit};
use serde::{Deserialize, Serialize};
use statistics::Looks;

use crate::facts::agreement::{Agreement, QualityScore, TokenAgreement, Tolerance};
use crate::facts::arithmetic::Arithmetic;
use crate::facts::impossible;
use crate::facts::run::{DerivedWeights, Noise, Purpose, Run, RunFailure, Seen, Turn, Waited};
use crate::plan::{Plan, Rounds};

/// All measurements of one comparison, and how it ended.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Evidence {
    /// The measuring processes of every round, from the attempt that counts.
    pub runs: Vec<Run>,
    /// Processes that were started again, and those of noisy rounds that were repeated.
    pub repeated: Vec<Run>,
    /// The numbers of blocks, if the plan does not fix them.
    pub blocks: Vec<BlocksChosen>,
    /// The most rounds that the time budget allows, if it was known.
    pub allowed: Option<usize>,
    /// How contenders took turns within requests.
    pub slices: Option<Slices>,
    /// Where the wall time went.
    pub time: Stages,
    /// Processes that loaded from a cold page cache.
    pub cold_loads: Vec<Run>,
    /// Probes of the machine's speed between processes.
    pub probes: Vec<Probe>,
    /// Contenders that cannot run, by label.
    pub absent: BTreeMap<String, RunFailure>,
    /// Files needed to run a contender, by label.
    pub shipped: BTreeMap<String, Shipped>,
    /// The reason why no contender can give the reference.
    pub no_reference: Option<String>,
    /// Why the answers of requests could be known without computing.
    pub own_traces: Option<String>,
    /// How long the texts of each case take to become token ids, in nanoseconds, by round, or the reason why it is not
    /// known.
    pub tokenised: Vec<Result<Vec<u64>, String>>,
    /// Score of the plan's text by each contender's label, or the reason why there is none.
    pub texts: BTreeMap<String, Result<QualityScore, String>>,
    /// What each contender multiplies in, by label, or why that is not known.
    pub arithmetic: BTreeMap<String, Result<Vec<Arithmetic>, String>>,
    /// How much of each contender's CPU time is arithmetic of its own, by label, or why that is not known.
    pub own_code: BTreeMap<String, Result<OwnCode, String>>,
    /// Number of complete rounds.
    pub rounds: usize,
    /// The reason why there are no more.
    pub end: End,
    /// The machine before the first round.
    pub before: Option<Noise>,
    /// Other activity in every round, from its first process to its last. Repeated rounds are included.
    pub noises: Vec<Noise>,
    /// The guard's complaints by round, whether the round was repeated or accepted.
    pub complaints: Vec<String>,
    /// Weights files that were hashed before the run.
    pub hashed: Vec<(FileIdentity, String)>,
    /// Quota of a cgroup, in CPUs, if it has a limit.
    pub quota: Option<f64>,
    /// The reason why the probe of the machine has no figures.
    pub no_probe: Option<String>,
}

/// The rounds after which the evidence is looked at: over those that the time budget allows, where they are known.
pub fn looks(rounds: Rounds, allowed: Option<usize>) -> Looks {
    match rounds {
        Rounds::Auto { max, .. } => Looks::automatic(allowed.map_or(max, |rounds| rounds.min(max))),
        Rounds::Fixed(rounds) => Looks::fixed(rounds),
    }
}

impl Evidence {
    pub fn note(&mut self, fact: Fact) {
        match fact {
            Fact::Quota { cpus } => self.quota = cpus,
            Fact::Hashed { identity, sha256 } => self.hashed.push((identity, sha256)),
            Fact::Before { noise } => self.before = Some(noise),
            Fact::Absent { framework, failure } => {
                self.absent.insert(framework, failure);
            }
            Fact::Shipped { framework, shipped } => {
                self.shipped.insert(framework, shipped);
            }
            Fact::Arithmetic { framework, observed } => {
                self.arithmetic.insert(framework, observed);
            }
            Fact::OwnCode { framework, observed } => {
                self.own_code.insert(framework, observed);
            }
            Fact::NoReference { reason } => self.no_reference = Some(reason),
            Fact::OwnTraces { reason } => self.own_traces = Some(reason),
            Fact::Run(run) if run.purpose == Purpose::ColdLoad => self.cold_loads.push(*run),
            Fact::Run(run) => self.runs.push(*run),
            Fact::Warm(run) => self.runs.push(*run),
            Fact::Block(block) => self.note_block(block),
            Fact::Ended(ended) => self.note_end(*ended),
            Fact::Compared { process, tokens, agreement } => {
                if let Some(run) = self.runs.iter_mut().find(|run| process.is(run)) {
                    let known = run.agreement.take();
                    run.agreement = match (agreement, tokens) {
                        (Some(agreement), _) => Some(*agreement),
                        (None, Some(tokens)) => known.map(|known| known.with(&tokens)),
                        (None, None) => known,
                    };
                    run.tokens = tokens.or(run.tokens);
                }
            }
            Fact::Blocks(chosen) => self.blocks.push(chosen),
            Fact::Allowed { rounds } => self.allowed = Some(rounds),
            Fact::Slices { slices } => self.slices = Some(slices),
            Fact::Time { stages } => self.time = stages,
            Fact::Probe(probe) => self.probes.push(probe),
            Fact::ProbedBefore { process } => {
                if let Some(probe) = self.probes.last_mut() {
                    probe.before.push(process);
                }
            }
            Fact::NoProbe { reason } => self.no_probe = reason,
            Fact::Watched { noise } => self.noises.push(noise),
            Fact::Complaint { reason } => self.complaints.push(reason),
            Fact::PutAside { round, framework } => {
                let is_it = |run: &mut Run| {
                    run.round == round && framework.as_ref().is_none_or(|label| run.framework == *label)
                };
                self.repeated.extend(self.runs.extract_if(.., is_it));
            }
            Fact::RoundDone => self.rounds += 1,
            Fact::Tokenised { ns } => self.tokenised.push(ns),
            Fact::Text { framework, score } => {
                self.texts.insert(framework, score);
            }
            Fact::End { end } => self.end = end,
        }
    }

    /// Adds a block's turns to the processes that took them.
    fn note_block(&mut self, block: Block) {
        for (label, turn) in block.turns {
            let mut of_round = self.runs.iter_mut().rev();
            if let Some(run) = of_round.find(|run| run.round == block.round && run.framework == label) {
                run.turns.push(turn);
            }
        }
    }

    pub fn looks(&self, plan: &Plan) -> Looks {
        looks(plan.rounds, self.allowed)
    }

    /// Why there are no more rounds. Out of time comes first: if every verdict was clear when the time was up, no further
    /// look could have followed, whatever the figures.
    pub fn ended(&self, plan: &Plan) -> End {
        match &self.end {
            End::Clear if self.is_out_of_time(plan) => End::Budget,
            end => end.clone(),
        }
    }

    /// Whether no further look could have followed, whatever the figures: the rest of the error rate may be spent.
    pub fn is_last_look(&self, plan: &Plan) -> bool {
        self.ended(plan).is_last_look()
    }

    /// Whether the time budget had no room for another round, by the times in the journal.
    fn is_out_of_time(&self, plan: &Plan) -> bool {
        let (Rounds::Auto { budget_s, .. }, Some(chosen)) = (plan.rounds, self.blocks.last()) else {
            return false;
        };
        let used_s: f64 =
            self.time.iter().filter(|(stage, _)| **stage != Stage::Before).map(|(_, s)| s).sum();
        used_s + chosen.process_s + chosen.blocks as f64 * chosen.block_s > budget_s
    }

    /// Number of processes that a contender has had in a round.
    pub fn attempts(&self, round: usize, label: &str) -> usize {
        let all = self.runs.iter().chain(&self.repeated);
        all.filter(|run| run.round == round && run.framework == label).count()
    }

    pub fn run(&self, process: &Process) -> Option<&Run> {
        self.runs.iter().find(|run| process.is(run))
    }

    fn note_end(&mut self, ended: Ended) {
        if let Some(run) = self.runs.iter_mut().find(|run| ended.process.is(run)) {
            run.events.extend(ended.events);
            (run.failure, run.waited, run.seen) = (ended.failure, ended.waited, ended.seen);
            (run.agreement, run.no_agreement) = (ended.agreement, ended.no_agreement);
            (run.tokens, run.derived) = (ended.tokens, ended.derived);
            (run.left_behind, run.unused_caches) = (ended.left_behind, ended.unused_caches);
            run.kernel_cache_bytes = ended.kernel_cache_bytes;
        }
    }

    /// The evidence of a journal. A journal without an end belongs to a run that was killed.
    pub fn from_facts(facts: impl IntoIterator<Item = Fact>) -> Evidence {
        let mut evidence = Evidence { end: End::Killed, ..Evidence::default() };
        for fact in facts {
            evidence.note(fact);
        }
        evidence.end_impossible();
        evidence
    }

    /// Applies to a journal the rule that applies while measuring: a process with an impossible reading has
    /// failed, and its contender does not run again. A journal may come from anyone.
    fn end_impossible(&mut self) {
        for run in self.runs.iter_mut().chain(&mut self.repeated) {
            if let Some(failure) = impossible::end(run) {
                self.absent.entry(run.framework.clone()).or_insert(failure);
            }
        }
        self.cold_loads.iter_mut().for_each(|run| drop(impossible::end(run)));
        let is_share = |share: &f64| (0.0..=1.0).contains(share);
        self.own_code.retain(|_, own| match own {
            Ok(own) => is_share(&own.decode) && is_share(&own.prefill),
            Err(_) => true,
        });
        let probes = self.probes.len();
        self.probes.retain(impossible::is_possible);
        if self.probes.is_empty() && probes > 0 {
            self.no_probe = Some("its probes have impossible readings".to_owned());
        }
    }

    /// Checks every process against today's tolerances, as far as its stored values allow.
    pub fn rejudged(mut self, plan: &Plan) -> Evidence {
        for run in self.runs.iter_mut().chain(&mut self.repeated) {
            if let Some(contender) = plan.contender(&run.framework) {
                run.agreement = run
                    .agreement
                    .take()
                    .map(|agreement| agreement.rejudged(Tolerance::for_work(contender, &plan.work)));
            }
        }
        self
    }

    /// Iterations of each process of a round: those that the plan sets, or those that result from the number
    /// of blocks chosen for that round.
    pub fn iterations(&self, plan: &Plan, round: usize) -> usize {
        let cases = plan.work.cases().max(1);
        let chosen = self.blocks.iter().rfind(|chosen| chosen.from_round <= round);
        chosen.map_or(plan.iterations, |chosen| chosen.blocks / cases)
    }

    /// The complete measuring processes of one contender.
    pub fn complete<'a>(&'a self, label: &'a str) -> impl Iterator<Item = &'a Run> {
        self.runs.iter().filter(move |run| run.framework == label && run.is_complete())
    }
}

// The facts that a comparison consists of. Each is a line of `samples.jsonl`.

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
    /// The timed requests of a process, compared with a reference after they were timed.
    Compared {
        process: Process,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tokens: Option<TokenAgreement>,
        /// That of its vectors or tensors, for work without tokens.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        agreement: Option<Box<Agreement>>,
    },
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
    PutAside { round: usize, framework: Option<String> },
    /// The round is complete: every remaining contender has run in it.
    RoundDone,
    /// How long turning the texts of each case into token ids takes, in nanoseconds: the median of a round, or the reason
    /// why it is not known.
    Tokenised { ns: Result<Vec<u64>, String> },
    /// Score of the plan's text by a contender, or the reason why there is none.
    Text { framework: String, score: Result<QualityScore, String> },
    /// What a contender multiplies in, at each number of rows, or the reason why that is not known.
    Arithmetic { framework: String, observed: Result<Vec<Arithmetic>, String> },
    /// How much of a contender's CPU time is arithmetic of its own, or the reason why that is not known.
    OwnCode { framework: String, observed: Result<OwnCode, String> },
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

/// Size of the files needed to run a contender without its model (`docs/how-to/install.md`).
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
    /// Bytes of its fresh kernel cache on disk when it ended; `None` if it was given none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_cache_bytes: Option<u64>,
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

/// Seconds that rounds took, without what comes before the first and after the last; `None` if that is not known.
pub fn of_rounds(stages: &Stages) -> Option<f64> {
    let of = [Stage::Starts, Stage::Probes, Stage::Requests, Stage::Turns, Stage::Finishing, Stage::Judging];
    let seconds: f64 = of.iter().filter_map(|stage| stages.get(stage)).sum();
    (seconds > 0.0).then_some(seconds)
}

/// The stages on which the wall time of a comparison is spent.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, strum::IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Stage {
    /// Handshakes with workers, and waiting for a quiet machine.
    Before,
    Reference,
    ColdLoads,
    /// Blocks that only served to choose their number: in journals from before November 2026.
    Pilot,
    /// Starting processes: load, cold start, warm-up.
    Starts,
    Probes,
    Requests,
    /// The rest of the turns: untimed passes, pauses, handing over.
    Turns,
    /// After the last sample: usage, hashes, logits.
    Finishing,
    /// Comparing outputs with the reference's, and deciding whether to go on.
    Judging,
}

/// A measuring process, by the values that identify it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Process {
    /// Number of the round, from 0.
    pub round: usize,
    /// Number of the attempt at it, from 0.
    pub attempt: usize,
    pub framework: String,
}

impl Process {
    pub fn new(run: &Run) -> Process {
        let Run { round, attempt, ref framework, .. } = *run;
        Process { round, attempt, framework: framework.clone() }
    }

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
    pub threads: usize,
    /// The probed device: `cpu`, or a GPU.
    #[serde(default = "cpu")]
    pub device: Foreign,
    /// The element type of the arithmetic.
    #[serde(default = "f32_name")]
    pub precision: Foreign,
    /// Operations per second of each unit for narrower numbers that the CPU has, over all bursts.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub units: BTreeMap<Unit, f64>,
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
            units: probed.units.iter().map(|it| (it.unit, rate(it.operations, &it.times_ns).0)).collect(),
        }
    }
}

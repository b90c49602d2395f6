//! All measurements of one comparison, and how it ended.

use std::collections::BTreeMap;

use plan::Plan;
use protocol::Probed;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use crate::noise::Noise;
use crate::run::{FailureKind, Purpose, Run, RunFailure};
use crate::text::TextScore;

/// One fact found while measuring: a line of `samples.jsonl`. All evidence is made of these, measured just now or read
/// back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "fact", rename_all = "snake_case")]
pub enum Fact {
    /// Quota of a cgroup, in CPUs, if it has a limit.
    Quota {
        /// The quota in CPUs; `None` without a limit.
        cpus: Option<f64>,
    },
    /// The machine before the first round.
    Before { noise: Noise },
    /// A contender that cannot run, or cannot continue.
    Absent { framework: String, failure: RunFailure },
    /// The reason why nobody can give the reference.
    NoReference { reason: String },
    /// A process of a worker.
    Run(Box<Run>),
    /// The machine's own speed at one moment.
    Probe(Probe),
    /// The latest probe also stands right before this process.
    ProbedBefore { process: Process },
    /// Whether the machine can be probed: the reason why not, or `null` if a worker can.
    NoProbe { reason: Option<String> },
    /// Other activity during a round, from its first process to its last.
    Watched { noise: Noise },
    /// The guard's complaints.
    Complaint { reason: String },
    /// The round is repeated: its figures so far are put aside.
    PutAside { round: usize },
    /// The round is complete: every remaining contender has run in it.
    RoundDone,
    /// Score of the plan's text by a contender, or the reason why there is none.
    Text { framework: String, score: Result<TextScore, String> },
    /// The reason why no more rounds were run.
    End { end: End },
}

impl Fact {
    /// Reads a line of `samples.jsonl`. The lines of schema 2 hold only processes and have no tag. The error completes
    /// "the line is not …"; the caller adds its number.
    pub fn read(line: &str) -> Result<Fact, String> {
        #[derive(Deserialize)]
        struct Tag {
            fact: Option<IgnoredAny>,
        }
        let plain = |error: serde_json::Error| {
            let text = error.to_string();
            let end = text.rfind(" at line ").unwrap_or(text.len());
            format!("not a fact of a run: {}", &text[..end])
        };
        let tag: Tag = serde_json::from_str(line).map_err(plain)?;
        match tag.fact {
            Some(_) => serde_json::from_str(line).map_err(plain),
            None => Ok(Fact::Run(serde_json::from_str(line).map_err(plain)?)),
        }
    }
}

/// All measurements of one comparison, and how it ended.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Evidence {
    /// The measuring processes of every round, from the attempt that counts.
    pub runs: Vec<Run>,
    /// The processes of noisy rounds that were repeated.
    pub repeated: Vec<Run>,
    /// Processes that loaded from a cold page cache.
    pub cold_loads: Vec<Run>,
    /// Probes of the machine's speed between processes.
    pub probes: Vec<Probe>,
    /// Contenders that cannot run, by label.
    pub absent: BTreeMap<String, RunFailure>,
    /// The reason why nobody can give the reference.
    pub no_reference: Option<String>,
    /// Score of the plan's text by each contender's label, or the reason why there is none.
    pub texts: BTreeMap<String, Result<TextScore, String>>,
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
    /// Quota of a cgroup, in CPUs, if it has a limit.
    pub quota: Option<f64>,
    /// The reason why the probe of the machine has no figures.
    pub no_probe: Option<String>,
}

impl Evidence {
    /// Adds one fact.
    pub fn note(&mut self, fact: Fact) {
        match fact {
            Fact::Quota { cpus } => self.quota = cpus,
            Fact::Before { noise } => self.before = Some(noise),
            Fact::Absent { framework, failure } => {
                self.absent.insert(framework, failure);
            }
            Fact::NoReference { reason } => self.no_reference = Some(reason),
            Fact::Run(run) if run.purpose == Purpose::ColdLoad => self.cold_loads.push(*run),
            Fact::Run(run) => self.runs.push(*run),
            Fact::Probe(probe) => self.probes.push(probe),
            Fact::ProbedBefore { process } => {
                if let Some(probe) = self.probes.last_mut() {
                    probe.before = Some(process);
                }
            }
            Fact::NoProbe { reason } => self.no_probe = reason,
            Fact::Watched { noise } => self.noises.push(noise),
            Fact::Complaint { reason } => self.complaints.push(reason),
            Fact::PutAside { round } => {
                let aside = self.runs.extract_if(.., |run| run.round == round);
                self.repeated.extend(aside);
            }
            Fact::RoundDone => self.rounds += 1,
            Fact::Text { framework, score } => {
                self.texts.insert(framework, score);
            }
            Fact::End { end } => self.end = end,
        }
    }

    /// The evidence of a journal. A journal without an end belongs to a run that was killed.
    pub fn from_facts(facts: impl IntoIterator<Item = Fact>) -> Evidence {
        let mut evidence = Evidence { end: End::Killed, ..Evidence::default() };
        for fact in facts {
            evidence.note(fact);
        }
        evidence
    }

    /// The evidence of schema 2, whose journal held only processes. The last attempt at each round counts. A round is
    /// complete when each of `labels` that had not failed before has run in it.
    pub fn from_runs(runs: Vec<Run>, labels: &[String]) -> Evidence {
        let mut evidence = Evidence { end: End::Killed, ..Evidence::default() };
        let (measured, loads): (Vec<Run>, Vec<Run>) =
            runs.into_iter().partition(|run| run.purpose == Purpose::Measure);
        evidence.cold_loads = loads;
        let last = |round: usize| {
            measured.iter().filter(|run| run.round == round).map(|run| run.attempt).max().unwrap_or(0)
        };
        let (stand, aside): (Vec<Run>, Vec<Run>) =
            measured.iter().cloned().partition(|run| run.attempt == last(run.round));
        for run in &stand {
            if let Some(failure) = run.failure.as_ref().filter(|f| f.kind != FailureKind::Interrupted) {
                evidence.absent.insert(run.framework.clone(), failure.clone());
            }
        }
        // The contender could not run at all; the journal of schema 2 does not say so.
        let never_ran = |label: &String| {
            measured.iter().any(|run| run.round > 0) && !measured.iter().any(|run| run.framework == *label)
        };
        let has_run = |round: usize, label: &String| {
            let left = evidence.absent.contains_key(label) || never_ran(label);
            left || stand.iter().any(|run| run.round == round && run.framework == *label && run.is_complete())
        };
        let is_there = |round: usize| stand.iter().any(|run| run.round == round);
        evidence.rounds =
            (0..).take_while(|&round| is_there(round) && labels.iter().all(|l| has_run(round, l))).count();
        (evidence.runs, evidence.repeated) = (stand, aside);
        evidence
    }

    /// Checks every process against today's tolerances, as far as its stored values allow.
    pub fn rejudged(mut self, plan: &Plan) -> Evidence {
        for run in self.runs.iter_mut().chain(&mut self.repeated) {
            if let Some(contender) = plan.contender(&run.framework) {
                run.agreement = run.agreement.take().map(|agreement| agreement.rejudged(contender.precision));
            }
        }
        self
    }

    /// The complete measuring processes of one contender.
    pub fn complete<'a>(&'a self, label: &'a str) -> impl Iterator<Item = &'a Run> {
        self.runs.iter().filter(move |run| run.framework == label && run.is_complete())
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
    /// Nobody was left to measure.
    NobodyLeft,
    /// The machine stayed noisy: nothing can be said.
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

/// The machine's speed at one moment, between two processes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    /// The process that had just ended, and the next one if nothing ran in between.
    pub after: Option<Process>,
    pub before: Option<Process>,
    /// Time of a fixed piece of arithmetic.
    pub compute_ns: u64,
    /// Slowdown against the fastest so far, as a share.
    pub drift: f64,
    /// Bytes per second: over all sweeps, and in the fastest.
    pub read_bandwidth: f64,
    pub best_read_bandwidth: f64,
    /// f32 operations per second: over all bursts, and in the fastest.
    pub arithmetic: f64,
    pub best_arithmetic: f64,
    /// Bytes that one sweep read.
    pub bytes: u64,
    /// Number of threads of the probe.
    pub threads: usize,
}

/// A measuring process, by the values that identify it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Number of the round, from 0.
    pub round: usize,
    /// Number of the attempt at the round, from 0.
    pub attempt: usize,
    pub framework: String,
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
            after: None,
            before: None,
            compute_ns: probed.compute_ns,
            drift,
            read_bandwidth,
            best_read_bandwidth,
            arithmetic,
            best_arithmetic,
            bytes: probed.bytes,
            threads: probed.threads,
        }
    }
}

#[cfg(test)]
mod tests;

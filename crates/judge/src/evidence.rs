//! Everything that was measured in one comparison, and how it came to an end.

use std::collections::BTreeMap;

use plan::Plan;
use protocol::Probed;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use crate::noise::Noise;
use crate::run::{FailureKind, Purpose, Run, RunFailure};
use crate::text::TextScore;

/// One thing that was found out while measuring: a line of `samples.jsonl`. All evidence is made of these, whether it
/// has just been measured or is read back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "fact", rename_all = "snake_case")]
pub enum Fact {
    /// CPUs' worth of time that a cgroup allows, where it limits it.
    Quota {
        /// `None` where nothing limits it.
        cpus: Option<f64>,
    },
    /// The machine before the first round.
    Before { noise: Noise },
    /// A contender that cannot run at all, or not any more.
    Absent { framework: String, failure: RunFailure },
    /// Nobody can be the reference, and why.
    NoReference { reason: String },
    /// A process of a worker.
    Run(Box<Run>),
    /// The machine's own speed at one moment.
    Probe(Probe),
    /// The latest probe also stands right before this process.
    ProbedBefore { process: Process },
    /// Whether the machine can be probed: why not, or `null` since a worker could.
    NoProbe { reason: Option<String> },
    /// What else ran during a round, from its first process to its last.
    Watched { noise: Noise },
    /// What the guard complained of.
    Complaint { reason: String },
    /// The round is done again: its figures so far are put aside.
    PutAside { round: usize },
    /// Every contender that is left has run in this round, and it stands.
    RoundDone,
    /// How well a contender predicts the plan's text, or why that is not known.
    Text { framework: String, score: Result<TextScore, String> },
    /// Why no more rounds were done.
    End { end: End },
}

impl Fact {
    /// Reads a line of `samples.jsonl`. The lines of schema 2 hold processes alone and do not say so. The error is
    /// what the line "is not": whoever knows its number says which line.
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

/// Everything that was measured in one comparison, and how it came to an end.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Evidence {
    /// The measuring processes of every round, of the attempt that stands.
    pub runs: Vec<Run>,
    /// Those of rounds that were done again because the machine was noisy.
    pub repeated: Vec<Run>,
    /// Processes that loaded from a cold page cache.
    pub cold_loads: Vec<Run>,
    /// The machine's own speed, between processes.
    pub probes: Vec<Probe>,
    /// Contenders that cannot run at all, by label.
    pub absent: BTreeMap<String, RunFailure>,
    /// Why nobody can be the reference.
    pub no_reference: Option<String>,
    /// How well each contender predicts the plan's text, by label; or why that is not known.
    pub texts: BTreeMap<String, Result<TextScore, String>>,
    /// Complete rounds.
    pub rounds: usize,
    /// Why there are no more.
    pub end: End,
    /// The machine before the first round.
    pub before: Option<Noise>,
    /// What else ran in every round, from its first process to its last, those done again included.
    pub noises: Vec<Noise>,
    /// What the guard complained of, round by round, whether it was repeated or accepted.
    pub complaints: Vec<String>,
    /// CPUs' worth of time that a cgroup allows, where it limits it.
    pub quota: Option<f64>,
    /// Why the probe of the machine has no figures.
    pub no_probe: Option<String>,
}

impl Evidence {
    /// Takes in one more fact.
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

    /// The evidence of a journal. One without an end is that of a run that was killed.
    pub fn from_facts(facts: impl IntoIterator<Item = Fact>) -> Evidence {
        let mut evidence = Evidence { end: End::Killed, ..Evidence::default() };
        for fact in facts {
            evidence.note(fact);
        }
        evidence
    }

    /// The evidence of schema 2, whose journal held processes alone: the last attempt at each round stands, and a
    /// round is done when every one of `labels` that had not failed before has run in it.
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
        // It could not run at all, which the journal of schema 2 does not say.
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

    /// Holds every process to today's tolerances, as far as what was kept of it allows.
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

/// Why no more rounds were done.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum End {
    /// As many as were asked for, or as automatic rounds go.
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
    /// Whether the decision to stop owes nothing to the figures, so that what is left of the error rate
    /// may be spent.
    pub fn is_last_look(&self) -> bool {
        matches!(self, End::Planned | End::Budget)
    }
}

/// The machine's own speed at one moment, between two processes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    /// The process that had just ended, and the one that came next, if nothing ran in between.
    pub after: Option<Process>,
    pub before: Option<Process>,
    /// How long a fixed piece of arithmetic took.
    pub compute_ns: u64,
    /// How much slower than the fastest so far, as a share.
    pub drift: f64,
    /// Bytes per second: of all sweeps together, and of the fastest.
    pub read_bandwidth: f64,
    pub best_read_bandwidth: f64,
    /// f32 operations per second: of all bursts together, and of the fastest.
    pub arithmetic: f64,
    pub best_arithmetic: f64,
    /// What one sweep read.
    pub bytes: u64,
    /// Threads of the probe.
    pub threads: usize,
}

/// A measuring process, by what tells it from others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    pub round: usize,
    pub attempt: usize,
    pub framework: String,
}

impl Probe {
    /// What a worker saw; beside no process yet.
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

//! All measurements of one comparison, and how it ended.

use std::collections::BTreeMap;

use plan::{Plan, Rounds};
use protocol::FileIdentity;
use statistics::Looks;

use crate::agreement::Tolerance;
pub use crate::fact::{
    Block, BlocksChosen, End, Ended, Fact, Probe, Process, Shipped, Slices, Stage, Stages,
};
use crate::impossible;
use crate::noise::Noise;
use crate::run::{Purpose, Run, RunFailure};
use crate::text::QualityScore;

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
    /// Adds one fact.
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
            Fact::NoReference { reason } => self.no_reference = Some(reason),
            Fact::OwnTraces { reason } => self.own_traces = Some(reason),
            Fact::Run(run) if run.purpose == Purpose::ColdLoad => self.cold_loads.push(*run),
            Fact::Run(run) => self.runs.push(*run),
            Fact::Warm(run) => self.runs.push(*run),
            Fact::Block(block) => self.note_block(block),
            Fact::Ended(ended) => self.note_end(*ended),
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

    /// When the evidence is looked at.
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

    /// The measuring process of this name.
    pub fn run(&self, process: &Process) -> Option<&Run> {
        self.runs.iter().find(|run| process.is(run))
    }

    fn note_end(&mut self, ended: Ended) {
        let Ended {
            process,
            events,
            failure,
            waited,
            seen,
            agreement,
            no_agreement,
            tokens,
            derived,
            left_behind,
            unused_caches,
        } = ended;
        if let Some(run) = self.runs.iter_mut().find(|run| process.is(run)) {
            run.events.extend(events);
            (run.failure, run.waited, run.agreement) = (failure, waited, agreement);
            (run.tokens, run.derived, run.left_behind) = (tokens, derived, left_behind);
            (run.unused_caches, run.seen) = (unused_caches, seen);
            run.no_agreement = no_agreement;
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

#[cfg(test)]
mod tests;

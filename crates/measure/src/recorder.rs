//! The facts of a run. Every fact is written to the journal before it joins the evidence, so a killed run
//! keeps its facts.

use std::time::Instant;

use facts::evidence::{Evidence, Fact, Stage, Stages};
use plan::Contender;

use crate::results::Results;

pub(crate) struct Recorder {
    pub(crate) results: Results,
    pub(crate) evidence: Evidence,
    /// The wall time so far, by stage.
    pub(crate) time: Stages,
}

impl Recorder {
    pub(crate) fn new(results: Results) -> Recorder {
        Recorder { results, evidence: Evidence::default(), time: Stages::new() }
    }

    /// The evidence, and the directory that it was written to.
    pub(crate) fn finish(self) -> (Evidence, Results) {
        (self.evidence, self.results)
    }

    /// Writes a fact to the journal and adds it to the evidence.
    pub(crate) fn record(&mut self, fact: Fact) {
        match fact {
            // These decide which figures count. The others are written as well, but need not wait for the
            // disk between two processes.
            Fact::Run(_) | Fact::Ended(_) | Fact::PutAside { .. } | Fact::RoundDone | Fact::End { .. } => {
                self.results.append(&fact)
            }
            _ => self.results.append_soon(&fact),
        }
        self.evidence.note(fact);
    }

    /// Adds the time since `begun` to this stage.
    pub(crate) fn add_time(&mut self, stage: Stage, begun: Instant) {
        *self.time.entry(stage).or_default() += begun.elapsed().as_secs_f64();
    }

    /// Moves some of the time of one stage to another.
    pub(crate) fn shift(&mut self, from: Stage, to: Stage, seconds: f64) {
        *self.time.entry(from).or_default() -= seconds;
        *self.time.entry(to).or_default() += seconds;
    }

    pub(crate) fn record_time(&mut self) {
        self.record(Fact::Time { stages: self.time.clone() });
    }

    pub(crate) fn is_absent(&self, contender: &Contender) -> bool {
        self.evidence.absent.contains_key(&contender.label)
    }
}

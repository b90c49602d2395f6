//! Measures a comparison, from its first process to its last.

use facts::evidence::{End, Evidence, Fact, Stage};
use plan::Result;

use crate::clock::now;
use crate::fed::RunWork;
use crate::limit::{BEFORE_ROUNDS, REFERENCE};
use crate::results::Results;
use crate::session::Session;
use crate::{interrupt, machine};

impl Session<'_> {
    /// Measures a comparison. In any case, the evidence gathered so far is returned.
    pub fn compare(mut self) -> Result<(Evidence, Results)> {
        self.recorder.record(Fact::Quota { cpus: machine::quota() });
        self.begin()?;
        // Computing the reference takes from the time budget.
        let begun = now();
        self.crew.end_at(self.limit.share(REFERENCE));
        let references = self.reference();
        // It also loaded and continued the prompts.
        self.logits_take = begun.elapsed() / 3;
        self.crew.end_at(self.limit.share(BEFORE_ROUNDS));
        self.judge_quality();
        self.crew.end_at(self.limit.until());
        self.recorder.add_time(Stage::Reference, begun);
        let traces = self.crew.plan.work.stand_ins();
        let end = match interrupt::requested() {
            true => End::Interrupted,
            false => self.rounds(RunWork { references, traces, parity: true, begun }),
        };
        self.recorder.record_time();
        self.recorder.record(Fact::End { end });
        Ok(self.finish())
    }
}

//! Measures a comparison, from its first process to its last.

use facts::evidence::{End, Evidence, Fact, Stage};
use plan::Result;

use crate::clock::now;
use crate::fed::RunWork;
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
        let references = self.reference();
        self.recorder.add_time(Stage::Reference, begun);
        let traces = self.crew.plan.work.stand_ins();
        let mut end = self.rounds(RunWork { references, traces, parity: true, begun });
        if !matches!(end, End::Interrupted | End::Noisy { .. }) {
            self.judge_quality();
            // The figures of the rounds are valid, but the request was not completed.
            if interrupt::requested() {
                end = End::Interrupted;
            }
        }
        self.recorder.record_time();
        self.recorder.record(Fact::End { end });
        Ok(self.finish())
    }
}

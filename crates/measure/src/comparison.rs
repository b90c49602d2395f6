//! Measures a comparison, from its first process to its last.

use judge::evidence::{End, Evidence, Fact};
use plan::Result;

use crate::results::Results;
use crate::rounds::{RoundWork, now};
use crate::session::Session;
use crate::{interrupt, machine};

impl Session<'_> {
    /// Measures a comparison. Whatever happens, the evidence gathered so far is returned.
    pub fn compare(mut self) -> Result<(Evidence, Results)> {
        self.tell(Fact::Quota { cpus: machine::quota() });
        self.greet()?;
        if !self.plan.accept_noise {
            let noise = self.await_quiet();
            self.tell(Fact::Before { noise });
        }
        // Computing the reference takes from the time budget.
        let begun = now();
        let reference = self.reference();
        let traces = self.traces(reference.as_ref());
        let mut end =
            self.rounds(&RoundWork { traces: &traces, reference: reference.as_ref(), parity: true, begun });
        if !matches!(end, End::Interrupted | End::Noisy { .. }) {
            self.score_texts();
            // The figures of the rounds are valid, but the request was not completed.
            if interrupt::requested() {
                end = End::Interrupted;
            }
        }
        self.tell(Fact::End { end });
        Ok(self.finish())
    }
}

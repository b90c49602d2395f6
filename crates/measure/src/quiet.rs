//! What follows from the guard's complaints.

use std::time::Duration;

use facts::evidence::Fact;
use facts::noise::Noise;

use crate::session::Session;
use crate::work::Round;

impl Session<'_> {
    /// Notes what the guard complains of. Returns whether it is repeated: not where noise is accepted or known to last,
    /// and only as long as it `may_be`.
    pub(crate) fn objects(&mut self, round: Round, reason: &str, may_be: bool) -> bool {
        let reason = format!("round {}, {reason}", round.number + 1);
        self.recorder.tell(Fact::Complaint { reason: reason.clone() });
        if self.crew.plan.accept_noise || self.too_noisy.is_some() {
            return false;
        }
        self.stays_disturbed |= !may_be;
        self.crew
            .progress
            .say(&format!("{reason}; {}", if may_be { "it is done again" } else { "it stays so" }));
        may_be
    }

    /// Waits until the machine is quiet, as long as the plan allows. Returns the last look.
    pub(crate) fn await_quiet(&self) -> Noise {
        let patience = Duration::from_secs_f64(self.crew.plan.patience_s);
        let mut told = false;
        self.guard.wait_until_quiet(patience, |noise| {
            if !std::mem::replace(&mut told, true) {
                let complaints = noise.complaints().join(", ");
                let limit = patience.as_secs_f64();
                self.crew.progress.say(&format!("waiting up to {limit} s for a quiet machine: {complaints}"));
            }
        })
    }
}

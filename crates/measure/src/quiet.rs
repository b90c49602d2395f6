//! Consequences of the guard's complaints.

use std::time::Duration;

use facts::evidence::Fact;
use facts::noise::Noise;

use crate::round_spec::Round;
use crate::session::Session;

impl Session<'_> {
    /// Records a complaint of the guard. Returns whether to repeat: not if noise is accepted or known to
    /// last, and only as long as it `can_retry`.
    pub(crate) fn should_repeat(&mut self, round: Round, reason: &str, can_retry: bool) -> bool {
        let reason = format!("round {}, {reason}", round.number + 1);
        self.recorder.record(Fact::Complaint { reason: reason.clone() });
        if self.crew.plan.accept_noise || self.too_noisy.is_some() {
            return false;
        }
        self.stays_disturbed |= !can_retry;
        self.crew
            .progress
            .say(&format!("{reason}; {}", if can_retry { "it is done again" } else { "it stays so" }));
        can_retry
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

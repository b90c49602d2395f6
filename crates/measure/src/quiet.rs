//! Consequences of the guard's complaints.

use facts::evidence::Fact;

use crate::round_spec::Round;
use crate::session::Session;

impl Session<'_> {
    /// Records a complaint of the guard. Returns whether to repeat: not if noise is accepted or known to
    /// last, and only as long as it `can_retry` and there is time.
    pub(crate) fn should_repeat(&mut self, round: Round, reason: &str, can_retry: bool) -> bool {
        let reason = format!("round {}, {reason}", round.number + 1);
        let can_retry = can_retry && self.limit.can_repeat();
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
}

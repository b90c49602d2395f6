//! The time limit of a run (`docs/explanation/methodology.md`): it ends in time on any machine, also beside processes
//! that use the CPUs.
//!
//! The limit begins with the first handshake. Its last seconds are for the verdicts and the table, so processes are
//! ended before: a process that still works then ends without a result, and the round that it belongs to is not
//! complete. That is the last resort. What would not fit is left out before:
//!
//! - The reference has a third of the limit; the traces that requests are fed, and the judgement of quality, have what is
//!   left of the first half.
//! - Repeats and waiting for a quiet machine together have a tenth, waiting no more than ten seconds of it, after the
//!   first wait; if the machine was not quiet after that, there are none.
//! - Loads from a cold page cache of one round have a tenth.
//! - Another round begins if its starts, its fewest blocks and its end fit by what those of earlier rounds took, and a
//!   round has fewer blocks if the rest does not fit.
//! - Logits are asked for if they fit by what those of the reference took.
//!
//! A run for which a number of rounds was asked has no limit.

use std::time::{Duration, Instant};

use plan::Plan;

use crate::clock::now;

/// Time for the verdicts and the table.
const FOR_THE_REPORT: Duration = Duration::from_secs(15);
/// Longest wait for a quiet machine in all, after the first.
const WAITING: Duration = Duration::from_secs(10);

/// Shares of the limit after which the reference is ended, and everything else before the first round.
pub(crate) const REFERENCE: f64 = 1.0 / 3.0;
pub(crate) const BEFORE_ROUNDS: f64 = 0.5;

/// The time limit of a run, and what may still be used of it. Without a limit everything may.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Limit {
    whole: Option<Duration>,
    begun: Option<Instant>,
    /// For repeats, and for the waits that belong to them.
    repeats: Duration,
    waiting: Duration,
    /// Whether the machine did not become quiet before the first process.
    is_never_quiet: bool,
}

impl Limit {
    /// The limit of a comparison that begins now.
    pub(crate) fn new(plan: &Plan) -> Limit {
        let whole = plan.limit_s().map(Duration::from_secs_f64);
        Limit {
            whole,
            begun: Some(now()),
            repeats: whole.unwrap_or_default() / 10,
            waiting: WAITING,
            is_never_quiet: false,
        }
    }

    /// When processes are ended; `None` without a limit.
    pub(crate) fn until(&self) -> Option<Instant> {
        Some(self.begun? + self.whole?.saturating_sub(FOR_THE_REPORT))
    }

    /// When this share of the limit is used up.
    pub(crate) fn share(&self, share: f64) -> Option<Instant> {
        Some(self.begun? + self.whole?.mul_f64(share))
    }

    /// Time until processes are ended.
    pub(crate) fn left(&self) -> Duration {
        self.until().map_or(Duration::MAX, |until| until.saturating_duration_since(now()))
    }

    pub(crate) fn is_over(&self) -> bool {
        self.left().is_zero()
    }

    /// A share of the whole limit.
    pub(crate) fn part(&self, share: f64) -> Duration {
        self.whole.map_or(Duration::MAX, |whole| whole.mul_f64(share))
    }

    pub(crate) fn can_repeat(&self) -> bool {
        self.whole.is_none() || (!self.repeats.is_zero() && !self.is_over())
    }

    /// Nothing is repeated or waited for within a limit: the machine did not become quiet before.
    pub(crate) fn does_not_repeat(&mut self) {
        (self.repeats, self.waiting, self.is_never_quiet) = (Duration::ZERO, Duration::ZERO, true);
    }

    /// Whether a noisy round that took so long is measured again: another must fit with room to spare, or nothing would be
    /// left to show.
    pub(crate) fn can_repeat_round(&self, took: Duration) -> bool {
        !self.is_never_quiet && self.left() > 2 * took
    }

    /// Counts the time since then as that of a repeat.
    pub(crate) fn repeated(&mut self, since: Instant) {
        self.repeats = self.repeats.saturating_sub(since.elapsed());
    }

    /// Longest wait for a quiet machine, before something is repeated.
    pub(crate) fn longest_wait(&self) -> Duration {
        self.whole.map_or(Duration::MAX, |_| self.waiting.min(self.left()))
    }

    /// Counts the time since then as waiting.
    pub(crate) fn waited(&mut self, since: Instant) {
        self.waiting = self.waiting.saturating_sub(since.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use facts::testing;
    use plan::Rounds;

    use super::*;

    #[test]
    fn repeats_end_with_their_share_of_a_limit_and_without_one_go_on() {
        let of = |rounds| Limit::new(&Plan { rounds, ..testing::plan(&["a", "b"]) });
        let mut limited = of(Rounds::Auto { max: 30, budget_s: 60.0 });
        assert!(limited.can_repeat() && limited.left() <= Duration::from_secs(75));
        limited.repeated(now() - Duration::from_secs(9));
        assert!(!limited.can_repeat(), "a tenth of 90 s");
        let mut never_quiet = of(Rounds::Auto { max: 30, budget_s: 60.0 });
        never_quiet.does_not_repeat();
        assert!(!never_quiet.can_repeat() && never_quiet.longest_wait().is_zero());
        assert!(!never_quiet.can_repeat_round(Duration::ZERO));
        assert_eq!([30, 40].map(|s| limited.can_repeat_round(Duration::from_secs(s))), [true, false]);
        let mut unlimited = of(Rounds::Fixed(6));
        unlimited.repeated(now() - Duration::from_secs(9));
        assert!(unlimited.can_repeat() && unlimited.until().is_none());
    }
}

//! The loop of rounds.

use std::time::Duration;

use facts::evidence::{End, Fact, Stage};
use judge::stopping;
use plan::Rounds;
use statistics::BalancedOrder;

use crate::clock::now;
use crate::fed::{References, RunWork};
use crate::interrupt;
use crate::limit::BEFORE_ROUNDS;
use crate::round_spec::{Interrupted, Round, RoundWork};
use crate::session::Session;

/// Most rounds that are measured again because the machine was too noisy.
const MOST_ASIDE: usize = 6;

impl Session<'_> {
    /// Runs as many rounds as the plan asks for. Returns the reason why there are no more.
    pub(crate) fn rounds(&mut self, mut all: RunWork) -> End {
        let mut orders = BalancedOrder::new(self.crew.plan.contenders.len(), self.crew.plan.seed);
        // With the same prompt first in every round, prompt and place in the round could not be told apart.
        let mut cases = BalancedOrder::new(self.crew.plan.work.cases(), self.crew.plan.seed.rotate_left(48));
        let (mut longest, mut shortest) = (Duration::ZERO, Duration::MAX);
        let first = now();
        let mut again = None;
        loop {
            let number = self.recorder.evidence.rounds;
            if number == self.crew.plan.rounds.max() {
                return End::Planned;
            }
            if self.crew.plan.contenders.iter().all(|contender| self.recorder.is_absent(contender)) {
                return End::NobodyLeft;
            }
            if !self.has_time_for_a_round() {
                return self.out_of_time(number);
            }
            let begun = now();
            // A round that is measured again keeps its orders, so that all of them stay balanced.
            let (order, cases_order) = again.take().unwrap_or_else(|| {
                let next = (orders.next(), cases.next());
                (next.0.expect("orders have no end"), next.1.expect("orders have no end"))
            });
            let blocks =
                self.recorder.evidence.iterations(self.crew.plan, number) * self.crew.plan.work.cases();
            let round = Round { number, blocks, first: 0 };
            self.feed_round(&mut all, number);
            let reference = all.references.as_ref().map(References::of_jobs);
            let work = &RoundWork {
                traces: reference.map_or(&all.traces, |reference| &reference.outputs),
                reference,
                of_requests: all.references.as_ref().map(|references| references.of_requests(number)),
                is_fed: self.crew.plan.work.is_forced(),
                parity: all.parity,
                cases: &cases_order,
                begun: all.begun,
            };
            if let Err(Interrupted) = self.round(round, &order, work) {
                return if interrupt::requested() { End::Interrupted } else { self.out_of_time(number) };
            }
            if let Some(reason) = self.too_noisy.take() {
                let most = MOST_ASIDE.min(self.crew.plan.rounds.max() / 2);
                if self.aside == most || !self.limit.can_repeat_round(begun.elapsed()) {
                    self.recorder.record(Fact::RoundDone);
                    return End::Noisy { reason };
                }
                self.aside += 1;
                self.crew.progress.say(&format!("{reason}; round {} is measured again", number + 1));
                self.recorder.record(Fact::PutAside { round: number, framework: None });
                again = Some((order, cases_order));
                continue;
            }
            self.recorder.record(Fact::RoundDone);
            (longest, shortest) = (longest.max(begun.elapsed()), shortest.min(begun.elapsed()));
            let judging = now();
            self.choose_again(all.begun);
            let spent_s = all.begun.elapsed().as_secs_f64();
            self.choose_allowed(spent_s, shortest);
            let end = self.enough(spent_s + self.next_round().unwrap_or(longest).as_secs_f64());
            self.recorder.add_time(Stage::Judging, judging);
            self.recorder.record_time();
            if let Some(end) = end {
                return end;
            }
            self.show_progress(first.elapsed(), all.begun.elapsed());
        }
    }

    /// Says that the time limit left no room for this round.
    fn out_of_time(&self, number: usize) -> End {
        let limit = self.crew.plan.limit_s().unwrap_or_default();
        self.crew
            .progress
            .say(&format!("round {} does not fit into the time limit of {limit} s", number + 1));
        End::Budget
    }

    /// Computes the traces and inputs of a round, if they are not known yet.
    fn feed_round(&mut self, all: &mut RunWork, number: usize) {
        let Some(references) = &mut all.references else { return };
        let begun = now();
        let repeats =
            |reason: &str| format!("from round {} on, traces of earlier rounds: {reason}", number + 1);
        if number == 0 {
            self.crew.end_at(self.limit.share(BEFORE_ROUNDS));
        }
        let fed = self.crew.feed(references, number);
        // The cost of quantising is read along the trace of the jobs.
        if number == 0 && !references.has_trace_of_jobs() {
            match self.crew.unquantised(references.by, &references.own.outputs) {
                Ok(unquantised) => references.own.unquantised = unquantised,
                Err(reason) => {
                    self.crew.progress.say(&format!("what quantising costs is not known: {reason}"))
                }
            }
        }
        self.crew.end_at(self.limit.until());
        let reason = match fed {
            Err(reason) if number == 0 => Some(reason),
            Err(reason) => Some(repeats(&reason)),
            Ok(()) if number > 0 && references.has_one_trace() => Some(repeats("only one fits at once")),
            Ok(()) => None,
        };
        if let Some(reason) = reason.filter(|_| self.recorder.evidence.own_traces.is_none()) {
            self.recorder.record(Fact::OwnTraces { reason });
        }
        self.recorder.add_time(Stage::Reference, begun);
    }

    /// The time of a round by the costs of those so far, if these choose the number of its blocks: the first
    /// round had more to do.
    fn next_round(&self) -> Option<Duration> {
        let chosen = self.recorder.evidence.blocks.last()?;
        Duration::try_from_secs_f64(chosen.process_s + chosen.blocks as f64 * chosen.block_s).ok()
    }

    /// Records the most rounds that the budget allows, once two rounds have shown what a round costs. It is rather too
    /// high than too low, as the run ends with that number at the latest: at the cheapest estimate, and rounded up.
    fn choose_allowed(&mut self, spent_s: f64, shortest: Duration) {
        let Rounds::Auto { max, budget_s } = self.crew.plan.rounds else { return };
        let done = self.recorder.evidence.rounds;
        if done != 2 {
            return;
        }
        let each = self.next_round().map_or(shortest, |next| next.min(shortest)).as_secs_f64();
        let more = ((budget_s - spent_s).max(0.0) / each.max(1e-9)).ceil().min(max as f64) as usize;
        self.recorder.record(Fact::Allowed { rounds: (done + more).min(max) });
    }

    /// Whether automatic rounds may end. `next_s` is when another round would end, in seconds since the start. Time comes
    /// before clarity: if there is none for another round, this is the last look, whatever the figures.
    fn enough(&self, next_s: f64) -> Option<End> {
        let (Rounds::Auto { budget_s, max }, evidence) = (self.crew.plan.rounds, &self.recorder.evidence)
        else {
            return None;
        };
        if evidence.rounds < statistics::MIN_ROUNDS || evidence.rounds == max {
            return None;
        }
        if next_s > budget_s || evidence.allowed.is_some_and(|allowed| evidence.rounds >= allowed) {
            return Some(End::Budget);
        }
        stopping::are_clear(self.crew.plan, evidence).then_some(End::Clear)
    }

    /// Shows the leading pair's interval, and the time left where it is known. `rounds`: since the first round began;
    /// `all`: since the time budget began.
    fn show_progress(&mut self, rounds: Duration, all: Duration) {
        let done = self.recorder.evidence.rounds;
        let each = rounds.as_secs_f64() / done as f64;
        let left = match self.crew.plan.rounds {
            Rounds::Fixed(count) => Some((each * count.saturating_sub(done) as f64, "")),
            // It is not known when verdicts will be clear. The budget ends the rounds at the latest.
            Rounds::Auto { budget_s, max } => {
                let by_budget = (budget_s - all.as_secs_f64()).max(each * 0.5);
                let fewest = each * statistics::MIN_ROUNDS.saturating_sub(done) as f64;
                let most = each * max.saturating_sub(done) as f64;
                Some((by_budget.max(fewest).min(most), "at most "))
            }
        };
        self.crew.progress.round_done(
            stopping::leading(self.crew.plan, &self.recorder.evidence),
            left.filter(|_| done >= 2),
        );
    }
}

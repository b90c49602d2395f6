//! The time limit of a run (`docs/explanation/architecture.md`): it ends in time on any machine, also beside processes
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

use comparison::facts::evidence::{BlocksChosen, Fact, Stage};
use comparison::facts::run::Run;
use comparison::judge::report::row;
use comparison::plan::{Plan, Rounds, Schedule};
use protocol::Event;
use statistics::{Components, Costs, MIN_ROUNDS, Prior};

use crate::measure::process::now;
use crate::measure::running_worker::WarmWorker;
use crate::measure::session::{Round, RoundWork, Session};

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

    pub(crate) fn left(&self) -> Duration {
        self.until().map_or(Duration::MAX, |until| until.saturating_duration_since(now()))
    }

    pub(crate) fn is_over(&self) -> bool {
        self.left().is_zero()
    }

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

// The number of blocks of a round. Before the first block of a run it is chosen from the time of its
// processes' starts, the time of their warm-up, and assumed variances; after each round from all costs and
// variances so far. The difference between contenders never affects it.

/// Fewest and most blocks of a round.
const BLOCKS: (usize, usize) = (2, 32);

/// Standard deviations of a pair's log ratio that are assumed before anything is measured, and the weight of
/// each in degrees of freedom, because two blocks or two rounds may resemble each other by luck. Found on
/// two-core virtual machines: 31 tokens of each contender in slices differed by 2.3 to 4.8 %; a pair of
/// processes differed by 2.3 to 3.7 % (`docs/explanation/architecture.md`).
const PRIOR: Prior = Prior { components: Components { within: 0.035, between: 0.03 }, worth: (4, 4) };

/// Seconds for the end of a process, before one has ended: its last readings.
const FINISHING_S: f64 = 1.0;

impl Session<'_> {
    /// The round with the number of its blocks, if that is left open: the first is chosen here, and kept if
    /// the round is repeated. `begun`: when its processes were started.
    pub(crate) fn choose_blocks(
        &mut self,
        round: Round,
        members: &[WarmWorker],
        begun: Instant,
        work: &RoundWork<'_>,
    ) -> Round {
        if !self.crew.plan.chooses_blocks {
            return round;
        }
        if let Some(chosen) = self.recorder.evidence.blocks.last() {
            return Round { blocks: chosen.blocks, ..round };
        }
        let process_s = begun.elapsed().as_secs_f64();
        let costs = Costs { process_s, block_s: warm_block_s(members).max(1e-6) };
        // The processes of this round are already started.
        let most = self.most(costs, work.run.begun.elapsed().as_secs_f64() - process_s);
        Round { blocks: self.choose(round.number, costs, &[], most), ..round }
    }

    /// The most blocks per round for which the time left, after so many seconds, still suffices for the
    /// fewest rounds.
    fn most(&self, costs: Costs, spent_s: f64) -> usize {
        let Costs { process_s, block_s } = costs;
        let left = match self.crew.plan.rounds {
            Rounds::Auto { budget_s, .. } => budget_s - spent_s,
            Rounds::Fixed(_) => f64::INFINITY,
        };
        let missing = MIN_ROUNDS.saturating_sub(self.recorder.evidence.rounds).max(1);
        let groups = self.crew.plan.groups.len().max(1);
        let cases = self.crew.plan.work.cases();
        let room = (left / (missing * groups) as f64 - process_s) / block_s;
        // To the nearest: a first round's start is slower than those of the others.
        let most = (room.clamp(0.0, BLOCKS.1 as f64) / cases as f64).round() as usize * cases;
        whole(most.min(BLOCKS.1), cases).max(fewest(cases))
    }

    /// Chooses the number of blocks of the rounds to come from all rounds so far, if that is left open.
    /// `begun`: when the time budget began.
    pub(crate) fn choose_again(&mut self, begun: Instant) {
        if self.recorder.evidence.blocks.is_empty() {
            return;
        }
        let Some(costs) = self.costs() else { return };
        let turns = self.recorder.evidence.runs.iter().flat_map(Run::standing_turns);
        let pairs = row::of_pairs(self.crew.plan, turns);
        let most = self.most(costs, begun.elapsed().as_secs_f64());
        self.choose(self.recorder.evidence.rounds, costs, &pairs, most);
    }

    /// The mean costs of a group's processes and of a block so far.
    fn costs(&self) -> Option<Costs> {
        let (evidence, plan) = (&self.recorder.evidence, self.crew.plan);
        let seconds =
            |stages: &[Stage]| stages.iter().filter_map(|stage| self.recorder.time.get(stage)).sum::<f64>();
        let turns = evidence.runs.iter().chain(&evidence.repeated).flat_map(Run::standing_turns).count();
        let rounds = ((evidence.rounds + self.aside) * plan.groups.len().max(1)) as f64;
        let blocks = turns as f64 / plan.contenders.len().max(1) as f64;
        (rounds > 0.0 && blocks > 0.0).then(|| Costs {
            process_s: seconds(&[Stage::Starts, Stage::Probes, Stage::Finishing]) / rounds,
            block_s: seconds(&[Stage::Requests, Stage::Turns]) / blocks,
        })
    }

    /// Whether the time limit has room for another round, with as few blocks as it may have.
    pub(crate) fn has_time_for_a_round(&self) -> bool {
        let Some(Costs { process_s, block_s }) = self.costs() else { return !self.limit.is_over() };
        let plan = self.crew.plan;
        let blocks = match plan.schedule {
            Schedule::Interleaved => plan.work.cases(),
            _ => self.recorder.evidence.iterations(plan, self.recorder.evidence.rounds) * plan.work.cases(),
        };
        let groups = plan.groups.len().max(1) as f64;
        let round_s = groups * (process_s + blocks as f64 * block_s);
        round_s + self.to_prove().as_secs_f64() < self.limit.left().as_secs_f64()
    }

    /// Whether a round with so many blocks ends here, because the time limit has no room for each prompt once more and
    /// the end of its processes. Groups have as many blocks as each other, so this is for a round without groups.
    pub(crate) fn is_late(&self, blocks: usize, each: Duration) -> bool {
        let (plan, time) = (self.crew.plan, &self.recorder.time);
        let cases = plan.work.cases();
        if plan.schedule != Schedule::Interleaved || blocks == 0 || !blocks.is_multiple_of(cases) {
            return false;
        }
        let finishing_s = match self.recorder.evidence.rounds {
            0 => plan.contenders.len() as f64 * self.logits_take.as_secs_f64().max(FINISHING_S),
            rounds => time.get(&Stage::Finishing).copied().unwrap_or(0.0) / rounds as f64,
        };
        cases as f64 * each.as_secs_f64() + finishing_s > self.limit.left().as_secs_f64()
    }

    /// Records that a round has fewer blocks than were planned.
    pub(crate) fn record_fewer_blocks(&mut self, round: Round) {
        self.crew.progress.say(&format!("round {}: time for {} blocks", round.number + 1, round.blocks));
        let Costs { process_s, block_s } = self.costs().unwrap_or(Costs { process_s: 0.0, block_s: 0.0 });
        // The variances are those of the choice that there was no time for.
        let known = self.recorder.evidence.blocks.last().map(|chosen| (chosen.within, chosen.between));
        let (within, between) = known.unwrap_or((PRIOR.components.within, PRIOR.components.between));
        let (from_round, blocks) = (round.number, round.blocks);
        let chosen = BlocksChosen { from_round, blocks, process_s, block_s, within, between, most: blocks };
        self.recorder.record(Fact::Blocks(chosen));
    }

    /// Chooses the number of blocks from a round on, and records it with its reasons.
    fn choose(&mut self, from_round: usize, costs: Costs, pairs: &[Vec<Vec<f64>>], most: usize) -> usize {
        let cases = self.crew.plan.work.cases();
        let found = statistics::pooled(pairs, cases.saturating_sub(1), &PRIOR);
        let blocks = statistics::blocks(&costs, &found, fewest(cases)..=most, cases);
        let (Costs { process_s, block_s }, Components { within, between }) = (costs, found);
        let chosen = BlocksChosen { from_round, blocks, process_s, block_s, within, between, most };
        self.recorder.record(Fact::Blocks(chosen));
        blocks
    }
}

/// The fewest blocks with all cases equally often.
fn fewest(cases: usize) -> usize {
    BLOCKS.0.next_multiple_of(cases)
}

/// Seconds of a block by the last requests of warm-up. A cold start does not count: it may have compiled.
fn warm_block_s(members: &[WarmWorker]) -> f64 {
    let last = |member: &WarmWorker| {
        let warm = member.running.events().iter().find_map(|event| match event {
            Event::Warmup(warm) => Some(warm),
            _ => None,
        })?;
        let cold = usize::from(warm.from_cold && warm.iterations.len() == 1);
        let cases = warm.iterations.last()?.cases.iter().skip(cold);
        let ends: Vec<f64> = cases.map(|case| case.marks_ns.end() as f64 / 1e9).collect();
        Some(ends.iter().sum::<f64>() / ends.len().max(1) as f64)
    };
    members.iter().filter_map(last).sum()
}

/// The most blocks up to `count` with all cases equally often.
fn whole(count: usize, cases: usize) -> usize {
    count - count % cases
}

#[cfg(test)]
mod tests {
    use comparison::facts::testing;
    use comparison::plan::Rounds;

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

    #[test]
    fn all_cases_come_equally_often() {
        assert_eq!([whole(7, 2), whole(7, 3), whole(6, 3)], [6, 6, 6]);
    }
}

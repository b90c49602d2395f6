//! The number of blocks of a round. Before the first block of a run it is chosen from the time of its
//! processes' starts, the time of their warm-up, and assumed variances; after each round from all costs and
//! variances so far. The difference between contenders never affects it.

use std::time::{Duration, Instant};

use facts::evidence::{BlocksChosen, Fact, Stage};
use facts::run::Run;
use judge::report::components;
use plan::{Rounds, Schedule};
use protocol::Event;
use statistics::{Components, Costs, MIN_ROUNDS, Prior};

use crate::member::Member;
use crate::round_spec::{Round, RoundWork};
use crate::session::Session;

/// Fewest and most blocks of a round.
const BLOCKS: (usize, usize) = (2, 32);
/// Standard deviations of a pair's log ratio that are assumed before anything is measured, and the weight of
/// each in degrees of freedom, because two blocks or two rounds may resemble each other by luck. Found on
/// two-core virtual machines: 31 tokens of each contender in slices differed by 2.3 to 4.8 %; a pair of
/// processes differed by 2.3 to 3.7 % (`docs/explanation/methodology.md`).
const PRIOR: Prior = Prior { components: Components { within: 0.035, between: 0.03 }, worth: (4, 4) };

/// Seconds for the end of a process, before one has ended: its last readings.
const FINISHING_S: f64 = 1.0;

impl Session<'_> {
    /// The round with the number of its blocks, if that is left open: the first is chosen here, and kept if
    /// the round is repeated. `begun`: when its processes were started.
    pub(crate) fn choose_blocks(
        &mut self,
        round: Round,
        members: &[Member],
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
        let most = self.most(costs, work.begun.elapsed().as_secs_f64() - process_s);
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
        let pairs = components::of_pairs(self.crew.plan, turns);
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
        groups * (process_s + blocks as f64 * block_s) < self.limit.left().as_secs_f64()
    }

    /// Whether a round with so many blocks ends here, because the time limit has no room for each prompt once more and
    /// the end of its processes. Groups have as many blocks as each other, so this is for a round without groups.
    pub(crate) fn is_late(&self, blocks: usize, each: Duration) -> bool {
        let (plan, time) = (self.crew.plan, &self.recorder.time);
        let cases = plan.work.cases();
        if plan.schedule != Schedule::Interleaved || blocks == 0 || blocks % cases != 0 {
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
fn warm_block_s(members: &[Member]) -> f64 {
    let last = |member: &Member| {
        let warm = member.live.events().iter().find_map(|event| match event {
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
    use super::*;

    #[test]
    fn all_cases_come_equally_often() {
        assert_eq!([whole(7, 2), whole(7, 3), whole(6, 3)], [6, 6, 6]);
    }
}

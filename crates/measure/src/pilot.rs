//! The pilot: the first blocks of the first round, from whose costs and variances the number of blocks is chosen. Their
//! figures take no part in any verdict, so that what is chosen does not depend on what is found.

use std::time::Instant;

use judge::Metric;
use judge::evidence::{Block, BlocksChosen, Fact, Stage};
use judge::metrics::Work;
use judge::noise::Noise;
use plan::Rounds;
use statistics::{Components, Costs, MIN_ROUNDS};

use crate::clock::now;
use crate::round::Member;
use crate::session::Session;
use crate::work::{Interrupted, Round, RoundWork};

/// Requests of each case in the pilot.
const ITERATIONS: usize = 2;
/// Fewest and most blocks of a round.
const BLOCKS: (usize, usize) = (4, 32);
/// Standard deviation of a pair's log ratio from round to round that more blocks do not lessen. One round cannot show
/// it, so it is assumed, as it was found on a shared machine: 2.6 % from process to process, for two
/// (`docs/methodology.md`).
const BETWEEN: f64 = 0.037;
/// The same from block to block, before the pilot's blocks, and the number of blocks that this guess is worth: two
/// blocks may resemble each other by luck. The guess is of slices: 31 tokens of each contender in slices of 8 differed by
/// 2.3 to 3.3 % (two-core virtual machines).
const WITHIN: (f64, usize) = (0.03, 4);

impl Session<'_> {
    /// Deals the pilot's blocks and tells the number of all others. `begun`: when the processes were started. Returns
    /// the round with that number.
    pub(crate) fn pilot(
        &mut self,
        round: Round,
        members: &mut Vec<Member>,
        begun: Instant,
        work: &RoundWork<'_>,
    ) -> Result<Round, Interrupted> {
        let process_s = begun.elapsed().as_secs_f64();
        let dealing = now();
        let cases = self.plan.prompts.len();
        let count = ITERATIONS * cases;
        let mut blocks = Vec::new();
        let mut spent_s = Vec::new();
        for number in 0..count {
            let (begun, alive) = (now(), members.len());
            let turns = self.block(Round { blocks: count, ..round }, members, number, 0)?;
            self.end_failed(members);
            // What a process took that hung is not what a block costs.
            if members.len() == alive {
                spent_s.push(begun.elapsed().as_secs_f64());
            }
            blocks.push(Block { round: round.number, is_pilot: true, turns, noise: Noise::default() });
        }
        let block_s = spent_s.iter().sum::<f64>() / spent_s.len().max(1) as f64;
        let costs = Costs { process_s, block_s: block_s.max(1e-6) };
        let within = self.within(&blocks);
        for mut block in blocks {
            block.turns.iter_mut().for_each(|(_, turn)| turn.stands = false);
            self.tell(Fact::Block(block));
        }
        let left = match self.plan.rounds {
            Rounds::Auto { budget_s, .. } => budget_s - work.begun.elapsed().as_secs_f64() + process_s,
            Rounds::Fixed(_) => f64::INFINITY,
        };
        let groups = self.plan.groups.len().max(1);
        let room = (left / (MIN_ROUNDS * groups) as f64 - costs.process_s) / costs.block_s;
        let fewest = BLOCKS.0.next_multiple_of(cases);
        // To the nearest: the first round's start is slower than those of the others.
        let most = (room.clamp(0.0, BLOCKS.1 as f64) / cases as f64).round() as usize * cases;
        let most = whole(most.min(BLOCKS.1), cases).max(fewest);
        let components = Components { within, between: BETWEEN };
        let best = statistics::blocks(&costs, &components, fewest..=most);
        let blocks = whole(best.next_multiple_of(cases).min(most), cases);
        let Costs { process_s, block_s } = costs;
        self.tell(Fact::Blocks(BlocksChosen { blocks, process_s, block_s, within, between: BETWEEN, most }));
        self.spend(Stage::Pilot, dealing);
        Ok(Round { blocks, has_pilot: false, ..round })
    }

    /// Standard deviation of the log ratio of two contenders from block to block, over all pairs. Each case is held
    /// against its own mean: that prompts differ is no noise.
    fn within(&self, blocks: &[Block]) -> f64 {
        let metric = Metric::deciding(self.plan.generation());
        let figure = |block: &Block, label: &str| {
            let (_, turn) = block.turns.iter().find(|(of, _)| of == label)?;
            Some(metric.of_request(&turn.sample, Work::request(self.plan, turn.case))?.ln())
        };
        let labels: Vec<&str> = self.plan.contenders.iter().map(|c| c.label.as_str()).collect();
        let (mut squares, mut freedom) = (0.0, 0);
        for (place, a) in labels.iter().enumerate() {
            for b in &labels[place + 1..] {
                for case in 0..self.plan.prompts.len() {
                    let of_case = blocks.iter().skip(case).step_by(self.plan.prompts.len());
                    let ratios: Vec<f64> =
                        of_case.filter_map(|block| Some(figure(block, a)? - figure(block, b)?)).collect();
                    let mean = ratios.iter().sum::<f64>() / ratios.len().max(1) as f64;
                    squares += ratios.iter().map(|ratio| (ratio - mean).powi(2)).sum::<f64>();
                    freedom += ratios.len().saturating_sub(1);
                }
            }
        }
        let (guess, worth) = WITHIN;
        ((squares + worth as f64 * guess.powi(2)) / (freedom + worth) as f64).sqrt()
    }
}

/// The most blocks up to `count` that have all cases equally often.
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

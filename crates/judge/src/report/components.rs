//! How throughput varies within and between processes.

use std::collections::BTreeMap;

use plan::Plan;
use statistics::Components;

use crate::metrics::{Metric, Size};
use facts::run::{Run, Turn};

/// Variation of the logarithms of throughput from request to request of a process, and from process to
/// process.
pub(crate) fn of_throughput(plan: &Plan, runs: &[&Run]) -> Option<Components> {
    let metric = Metric::deciding(plan.work.kind());
    let figures = |run: &&Run| -> Vec<(usize, f64)> {
        let figure =
            |(case, sample)| Some((case, metric.of_request(sample, Size::request(plan, case))?.ln()));
        run.requests().filter_map(figure).collect()
    };
    statistics::components(&without_cases(runs.iter().map(figures).collect()))
}

/// Log ratios of throughput between the two turns of each pair in a block, as `[pair][round][block]`; if
/// turns are slices, the trimmed mean over slices, as in the figures of a round. `turns`: each with its round
/// and its contender's label.
pub fn of_pairs<'a>(
    plan: &Plan,
    turns: impl Iterator<Item = (usize, &'a str, &'a Turn)>,
) -> Vec<Vec<Vec<f64>>> {
    let metric = Metric::deciding(plan.work.kind());
    // By contender and by round and block: the case, and the logarithms of the parts.
    type OfBlocks = BTreeMap<(usize, usize), (usize, Vec<f64>)>;
    let mut figures: BTreeMap<&str, OfBlocks> = BTreeMap::new();
    for (round, label, turn) in turns {
        let case = turn.sample.case;
        let parts = metric.of_parts(&turn.sample, Size::request(plan, case)).into_iter().map(f64::ln);
        figures.entry(label).or_default().insert((round, turn.block), (case, parts.collect()));
    }
    let figures: Vec<_> = figures.into_values().collect();
    let mut pairs = Vec::new();
    for (place, a) in figures.iter().enumerate() {
        for b in &figures[place + 1..] {
            let mut rounds: BTreeMap<usize, Vec<(usize, f64)>> = BTreeMap::new();
            for (block, (case, ours)) in a {
                let Some((_, theirs)) = b.get(block) else { continue };
                let ratios: Vec<f64> = ours.iter().zip(theirs).map(|(ours, theirs)| ours - theirs).collect();
                if !ratios.is_empty() && ratios.iter().all(|ratio| ratio.is_finite()) {
                    let ratio = statistics::trimmed_mean(&ratios, statistics::TRIMMED_SLICES);
                    rounds.entry(block.0).or_default().push((*case, ratio));
                }
            }
            pairs.push(without_cases(rounds.into_values().collect()));
        }
    }
    pairs
}

/// The figures of each round, each prompt less its own mean: differences between prompts are no variation.
fn without_cases(mut rounds: Vec<Vec<(usize, f64)>>) -> Vec<Vec<f64>> {
    let mut sums: BTreeMap<usize, (f64, usize)> = BTreeMap::new();
    for (case, figure) in rounds.iter().flatten() {
        let (sum, count) = sums.entry(*case).or_default();
        (*sum, *count) = (*sum + figure, *count + 1);
    }
    let rest = |(case, figure): (usize, f64)| figure - sums[&case].0 / sums[&case].1 as f64;
    rounds.iter_mut().map(|round| round.drain(..).map(rest).collect()).collect()
}

#[cfg(test)]
mod tests {
    use protocol::{Marks, Sample};

    use super::*;
    use facts::testing;

    #[test]
    fn ratios_are_of_turns_in_one_block_and_prompts_are_compared_with_themselves() {
        let turn = |block, case, ms: u64| {
            let marks_ns = Marks::new(1, [ms * 1_000_000]);
            Turn::alone(block, Sample { case, marks_ns, ..Sample::default() })
        };
        let a = [turn(0, 0, 10), turn(1, 1, 20), turn(2, 0, 20), turn(3, 1, 20)];
        let b = [turn(0, 0, 10), turn(1, 1, 20), turn(2, 0, 10)];
        let turns = a.iter().map(|turn| (0, "a", turn)).chain(b.iter().map(|turn| (0, "b", turn)));
        let pairs = of_pairs(&testing::plan(&["a", "b"]), turns);
        let half = 2_f64.ln() / 2.0;
        let close = |found: &f64, asked: f64| (found - asked).abs() < 1e-12;
        let [rounds] = pairs.as_slice() else { panic!("{pairs:?}") };
        let [round] = rounds.as_slice() else { panic!("{rounds:?}") };
        assert!(
            round.len() == 3 && close(&round[0], half) && close(&round[1], 0.0) && close(&round[2], -half)
        );
    }
}

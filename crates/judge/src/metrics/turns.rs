//! The figure of a round for contenders that took turns.

use std::collections::BTreeMap;

use plan::Plan;

use super::{Metric, Work};
use crate::evidence::Evidence;
use crate::run::{Run, Turn};

/// The figure of a round from the turns of all that took part in it: of each prompt apart, then the mean over prompts.
pub(super) fn figure(metric: Metric, plan: &Plan, evidence: &Evidence, run: &Run) -> Option<f64> {
    let is_of_round = |other: &&Run| other.round == run.round && other.is_complete();
    let members: Vec<&Run> = evidence.runs.iter().filter(is_of_round).collect();
    let figures = |member: &&Run| -> BTreeMap<(usize, usize), f64> {
        let turns = member.turns.iter().filter(|turn| turn.stands);
        let of_turn = |turn: &Turn| {
            let figure = metric.of_request(&turn.sample, Work::request(plan, turn.case))?;
            Some(((turn.case, turn.block), figure.ln()))
        };
        turns.filter_map(of_turn).collect()
    };
    let figures: Vec<_> = members.iter().map(figures).collect();
    let together = |group: &[String]| Together::new(group, &members, &figures);
    let groups: Vec<Together<'_>> = match plan.groups.as_slice() {
        [] => vec![Together { members: (0..members.len()).collect(), figures: &figures }],
        groups => groups.iter().map(|group| together(group)).collect(),
    };
    let place = members.iter().position(|member| member.framework == run.framework)?;
    let anchor = plan.anchor().and_then(|anchor| members.iter().position(|m| m.framework == anchor));
    let of_case = |case: usize| match anchor {
        None => groups.iter().find_map(|group| group.figure(place, case)),
        Some(anchor) => {
            let of_anchor: Vec<f64> = groups.iter().filter_map(|group| group.figure(anchor, case)).collect();
            let shifted =
                |group: &Together<'_>| Some(group.figure(place, case)? - group.figure(anchor, case)?);
            Some(groups.iter().find_map(shifted)? + mean(&of_anchor)?)
        }
    };
    let cases: Vec<f64> = (0..plan.prompts.len()).filter_map(of_case).collect();
    mean(&cases).map(f64::exp)
}

/// Contenders that took turns with one another, by their places among the members of a round.
struct Together<'a> {
    members: Vec<usize>,
    /// Logarithms of every member's figures, by case and block.
    figures: &'a [BTreeMap<(usize, usize), f64>],
}

impl<'a> Together<'a> {
    fn new(group: &[String], members: &[&Run], figures: &'a [BTreeMap<(usize, usize), f64>]) -> Together<'a> {
        let is_member = |place: &usize| group.contains(&members[*place].framework);
        Together { members: (0..members.len()).filter(is_member).collect(), figures }
    }

    /// The logarithm of a member's figure over the blocks that all of the group have.
    fn figure(&self, member: usize, case: usize) -> Option<f64> {
        let place = self.members.iter().position(|&other| other == member)?;
        let keys = self.figures[member].keys().filter(|key| key.0 == case);
        let block =
            |key| self.members.iter().map(|&of| self.figures[of].get(key).copied()).collect::<Option<_>>();
        let blocks: Vec<Vec<f64>> = keys.filter_map(block).collect();
        statistics::of_turns(&blocks).get(place).copied()
    }
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

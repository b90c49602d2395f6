//! The groups of a round: processes that are alive together and take turns.

use plan::{Plan, Schedule};

use crate::round_spec::{Interrupted, Round, RoundWork};
use crate::session::Session;

impl Session<'_> {
    /// One group after another. The anchor of the grouped schedule is alive from the first to the last.
    pub(crate) fn groups(
        &mut self,
        round: Round,
        groups: &[Group],
        work: &RoundWork<'_>,
    ) -> Result<(), Interrupted> {
        let (mut round, mut kept) = (round, None);
        for (number, group) in groups.iter().enumerate() {
            let others = group
                .iter()
                .filter(|(_, index)| !self.recorder.is_absent(&self.crew.plan.contenders[*index]));
            // There is no contender left to compare with the anchor.
            if kept.is_some() && others.count() == 0 && number + 1 < groups.len() {
                continue;
            }
            let keeps = self.crew.plan.schedule == Schedule::Grouped && number + 1 < groups.len();
            (round, kept) =
                self.group(Round { first: number * round.blocks, ..round }, group, (kept, keeps), work)?;
        }
        Ok(())
    }
}

/// Processes that are measured together, by (place in the order, contender).
pub(crate) type Group = Vec<(usize, usize)>;

/// The groups of a round, each in the order of the round. The anchor of the grouped schedule is only in the
/// first: it is started there.
pub(crate) fn of_round(plan: &Plan, order: &[usize]) -> Vec<Group> {
    let placed: Group = order.iter().copied().enumerate().collect();
    if plan.schedule == Schedule::Interleaved {
        return vec![placed];
    }
    if plan.schedule == Schedule::Sequential {
        return placed.into_iter().map(|one| vec![one]).collect();
    }
    let label = |index: usize| plan.contenders[index].label.as_str();
    let is_anchor = |index: usize| Some(label(index)) == plan.anchor();
    let of_group = |members: &Vec<String>| -> Group {
        let is_member = |(_, index): &(usize, usize)| members.iter().any(|member| member == label(*index));
        placed.iter().copied().filter(|one| is_member(one) && !is_anchor(one.1)).collect()
    };
    let mut groups: Vec<Group> = plan.groups.iter().map(of_group).collect();
    groups.sort_by_key(|group| group.first().copied());
    if let Some(first) = groups.first_mut() {
        first.extend(placed.iter().copied().filter(|(_, index)| is_anchor(*index)));
        first.sort();
    }
    groups
}

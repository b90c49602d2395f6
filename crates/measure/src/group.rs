//! Processes that are measured together: they are started one after another, each alone until it is warm;
//! then they wait and take turns in blocks; then each finishes. Under the sequential schedule every process
//! is such a group of its own.

use facts::evidence::Stage;

use crate::clock::now;
use crate::member::Member;
use crate::round_spec::{Interrupted, Round, RoundWork};
use crate::session::Session;

impl Session<'_> {
    /// Starts processes, given as (place in the order, contender), gives them their turns, and lets them
    /// finish. The anchor may be running already, and may be kept. Returns the round with its number of
    /// blocks, and the anchor.
    pub(crate) fn group(
        &mut self,
        round: Round,
        group: &[(usize, usize)],
        (kept, keeps): (Option<Member>, bool),
        work: &RoundWork<'_>,
    ) -> Result<(Round, Option<Member>), Interrupted> {
        let begun = now();
        let turns_are_shared = group.len() + usize::from(kept.is_some()) > 1;
        let mut members: Vec<Member> = kept.into_iter().collect();
        let started = group.iter().try_for_each(|&(position, index)| {
            if self.is_over() {
                return Err(Interrupted);
            }
            if !self.recorder.is_absent(&self.crew.plan.contenders[index]) {
                let member = self.start(round, position, index, work)?;
                members.extend(member.map(|mut member| {
                    if turns_are_shared {
                        member.live.pause();
                    }
                    member
                }));
            }
            Ok(())
        });
        self.recorder.add_time(Stage::Starts, begun);
        let dealt = started.and_then(|()| {
            let round = self.choose_blocks(round, &members, begun, work);
            let round = self.blocks(round, &mut members, work)?;
            self.probe_beside(&members);
            Ok(round)
        });
        let begun = now();
        let mut anchor = None;
        for member in members {
            match dealt {
                Ok(_) if keeps && Some(member.process.framework.as_str()) == self.crew.plan.anchor() => {
                    anchor = Some(member);
                }
                Ok(round) if !self.is_over() => {
                    let index = member.index;
                    self.finish_member(member, round, work);
                    self.hold_memory(index);
                }
                _ => self.end_member(member),
            }
        }
        self.recorder.add_time(Stage::Finishing, begun);
        if self.is_over() {
            anchor.into_iter().for_each(|member| self.end_member(member));
            return Err(Interrupted);
        }
        Ok((dealt?, anchor))
    }
}

//! The blocks of a group: each waiting process has one turn.

use std::collections::BTreeMap;
use std::time::Duration;

use facts::evidence::{Block, Fact, Stage};
use facts::noise::Noise;
use facts::run::Turn;

use crate::clock::now;
use crate::interrupt;
use crate::member::Member;
use crate::round_spec::{Interrupted, Round, RoundWork};
use crate::session::Session;
use crate::slices::Sliced;

/// Number of times that a block is repeated.
const MAX_REPEATS: usize = 2;
/// Shortest stretch of blocks that is watched separately: over less time the kernel's counters are too
/// coarse.
const STRETCH: Duration = Duration::from_millis(500);

impl Session<'_> {
    /// Gives every member its turns. Returns the round with the number of blocks that there was time for.
    pub(crate) fn blocks(
        &mut self,
        mut round: Round,
        members: &mut Vec<Member>,
        work: &RoundWork<'_>,
    ) -> Result<Round, Interrupted> {
        let begun = now();
        let (mut next, mut repeat, mut timed_ns, mut disturbed) = (0, 0, 0, 0);
        while next < round.blocks && !members.is_empty() {
            let watched = now();
            let (mut dealt, noise) = self.stretch(round, members, (next, repeat), work)?;
            self.unwatched |= noise.foreign.is_none();
            let complaints = noise.complaints();
            let reason = format!("block {}: {}", next + 1, complaints.join(", "));
            let count = dealt.len();
            let is_again = !complaints.is_empty() && self.should_repeat(round, &reason, repeat < MAX_REPEATS);
            if !complaints.is_empty() && !is_again {
                disturbed += count;
            }
            for block in &mut dealt {
                block.noise.clone_from(&noise);
                for (_, turn) in &mut block.turns {
                    turn.stands = !is_again;
                    let sample = &turn.sample;
                    timed_ns += sample.marks_ns.end();
                }
            }
            dealt.into_iter().for_each(|block| self.recorder.record(Fact::Block(block)));
            self.end_failed(members);
            if is_again {
                repeat += 1;
                self.await_quiet_again();
                self.limit.repeated(watched);
            } else {
                (next, repeat) = (next + count, 0);
            }
            if next < round.blocks && self.is_late(next, watched.elapsed() / count.max(1) as u32) {
                round.blocks = next;
                self.record_fewer_blocks(round);
            }
        }
        // Both contenders of a pair had the same disturbance in a block. That does not help if most are
        // disturbed.
        if 2 * disturbed > round.blocks && !self.crew.plan.accept_noise {
            let most = format!("{disturbed} of {} blocks of round {}", round.blocks, round.number + 1);
            let last = self.recorder.evidence.complaints.last().cloned().unwrap_or_default();
            self.too_noisy = Some(format!("{most} stayed disturbed; {last}"));
        }
        self.recorder.add_time(Stage::Turns, begun);
        self.recorder.shift(Stage::Turns, Stage::Requests, timed_ns as f64 / 1e9);
        Ok(round)
    }

    /// Runs blocks, from the block `first` on, until they have lasted long enough to be watched.
    fn stretch(
        &mut self,
        round: Round,
        members: &mut [Member],
        (first, repeat): (usize, usize),
        work: &RoundWork<'_>,
    ) -> Result<(Vec<Block>, Noise), Interrupted> {
        let (watch, begun) = (self.guard.watch(), now());
        let mut dealt = Vec::new();
        for number in first..round.blocks {
            dealt.push(self.block(round, members, (round.first + number, repeat), work)?);
            // The rest must be long enough to be watched, too.
            let each = begun.elapsed() / dealt.len() as u32;
            let left = (round.blocks - number - 1) as u32;
            let is_long = begun.elapsed() >= STRETCH && (left == 0 || each * left >= STRETCH);
            let is_late = self.is_late(number + 1, each);
            if is_long || is_late || members.iter().all(|member| member.is_over) {
                break;
            }
        }
        Ok((dealt, watch.end(&self.guard)))
    }

    /// One turn for each member, in a newly drawn order: a request, whole or slice by slice; each pass over
    /// the members has another order.
    fn block(
        &mut self,
        round: Round,
        members: &mut [Member],
        (number, repeat): (usize, usize),
        work: &RoundWork<'_>,
    ) -> Result<Block, Interrupted> {
        self.pause_between_blocks();
        let case = work.cases[number % work.cases.len()];
        let (slice, limit) = (self.slice(members), self.limit);
        let mut orders = self.block_orders.by_ref().take(1).chain(self.slice_orders.by_ref());
        let (mut turns, mut places, mut passes) = (Vec::new(), Vec::new(), Vec::new());
        let mut requests: BTreeMap<usize, Sliced> = BTreeMap::new();
        loop {
            let mut pass = Vec::new();
            for index in orders.next().expect("orders have no end") {
                if interrupt::requested() || limit.is_over() {
                    return Err(Interrupted);
                }
                if turns.iter().any(|(_, done, _)| *done == index) {
                    continue;
                }
                let mut open = members.iter_mut().filter(|member| !member.is_over);
                let Some(member) = open.find(|member| member.index == index) else { continue };
                self.crew.progress.turn(
                    round,
                    self.crew.plan.rounds.max(),
                    number,
                    &member.process.framework,
                );
                pass.push(index);
                member.live.resume();
                let request = requests.entry(index).or_insert_with(|| Sliced::new(places.len()));
                if !places.contains(&index) {
                    places.push(index);
                }
                match request.next(&mut member.live, (case, work), slice) {
                    None => member.is_over = true,
                    Some(None) => {}
                    Some(Some(sample)) => {
                        let seen_ns = std::mem::take(&mut request.seen_ns);
                        turns.push((request.position, index, (sample, seen_ns)));
                    }
                }
                if self.crew.plan.schedule.has_turns() {
                    member.live.pause();
                }
            }
            passes.push(pass);
            let is_done = |index: usize| turns.iter().any(|(_, done, _)| *done == index);
            if members.iter().all(|member| member.is_over || is_done(member.index)) {
                break;
            }
        }
        turns.sort_by_key(|(position, ..)| *position);
        let turn = |(position, index, (sample, seen_ns))| {
            let member = members.iter().find(|member| member.index == index)?;
            let (sample, vectors) = judge::work::kept(sample, work.of_requests);
            let turn = Turn { block: number, repeat, position, stands: true, sample, seen_ns, vectors };
            Some((member.process.framework.clone(), turn))
        };
        let turns = turns.into_iter().filter_map(turn).collect();
        if passes.len() < 2 {
            passes.clear();
        }
        Ok(Block { round: round.number, turns, passes, noise: Noise::default() })
    }

    /// The requested pause, in slices, so that an interrupt ends it.
    fn pause_between_blocks(&self) {
        let (begun, delay) = (now(), Duration::from_nanos(self.crew.plan.delay_ns));
        while begun.elapsed() < delay && !interrupt::requested() {
            std::thread::sleep((delay - begun.elapsed().min(delay)).min(Duration::from_millis(50)));
        }
    }
}

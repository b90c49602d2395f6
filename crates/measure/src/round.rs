//! One round. Its processes are started one after another, each alone until it is warm; then they wait and are dealt
//! turns in blocks; then each finishes. Under the sequential schedule every process is such a group of its own.
//!
//! The machine is watched. A start or a block that was disturbed is repeated, not its round.

use std::collections::BTreeMap;
use std::time::Duration;

use facts::evidence::{Block, Fact, Process, Stage};
use facts::noise::Noise;
use facts::run::{FailureKind, Place, Purpose, Run, RunFailure, Turn};
use judge::memory::{COMPLETE, huge_share};
use protocol::{Event, Job, Task};

use crate::clock::now;
use crate::groups;
use crate::interrupt;
use crate::live::Live;
use crate::member::Member;
use crate::session::Session;
use crate::slices::Sliced;
use crate::work::{Interrupted, Round, RoundWork};

/// Number of times that a start is repeated.
const START_REPEATS: usize = 1;
/// Number of times in a row that a contender's processes are started again for more huge pages without getting them.
const PAGE_REPEATS: usize = 2;
/// Number of times that a block, or a round that is watched as a whole, is repeated.
const MAX_REPEATS: usize = 2;
/// Shortest stretch of blocks that is watched on its own: over less time the kernel's counters tell nothing.
const STRETCH: Duration = Duration::from_millis(500);

impl Session<'_> {
    /// Runs one round. What is too short to be watched piece by piece is watched as a whole, and repeated as a whole.
    pub(crate) fn round(
        &mut self,
        round: Round,
        order: &[usize],
        work: &RoundWork<'_>,
    ) -> Result<(), Interrupted> {
        self.cold_loads(round, order)?;
        let groups = groups::of_round(self.plan, order);
        for repeat in 0.. {
            (self.unwatched, self.stays_disturbed) = (false, false);
            let whole = self.guard.watch();
            self.groups(round, &groups, work)?;
            let noise = whole.end(&self.guard);
            let reason = noise.complaints().join(", ");
            self.tell(Fact::Watched { noise });
            if !self.unwatched || reason.is_empty() {
                break;
            }
            // Where something stayed disturbed already, another attempt at all would fare no better.
            if !self.objects(round, &reason, repeat < MAX_REPEATS && !self.stays_disturbed) {
                if !self.plan.accept_noise {
                    self.too_noisy = self.evidence.complaints.last().cloned();
                }
                break;
            }
            self.tell(Fact::PutAside { round: round.number, framework: None });
            self.await_quiet();
        }
        self.tokenise();
        self.progress.step();
        Ok(())
    }

    /// Loads with the weights dropped from the page cache; it also warms the cache for the measurement. No process may
    /// be alive that maps the file.
    fn cold_loads(&mut self, round: Round, order: &[usize]) -> Result<(), Interrupted> {
        if round.number >= self.plan.cold_loads {
            return Ok(());
        }
        let begun = now();
        for (position, &index) in order.iter().enumerate() {
            let contender = &self.plan.contenders[index];
            if self.is_absent(contender) {
                continue;
            }
            self.progress.message(&format!("{}: load from a cold page cache", contender.label));
            let job = Job { evict: true, ..self.job(contender, Task::Load) };
            let outcome = self.run_job(index, &job);
            let place = Place { round: round.number, attempt: 0, position };
            let run = Run::new(Purpose::ColdLoad, place, &contender.label, outcome);
            self.tell(Fact::Run(Box::new(run)));
            if interrupt::requested() {
                return Err(Interrupted);
            }
        }
        self.spend(Stage::ColdLoads, begun);
        Ok(())
    }

    /// Starts processes, given as (place in the order, contender), deals them their turns, and lets them finish. The
    /// anchor may be alive already, and be kept. Returns the round with its number of blocks, and the anchor.
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
            if interrupt::requested() {
                return Err(Interrupted);
            }
            if !self.is_absent(&self.plan.contenders[index]) {
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
        self.spend(Stage::Starts, begun);
        let dealt = started.and_then(|()| {
            let round = self.choose_blocks(round, &members, begun, work);
            self.blocks(round, &mut members, work)?;
            self.probe_beside(&members);
            Ok(round)
        });
        let begun = now();
        let mut anchor = None;
        for member in members {
            match dealt {
                Ok(_) if keeps && Some(member.process.framework.as_str()) == self.plan.anchor() => {
                    anchor = Some(member);
                }
                Ok(_) if !interrupt::requested() => self.finish_member(member, round, work),
                _ => self.end_member(member),
            }
        }
        self.spend(Stage::Finishing, begun);
        if interrupt::requested() {
            anchor.into_iter().for_each(|member| self.end_member(member));
            return Err(Interrupted);
        }
        Ok((dealt?, anchor))
    }

    /// Starts a process, and waits until it is warm. `None` if it failed.
    fn start(
        &mut self,
        round: Round,
        position: usize,
        index: usize,
        work: &RoundWork<'_>,
    ) -> Result<Option<Member>, Interrupted> {
        let contender = &self.plan.contenders[index];
        for repeat in 0.. {
            self.progress.running(round, self.plan.rounds.max(), &format!("{} starts", contender.label));
            let attempt = self.evidence.attempts(round.number, &contender.label);
            let process = Process { round: round.number, attempt, framework: contender.label.clone() };
            let place = Place { round: round.number, attempt, position };
            let job = self.job(contender, self.measurement(contender, work.traces));
            let watch = self.guard.watch();
            let mut live = self.workers[index].start(&job);
            self.guard.add(live.pid());
            let is_warm = live.warm_up(self.plan.warmup.max_iterations);
            let noise = watch.end(&self.guard);
            self.unwatched |= noise.foreign.is_none();
            let complaints = noise.complaints();
            let run = |live: &Live| Run {
                noise: Some(noise.clone()),
                failure: Some(cut_off()),
                ..Run::of_events(
                    Purpose::Measure,
                    place,
                    &contender.label,
                    live.pid(),
                    live.events().to_vec(),
                )
            };
            self.tell(Fact::Warm(Box::new(run(&live))));
            let said = live.events().len();
            let member = Member { index, live, job, process, said, is_over: !is_warm };
            if !is_warm {
                self.end_member(member);
                return if interrupt::requested() { Err(Interrupted) } else { Ok(None) };
            }
            let reason = format!("while {} started, {}", contender.label, complaints.join(", "));
            // What is compared of a start that stays disturbed is left out; its requests are another matter.
            let is_disturbed = !complaints.is_empty() && self.objects(round, &reason, repeat < START_REPEATS);
            if !is_disturbed && !self.lacks_pages(&member, repeat < START_REPEATS) {
                return Ok(Some(member));
            }
            let framework = Some(contender.label.clone());
            self.discard(member);
            self.tell(Fact::PutAside { round: round.number, framework });
            self.await_quiet();
        }
        unreachable!("repeats end")
    }

    /// Whether a process is started again because fewer of its pages are huge than others have. Where that was of no
    /// use twice in a row, it is not tried any more: some allocators do not ask for them.
    fn lacks_pages(&mut self, member: &Member, can_repeat: bool) -> bool {
        let share = |events: &[Event]| {
            let warm = events.iter().rev().find_map(|event| match event {
                Event::Warmup(warm) => Some(&warm.memory),
                _ => None,
            });
            warm.and_then(huge_share)
        };
        let given =
            self.evidence.runs.iter().filter_map(|run| share(&run.events)).any(|share| share >= COMPLETE);
        let Some(ours) = share(member.live.events()).filter(|_| given) else { return false };
        let tried = self.page_repeats.entry(member.index).or_default();
        if ours >= COMPLETE {
            *tried = 0;
            return false;
        }
        let again = can_repeat && *tried < PAGE_REPEATS;
        *tried += usize::from(again);
        again
    }

    /// Deals every member its turns.
    fn blocks(
        &mut self,
        round: Round,
        members: &mut Vec<Member>,
        work: &RoundWork<'_>,
    ) -> Result<(), Interrupted> {
        let begun = now();
        let (mut next, mut repeat, mut timed_ns, mut disturbed) = (0, 0, 0, 0);
        while next < round.blocks && !members.is_empty() {
            let (mut dealt, noise) = self.stretch(round, members, (next, repeat), work)?;
            self.unwatched |= noise.foreign.is_none();
            let complaints = noise.complaints();
            let reason = format!("block {}: {}", next + 1, complaints.join(", "));
            let count = dealt.len();
            let is_again = !complaints.is_empty() && self.objects(round, &reason, repeat < MAX_REPEATS);
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
            dealt.into_iter().for_each(|block| self.tell(Fact::Block(block)));
            self.end_failed(members);
            if is_again {
                repeat += 1;
                self.await_quiet();
            } else {
                (next, repeat) = (next + count, 0);
            }
        }
        // Both contenders of a pair met the same disturbance in a block. That is no remedy where most are disturbed.
        if 2 * disturbed > round.blocks && !self.plan.accept_noise {
            let most = format!("{disturbed} of {} blocks of round {}", round.blocks, round.number + 1);
            let last = self.evidence.complaints.last().cloned().unwrap_or_default();
            self.too_noisy = Some(format!("{most} stayed disturbed; {last}"));
        }
        self.spend(Stage::Turns, begun);
        self.shift(Stage::Turns, Stage::Requests, timed_ns as f64 / 1e9);
        Ok(())
    }

    /// Deals blocks until they have lasted long enough to be watched, from the block `first` on.
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
            let turns = self.block(round, members, (round.first + number, repeat), work)?;
            dealt.push(Block { round: round.number, turns, noise: Noise::default() });
            // What is left must be long enough to be watched, too.
            let each = begun.elapsed() / dealt.len() as u32;
            let left = (round.blocks - number - 1) as u32;
            let is_long = begun.elapsed() >= STRETCH && (left == 0 || each * left >= STRETCH);
            if is_long || members.iter().all(|member| member.is_over) {
                break;
            }
        }
        Ok((dealt, watch.end(&self.guard)))
    }

    /// One turn for each member, in an order drawn anew: a request, whole or slice by slice, each pass over the members
    /// in another order.
    pub(crate) fn block(
        &mut self,
        round: Round,
        members: &mut [Member],
        (number, repeat): (usize, usize),
        work: &RoundWork<'_>,
    ) -> Result<Vec<(String, Turn)>, Interrupted> {
        self.pause_between_blocks();
        let case = number % self.plan.work.cases();
        let slice = self.slice(members);
        let mut orders = self.block_orders.by_ref().take(1).chain(self.slice_orders.by_ref());
        let (mut turns, mut places) = (Vec::new(), Vec::new());
        let mut requests: BTreeMap<usize, Sliced> = BTreeMap::new();
        loop {
            for index in orders.next().expect("orders have no end") {
                if interrupt::requested() {
                    return Err(Interrupted);
                }
                if turns.iter().any(|(_, done, _)| *done == index) {
                    continue;
                }
                let mut open = members.iter_mut().filter(|member| !member.is_over);
                let Some(member) = open.find(|member| member.index == index) else { continue };
                self.progress.turn(round, self.plan.rounds.max(), number, &member.process.framework);
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
                if self.plan.schedule.has_turns() {
                    member.live.pause();
                }
            }
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
        Ok(turns.into_iter().filter_map(turn).collect())
    }

    /// The pause that was asked for, in slices, so that an interrupt ends it.
    fn pause_between_blocks(&self) {
        let (begun, delay) = (now(), Duration::from_nanos(self.plan.delay_ns));
        while begun.elapsed() < delay && !interrupt::requested() {
            std::thread::sleep((delay - begun.elapsed().min(delay)).min(Duration::from_millis(50)));
        }
    }

    /// Ends the processes that failed in their turns.
    pub(crate) fn end_failed(&mut self, members: &mut Vec<Member>) {
        let over: Vec<Member> = members.extract_if(.., |member| member.is_over).collect();
        over.into_iter().for_each(|member| self.end_member(member));
    }
}

/// What is so of a process until its end is told.
fn cut_off() -> RunFailure {
    RunFailure {
        kind: FailureKind::Interrupted,
        reason: "photofinish was ended before it".into(),
        last_words: None,
        repeat: None,
    }
}

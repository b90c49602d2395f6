//! One round: loads from a cold page cache, then the groups of processes that are measured together.
//!
//! The machine is watched. A disturbed start or block is repeated, not its round.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use comparison::facts::evidence::{Block, Fact, Process, Stage};
use comparison::facts::run::{FailureKind, Noise, Place, Purpose, Run, RunFailure, Turn};
use comparison::judge;
use comparison::judge::report::{COMPLETE, huge_share};
use comparison::plan::{Plan, Schedule};
use protocol::{Event, Job, Shows, Task};

use crate::measure::process::now;
use crate::measure::progress;
use crate::measure::proof::{Answered, Asked};
use crate::measure::running_worker::WarmWorker;
use crate::measure::session::{Interrupted, Round, RoundWork, Session};
use crate::measure::slices::Sliced;

/// Largest share of the time limit for the loads from a cold page cache of one round.
const COLD_LOADS: f64 = 0.1;

/// Number of times that a round watched as a whole is repeated.
const MAX_REPEATS: usize = 2;

impl Session<'_> {
    /// Runs one round. If its parts are too short to be watched, it is watched and repeated as a whole.
    pub(crate) fn round(
        &mut self,
        round: Round,
        order: &[usize],
        work: &RoundWork<'_>,
    ) -> Result<(), Interrupted> {
        self.cold_loads(round, order)?;
        let groups = of_round(self.crew.plan, order);
        for repeat in 0.. {
            (self.unwatched, self.stays_disturbed) = (false, false);
            let (whole, begun) = (self.guard.watch(), now());
            self.groups(round, &groups, work)?;
            let noise = whole.end(&self.guard);
            let reason = noise.complaints().join(", ");
            self.recorder.record(Fact::Watched { noise });
            if !self.unwatched || reason.is_empty() {
                break;
            }
            // If a part stayed disturbed already, repeating the whole would not help.
            if !self.should_repeat(round, &reason, repeat < MAX_REPEATS && !self.stays_disturbed) {
                if !self.crew.plan.accept_noise {
                    self.too_noisy = self.recorder.evidence.complaints.last().cloned();
                }
                break;
            }
            self.recorder.record(Fact::PutAside { round: round.number, framework: None });
            self.await_quiet_again();
            self.limit.repeated(begun);
        }
        self.tokenise();
        self.crew.progress.step();
        Ok(())
    }

    /// Records a complaint of the guard. Returns whether to repeat: not if noise is accepted or known to
    /// last, and only as long as it `can_retry` and there is time.
    pub(crate) fn should_repeat(&mut self, round: Round, reason: &str, can_retry: bool) -> bool {
        let reason = format!("round {}, {reason}", round.number + 1);
        let can_retry = can_retry && self.limit.can_repeat();
        self.recorder.record(Fact::Complaint { reason: reason.clone() });
        if self.crew.plan.accept_noise || self.too_noisy.is_some() {
            return false;
        }
        self.stays_disturbed |= !can_retry;
        self.crew
            .progress
            .say(&format!("{reason}; {}", if can_retry { "it is done again" } else { "it stays so" }));
        can_retry
    }

    /// Loads with the weights dropped from the page cache. No process that maps the file may be alive.
    fn cold_loads(&mut self, round: Round, order: &[usize]) -> Result<(), Interrupted> {
        if round.number >= self.crew.plan.cold_loads {
            return Ok(());
        }
        let (begun, mut runs) = (now(), Vec::new());
        let order = order.iter().copied().enumerate();
        let loads = |(_, index): &(usize, usize)| {
            let contender = &self.crew.plan.contenders[*index];
            !self.recorder.is_absent(contender) && !contender.engine.is_server()
        };
        let running: Vec<(usize, usize)> = order.filter(loads).collect();
        for &(position, index) in &running {
            let contender = &self.crew.plan.contenders[index];
            self.crew.progress.message(&format!("{}: load from a cold page cache", contender.label));
            let job = Job { evict: true, ..self.crew.job(contender, Task::Load) };
            let outcome = self.crew.run_job(index, &job);
            let place = Place { round: round.number, attempt: 0, position };
            let run = Run::new(Purpose::ColdLoad, place, &contender.label, outcome);
            if let Some(failure) = &run.failure {
                self.give_up_if_it_spins(index, &failure.sentence());
            }
            runs.push(run);
            if self.is_over() {
                return Err(Interrupted);
            }
            // All contenders have as many.
            let each = begun.elapsed() / runs.len() as u32;
            if each.saturating_mul(running.len() as u32) > self.limit.part(COLD_LOADS) {
                let few = "too little time for loads from a cold page cache: none in this round";
                self.crew.progress.say(few);
                runs.clear();
                break;
            }
        }
        runs.into_iter().for_each(|run| self.recorder.record(Fact::Run(Box::new(run))));
        self.crew.read_weights();
        self.recorder.add_time(Stage::ColdLoads, begun);
        Ok(())
    }
}

// The groups of a round: processes that are alive together and take turns.

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

// Processes that are measured together: they are started one after another, each alone until it is warm;
// then they wait and take turns in blocks; then each finishes. Under the sequential schedule every process
// is such a group of its own.

impl Session<'_> {
    /// Starts processes, given as (place in the order, contender), gives them their turns, and lets them
    /// finish. The anchor may be running already, and may be kept. Returns the round with its number of
    /// blocks, and the anchor.
    pub(crate) fn group(
        &mut self,
        round: Round,
        group: &[(usize, usize)],
        (kept, keeps): (Option<WarmWorker>, bool),
        work: &RoundWork<'_>,
    ) -> Result<(Round, Option<WarmWorker>), Interrupted> {
        let begun = now();
        let turns_are_shared = group.len() + usize::from(kept.is_some()) > 1;
        let mut members: Vec<WarmWorker> = kept.into_iter().collect();
        let started = group.iter().try_for_each(|&(position, index)| {
            if self.is_over() {
                return Err(Interrupted);
            }
            if !self.recorder.is_absent(&self.crew.plan.contenders[index]) {
                let member = self.start(round, position, index, work)?;
                members.extend(member.map(|mut member| {
                    if turns_are_shared {
                        member.running.pause();
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

// The start of a process, until it is warm.

/// Number of times that a start is repeated.
const START_REPEATS: usize = 1;

/// Number of times in a row that a contender's processes are started again for more huge pages in vain.
const PAGE_REPEATS: usize = 2;

impl Session<'_> {
    /// Starts a process, and waits until it is warm. `None` if it failed.
    pub(crate) fn start(
        &mut self,
        round: Round,
        position: usize,
        index: usize,
        work: &RoundWork<'_>,
    ) -> Result<Option<WarmWorker>, Interrupted> {
        let contender = &self.crew.plan.contenders[index];
        for repeat in 0.. {
            self.crew.progress.running(round, &format!("{} starts", contender.label));
            let attempt = self.recorder.evidence.attempts(round.number, &contender.label);
            let process = Process { round: round.number, attempt, framework: contender.label.clone() };
            let place = Place { round: round.number, attempt, position };
            let job = self.crew.job(contender, self.crew.measurement(contender, work.run.traces()));
            let (watch, begun) = (self.guard.watch(), now());
            let held = self.held.remove(&index);
            let mut running = self.crew.workers[index].of_round(round.number).start(&job, held);
            self.guard.add(running.pid());
            let is_warm = running.warm_up(self.crew.plan.warmup.max_iterations);
            let noise = watch.end(&self.guard);
            self.unwatched |= noise.foreign.is_none();
            let complaints = noise.complaints();
            let run = Run {
                noise: Some(noise),
                // For the journal of a run that is ended before this process.
                failure: Some(RunFailure::new(FailureKind::Interrupted, "photofinish was ended before it")),
                ..Run::of_events(
                    Purpose::Measure,
                    place,
                    &contender.label,
                    running.pid(),
                    running.events().to_vec(),
                )
            };
            self.recorder.record(Fact::Warm(Box::new(run)));
            let warmup_events = running.events().len();
            let member = WarmWorker { index, running, job, process, warmup_events, is_over: !is_warm };
            if !is_warm {
                self.end_member(member);
                return if self.is_over() { Err(Interrupted) } else { Ok(None) };
            }
            let reason = format!("while {} started, {}", contender.label, complaints.join(", "));
            let is_disturbed =
                !complaints.is_empty() && self.should_repeat(round, &reason, repeat < START_REPEATS);
            if !is_disturbed && !self.lacks_pages(&member, repeat < START_REPEATS) {
                return Ok(Some(member));
            }
            let framework = Some(contender.label.clone());
            self.discard(member);
            self.recorder.record(Fact::PutAside { round: round.number, framework });
            self.await_quiet_again();
            self.limit.repeated(begun);
        }
        unreachable!("repeats end")
    }

    /// Whether a process is started again because it has a smaller share of huge pages than others. After two
    /// failures in a row this is given up: some allocators do not ask for them.
    fn lacks_pages(&mut self, member: &WarmWorker, can_repeat: bool) -> bool {
        let share = |events: &[Event]| {
            let warm = events.iter().rev().find_map(|event| match event {
                Event::Warmup(warm) => Some(&warm.memory),
                _ => None,
            });
            warm.and_then(huge_share)
        };
        let given = self
            .recorder
            .evidence
            .runs
            .iter()
            .filter_map(|run| share(&run.events))
            .any(|share| share >= COMPLETE);
        let Some(ours) = share(member.running.events()).filter(|_| given) else { return false };
        let tried = self.page_repeats.entry(member.index).or_default();
        if ours >= COMPLETE {
            *tried = 0;
            return false;
        }
        let again = can_repeat && *tried < PAGE_REPEATS && self.limit.can_repeat();
        *tried += usize::from(again);
        again
    }
}

// The blocks of a group: each waiting process has one turn.

/// Number of times that a block is repeated.
const BLOCKS_MAX_REPEATS: usize = 2;

/// Shortest stretch of blocks that is watched separately: over less time the kernel's counters are too
/// coarse.
const STRETCH: Duration = Duration::from_millis(500);

impl Session<'_> {
    /// Gives every member its turns. Returns the round with the number of blocks that there was time for.
    pub(crate) fn blocks(
        &mut self,
        mut round: Round,
        members: &mut Vec<WarmWorker>,
        work: &RoundWork<'_>,
    ) -> Result<Round, Interrupted> {
        let begun = now();
        let (mut next, mut repeat, mut timed_ns, mut disturbed) = (0, 0, 0, 0);
        while next < round.blocks && !members.is_empty() {
            let watched = now();
            let (mut dealt, answered, noise) = self.stretch(round, members, (next, repeat), work)?;
            self.unwatched |= noise.foreign.is_none();
            let complaints = noise.complaints();
            let reason = format!("block {}: {}", next + 1, complaints.join(", "));
            let count = dealt.len();
            let is_again =
                !complaints.is_empty() && self.should_repeat(round, &reason, repeat < BLOCKS_MAX_REPEATS);
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
            if let Some(proofs) = self.proofs.as_mut().filter(|_| !is_again) {
                proofs.add(answered);
            }
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
        members: &mut [WarmWorker],
        (first, repeat): (usize, usize),
        work: &RoundWork<'_>,
    ) -> Result<(Vec<Block>, Vec<Answered>, Noise), Interrupted> {
        let (watch, begun) = (self.guard.watch(), now());
        let (mut dealt, mut answered) = (Vec::new(), Vec::new());
        for number in first..round.blocks {
            let (block, of_block) = self.block(round, members, (round.first + number, repeat), work)?;
            dealt.push(block);
            answered.extend(of_block);
            // The rest must be long enough to be watched, too.
            let each = begun.elapsed() / dealt.len() as u32;
            let left = (round.blocks - number - 1) as u32;
            let is_long = begun.elapsed() >= STRETCH && (left == 0 || each * left >= STRETCH);
            let is_late = self.is_late(number + 1, each);
            if is_long || is_late || members.iter().all(|member| member.is_over) {
                break;
            }
        }
        let changes = members.iter_mut().flat_map(|member| {
            let label = member.process.framework.clone();
            member.running.changes().into_iter().map(move |change| format!("{change} ({label})"))
        });
        let changed = changes.collect();
        Ok((dealt, answered, Noise { changed, ..watch.end(&self.guard) }))
    }

    /// One turn for each member, in a newly drawn order: a request, whole or slice by slice; each pass over
    /// the members has another order.
    fn block(
        &mut self,
        round: Round,
        members: &mut [WarmWorker],
        (number, repeat): (usize, usize),
        work: &RoundWork<'_>,
    ) -> Result<(Block, Vec<Answered>), Interrupted> {
        self.pause_between_blocks();
        let case = work.cases[number % work.cases.len()];
        let asked = self.asked(round, (number, repeat), case);
        let (slice, limit) = (self.slice(members), self.limit);
        let mut orders = self.block_orders.by_ref().take(1).chain(self.slice_orders.by_ref());
        let mut passes = Vec::new();
        let mut requests: BTreeMap<usize, Sliced> = BTreeMap::new();
        let is_done = |requests: &BTreeMap<usize, Sliced>, index: usize| {
            requests.get(&index).is_some_and(|request| request.sample.is_some())
        };
        loop {
            let mut pass = Vec::new();
            for index in orders.next().expect("orders have no end") {
                if progress::requested() || limit.is_over() {
                    return Err(Interrupted);
                }
                if is_done(&requests, index) {
                    continue;
                }
                let mut open = members.iter_mut().filter(|member| !member.is_over);
                let Some(member) = open.find(|member| member.index == index) else { continue };
                self.crew.progress.turn(round, number, &member.process.framework);
                pass.push(index);
                member.running.resume();
                let vocabulary = self.crew.vocabulary();
                let shown = member.shows(self.crew.plan);
                let proofs = self.proofs.as_mut().filter(|_| shown == Shows::All);
                let drawn = proofs.and_then(|proofs| proofs.drawn(self.crew.plan, vocabulary));
                let position = requests.len();
                let request =
                    requests.entry(index).or_insert_with(|| Sliced::new(case, position, asked.clone()));
                let batch = self.crew.plan.work.batch();
                member.is_over = request.next(&mut member.running, (drawn, batch), slice).is_none();
                if self.crew.plan.schedule.has_turns() {
                    member.running.pause();
                }
            }
            passes.push(pass);
            if members.iter().all(|member| member.is_over || is_done(&requests, member.index)) {
                break;
            }
        }
        let mut requests: Vec<(usize, Sliced)> = requests.into_iter().collect();
        requests.sort_by_key(|(_, request)| request.position);
        let is_forced = self.crew.plan.work.is_forced();
        let (mut taken, mut answered) = (Vec::new(), Vec::new());
        for (index, request) in requests {
            let Sliced { position, prepared_ns, seen_ns, drawn, sample: Some(mut sample), .. } = request
            else {
                continue;
            };
            let Some(member) = members.iter().find(|member| member.index == index) else { continue };
            let process = member.process.clone();
            let feeds_itself = is_forced && asked.as_deref().is_some_and(Asked::feeds_itself);
            let mut vectors = None;
            match &asked {
                Some(_) if member.shows(self.crew.plan) == Shows::Count => {}
                Some(asked) => {
                    let (asked, output) = (Rc::clone(asked), sample.output.clone());
                    let (process, barred) = (process.clone(), member.barred(self.crew.plan));
                    answered.push(Answered { process, index, asked, output, drawn, barred });
                }
                // Its input is the jobs', and so is what the reference gave for it.
                None => {
                    let references = work.run.references.as_ref();
                    let theirs = references.and_then(|references| references.own.outputs.get(case));
                    vectors = theirs.and_then(|theirs| judge::work::difference(&sample.output, theirs));
                }
            }
            sample.output.clear_numbers();
            let (block, stands) = (number, true);
            let turn =
                Turn { block, repeat, position, stands, sample, prepared_ns, seen_ns, feeds_itself, vectors };
            taken.push((process.framework, turn));
        }
        if passes.len() < 2 {
            passes.clear();
        }
        Ok((Block { round: round.number, turns: taken, passes, noise: Noise::default() }, answered))
    }

    /// The requested pause, in slices, so that an interrupt ends it.
    fn pause_between_blocks(&self) {
        let (begun, delay) = (now(), Duration::from_nanos(self.crew.plan.delay_ns));
        while begun.elapsed() < delay && !progress::requested() {
            std::thread::sleep((delay - begun.elapsed().min(delay)).min(Duration::from_millis(50)));
        }
    }
}

//! The start of a process, until it is warm.

use facts::evidence::{Fact, Process};
use facts::run::{FailureKind, Place, Purpose, Run, RunFailure};
use judge::report::huge_pages::{COMPLETE, huge_share};
use protocol::Event;

use crate::clock::now;
use crate::live::Live;
use crate::member::Member;
use crate::round_spec::{Interrupted, Round, RoundWork};
use crate::session::Session;

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
    ) -> Result<Option<Member>, Interrupted> {
        let contender = &self.crew.plan.contenders[index];
        for repeat in 0.. {
            self.crew.progress.running(
                round,
                self.crew.plan.rounds.max(),
                &format!("{} starts", contender.label),
            );
            let attempt = self.recorder.evidence.attempts(round.number, &contender.label);
            let process = Process { round: round.number, attempt, framework: contender.label.clone() };
            let place = Place { round: round.number, attempt, position };
            let job = self.crew.job(contender, self.crew.measurement(contender, work.traces));
            let (watch, begun) = (self.guard.watch(), now());
            let held = self.held.remove(&index);
            let mut live = self.crew.workers[index].start(&job, held);
            self.guard.add(live.pid());
            let is_warm = live.warm_up(self.crew.plan.warmup.max_iterations);
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
            self.recorder.record(Fact::Warm(Box::new(run(&live))));
            let said = live.events().len();
            let member = Member { index, live, job, process, said, is_over: !is_warm };
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
    fn lacks_pages(&mut self, member: &Member, can_repeat: bool) -> bool {
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
        let Some(ours) = share(member.live.events()).filter(|_| given) else { return false };
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

/// The failure of a process without an end in the journal.
fn cut_off() -> RunFailure {
    RunFailure {
        kind: FailureKind::Interrupted,
        reason: "photofinish was ended before it".into(),
        last_words: None,
        repeat: None,
    }
}

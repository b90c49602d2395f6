//! One round: loads from a cold page cache, then the groups of processes that are measured together.
//!
//! The machine is watched. A disturbed start or block is repeated, not its round.

use facts::evidence::{Fact, Stage};
use facts::run::{Place, Purpose, Run};
use protocol::{Job, Task};

use crate::clock::now;
use crate::groups;
use crate::interrupt;
use crate::round_spec::{Interrupted, Round, RoundWork};
use crate::session::Session;

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
        let groups = groups::of_round(self.crew.plan, order);
        for repeat in 0.. {
            (self.unwatched, self.stays_disturbed) = (false, false);
            let whole = self.guard.watch();
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
            self.await_quiet();
        }
        self.tokenise();
        self.crew.progress.step();
        Ok(())
    }

    /// Loads with the weights dropped from the page cache. No process that maps the file may be alive.
    fn cold_loads(&mut self, round: Round, order: &[usize]) -> Result<(), Interrupted> {
        if round.number >= self.crew.plan.cold_loads {
            return Ok(());
        }
        let begun = now();
        for (position, &index) in order.iter().enumerate() {
            let contender = &self.crew.plan.contenders[index];
            if self.recorder.is_absent(contender) {
                continue;
            }
            self.crew.progress.message(&format!("{}: load from a cold page cache", contender.label));
            let job = Job { evict: true, ..self.crew.job(contender, Task::Load) };
            let outcome = self.crew.run_job(index, &job);
            let place = Place { round: round.number, attempt: 0, position };
            let run = Run::new(Purpose::ColdLoad, place, &contender.label, outcome);
            self.recorder.record(Fact::Run(Box::new(run)));
            if interrupt::requested() {
                return Err(Interrupted);
            }
        }
        self.crew.read_weights();
        self.recorder.add_time(Stage::ColdLoads, begun);
        Ok(())
    }
}

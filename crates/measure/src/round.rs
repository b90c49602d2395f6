//! One round: loads from a cold page cache, then the groups of processes that are measured together.
//!
//! The machine is watched. A disturbed start or block is repeated, not its round.

use facts::evidence::{Fact, Stage};
use facts::run::{Place, Purpose, Run};
use protocol::{Job, Task};

use crate::clock::now;
use crate::groups;
use crate::round_spec::{Interrupted, Round, RoundWork};
use crate::session::Session;

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
        let groups = groups::of_round(self.crew.plan, order);
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

    /// Loads with the weights dropped from the page cache. No process that maps the file may be alive.
    fn cold_loads(&mut self, round: Round, order: &[usize]) -> Result<(), Interrupted> {
        if round.number >= self.crew.plan.cold_loads {
            return Ok(());
        }
        let (begun, mut runs) = (now(), Vec::new());
        let order = order.iter().copied().enumerate();
        let running: Vec<(usize, usize)> =
            order.filter(|(_, index)| !self.recorder.is_absent(&self.crew.plan.contenders[*index])).collect();
        for &(position, index) in &running {
            let contender = &self.crew.plan.contenders[index];
            self.crew.progress.message(&format!("{}: load from a cold page cache", contender.label));
            let job = Job { evict: true, ..self.crew.job(contender, Task::Load) };
            let outcome = self.crew.run_job(index, &job);
            let place = Place { round: round.number, attempt: 0, position };
            runs.push(Run::new(Purpose::ColdLoad, place, &contender.label, outcome));
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

//! The one loop of rounds: each runs every contender once, in a balanced random order, never two at a time. The machine
//! is probed and watched. A round on a noisy machine is repeated.

use std::path::Path;
use std::time::{Duration, Instant};

use judge::evidence::{End, Fact};
use judge::noise::Noise;
use judge::parity::{self, Reference, Tolerance};
use judge::run::{DerivedWeights, FailureKind, Place, Purpose, Run};
use judge::verdicts;
use plan::{Contender, Rounds};
use protocol::{Job, Task};
use statistics::BalancedOrder;

use crate::session::Session;
use crate::{interrupt, logits};

/// Number of times that one round is repeated before the machine is called too noisy.
const MAX_REPEATS: usize = 2;

/// The work of every process of every round.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RoundWork<'a> {
    /// Tokens that are fed, `[case][batch][new tokens]`.
    pub(crate) traces: &'a [Vec<Vec<u32>>],
    /// The outputs to compare with.
    pub(crate) reference: Option<&'a Reference>,
    /// Whether processes write logits, to be compared with the reference.
    pub(crate) parity: bool,
    /// When the time budget of automatic rounds began.
    pub(crate) begun: Instant,
}

/// The outcome of a round.
enum Round {
    Done,
    Interrupted,
    /// The round was noisy in every attempt.
    Noisy(String),
}

impl Session<'_> {
    /// Runs as many rounds as the plan asks for. Returns the reason why there are no more.
    pub(crate) fn rounds(&mut self, work: &RoundWork<'_>) -> End {
        let mut orders = BalancedOrder::new(self.plan.contenders.len(), self.plan.seed);
        let mut longest = Duration::ZERO;
        loop {
            if self.evidence.rounds == self.plan.rounds.max() {
                return End::Planned;
            }
            if self.plan.contenders.iter().all(|contender| self.is_absent(contender)) {
                return End::NobodyLeft;
            }
            let begun = now();
            let order = orders.next().expect("orders have no end");
            match self.round(&order, work) {
                Round::Done => self.tell(Fact::RoundDone),
                Round::Interrupted => return End::Interrupted,
                Round::Noisy(reason) => return End::Noisy { reason },
            }
            longest = longest.max(begun.elapsed());
            if let Some(end) = self.enough(work.begun.elapsed() + longest) {
                return end;
            }
        }
    }

    /// Whether automatic rounds may end. `next` is when another round would end, measured from the start.
    fn enough(&self, next: Duration) -> Option<End> {
        let Rounds::Auto { budget_s, .. } = self.plan.rounds else { return None };
        if self.evidence.rounds < statistics::MIN_ROUNDS {
            return None;
        }
        if verdicts::are_clear(self.plan, &self.evidence) {
            return Some(End::Clear);
        }
        (next.as_secs_f64() > budget_s).then_some(End::Budget)
    }

    /// Runs one round: every contender once, repeated until the machine was quiet throughout.
    fn round(&mut self, order: &[usize], work: &RoundWork<'_>) -> Round {
        let round = self.evidence.rounds;
        for attempt in 0.. {
            let Some(complaints) = self.attempt(order, attempt, work) else { return Round::Interrupted };
            if complaints.is_empty() {
                break;
            }
            let reason = format!("round {}: {}", round + 1, complaints.join(", "));
            self.tell(Fact::Complaint { reason: reason.clone() });
            if self.plan.accept_noise {
                break;
            }
            self.tell(Fact::PutAside { round });
            if attempt == MAX_REPEATS {
                return Round::Noisy(reason);
            }
            self.progress.say(&format!("{reason}; it is done again"));
            self.await_quiet();
        }
        self.progress.step(order.len());
        Round::Done
    }

    /// Runs one attempt at a round. Returns the guard's complaints; `None` if the user interrupted.
    fn attempt(&mut self, order: &[usize], attempt: usize, work: &RoundWork<'_>) -> Option<Vec<String>> {
        let round = self.evidence.rounds;
        let first = self.evidence.runs.len();
        let mut complaints = Vec::new();
        let whole = self.guard.watch();
        for (position, &index) in order.iter().enumerate() {
            if interrupt::requested() {
                return None;
            }
            if !self.is_absent(&self.plan.contenders[index]) {
                complaints.extend(self.process(index, Place { round, attempt, position }, work));
            }
        }
        if interrupt::requested() {
            return None;
        }
        let noise = whole.end();
        // Runs that are too short to be watched one by one are watched together.
        let unwatched = |run: &Run| run.noise.as_ref().is_none_or(|noise| noise.foreign.is_none());
        if self.evidence.runs[first..].iter().any(unwatched) {
            complaints.extend(noise.complaints());
        }
        self.tell(Fact::Watched { noise });
        Some(complaints)
    }

    /// Runs one contender's process of a round, with probes of the machine before and after it. Returns the guard's
    /// complaints.
    fn process(&mut self, index: usize, place: Place, work: &RoundWork<'_>) -> Vec<String> {
        let contender = &self.plan.contenders[index];
        self.progress.running(place.round, self.plan.rounds.max(), &contender.label);
        if place.round < self.plan.cold_loads && place.attempt == 0 {
            let run = self.cold_load(index, place);
            self.tell(Fact::Run(Box::new(run)));
            self.prober.forget();
        }
        let mut complaints: Vec<String> = self.probe_before(index, place).into_iter().collect();
        let watch = self.guard.watch();
        let mut run = self.run(index, place, work);
        let noise = watch.end();
        let each = noise.complaints().into_iter();
        complaints.extend(each.map(|what| format!("while {} ran {what}", contender.label)));
        run.noise = Some(noise);
        self.note(contender, run);
        complaints.extend(self.probe_after(index, place));
        complaints
    }

    /// Waits until the machine is quiet, as long as the plan allows. Returns the last look.
    pub(crate) fn await_quiet(&self) -> Noise {
        let patience = Duration::from_secs_f64(self.plan.patience_s);
        let mut told = false;
        self.guard.wait_until_quiet(patience, |noise| {
            if !std::mem::replace(&mut told, true) {
                let complaints = noise.complaints().join(", ");
                let limit = patience.as_secs_f64();
                self.progress.say(&format!("waiting up to {limit} s for a quiet machine: {complaints}"));
            }
        })
    }

    /// Runs one process, and compares its outputs with the reference.
    fn run(&mut self, index: usize, place: Place, work: &RoundWork<'_>) -> Run {
        let (contender, worker) = (&self.plan.contenders[index], &self.workers[index]);
        let file = self.scratch.path().join("parity.safetensors");
        let asked = work.parity.then_some(file.as_path());
        let job = self.job(contender, self.measurement(contender, work.traces, asked));
        let mut run = Run::new(Purpose::Measure, place, &contender.label, worker.run(&job));
        if run.is_complete()
            && work.parity
            && let Some(reference) = work.reference
        {
            let tolerance = Tolerance::for_precision(contender.precision);
            let agreement = logits::read_parity(&file)
                .and_then(|logits| parity::compare(reference, &logits, &run, self.plan.decode, tolerance));
            match agreement {
                Ok(agreement) => run.agreement = Some(agreement),
                Err(reason) => self.progress.say(&format!("{}: {reason}", contender.label)),
            }
        }
        // The file is missing after a failure; an old one must not be taken for the next process's.
        let _ = std::fs::remove_file(&file);
        if contender.engine.reference {
            run.derived = derived_weights(&run);
        }
        self.keep_job(contender, worker.clone(), &job, &mut run);
        run
    }

    /// Saves the job of a failed process, and notes the shell line that repeats it.
    fn keep_job(&mut self, contender: &Contender, worker: crate::process::Worker, job: &Job, run: &mut Run) {
        if let Some(failure) = &mut run.failure
            && matches!(failure.kind, FailureKind::Failed | FailureKind::OutOfMemory)
        {
            let name = format!("job-round{}-{}.json", run.round + 1, contender.label.replace(' ', ""));
            self.results.write(&name, serde_json::to_string(job).expect("jobs serialise"));
            failure.repeat = Some(worker.shell_line(&self.results.directory().join(name)));
        }
    }

    /// Measures a load with the weights dropped from the page cache; it also warms the cache for the measurement.
    fn cold_load(&self, index: usize, place: Place) -> Run {
        let contender = &self.plan.contenders[index];
        let job = Job { evict: true, ..self.job(contender, Task::Load) };
        let outcome = self.workers[index].run(&job);
        Run::new(Purpose::ColdLoad, place, &contender.label, outcome)
    }

    /// Stores a process, and reports its failure. A job that cannot work is not tried again.
    fn note(&mut self, contender: &Contender, run: Run) {
        let (failure, round) = (run.failure.clone(), run.round);
        self.tell(Fact::Run(Box::new(run)));
        let Some(failure) = failure.filter(|failure| failure.kind != FailureKind::Interrupted) else {
            return;
        };
        self.progress.say(&format!("{}, round {}: {}", contender.label, round + 1, failure.sentence()));
        if let Some(repeat) = &failure.repeat {
            self.progress.say(&format!("  to repeat it: {repeat}"));
        }
        // One failed process strikes the row: figures of only the lucky processes would be biased.
        self.tell(Fact::Absent { framework: contender.label.clone(), failure });
    }
}

/// The record beside the weights file that a process loaded.
fn derived_weights(run: &Run) -> Option<DerivedWeights> {
    let path = format!("{}.json", run.loaded()?.weights_file);
    serde_json::from_slice(&std::fs::read(Path::new(&path)).ok()?).ok()
}

#[expect(clippy::disallowed_methods, reason = "the time budget, not a measurement")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

//! The measuring itself: a reference run, then rounds in which every contender runs once, in a balanced
//! random order, never two at once. A round on a noisy machine is done again.

use std::path::Path;
use std::time::{Duration, Instant};

use bundle::Bundle;
use protocol::{Hello, Job, Measure, ParityTask, Task};
use statistics::BalancedOrder;

use crate::evidence::{End, Evidence};
use crate::failure::{Failure, Result};
use crate::interrupt;
use crate::judge::logits;
use crate::judge::parity::{self, Reference, Tolerance};
use crate::judge::verdicts;
use crate::launch;
use crate::machine::{self, Guard};
use crate::places::Places;
use crate::plan::{Contender, Plan, Rounds};
use crate::probing::Prober;
use crate::process::{Ending, Worker};
use crate::progress::Progress;
use crate::record::{FailureKind, Place, Purpose, Run, RunFailure};
use crate::results::Results;

/// Tokens of the trace that the parity check feeds one at a time: enough to go through the decode path,
/// few enough to cost little.
pub(crate) const PARITY_STEPS: usize = 8;
/// How often one round is done again before the machine is called too noisy.
const MAX_REPEATS: usize = 2;

pub(crate) struct Session<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) bundle: &'a Bundle,
    pub(crate) workers: Vec<Worker>,
    /// For logits on their way from worker to driver.
    pub(crate) scratch: tempfile::TempDir,
    pub(crate) progress: Progress,
    pub(crate) guard: Guard,
    pub(crate) prober: Prober,
}

/// What becomes of a round.
enum Round {
    Done,
    Interrupted,
    /// Noisy as often as it was tried.
    Noisy(String),
}

impl<'a> Session<'a> {
    pub(crate) fn new(
        plan: &'a Plan,
        bundle: &'a Bundle,
        places: &Places,
        quiet: bool,
    ) -> Result<Session<'a>> {
        let scratch = tempfile::Builder::new()
            .prefix("photofinish-")
            .tempdir()
            .map_err(|e| Failure::failed(format!("cannot make a temporary directory: {e}")))?;
        let worker =
            |contender: &Contender| launch::worker(contender, plan.cpus.as_deref(), places, plan.timeout_s);
        let workers = plan.contenders.iter().map(worker).collect();
        let progress = Progress::new(plan.contenders.len() * plan.rounds.max(), quiet);
        let guard = Guard::new(plan.cpus.clone().unwrap_or_default(), &plan.device);
        let prober = Prober::new(plan, bundle);
        Ok(Session { plan, bundle, workers, scratch, progress, guard, prober })
    }

    /// Measures. Evidence is complete as far as it goes, whatever happens.
    pub(crate) fn measure(&mut self, results: &mut Results) -> Result<Evidence> {
        let mut evidence = Evidence { quota: machine::quota(), ..Evidence::default() };
        self.greet(&mut evidence)?;
        if !self.plan.accept_noise {
            evidence.before = Some(self.await_quiet());
        }
        let start = now();
        let reference = self.reference(&mut evidence);
        let traces = match &reference {
            Some(reference) => reference.traces.clone(),
            // Nobody to take a trace from: the prompts' own tokens serve, so that work stays equal.
            None => self.fallback_traces(),
        };
        let mut orders = BalancedOrder::new(self.plan.contenders.len(), self.plan.seed);
        let mut longest = Duration::ZERO;
        evidence.end = loop {
            if evidence.rounds == self.plan.rounds.max() {
                break End::Planned;
            }
            if evidence.absent.len() == self.plan.contenders.len() {
                break End::NobodyLeft;
            }
            let begun = now();
            let order = orders.next().expect("orders have no end");
            match self.round(&order, &traces, reference.as_ref(), &mut evidence, results) {
                Round::Done => evidence.rounds += 1,
                Round::Interrupted => break End::Interrupted,
                Round::Noisy(reason) => break End::Noisy { reason },
            }
            longest = longest.max(begun.elapsed());
            if let Some(end) = self.enough(&evidence, start.elapsed() + longest) {
                break end;
            }
        };
        if !matches!(evidence.end, End::Interrupted | End::Noisy { .. }) {
            self.score_texts(&mut evidence);
            // Figures of the rounds stand, but what was asked for is not all there.
            if interrupt::requested() {
                evidence.end = End::Interrupted;
            }
        }
        self.progress.done();
        Ok(evidence)
    }

    /// Whether automatic rounds may end. `next` is when another round would be done, since the start.
    fn enough(&self, evidence: &Evidence, next: Duration) -> Option<End> {
        let Rounds::Auto { budget_s, .. } = self.plan.rounds else { return None };
        if evidence.rounds < statistics::MIN_ROUNDS {
            return None;
        }
        if verdicts::are_clear(self.plan, evidence) {
            return Some(End::Clear);
        }
        (next.as_secs_f64() > budget_s).then_some(End::Budget)
    }

    /// One round: every contender once, until the machine was quiet throughout.
    fn round(
        &mut self,
        order: &[usize],
        traces: &[Vec<Vec<u32>>],
        reference: Option<&Reference>,
        evidence: &mut Evidence,
        results: &mut Results,
    ) -> Round {
        let round = evidence.rounds;
        for attempt in 0.. {
            let mut complaints = Vec::new();
            let first = evidence.runs.len();
            let whole = self.guard.watch();
            for (position, &index) in order.iter().enumerate() {
                let contender = &self.plan.contenders[index];
                if interrupt::requested() {
                    return Round::Interrupted;
                }
                if !evidence.absent.contains_key(&contender.label) {
                    self.progress.running(round, self.plan.rounds.max(), &contender.label);
                    let place = Place { round, attempt, position };
                    if round < self.plan.cold_loads && attempt == 0 {
                        evidence.cold_loads.push(self.cold_load(index, place, results));
                        self.prober.forget();
                    }
                    complaints.extend(self.probe_before(index, place, evidence));
                    let watch = self.guard.watch();
                    let mut run = self.run(index, place, traces, reference, results);
                    let noise = watch.end();
                    complaints.extend(
                        noise.complaints().iter().map(|what| format!("while {} ran {what}", contender.label)),
                    );
                    run.noise = Some(noise);
                    results.append(&run);
                    self.note(contender, &run, evidence);
                    evidence.runs.push(run);
                    complaints.extend(self.probe_after(index, place, evidence));
                }
            }
            if interrupt::requested() {
                return Round::Interrupted;
            }
            let whole = whole.end();
            // Runs too short to be watched one by one are watched together.
            if evidence.runs[first..].iter().any(|run| run.noise.as_ref().is_none_or(|n| n.foreign.is_none()))
            {
                complaints.extend(whole.complaints());
            }
            evidence.noises.push(whole);
            if complaints.is_empty() {
                break;
            }
            let reason = format!("round {}: {}", round + 1, complaints.join(", "));
            evidence.complaints.push(reason.clone());
            if self.plan.accept_noise {
                break;
            }
            evidence.repeated.extend(evidence.runs.drain(first..));
            if attempt == MAX_REPEATS {
                return Round::Noisy(reason);
            }
            self.progress.say(&format!("{reason}; it is done again"));
            self.await_quiet();
        }
        self.progress.step(order.len());
        Round::Done
    }

    fn await_quiet(&self) -> machine::Noise {
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

    /// Asks every worker what it is. One that cannot say is a row with its reason; one that was pointed
    /// by the user at a library that cannot be used is a mistake of the user's.
    pub(crate) fn greet(&self, evidence: &mut Evidence) -> Result<()> {
        for (contender, worker) in self.plan.contenders.iter().zip(&self.workers) {
            let reason = match worker.hello() {
                Ok(hello) => match wrong_framework(contender, &hello) {
                    None => continue,
                    Some(reason) => reason,
                },
                Err(reason) => reason,
            };
            if interrupt::requested() {
                return Err(Failure::Interrupted);
            }
            let given = contender.engine.env.keys().find(|name| std::env::var_os(name).is_some());
            if let Some(name) = given {
                let value = std::env::var(name).unwrap_or_default();
                return Err(Failure::usage(format!(
                    "{}: {name}={value} cannot be used: {reason}",
                    contender.label
                )));
            }
            let reason = format!("{reason}; `cargo xtask doctor` says what to do");
            let failure = RunFailure { kind: FailureKind::Failed, reason, last_words: None, repeat: None };
            self.progress.say(&format!("{}: {}", contender.label, failure.sentence()));
            evidence.absent.insert(contender.label.clone(), failure);
        }
        Ok(())
    }

    /// One process: measured, and held against the reference.
    fn run(
        &self,
        index: usize,
        place: Place,
        traces: &[Vec<Vec<u32>>],
        reference: Option<&Reference>,
        results: &mut Results,
    ) -> Run {
        let (contender, worker) = (&self.plan.contenders[index], &self.workers[index]);
        let file = self.scratch.path().join("parity.safetensors");
        let job = self.job(contender, self.measurement(contender, traces, &file));
        let mut run = Run::new(Purpose::Measure, place, &contender.label, worker.run(&job));
        if run.is_complete()
            && let Some(reference) = reference
        {
            let tolerance = Tolerance::of(contender.precision);
            let agreement = logits::read_parity(&file)
                .and_then(|logits| parity::compare(reference, &logits, &run, self.plan.decode, tolerance));
            match agreement {
                Ok(agreement) => run.agreement = Some(agreement),
                Err(reason) => self.progress.say(&format!("{}: {reason}", contender.label)),
            }
        }
        // Missing after a failure; it must not be taken for the next process's.
        let _ = std::fs::remove_file(&file);
        if let Some(failure) = &mut run.failure
            && matches!(failure.kind, FailureKind::Failed | FailureKind::OutOfMemory)
        {
            let name = format!("job-round{}-{}.json", place.round + 1, contender.label.replace(' ', ""));
            results.write(&name, &serde_json::to_string(&job).expect("jobs serialise"));
            failure.repeat = Some(worker.shell_line(&results.directory().join(name)));
        }
        run
    }

    /// A load with the weights dropped from the page cache; it also warms the cache for the measurement.
    fn cold_load(&self, index: usize, place: Place, results: &mut Results) -> Run {
        let contender = &self.plan.contenders[index];
        let job = Job { evict: true, ..self.job(contender, Task::Load) };
        let outcome = self.workers[index].run(&job);
        let run = Run::new(Purpose::ColdLoad, place, &contender.label, outcome);
        results.append(&run);
        run
    }

    /// Says what went wrong. What cannot work will not be tried again.
    fn note(&self, contender: &Contender, run: &Run, evidence: &mut Evidence) {
        let Some(failure) = &run.failure else { return };
        if failure.kind == FailureKind::Interrupted {
            return;
        }
        self.progress.say(&format!("{}, round {}: {}", contender.label, run.round + 1, failure.sentence()));
        if let Some(repeat) = &failure.repeat {
            self.progress.say(&format!("  to repeat it: {repeat}"));
        }
        // One failed process strikes the row, as its figures would be those of the luckier ones.
        evidence.absent.insert(contender.label.clone(), failure.clone());
    }

    pub(crate) fn measurement(&self, contender: &Contender, traces: &[Vec<Vec<u32>>], file: &Path) -> Task {
        Task::Measure(Measure {
            cases: self.plan.cases(traces),
            new_tokens: self.plan.new_tokens,
            decode: self.plan.decode,
            kv_cache: contender.kv_cache,
            warmup: self.plan.warmup.clone(),
            iterations: self.plan.iterations,
            delay_ns: self.plan.delay_ns,
            parity: Some(ParityTask {
                steps: PARITY_STEPS,
                file: file.display().to_string(),
                prompt_last_only: self.plan.prompt_last_only,
            }),
        })
    }

    pub(crate) fn job(&self, contender: &Contender, task: Task) -> Job {
        Job {
            protocol: protocol::VERSION,
            bundle: self.bundle.directory().display().to_string(),
            settings: launch::settings(contender, &self.plan.device, false),
            spawned_at_ns: None,
            evict: false,
            task,
        }
    }
}

pub(crate) fn wrong_framework(contender: &Contender, hello: &Hello) -> Option<String> {
    let expected = &contender.engine.framework;
    (hello.framework != *expected)
        .then(|| format!("{} says it is {:?}, not {expected:?}", contender.engine.worker, hello.framework))
}

/// The end of an untimed job of `generate` or `score`, as an error if it was not done.
pub(crate) fn finished(label: &str, ending: Ending) -> Result<()> {
    let input = matches!(&ending, Ending::Reported(f) if f.kind == protocol::FailureKind::Input);
    match RunFailure::of(ending) {
        None => Ok(()),
        Some(failure) if failure.kind == FailureKind::Interrupted => Err(Failure::Interrupted),
        Some(failure) if failure.kind == FailureKind::Unsupported => {
            Err(Failure::usage(format!("{label} does not support this: {}", failure.sentence())))
        }
        Some(failure) if input => Err(Failure::usage(format!("{label}: {}", failure.sentence()))),
        Some(failure) => Err(Failure::failed(format!("{label}: {}", failure.sentence()))),
    }
}

#[expect(clippy::disallowed_methods, reason = "the time budget, not a measurement")]
fn now() -> Instant {
    Instant::now()
}

//! The measuring itself: a reference run, then rounds in which every contender runs once, in seeded
//! random order, never two at once.

use std::collections::BTreeMap;
use std::path::Path;

use bundle::{Bundle, Precision};
use protocol::{Event, Generate, Hello, Job, Measure, ParityTask, Task, Warmup};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use crate::failure::{Failure, Result};
use crate::interrupt;
use crate::judge::parity::{self, Reference, Tolerance};
use crate::places::Places;
use crate::plan::{self, Contender, Plan};
use crate::process::{Ending, Worker};
use crate::progress::Progress;
use crate::record::{FailureKind, Run, RunFailure};
use crate::results::Results;

/// Tokens of the trace that the parity check feeds one at a time: enough to go through the decode path,
/// few enough to cost little.
const PARITY_STEPS: usize = 8;
/// Warm-up ends when the halves of an iteration differ by less than this share, or after so many.
const SETTLED_WITHIN: f64 = 0.05;
const MAX_WARMUP: usize = 3;

/// Everything that was measured.
#[derive(Default)]
pub(crate) struct Evidence {
    pub(crate) runs: Vec<Run>,
    /// Contenders that cannot run at all, by label.
    pub(crate) absent: BTreeMap<String, RunFailure>,
    pub(crate) no_reference: Option<String>,
    pub(crate) interrupted: bool,
}

pub(crate) struct Session<'a> {
    plan: &'a Plan,
    bundle: &'a Bundle,
    workers: Vec<Worker>,
    /// For logits on their way from worker to driver.
    scratch: tempfile::TempDir,
    progress: Progress,
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
            |contender: &Contender| plan::worker(&contender.engine, places, plan.threads, plan.timeout_s);
        let workers = plan.contenders.iter().map(worker).collect();
        let steps = plan.contenders.len() * plan.rounds;
        Ok(Session { plan, bundle, workers, scratch, progress: Progress::new(steps, quiet) })
    }

    /// Measures. Evidence is complete as far as it goes, whatever happens.
    pub(crate) fn measure(&mut self, results: &mut Results) -> Result<Evidence> {
        let mut evidence = Evidence::default();
        self.greet(&mut evidence)?;
        let reference = self.reference(&mut evidence);
        let traces = match &reference {
            Some(reference) => reference.traces.clone(),
            // Nobody to take a trace from: the prompts' own tokens serve, so that work stays equal.
            None => self.fallback_traces(),
        };
        let mut random = ChaCha8Rng::seed_from_u64(self.plan.seed);
        for round in 0..self.plan.rounds {
            let mut order: Vec<usize> = (0..self.plan.contenders.len()).collect();
            order.shuffle(&mut random);
            for (position, index) in order.into_iter().enumerate() {
                let contender = &self.plan.contenders[index];
                if interrupt::requested() {
                    evidence.interrupted = true;
                    break;
                }
                if !evidence.absent.contains_key(&contender.label) {
                    self.progress.running(round, self.plan.rounds, &contender.label);
                    let run = self.run(index, round, position, &traces, reference.as_ref(), results);
                    results.append(&run);
                    self.note(contender, &run, &mut evidence);
                    evidence.runs.push(run);
                }
                self.progress.step();
            }
        }
        evidence.interrupted |= interrupt::requested();
        self.progress.done();
        Ok(evidence)
    }

    /// Asks every worker what it is. One that cannot say is a row with its reason; one that was pointed
    /// by the user at a library that cannot be used is a mistake of the user's.
    fn greet(&self, evidence: &mut Evidence) -> Result<()> {
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

    /// Lets the first contender that can do it continue the prompts in f32.
    fn reference(&self, evidence: &mut Evidence) -> Option<Reference> {
        let mut candidates: Vec<usize> = (0..self.plan.contenders.len()).collect();
        if let Some(asked) = &self.plan.reference {
            candidates.retain(|&index| self.plan.contenders[index].engine.name == *asked);
        }
        candidates.retain(|&index| !evidence.absent.contains_key(&self.plan.contenders[index].label));
        let mut reasons = Vec::new();
        for index in candidates {
            let contender = &self.plan.contenders[index];
            self.progress.message(&format!("reference: {} in f32", contender.label));
            match self.reference_by(index) {
                Ok(reference) => return Some(reference),
                Err(reason) => reasons.push(format!("{}: {reason}", contender.label)),
            }
            if interrupt::requested() {
                break;
            }
        }
        evidence.no_reference =
            Some(if reasons.is_empty() { "no framework can run".into() } else { reasons.join("; ") });
        None
    }

    fn reference_by(&self, index: usize) -> std::result::Result<Reference, String> {
        let contender = Contender { precision: Precision::F32, ..self.plan.contenders[index].clone() };
        let file = self.scratch.path().join("reference.safetensors");
        let task = Task::Generate(Generate {
            prompts: self.plan.case_prompts(),
            new_tokens: self.plan.new_tokens,
            parity: Some(ParityTask { steps: PARITY_STEPS, file: file.display().to_string() }),
        });
        let outcome = self.workers[index].run(&self.job(&contender, task));
        if let Some(failure) = RunFailure::of(outcome.ending) {
            return Err(failure.sentence());
        }
        let traces = outcome.events.into_iter().find_map(|event| match event {
            Event::Generated(generated) => Some(generated.tokens),
            _ => None,
        });
        let traces = traces.ok_or("it generated nothing")?;
        let rows = |case: &Vec<Vec<u32>>| {
            case.len() == self.plan.batch && case.iter().all(|row| row.len() == self.plan.new_tokens)
        };
        if traces.len() != self.plan.prompts.len() || !traces.iter().all(rows) {
            return Err("it did not generate the tokens asked for".into());
        }
        let logits = parity::read_logits(&file)?;
        let positions = |(case, prompt): (&parity::Logits, &crate::prompts::Prompt)| {
            case.batch == self.plan.batch && case.positions == prompt.tokens.len() + self.plan.new_tokens
        };
        if logits.len() != traces.len() || !logits.iter().zip(&self.plan.prompts).all(positions) {
            return Err("its logits do not have the shape of the prompts".into());
        }
        Ok(Reference { framework: contender.label, traces, logits })
    }

    fn fallback_traces(&self) -> Vec<Vec<Vec<u32>>> {
        let continued =
            |prompt: &Vec<u32>| prompt.iter().copied().cycle().take(self.plan.new_tokens).collect();
        self.plan.case_prompts().iter().map(|case| case.iter().map(continued).collect()).collect()
    }

    /// One process: measured, and held against the reference.
    fn run(
        &self,
        index: usize,
        round: usize,
        position: usize,
        traces: &[Vec<Vec<u32>>],
        reference: Option<&Reference>,
        results: &mut Results,
    ) -> Run {
        let (contender, worker) = (&self.plan.contenders[index], &self.workers[index]);
        let file = self.scratch.path().join("parity.safetensors");
        let job = self.job(contender, self.measurement(traces, &file));
        let mut run = Run::new(round, position, &contender.label, worker.run(&job));
        if run.is_complete()
            && let Some(reference) = reference
        {
            let tolerance = Tolerance::of(contender.precision);
            let agreement = parity::read_logits(&file)
                .and_then(|logits| parity::compare(reference, &logits, &run, self.plan.decode, tolerance));
            match agreement {
                Ok(agreement) => run.agreement = Some(agreement),
                Err(reason) => self.progress.say(&format!("{}: {reason}", contender.label)),
            }
        }
        // Missing after a failure; it must not be taken for the next process's.
        let _ = std::fs::remove_file(&file);
        if let Some(failure) = &mut run.failure
            && failure.kind == FailureKind::Failed
        {
            let name = format!("job-round{}-{}.json", round + 1, contender.label.replace(' ', ""));
            results.write(&name, &serde_json::to_string(&job).expect("jobs serialise"));
            failure.repeat = Some(worker.shell_line(&results.directory().join(name)));
        }
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

    fn measurement(&self, traces: &[Vec<Vec<u32>>], file: &Path) -> Task {
        Task::Measure(Measure {
            cases: self.plan.cases(traces),
            new_tokens: self.plan.new_tokens,
            decode: self.plan.decode,
            kv_cache: self.plan.kv_cache,
            warmup: Warmup { min_iterations: 1, max_iterations: MAX_WARMUP, settled_within: SETTLED_WITHIN },
            iterations: self.plan.iterations,
            delay_ns: self.plan.delay_ns,
            parity: Some(ParityTask { steps: PARITY_STEPS, file: file.display().to_string() }),
        })
    }

    fn job(&self, contender: &Contender, task: Task) -> Job {
        Job {
            protocol: protocol::VERSION,
            bundle: self.bundle.directory().display().to_string(),
            settings: plan::settings(contender, &self.plan.device, self.plan.threads, false),
            spawned_at_ns: None,
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

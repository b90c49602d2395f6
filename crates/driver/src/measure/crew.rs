//! The workers of a plan, and their jobs. Nothing is recorded here: the caller judges or records the outcome of a job.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Instant;

use bundle::Bundle;
use comparison::facts::run::{self, Outcome, RunFailure};
use comparison::plan::{Contender, Failure, Plan, Result};
use protocol::{Event, Job, Measure, Output, ParityTask, Task, untrusted};
use setup::tooling::Scratch;

use crate::measure::logits;
use crate::measure::places::Places;
use crate::measure::progress::Progress;
use crate::measure::worker::{self, Worker};

/// Number of trace tokens that the parity check feeds one at a time: enough to use the decode path, few
/// enough to cost little.
const PARITY_STEPS: usize = 8;

pub(crate) struct Crew<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) bundle: &'a Bundle,
    /// In the order of the plan's contenders.
    pub(crate) workers: Vec<Worker>,
    /// Directory for logits on their way from a worker to this program.
    pub(crate) scratch: Scratch,
    pub(crate) progress: Progress,
}

impl<'a> Crew<'a> {
    /// The workers of a plan, in the places for its device.
    pub(crate) fn new(plan: &'a Plan, bundle: &'a Bundle, places: &Places, quiet: bool) -> Result<Crew<'a>> {
        let scratch = Scratch::new().map_err(|error| Failure::failed(format!("{error:#}")))?;
        let worker = |contender: &Contender| {
            let settings = (plan.timeout_s, plan.huge_pages);
            let own_caches = worker::own_caches(contender, plan.kernel_cache, places.target);
            let ready_bytes = if contender.engine.is_server() { 0 } else { load_bytes(bundle, contender) };
            let worker = worker::worker(contender, plan.cpus.as_deref(), places, settings);
            Worker { own_caches, ready_bytes, filler_seed: Some(plan.seed), ..worker }
        };
        let workers = plan.contenders.iter().map(worker).collect();
        Ok(Crew {
            plan,
            bundle,
            workers,
            scratch,
            progress: Progress::new(plan.rounds.max(), plan.limit_s(), quiet),
        })
    }
}

/// Memory that a load takes, about: the weights, and some of them twice while they are converted.
fn load_bytes(bundle: &Bundle, contender: &Contender) -> u64 {
    let file = bundle.weights_path(contender.precision).ok().and_then(|path| std::fs::metadata(path).ok());
    file.map_or(0, |file| file.len() / 4 * 5)
}

impl Crew<'_> {
    /// Ends the processes that are started from now on at this time, whatever they do.
    pub(crate) fn end_at(&mut self, until: Option<Instant>) {
        self.workers.iter_mut().for_each(|worker| worker.until = until);
    }

    pub(crate) fn measurement(&self, contender: &Contender, traces: &[Output]) -> Task {
        Task::Measure(Measure {
            work: self.plan.work.asked(contender.cache.policy, traces),
            warmup: self.plan.warmup.clone(),
            lead_in: self.plan.lead_in(contender),
            load: self.plan.work.load(),
        })
    }

    pub(crate) fn job(&self, contender: &Contender, task: Task) -> Job {
        let mut settings = worker::settings(contender, &self.plan.device, false);
        settings.autoregressive = self.plan.work.is_autoregressive();
        Job {
            protocol: protocol::VERSION,
            bundle: self.bundle.directory().display().to_string(),
            model: self.bundle.config().described(),
            settings,
            spawned_at_ns: None,
            evict: false,
            task,
        }
    }

    /// Runs a job without turns to its end.
    pub(crate) fn run_job(&self, index: usize, job: &Job) -> Outcome {
        let outcome = self.workers[index].run(job);
        self.say_left_behind(&self.plan.contenders[index].label, &outcome.left_behind);
        outcome
    }

    /// The events of such a job that was done.
    pub(crate) fn done(&self, index: usize, job: &Job) -> std::result::Result<Vec<Event>, RunFailure> {
        let outcome = self.run_job(index, job);
        RunFailure::from_ending(outcome.ending).map_or(Ok(outcome.events), Err)
    }

    pub(crate) fn say_left_behind(&self, label: &str, processes: &[String]) {
        if let Some(text) = run::left_behind(processes) {
            self.progress.say(&format!("{label}: {text}"));
        }
    }

    /// The shapes of the logits that a process writes, by case; none for work without logits.
    pub(crate) fn parity_shapes(&self) -> Vec<logits::Shape> {
        let work = &self.plan.work;
        let sequences = work.judged_sequences();
        let shape = |case| Some([sequences, work.judged_positions(case)?, self.vocabulary()]);
        (0..work.cases()).filter_map(shape).collect()
    }

    /// The task of writing logits to a file; `None` for work without logits.
    pub(crate) fn parity_task(&self, file: &Path) -> Option<ParityTask> {
        let prompted = self.plan.work.prompted()?;
        // Logits of several steps at once would need that many times the memory of one.
        let steps = if prompted.judged.is_some() { prompted.new_tokens } else { PARITY_STEPS };
        Some(ParityTask {
            steps,
            file: file.display().to_string(),
            prompt_last_only: prompted.prompt_last_only,
            sequences: prompted.judged,
        })
    }

    /// Reads the bundle's weights into the page cache: a framework may have left pages unread.
    pub(crate) fn read_weights(&self) {
        let file = |contender: &Contender| self.bundle.weights_path(contender.precision).ok();
        for path in self.plan.contenders.iter().filter_map(file).collect::<BTreeSet<_>>() {
            // A file that cannot be read fails the load, which says so.
            let _ = untrusted::file::open(&path)
                .and_then(|mut file| std::io::copy(&mut file, &mut std::io::sink()));
        }
    }

    pub(crate) fn vocabulary(&self) -> usize {
        self.bundle.config().vocab_size
    }
}

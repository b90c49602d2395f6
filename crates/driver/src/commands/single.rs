//! One framework, one untimed job: the part that `generate` and `score` share.

use bundle::Bundle;
use comparison::facts;
use comparison::facts::Outcome;
use comparison::plan;
use comparison::plan::{Contender, Failure, Request, Result};
use configs::Engine;
use protocol::untrusted;
use protocol::{Job, Task};

use crate::cli::work::OnArgs;
use crate::measure;
use crate::measure::provision::{self, Wanted};
use crate::measure::resolve;
use crate::measure::resolve::available_threads;
use crate::measure::worker::Worker;
use crate::measure::{Places, machine, progress, worker};

/// Everything that is resolved before the job.
pub(crate) struct Single {
    places: Places,
    request: Request,
    pub(crate) contender: Contender,
    pub(crate) bundle: Bundle,
}

impl Single {
    /// As [`Self::resolve`], for a job that only a model which continues tokens can do.
    pub(crate) fn of_decoder(on: &OnArgs, sequences: (usize, usize)) -> Result<Single> {
        let single = Single::resolve(on, sequences)?;
        of_texts(&single.bundle)?;
        match single.bundle.config().encoder {
            None => Ok(single),
            Some(_) => Err(Failure::usage(format!(
                "{} encodes texts and continues none: use `photofinish embed`",
                single.bundle.manifest().name
            ))),
        }
    }

    /// Resolves a job for `batch` sequences of at least `capacity` tokens.
    pub(crate) fn resolve(on: &OnArgs, (batch, capacity): (usize, usize)) -> Result<Single> {
        progress::listen()?;
        let OnArgs { framework, here, .. } = on;
        let places = here.places.find()?;
        let (request, engine) = asked(on, &places)?;
        let (request, why) =
            resolve::settled(&request, std::slice::from_ref(&engine), &places, available_threads());
        why.filter(|_| !here.quiet).into_iter().for_each(|why| protocol::say!("{why}"));
        resolve::check(&request.device, &[framework.as_str()])?;
        let places = places.on(&request.device);
        provision::workers(&places, std::slice::from_ref(&engine), here.quiet)?;
        let contender = Contender::new(framework.clone(), engine, &request, available_threads());
        let wanted = Wanted {
            model: request.model(),
            precisions: vec![contender.precision],
            reference: false,
            device: &request.device,
            cache: request.cache(),
            sequences: (batch, capacity),
        };
        let bundle = provision::model(&places, &wanted, here.quiet)?;
        Ok(Single { places, request, contender, bundle })
    }

    /// The worker, which has said that it is the framework.
    pub(crate) fn worker(&self) -> Result<Worker> {
        let cpus = machine::choose(self.contender.threads);
        let settings = (self.request.timeout_s, self.request.huge_pages);
        let worker = worker::worker(&self.contender, cpus.as_deref(), &self.places, settings);
        let label = &self.contender.label;
        let cannot = |reason: String| match progress::requested() {
            true => Failure::Interrupted,
            false => Failure::usage(format!("{label} cannot run here: {reason}")),
        };
        let hello = worker.hello().map_err(cannot)?;
        if let Some(reason) = measure::wrong_framework(&self.contender, &hello) {
            return Err(cannot(reason));
        }
        Ok(worker)
    }

    pub(crate) fn job(&self, hidden_states: bool, task: Task) -> Job {
        Job {
            protocol: protocol::VERSION,
            bundle: self.bundle.directory().display().to_string(),
            model: self.bundle.config().described(),
            settings: worker::settings(&self.contender, &self.request.device, hidden_states),
            spawned_at_ns: None,
            evict: false,
            task,
        }
    }

    /// Runs the job to its end.
    pub(crate) fn run(&self, hidden_states: bool, task: Task) -> Result<Outcome> {
        let outcome = self.worker()?.run(&self.job(hidden_states, task));
        let label = &self.contender.label;
        if let Some(text) = facts::run::left_behind(&outcome.left_behind) {
            protocol::say!("warning: {label}: {}", untrusted::line(&text));
        }
        measure::finished(label, outcome.ending.clone())?;
        Ok(outcome)
    }
}

/// Refuses an ONNX file where a model of texts is needed.
pub(super) fn of_texts(bundle: &Bundle) -> Result<()> {
    match bundle.config().graph {
        None => Ok(()),
        Some(_) => Err(Failure::usage(format!(
            "{} is an ONNX file, which this command does not take: `photofinish compare` and `photofinish infer` run it",
            bundle.manifest().name
        ))),
    }
}

/// The request to one framework, and its engine.
pub(super) fn asked(on: &OnArgs, places: &Places) -> Result<(Request, Engine)> {
    let request = on.model.request();
    if let Some(axis) = plan::axes::varied(&request).first() {
        return Err(Failure::usage(format!("{} takes one value here", axis.flag())));
    }
    Ok((request, configs::engine(&places.configs, &on.framework)?))
}

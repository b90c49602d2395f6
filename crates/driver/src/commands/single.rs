//! One framework, one untimed job: the part that `generate` and `score` share.

use bundle::Bundle;
use configs::Engine;
use facts::Outcome;
use measure::device;
use measure::provision::{self, Wanted};
use measure::resolve::available_threads;
use measure::{Places, interrupt, launch, machine};
use plan::chat;
use plan::prompts::Text;
use plan::{Contender, Failure, Request, Result};
use protocol::{Job, Task};
use serde_json::Value;

use crate::cli::{ChatFlag, HereArgs, ModelArgs};

/// Everything that is resolved before the job.
pub(crate) struct Single {
    places: Places,
    request: Request,
    pub(crate) contender: Contender,
    pub(crate) bundle: Bundle,
}

impl Single {
    /// As [`Self::resolve`], for a job that only a model which continues tokens can do.
    pub(crate) fn of_decoder(
        framework: &str,
        model: &ModelArgs,
        here: &HereArgs,
        sequences: (usize, usize),
    ) -> Result<Single> {
        let single = Single::resolve(framework, model, here, sequences)?;
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
    pub(crate) fn resolve(
        framework: &str,
        model: &ModelArgs,
        here: &HereArgs,
        (batch, capacity): (usize, usize),
    ) -> Result<Single> {
        interrupt::listen()?;
        let places = here.places.find()?;
        let (request, engine) = asked(framework, model, &places)?;
        let (request, why) =
            device::settled(&request, std::slice::from_ref(&engine), &places, available_threads());
        why.filter(|_| !here.quiet).into_iter().for_each(|why| foreign::say!("{why}"));
        device::check(&request.device, &[framework])?;
        let places = places.on(&request.device);
        provision::workers(&places, std::slice::from_ref(&engine), here.quiet)?;
        let contender = Contender::new(framework.to_owned(), engine, &request, available_threads());
        let wanted = Wanted {
            model: request.model(),
            precisions: vec![contender.precision],
            reference: false,
            device: &request.device,
            kv_precision: request.kv_precision,
            sequences: (batch, capacity),
        };
        let bundle = provision::model(&places, &wanted, here.quiet)?;
        Ok(Single { places, request, contender, bundle })
    }

    /// The ids of a prompt: of its text, put through the chat template if that is asked for, or those that are given.
    /// With them the chat's text, which is also told on stderr.
    pub(crate) fn prompt(
        &self,
        (prompt, tokens): (Option<&str>, &[u32]),
        flag: ChatFlag,
        text: &Text,
    ) -> Result<(Option<String>, Vec<u32>)> {
        let Some(prompt) = prompt else { return Ok((None, tokens.to_vec())) };
        if !flag.chat {
            return Ok((None, text.encode(prompt)?));
        }
        let fed = measure::apart::chat(&self.bundle)?.render(prompt)?;
        let ids = text.encode(&fed)?;
        foreign::say!("{}", chat::line("the prompt", &fed, &ids));
        Ok((Some(fed), ids))
    }

    /// Runs the job to its end.
    pub(crate) fn run(&self, hidden_states: bool, task: Task) -> Result<Outcome> {
        let cpus = machine::choose(self.contender.threads);
        let settings = (self.request.timeout_s, self.request.huge_pages);
        let worker = launch::worker(&self.contender, cpus.as_deref(), &self.places, settings);
        let label = &self.contender.label;
        let cannot = |reason: String| Failure::usage(format!("{label} cannot run here: {reason}"));
        let hello = worker.hello().map_err(cannot)?;
        if let Some(reason) = measure::wrong_framework(&self.contender, &hello) {
            return Err(cannot(reason));
        }
        let job = Job {
            protocol: protocol::VERSION,
            bundle: self.bundle.directory().display().to_string(),
            model: self.bundle.config().described(),
            settings: launch::settings(&self.contender, &self.request.device, hidden_states),
            spawned_at_ns: None,
            evict: false,
            task,
        };
        let outcome = worker.run(&job);
        if let Some(text) = facts::run::left_behind(&outcome.left_behind) {
            foreign::say!("warning: {label}: {}", foreign::line(&text));
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

/// What is asked of one framework: a request, with the engine.
pub(super) fn asked(framework: &str, model: &ModelArgs, places: &Places) -> Result<(Request, Engine)> {
    let request = model.request();
    if let Some(axis) = plan::axes::varied(&request).first() {
        return Err(Failure::usage(format!("{} takes one value here", axis.flag())));
    }
    Ok((request, configs::engine(&places.configs, framework)?))
}

/// The object that is printed, with the chat's text if the prompt was put through a template.
pub(crate) fn with_chat(chat: Option<String>, mut object: Value) -> String {
    if let Some(chat) = chat {
        object["chat"] = chat.into();
    }
    object.to_string()
}

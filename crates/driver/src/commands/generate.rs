//! `driver generate` and `driver score`: one framework, one untimed job.

use bundle::Bundle;
use protocol::{Event, Generate, Job, Score, Task};
use serde_json::json;

use crate::cli::{Format, GenerateArgs, ModelArgs, ScoreArgs};
use crate::failure::{Failure, Result};
use crate::places::Places;
use crate::plan::{self, Contender};
use crate::process::Outcome;
use crate::prompts::{self, Text};
use crate::provision::{self, Wanted};
use crate::{axes, configs, interrupt, launch, machine, rounds};

/// What both commands resolve first.
struct Setting {
    places: Places,
    contender: Contender,
    bundle: Bundle,
}

impl Setting {
    /// For `batch` sequences of at least `capacity` tokens.
    fn resolve(framework: &str, model: &ModelArgs, batch: usize, capacity: usize) -> Result<Setting> {
        interrupt::listen()?;
        axes::check_single_model(model)?;
        plan::check_device(model)?;
        let places = Places::find(&model.places)?;
        let engine = configs::engine(&places.configs, framework)?;
        provision::workers(&places, std::slice::from_ref(&engine), model.quiet)?;
        let contender = plan::contender(framework.to_owned(), engine, plan::precision(model), model);
        let wanted = Wanted {
            model: model.model(),
            precisions: &[contender.precision],
            reference: false,
            device: &model.device,
            batch,
            capacity,
        };
        let bundle = provision::model(&places, &wanted, model.quiet)?;
        Ok(Setting { places, contender, bundle })
    }

    fn run(&self, model: &ModelArgs, hidden_states: bool, task: Task) -> Result<Outcome> {
        let cpus = machine::choose(self.contender.threads);
        let worker = launch::worker(&self.contender, cpus.as_deref(), &self.places, model.timeout);
        let label = &self.contender.label;
        let cannot = |reason: String| Failure::usage(format!("{label} cannot run here: {reason}"));
        let hello = worker.hello().map_err(cannot)?;
        if let Some(reason) = rounds::wrong_framework(&self.contender, &hello) {
            return Err(cannot(reason));
        }
        let job = Job {
            protocol: protocol::VERSION,
            bundle: self.bundle.directory().display().to_string(),
            settings: launch::settings(&self.contender, &model.device, hidden_states),
            spawned_at_ns: None,
            evict: false,
            task,
        };
        let outcome = worker.run(&job);
        rounds::finished(label, outcome.ending.clone())?;
        Ok(outcome)
    }
}

pub(crate) fn generate(args: &GenerateArgs) -> Result<u8> {
    if matches!(args.format, Format::Markdown | Format::Csv) {
        return Err(Failure::usage("generate prints a table (the text alone) or json"));
    }
    let new_tokens = args.new_tokens as usize;
    let setting = Setting::resolve(&args.framework, &args.model, 1, args.tokens.len() + new_tokens)?;
    let text = Text::open(&setting.bundle)?;
    let prompt = match &args.prompt {
        Some(prompt) => text.encode(prompt)?,
        None => args.tokens.clone(),
    };
    if prompt.is_empty() {
        return Err(Failure::usage("the prompt is empty: there is nothing to continue"));
    }
    prompts::check_vocabulary(&prompt, &setting.bundle)?;
    prompts::check_context(prompt.len(), new_tokens, &setting.bundle)?;
    // A seed that was not given is told, or nobody could draw the same again.
    let sampling = args.sampling.sampling(|| {
        args.seed.unwrap_or_else(|| {
            let seed = plan::drawn_seed();
            eprintln!("--seed {seed}");
            seed
        })
    });
    let prompts = vec![vec![prompt.clone()]];
    let task = Task::Generate(Generate { prompts, new_tokens, sampling, parity: None });
    let outcome = setting.run(&args.model, false, task)?;
    let tokens = outcome.events.iter().find_map(|event| match event {
        Event::Generated(generated) => generated.tokens.first()?.first().cloned(),
        _ => None,
    });
    let tokens = tokens
        .filter(|tokens| tokens.len() == new_tokens)
        .ok_or_else(|| Failure::failed(format!("{} did not generate {new_tokens} tokens", args.framework)))?;
    let continuation = text.decode(&tokens)?;
    let output = match args.format {
        Format::Json => json!({
            "framework": args.framework,
            "precision": setting.contender.precision.name(),
            "prompt_tokens": prompt,
            "tokens": tokens,
            "text": continuation,
        })
        .to_string(),
        _ => continuation.unwrap_or_else(|| format!("{tokens:?}")),
    };
    crate::print(&(output + "\n"))?;
    Ok(0)
}

pub(crate) fn score(args: &ScoreArgs) -> Result<u8> {
    let sequences = read_sequences(args)?;
    let capacity = sequences.first().map_or(0, Vec::len);
    let setting = Setting::resolve(&args.framework, &args.model, sequences.len(), capacity)?;
    for sequence in &sequences {
        prompts::check_vocabulary(sequence, &setting.bundle)?;
        prompts::check_context(sequence.len(), 0, &setting.bundle)?;
    }
    // Written beside its place and moved there when it is whole.
    let parent = args.out.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(std::path::Path::new("."));
    let cannot =
        |e: &dyn std::fmt::Display| Failure::usage(format!("cannot write {}: {e}", args.out.display()));
    let directory = tempfile::Builder::new().prefix(".score-").tempdir_in(parent).map_err(|e| cannot(&e))?;
    let file = directory.path().join("logits.safetensors");
    let task = Task::Score(Score { sequences, piece: args.piece, file: file.display().to_string() });
    setting.run(&args.model, args.hidden_states, task)?;
    std::fs::rename(&file, &args.out).map_err(|e| cannot(&e))?;
    crate::results::readable_by_all(&args.out);
    Ok(0)
}

fn read_sequences(args: &ScoreArgs) -> Result<Vec<Vec<u32>>> {
    let path = args.tokens_file.display();
    let text = std::fs::read_to_string(&args.tokens_file)
        .map_err(|e| Failure::usage(format!("cannot read {path}: {e}")))?;
    let sequences: Vec<Vec<u32>> = serde_json::from_str(&text)
        .map_err(|e| Failure::usage(format!("{path} is not of the form [[id, ..], ..]: {e}")))?;
    let length = sequences.first().map_or(0, Vec::len);
    if length == 0 {
        return Err(Failure::usage(format!("{path} holds no tokens")));
    }
    if let Some(index) = sequences.iter().position(|sequence| sequence.len() != length) {
        let other = sequences[index].len();
        return Err(Failure::usage(format!(
            "{path}: sequence {index} has {other} tokens, the first has {length}; a batch is of one length"
        )));
    }
    Ok(sequences)
}

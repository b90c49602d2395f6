//! `photofinish run`: one framework does one untimed task. What it shares with `profile` and `worker-check` comes first.

use std::path::{Path, PathBuf};

use bundle::Bundle;
use comparison::facts;
use comparison::facts::Outcome;
use comparison::plan::prompts::{self, Text};
use comparison::plan::work::denoise::{check_prompt, mask_of};
use comparison::plan::work::graph;
use comparison::plan::{self, Axis, Contender, Failure, PromptSource, Request, Result, TaskAsked, chat};
use configs::Engine;
use protocol::{
    Answer, Case, Decode, Denoise, DenoiseWork, Event, GenerateWork, Heard, Job, KvCache, MaskedCase, Output,
    Score, Task, Tensor, Work, untrusted,
};
use serde_json::{Map, Value, json};

use super::dry_run::Prompt;
use super::encode;
use crate::cli::Format;
use crate::cli::encode::Ids;
use crate::cli::request::GraphFlags;
use crate::cli::work::{OnArgs, RunArgs, RunTask};
use crate::measure::presets;
use crate::measure::provision::{self, Wanted};
use crate::measure::resolve::{self, available_threads, drawn_seed};
use crate::measure::worker::Worker;
use crate::measure::{self, Places, arrays, machine, progress, speech, worker};
use crate::output::print;

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
        if single.bundle.config().encodes() {
            let name = &single.bundle.manifest().name;
            return Err(Failure::usage(format!(
                "{name} encodes texts and continues none: give --text, or --pair for two that are scored together"
            )));
        }
        Ok(single)
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

    /// Runs work to its end, and returns the output of each case.
    fn answers(&self, work: Work) -> Result<Vec<Output>> {
        let outcome = self.run(false, Task::Answer(Answer { work, parity: None }))?;
        let answered = outcome.events.into_iter().find_map(|event| match event {
            Event::Answered(answered) => Some(answered.outputs),
            _ => None,
        });
        Ok(answered.unwrap_or_default())
    }

    /// The same of one case.
    pub(super) fn answer(&self, work: Work) -> Result<Option<Output>> {
        Ok(self.answers(work)?.into_iter().next())
    }
}

/// Refuses an ONNX file, and a model that hears, where a model of texts is needed.
pub(super) fn of_texts(bundle: &Bundle) -> Result<()> {
    let (config, name) = (bundle.config(), &bundle.manifest().name);
    if config.audio.is_some() {
        return Err(Failure::usage(format!(
            "{name} hears, and takes no text alone: `photofinish compare` measures it, `photofinish run` prints a transcript"
        )));
    }
    match config.graph {
        None => Ok(()),
        Some(_) => Err(Failure::usage(format!(
            "{name} is an ONNX file, which has no texts: `photofinish compare` measures it, `photofinish run --output DIR` \
             writes its outputs"
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

// A prompt that one framework continues: what `generate` and `denoise` share.

/// The task that was asked for, or that flags and the model's kind say, with its flags checked. An encoder and a model
/// that continues texts may still be for another, which their files say.
fn task(args: &RunArgs) -> Result<RunTask> {
    let task = likely_task(args)?;
    args.check(match task {
        RunTask::Generate if args.task.is_none() => &[RunTask::Generate, RunTask::Denoise],
        RunTask::Embed if args.task.is_none() => &[RunTask::Embed, RunTask::Rerank, RunTask::Classify],
        _ => std::slice::from_ref(&task),
    })?;
    Ok(task)
}

fn likely_task(args: &RunArgs) -> Result<RunTask> {
    if let Some(task) = args.task {
        return Ok(task);
    }
    let places = args.on.here.places.find()?;
    let (request, _) = asked(&args.on, &places)?;
    Ok(if args.tokens_file.is_some() {
        RunTask::Score
    } else if configs::runs_onnx(&places.configs, request.model()) {
        RunTask::Infer
    } else if !args.pair.is_empty() {
        RunTask::Rerank
    } else if !args.text.is_empty() || provision::encodes(&places, request.model())? {
        RunTask::Embed
    } else if provision::hears(&places, request.model())? {
        RunTask::Transcribe
    } else {
        RunTask::Generate
    })
}

/// The texts of an encoder's task.
fn texts(args: &RunArgs, task: RunTask) -> Option<encode::Asked<'_>> {
    let asked = match task {
        // Without --task the model's files decide between vectors and scores.
        RunTask::Embed => args.task.map(|_| TaskAsked::Embed),
        RunTask::Rerank => Some(TaskAsked::Rerank),
        RunTask::Classify => Some(TaskAsked::Classify),
        RunTask::Generate | RunTask::Transcribe | RunTask::Denoise | RunTask::Infer | RunTask::Score => {
            return None;
        }
    };
    Some(encode::Asked::new(args, asked))
}

pub(super) fn run(args: &RunArgs) -> Result<u8> {
    let task = task(args)?;
    if let Some(texts) = texts(args, task) {
        return texts.run();
    }
    match task {
        RunTask::Infer => infer(args),
        RunTask::Transcribe => transcribe(args),
        RunTask::Score => score(args),
        _ => continued(args),
    }
}

/// The prompts of `run`, as far as its arguments determine them, and the number of tokens that are added to each.
pub(super) fn described(args: &RunArgs) -> Result<(Vec<Prompt>, usize)> {
    let task = task(args)?;
    if let Some(texts) = texts(args, task) {
        return Ok((texts.described()?, 0));
    }
    if task == RunTask::Score {
        let sequences = read_sequences(args)?.into_iter().enumerate();
        let named =
            |(index, tokens): (usize, Vec<u32>)| (format!("sequence {}", index + 1), Some(tokens.len()));
        return Ok((sequences.map(named).map(|(name, tokens)| Prompt { name, tokens }).collect(), 0));
    }
    if matches!(task, RunTask::Infer | RunTask::Transcribe) {
        return Ok((Vec::new(), 0));
    }
    let tokens = given(args)?.map(<[u32]>::len);
    if task == RunTask::Denoise {
        denoising(args)?;
    }
    Ok((vec![Prompt { name: "prompt".to_owned(), tokens }], args.added() as usize))
}

/// The token ids of the prompt, if they are given.
fn given(args: &RunArgs) -> Result<Option<&[u32]>> {
    if matches!(args.format, Format::Markdown | Format::Csv) {
        return Err(Failure::usage("run prints a table (the text alone) or json"));
    }
    args.chat.check(args.prompt.as_deref())?;
    match args.tokens.as_slice() {
        [] => Ok(None),
        [Ids(ids)] => Ok(Some(ids)),
        _ => Err(Failure::usage("one prompt is continued: give --tokens once")),
    }
}

/// The seed that was typed, or a drawn one. That is printed, so that the same draw can be repeated.
fn seed(typed: Option<u64>) -> u64 {
    typed.unwrap_or_else(|| {
        let seed = drawn_seed();
        protocol::say!("--seed {seed}");
        seed
    })
}

/// A prompt as token ids, with the tokenizer of its model.
struct Given {
    tokens: Vec<u32>,
    text: Text,
    /// The chat's text, if the prompt was put through a template.
    chat: Option<String>,
}

impl Given {
    /// The ids of a text, put through the chat template if that is requested, or the given ids. Refuses a prompt that
    /// the model cannot take with so many new tokens after it, and an empty prompt for the reason `why`.
    fn resolve(single: &Single, args: &RunArgs, why: &str) -> Result<Given> {
        let text = measure::tokenizer::text(&single.bundle)?;
        let (chat, tokens) = match &args.prompt {
            None => (None, given(args)?.unwrap_or_default().to_vec()),
            // As the model's own tokenizer gives it, with its special tokens.
            Some(prompt) if !args.chat.chat => (None, text.encode_whole(prompt, None)?.tokens),
            // A template writes the special tokens itself.
            Some(prompt) => {
                let fed = measure::tokenizer::chat(&single.bundle)?.render(prompt)?;
                let ids = text.encode(&fed)?;
                protocol::say!("{}", chat::line("the prompt", &fed, &ids));
                (Some(fed), ids)
            }
        };
        if tokens.is_empty() {
            return Err(Failure::usage(format!("the prompt is empty: {why}")));
        }
        prompts::check_vocabulary(&tokens, single.bundle.config())?;
        plan::work::check_context(tokens.len(), args.added() as usize, single.bundle.config())?;
        Ok(Given { tokens, text, chat })
    }

    /// Prints the tokens after the prompt: their text, or an object; `states`: those of a model of masked diffusion.
    fn print(&self, single: &Single, tokens: &[u32], format: Format, states: Option<Value>) -> Result<u8> {
        let text = self.text.decode(tokens)?;
        let output = match format {
            Format::Json => {
                let mut object = json!({
                    "framework": single.contender.label,
                    "precision": single.contender.precision.name(),
                    "prompt_tokens": self.tokens,
                    "tokens": tokens,
                    "text": text,
                });
                if let Some(states) = states {
                    object["states"] = states;
                }
                if let Some(chat) = &self.chat {
                    object["chat"] = chat.as_str().into();
                }
                object.to_string()
            }
            _ => text.map_or_else(|| format!("{tokens:?}"), |text| untrusted::lines(&text).into_owned()),
        };
        print(&(output + "\n"))?;
        Ok(0)
    }
}

// A prompt that one framework continues, or fills in masks after.

fn continued(args: &RunArgs) -> Result<u8> {
    let typed = given(args)?.map_or(0, <[u32]>::len);
    let single = Single::of_decoder(&args.on, (1, typed + args.added() as usize))?;
    let is_masked = single.bundle.config().mask_token.is_some();
    match args.task {
        Some(RunTask::Denoise) => denoise(args, &single),
        None if is_masked => denoise(args, &single),
        _ if is_masked => Err(Failure::usage(format!(
            "{} generates by masked diffusion, not token by token: leave out --task",
            single.bundle.manifest().name
        ))),
        _ => generate(args, &single),
    }
}

fn generate(args: &RunArgs, single: &Single) -> Result<u8> {
    args.check(&[RunTask::Generate])?;
    if args.seed.is_some() && args.sampling.temperature.is_none() {
        return Err(Failure::usage("--seed is for drawn tokens: give --temperature, too"));
    }
    let prompt = Given::resolve(single, args, "there is nothing to continue")?;
    let new_tokens = args.added() as usize;
    let sampling = args.sampling.sampling(|| seed(args.seed));
    let output = single.answer(Work::Generate(GenerateWork {
        cases: vec![Case { prompts: vec![prompt.tokens.clone()], ..Case::default() }],
        new_tokens,
        decode: sampling.map_or(Decode::Greedy, Decode::Sampled),
        kv_cache: KvCache::On,
        prefill_chunk: None,
    }))?;
    let tokens = output.as_ref().and_then(|output| output.tokens().first());
    let tokens = tokens.filter(|tokens| tokens.len() == new_tokens).ok_or_else(|| {
        Failure::failed(format!("{} did not generate {new_tokens} tokens", single.contender.label))
    })?;
    prompt.print(single, tokens, args.format, None)
}

/// Prints what is heard in each recording, from the most likely tokens, up to the end that the model chooses.
fn transcribe(args: &RunArgs) -> Result<u8> {
    let typed = given(args)?;
    let single = Single::resolve(&args.on, (1, 0))?;
    let mut request = single.request.clone();
    args.graph.apply_to(&mut request);
    request.prompts = match (&args.prompt, typed) {
        (Some(prompt), _) => PromptSource::Texts(vec![prompt.clone()]),
        (None, Some(tokens)) => PromptSource::Tokens(tokens.to_vec()),
        (None, None) => PromptSource::Usual,
    };
    let mut heard = Given { tokens: Vec::new(), text: measure::tokenizer::text(&single.bundle)?, chat: None };
    let end = speech::end(&heard.text)?;
    let config = single.bundle.config();
    if config.audio.is_none() {
        let name = &single.bundle.manifest().name;
        return Err(Failure::usage(format!("{name} does not hear: leave out --task transcribe")));
    }
    let recordings = speech::prompts(&request, &single.bundle, &single.places, &heard.text)?;
    let prompt = recordings.first().map_or(0, |recording| recording.tokens.len());
    let new_tokens = speech::new_tokens(config, prompt, args.new_tokens);
    plan::work::check_context(prompt, new_tokens, config)?;
    let case = |recording: &plan::Prompt| Case {
        prompts: vec![recording.tokens.clone()],
        audio: recording.audio.as_ref().map(|audio| Heard { file: audio.file.clone(), turn: 0 }),
        ..Case::default()
    };
    let outputs = single.answers(Work::Generate(GenerateWork {
        cases: recordings.iter().map(case).collect(),
        new_tokens,
        decode: Decode::Greedy,
        kv_cache: KvCache::On,
        prefill_chunk: None,
    }))?;
    let label = &single.contender.label;
    if outputs.len() != recordings.len() {
        return Err(Failure::failed(format!("{label} did not transcribe every recording")));
    }
    for (recording, output) in recordings.into_iter().zip(&outputs) {
        let tokens = speech::spoken(output, end);
        if tokens.is_empty() {
            protocol::say!("{label} heard no words in {}", recording.name);
        } else if tokens.len() == new_tokens && args.new_tokens.is_none() {
            protocol::say!(
                "{}: cut off after {new_tokens} tokens, the most that a transcript has",
                recording.name
            );
        }
        heard.tokens = recording.tokens;
        heard.print(&single, tokens, args.format, None)?;
    }
    Ok(0)
}

/// The steps that the flags ask for.
fn denoising(args: &RunArgs) -> Result<Denoise> {
    if args.denoise.steps.len() > 1 {
        return Err(Failure::usage(format!("{} takes one value here", Axis::Steps.flag())));
    }
    args.denoise.denoise(args.sampling, args.added() as usize, args.seed.unwrap_or(0))
}

fn denoise(args: &RunArgs, single: &Single) -> Result<u8> {
    args.check(&[RunTask::Denoise])?;
    let mut how = denoising(args)?;
    let mask = mask_of(single.bundle.config(), &single.bundle.manifest().name)?;
    let prompt = Given::resolve(single, args, "the first new token needs one before it")?;
    check_prompt(&prompt.tokens, mask)?;
    if how.is_random() {
        how.seed = seed(args.seed);
    }
    let (new_tokens, steps) = (args.added() as usize, how.steps);
    let cases = vec![MaskedCase { prompts: vec![prompt.tokens.clone()], ..MaskedCase::default() }];
    let output = single.answer(Work::Denoise(DenoiseWork { cases, new_tokens, forced: false, how }))?;
    // The tokens that the framework filled in, and the step that unmasked each.
    let row = |rows: &[Vec<u32>]| rows.first().filter(|row| row.len() == new_tokens).cloned();
    let both = output.and_then(|output| Some((row(output.tokens())?, row(output.unmasked())?)));
    let (tokens, unmasked) = both.ok_or_else(|| {
        Failure::failed(format!("{} did not fill in {new_tokens} tokens", single.contender.label))
    })?;
    let states = protocol::states(&prompt.tokens, &tokens, &unmasked, mask, steps);
    prompt.print(single, &tokens, args.format, Some(json!(states)))
}

// An ONNX file is run once, and its outputs are written.

/// One request of an ONNX file, and what runs it.
pub(super) fn of_graph(on: &OnArgs, flags: &GraphFlags, seed: u64) -> Result<(Single, graph::Graph)> {
    let places = on.here.places.find()?;
    let (mut request, _) = asked(on, &places)?;
    flags.apply_to(&mut request);
    let request = presets::applied(&request, &places)?;
    let mut single = Single::resolve(on, (1, 0))?;
    if let Some(file) = request.graph.artefacts.get(&on.framework) {
        let options = &mut single.contender.engine.options;
        options.insert(configs::ARTEFACT.to_owned(), file.display().to_string());
    }
    let Some(description) = &single.bundle.config().graph else {
        return Err(Failure::usage(format!("{} is no ONNX file, which this takes", request.model())));
    };
    let given = arrays::given(&request.graph, Some(description), &places)?;
    let work = graph::resolve(&request, description, &given, seed)?;
    if work.cases.len() != 1 {
        return Err(Failure::usage("run and profile take a file at one size: give each --dim one"));
    }
    Ok((single, work))
}

fn infer(args: &RunArgs) -> Result<u8> {
    let on = &args.on;
    let output = args.output.as_deref().expect("a task without its output was refused");
    let framework = &on.framework;
    let (single, work) = of_graph(on, &args.graph, args.seed.unwrap_or(0))?;
    let answered = single.answer(plan::work::Describe::of_reference(&work))?;
    let whole = answered.filter(|answered| plan::work::Describe::is_whole(&work, 0, answered));
    let Some(Output::Tensors(tensors)) = whole else {
        return Err(Failure::failed(format!(
            "{framework} did not give the outputs {}",
            work.outputs.join(", ")
        )));
    };
    std::fs::create_dir_all(output).map_err(|error| cannot(output, &error))?;
    let tensors = together(tensors, &work.outputs);
    let files = files(&tensors)?;
    let mut outputs = Map::new();
    for (tensor, name) in tensors.iter().zip(files) {
        let path = output.join(name);
        let bytes = arrays::npy(tensor).unwrap_or_default();
        std::fs::write(&path, bytes).map_err(|error| cannot(&path, &error))?;
        outputs.insert(tensor.name.clone(), json!({ "shape": tensor.shape, "dtype": tensor.dtype }));
    }
    print(&(json!({ "framework": framework, "outputs": outputs }).to_string() + "\n"))?;
    Ok(0)
}

/// The outputs of a sequence's runs, so many each: those of one name as one tensor with a dimension for the runs in
/// front, or with the run in their names where their shapes differ. What was fed to the next run is the last one's.
fn together(tensors: Vec<Tensor>, outputs: &[String]) -> Vec<Tensor> {
    if tensors.len() <= outputs.len() {
        return tensors;
    }
    let mut all = Vec::new();
    for name in outputs {
        let runs: Vec<&Tensor> = tensors.iter().filter(|tensor| tensor.name == *name).collect();
        let Some(first) = runs.first() else { continue };
        if runs.len() == 1 {
            all.push((*first).clone());
        } else if runs.iter().all(|run| run.shape == first.shape) {
            let shape = [&[runs.len()], first.shape.as_slice()].concat();
            let data = runs.iter().flat_map(|run| run.data.iter().copied()).collect();
            all.push(Tensor { name: first.name.clone(), dtype: first.dtype.clone(), shape, data });
        } else {
            let numbered = runs.iter().enumerate();
            all.extend(
                numbered.map(|(run, tensor)| Tensor {
                    name: format!("{}.{run}", tensor.name),
                    ..(*tensor).clone()
                }),
            );
        }
    }
    all
}

fn cannot(path: &Path, error: &std::io::Error) -> Failure {
    Failure::failed(format!("cannot write {}: {error}", path.display()))
}

/// The name of each output's file. Characters that a file's name cannot have become `_`; two outputs with the
/// same name are refused.
fn files(tensors: &[Tensor]) -> Result<Vec<PathBuf>> {
    let plain = |letter: char| if letter.is_alphanumeric() || "._-".contains(letter) { letter } else { '_' };
    let file = |tensor: &Tensor| {
        let name: String = tensor.name.chars().map(plain).collect();
        format!("{}.npy", name.trim_start_matches('.'))
    };
    let names: Vec<String> = tensors.iter().map(file).collect();
    match names.iter().enumerate().find(|(place, name)| names[..*place].contains(name)) {
        Some((_, name)) => Err(Failure::usage(format!("two outputs would be written to {name}"))),
        None => Ok(names.into_iter().map(PathBuf::from).collect()),
    }
}

// Logits of given tokens.

fn score(args: &RunArgs) -> Result<u8> {
    let out = args.output.as_deref().expect("a task without its output was refused");
    let sequences = read_sequences(args)?;
    let capacity = sequences.first().map_or(0, Vec::len);
    let single = Single::of_decoder(&args.on, (sequences.len(), capacity))?;
    for sequence in &sequences {
        prompts::check_vocabulary(sequence, single.bundle.config())?;
        plan::work::check_context(sequence.len(), 0, single.bundle.config())?;
    }
    // The file is written next to its destination and moved there when it is complete.
    let parent = out.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    let cannot = |e: &dyn std::fmt::Display| Failure::usage(format!("cannot write {}: {e}", out.display()));
    let directory = tempfile::Builder::new().prefix(".score-").tempdir_in(parent).map_err(|e| cannot(&e))?;
    let file = directory.path().join("logits.safetensors");
    let task = Task::Score(Score {
        sequences,
        types: Vec::new(),
        audio: Vec::new(),
        piece: args.piece.unwrap_or(0),
        kept: None,
        file: file.display().to_string(),
    });
    single.run(args.hidden_states, task)?;
    std::fs::rename(&file, out).map_err(|e| cannot(&e))?;
    measure::results::readable_by_all(out);
    Ok(0)
}

/// The sequences of the file of tokens.
fn read_sequences(args: &RunArgs) -> Result<Vec<Vec<u32>>> {
    let file = args.tokens_file.as_deref().expect("a task without its tokens was refused");
    let path = file.display();
    let text = untrusted::file::read_text(file, untrusted::file::INPUT)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_are_written_under_their_names() {
        let tensor =
            |name: &str| Tensor { name: name.into(), dtype: "bool".into(), shape: vec![], data: vec![1] };
        let names = files(&[tensor("y"), tensor("../a/b:0"), tensor("Ж.1")]).unwrap();
        assert_eq!(names, ["y.npy", "_a_b_0.npy", "Ж.1.npy"].map(PathBuf::from));
        assert!(files(&[tensor("a/b"), tensor("a:b")]).unwrap_err().to_string().contains("a_b.npy"));
    }
}

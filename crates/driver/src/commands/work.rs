//! Commands that know one kind of work: those that give one framework one job, and the parity of layers.

use std::path::PathBuf;

use comparison::plan::prompts::{self, Text};
use comparison::plan::work::denoise::{check_prompt, mask_of};
use comparison::plan::work::graph;
use comparison::plan::{self, Axis, Contender, Draft, Failure, Result, chat};
use protocol::{
    Answer, Case, Decode, Denoise, DenoiseWork, Event, GenerateWork, GraphCase, GraphWork, KvCache,
    MaskedCase, Output, Score, Task, Tensor, Work, untrusted,
};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::cli::work::{DenoiseArgs, GenerateArgs, InferArgs, Job, OnArgs, ScoreArgs};
use crate::cli::{ChatFlag, Format};
use crate::commands::single::{self, Single};
use crate::commands::{encode, trace};
use crate::measure::resolve::drawn_seed;
use crate::measure::{self, arrays};
use crate::output::print;

/// Runs a job, and returns the exit code.
pub(super) fn run(job: &Job) -> Result<u8> {
    match job {
        Job::Generate(args) => generate(args),
        Job::Denoise(args) => denoise(args),
        Job::Embed(args) => encode::Asked::embed(args).run(),
        Job::Rerank(args) => encode::Asked::rerank(args).run(),
        Job::Classify(args) => encode::Asked::classify(args).run(),
        Job::Infer(args) => infer(args),
        Job::Score(args) => score(args),
        Job::Trace(args) => trace::trace(args),
        Job::Profile(args) => trace::profile(args),
    }
}

/// A job, as far as its arguments determine it.
pub(super) struct Described<'a> {
    pub(super) command: &'static str,
    pub(super) on: &'a OnArgs,
    /// Each prompt or text, with the number of its tokens, if that is known.
    pub(super) prompts: Vec<(String, Option<usize>)>,
    /// Number of tokens that are added to each.
    pub(super) added: usize,
    pub(super) format: Format,
}

/// Checks the arguments of a job. `None` where they say no more than that they are valid.
pub(super) fn described(job: &Job) -> Result<Option<Described<'_>>> {
    let prompt = |tokens: usize| vec![("prompt".to_owned(), Some(tokens).filter(|&count| count > 0))];
    Ok(Some(match job {
        Job::Generate(args) => {
            generate_check(args)?;
            let (prompts, added) = (prompt(args.tokens.len()), args.new_tokens as usize);
            Described { command: "generate", on: &args.on, prompts, added, format: args.format }
        }
        Job::Denoise(args) => {
            task(args)?;
            let (prompts, added) = (prompt(args.tokens.len()), args.new_tokens as usize);
            Described { command: "denoise", on: &args.on, prompts, added, format: args.format }
        }
        Job::Embed(args) => encode::Asked::embed(args).described()?,
        Job::Rerank(args) => encode::Asked::rerank(args).described()?,
        Job::Classify(args) => encode::Asked::classify(args).described()?,
        Job::Infer(_) => return Ok(None),
        Job::Score(args) => {
            let sequences = read_sequences(args)?.into_iter().enumerate();
            let named =
                |(index, tokens): (usize, Vec<u32>)| (format!("sequence {}", index + 1), Some(tokens.len()));
            let prompts = sequences.map(named).collect();
            Described { command: "score", on: &args.on, prompts, added: 0, format: Format::Table }
        }
        Job::Trace(args) => {
            let (prompts, added) = (prompt(args.prompt_tokens as usize), args.new_tokens() as usize);
            Described { command: "trace", on: &args.on, prompts, added, format: Format::Table }
        }
        Job::Profile(args) => {
            let (tokens, added) = args.work.lengths();
            let (on, prompts) = (&args.on, prompt(tokens));
            Described { command: "profile", on, prompts, added, format: Format::Table }
        }
    }))
}

// The requests as far as they are known before the model: a part of the output of `--dry-run`.

/// Prompts, and the tokens added to them, named as in plan.json.
#[derive(Serialize)]
pub(super) struct Requests {
    suite: Option<String>,
    prompts: Vec<PlannedPrompt>,
    batch: usize,
    context: usize,
    new_tokens: usize,
}

#[derive(Debug, PartialEq, Serialize)]
struct PlannedPrompt {
    name: String,
    /// Number of tokens, if it is known without the model's tokenizer.
    tokens: Option<usize>,
}

impl Requests {
    pub(crate) fn new(draft: &Draft) -> Requests {
        Requests {
            suite: draft.suite_name().map(str::to_owned),
            prompts: prompts(draft),
            batch: draft.batch(),
            context: draft.lengths().context,
            new_tokens: draft.lengths().new_tokens,
        }
    }

    pub(crate) fn of_job(prompts: Vec<(String, Option<usize>)>, new_tokens: usize) -> Requests {
        let prompts = prompts.into_iter().map(|(name, tokens)| PlannedPrompt { name, tokens }).collect();
        Requests { suite: None, prompts, batch: 1, context: 0, new_tokens }
    }

    /// The values for people, each with its name.
    pub(crate) fn lines(&self) -> Vec<(&'static str, String)> {
        let mut lines = vec![("prompts", self.words())];
        if self.batch > 1 {
            lines.push(("batch", self.batch.to_string()));
        }
        if self.context > 0 {
            lines.push(("context", count(self.context, "token")));
        }
        lines
    }

    fn words(&self) -> String {
        let lengths: Option<Vec<String>> =
            self.prompts.iter().map(|prompt| prompt.tokens.map(|tokens| tokens.to_string())).collect();
        let of_suite = self.suite.as_ref().map_or_else(String::new, |suite| format!(" of suite {suite}"));
        let tokens = lengths.map_or_else(String::new, |mut lengths| {
            lengths.dedup();
            format!(", {} tokens", lengths.join(" and "))
        });
        let new_tokens = match self.new_tokens {
            0 => String::new(),
            new_tokens => format!(", {} each", count(new_tokens, "new token")),
        };
        format!("{}{of_suite}{tokens}{new_tokens}", self.prompts.len())
    }

    /// The open point, if there is one.
    pub(crate) fn open(&self) -> Option<&'static str> {
        let is_open = self.prompts.iter().any(|prompt| prompt.tokens.is_none());
        is_open.then_some("prompts are counted once the model is prepared")
    }
}

/// The prompts of a comparison: of the suite, or its first one at each of several lengths.
fn prompts(draft: &Draft) -> Vec<PlannedPrompt> {
    if !draft.prompt_lengths().is_empty() {
        let at =
            |&length: &u32| PlannedPrompt { name: format!("{length} tokens"), tokens: Some(length as usize) };
        return draft.prompt_lengths().iter().map(at).collect();
    }
    let all = draft.suite().prompts.iter().enumerate();
    let planned = all.map(|(index, prompt)| {
        let name = prompt.name.clone().unwrap_or_else(|| format!("prompt {}", index + 1));
        let given = prompt.tokens.as_ref().map(Vec::len);
        PlannedPrompt { name, tokens: draft.lengths().prompt.or(given) }
    });
    planned.collect()
}

/// The optimisation that a contender runs without.
pub(super) fn without(contender: &Contender) -> Option<&'static str> {
    (!contender.cache.is_on()).then_some("no KV cache")
}

pub(super) fn count(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

// A prompt that one framework continues: the common part of `generate` and `denoise`.

/// Refuses flags that do not go together. `prompt`: the text, if one is given.
fn check(command: &str, format: Format, chat: ChatFlag, prompt: Option<&str>) -> Result<()> {
    if matches!(format, Format::Markdown | Format::Csv) {
        return Err(Failure::usage(format!("{command} prints a table (the text alone) or json")));
    }
    chat.check(prompt)
}

/// A prompt as token ids, with the tokenizer of its model.
struct Prompt {
    tokens: Vec<u32>,
    text: Text,
    /// The chat's text, if the prompt was put through a template.
    chat: Option<String>,
}

impl Prompt {
    /// The ids of a text, put through the chat template if that is requested, or the given ids. Refuses a
    /// prompt that the model cannot take with so many new tokens after it, and an empty prompt for the reason
    /// `why`.
    fn resolve(
        single: &Single,
        (prompt, tokens): (Option<&str>, &[u32]),
        flag: ChatFlag,
        new_tokens: usize,
        why: &str,
    ) -> Result<Prompt> {
        let text = measure::apart::text(&single.bundle)?;
        let (chat, tokens) = match prompt {
            None => (None, tokens.to_vec()),
            Some(prompt) if !flag.chat => (None, text.encode(prompt)?),
            Some(prompt) => {
                let fed = measure::apart::chat(&single.bundle)?.render(prompt)?;
                let ids = text.encode(&fed)?;
                protocol::say!("{}", chat::line("the prompt", &fed, &ids));
                (Some(fed), ids)
            }
        };
        if tokens.is_empty() {
            return Err(Failure::usage(format!("the prompt is empty: {why}")));
        }
        prompts::check_vocabulary(&tokens, single.bundle.config())?;
        plan::work::check_context(tokens.len(), new_tokens, single.bundle.config())?;
        Ok(Prompt { tokens, text, chat })
    }

    /// Prints the tokens after the prompt: their text, or an object that also has the fields of `more`.
    fn print(&self, single: &Single, tokens: &[u32], format: Format, more: Value) -> Result<()> {
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
                let more = more.as_object().into_iter().flatten();
                more.for_each(|(name, value)| object[name] = value.clone());
                if let Some(chat) = &self.chat {
                    object["chat"] = chat.as_str().into();
                }
                object.to_string()
            }
            _ => text.map_or_else(|| format!("{tokens:?}"), |text| untrusted::lines(&text).into_owned()),
        };
        print(&(output + "\n"))
    }
}

// `photofinish denoise`: one framework fills in masks after a prompt, by masked diffusion.

/// The work according to the flags; refuses flags that do not go together.
fn task(args: &DenoiseArgs) -> Result<Denoise> {
    check("denoise", args.format, args.chat, args.prompt.as_deref())?;
    if args.asked.steps.len() > 1 {
        return Err(Failure::usage(format!("{} takes one value here", Axis::Steps.flag())));
    }
    args.asked.denoise(args.sampling(), args.new_tokens as usize, args.seed.unwrap_or(0))
}

fn denoise(args: &DenoiseArgs) -> Result<u8> {
    let mut task = task(args)?;
    let new_tokens = args.new_tokens as usize;
    let capacity = args.tokens.len() + new_tokens;
    let single = Single::of_decoder(&args.on, (1, capacity))?;
    let mask = mask_of(single.bundle.config(), &single.bundle.manifest().name)?;
    let given = (args.prompt.as_deref(), args.tokens.as_slice());
    let prompt =
        Prompt::resolve(&single, given, args.chat, new_tokens, "the first new token needs one before it")?;
    check_prompt(&prompt.tokens, mask)?;
    if task.is_random() && args.seed.is_none() {
        // It is printed, so that the same draw can be repeated.
        task.seed = drawn_seed();
        protocol::say!("--seed {}", task.seed);
    }
    let (tokens, unmasked) = filled_in(&single, &prompt.tokens, new_tokens, task)?;
    let states = protocol::states(&prompt.tokens, &tokens, &unmasked, mask, task.steps);
    prompt.print(&single, &tokens, args.format, json!({ "states": states }))?;
    Ok(0)
}

/// The tokens that the framework fills in, and the step that unmasks each.
fn filled_in(
    single: &Single,
    prompt: &[u32],
    new_tokens: usize,
    task: Denoise,
) -> Result<(Vec<u32>, Vec<u32>)> {
    let work = Work::Denoise(DenoiseWork {
        cases: vec![MaskedCase { prompts: vec![prompt.to_vec()], ..MaskedCase::default() }],
        new_tokens,
        forced: false,
        how: task,
    });
    let outcome = single.run(false, Task::Answer(Answer { work, parity: None }))?;
    let output = outcome.events.iter().find_map(|event| match event {
        Event::Answered(answered) => answered.outputs.first(),
        _ => None,
    });
    let row = |rows: &[Vec<u32>]| rows.first().filter(|row| row.len() == new_tokens).cloned();
    let both = output.and_then(|output| Some((row(output.tokens())?, row(output.unmasked())?)));
    let label = &single.contender.label;
    both.ok_or_else(|| Failure::failed(format!("{label} did not fill in {new_tokens} tokens")))
}

// `photofinish generate`: one framework continues a prompt.

/// Refuses flags that do not go together.
fn generate_check(args: &GenerateArgs) -> Result<()> {
    check("generate", args.format, args.chat, args.prompt.as_deref())
}

fn generate(args: &GenerateArgs) -> Result<u8> {
    generate_check(args)?;
    let new_tokens = args.new_tokens as usize;
    let capacity = args.tokens.len() + new_tokens;
    let single = Single::of_decoder(&args.on, (1, capacity))?;
    if single.bundle.config().mask_token.is_some() {
        return Err(Failure::usage(format!(
            "{} generates by masked diffusion, not token by token: use `photofinish denoise`",
            single.bundle.manifest().name
        )));
    }
    let given = (args.prompt.as_deref(), args.tokens.as_slice());
    let prompt = Prompt::resolve(&single, given, args.chat, new_tokens, "there is nothing to continue")?;
    // A random seed is printed, so that the same draw can be repeated.
    let sampling = args.sampling.sampling(|| {
        args.seed.unwrap_or_else(|| {
            let seed = drawn_seed();
            protocol::say!("--seed {seed}");
            seed
        })
    });
    let work = Work::Generate(GenerateWork {
        cases: vec![Case { prompts: vec![prompt.tokens.clone()], ..Case::default() }],
        new_tokens,
        decode: sampling.map_or(Decode::Greedy, Decode::Sampled),
        kv_cache: KvCache::On,
        prefill_chunk: None,
    });
    let task = Task::Answer(Answer { work, parity: None });
    let outcome = single.run(false, task)?;
    let tokens = outcome.events.iter().find_map(|event| match event {
        Event::Answered(answered) => answered.outputs.first()?.tokens().first().cloned(),
        _ => None,
    });
    let label = &single.contender.label;
    let tokens = tokens
        .filter(|tokens| tokens.len() == new_tokens)
        .ok_or_else(|| Failure::failed(format!("{label} did not generate {new_tokens} tokens")))?;
    prompt.print(&single, &tokens, args.format, Value::Null)?;
    Ok(0)
}

// `photofinish infer`: one framework runs an ONNX file once, and its outputs are written.

fn infer(args: &InferArgs) -> Result<u8> {
    let InferArgs { on, seed, output, .. } = args;
    let framework = &on.framework;
    let places = on.here.places.find()?;
    let (mut request, _) = single::asked(on, &places)?;
    args.graph.apply_to(&mut request);
    let given = arrays::given(&request.graph, &places)?;
    let single = Single::resolve(on, (1, 0))?;
    let Some(description) = &single.bundle.config().graph else {
        return Err(Failure::usage(format!("{} is no ONNX file: infer runs one", request.model())));
    };
    let work = graph::resolve(&request, description, &given, *seed)?;
    let [run] = work.cases.as_slice() else {
        return Err(Failure::usage("infer runs the file once: give each --dim one size"));
    };
    let case = GraphCase { inputs: run.inputs.clone(), seed: run.seed, sets: 1 };
    let task = Task::Answer(Answer { work: Work::Graph(GraphWork { cases: vec![case] }), parity: None });
    let outcome = single.run(false, task)?;
    let answered = outcome.events.into_iter().find_map(|event| match event {
        Event::Answered(answered) => answered.outputs.into_iter().next(),
        _ => None,
    });
    let whole = answered.filter(|answered| plan::work::Describe::is_whole(&work, 0, answered));
    let Some(Output::Tensors(tensors)) = whole else {
        return Err(Failure::failed(format!(
            "{framework} did not give the outputs {}",
            work.outputs.join(", ")
        )));
    };
    std::fs::create_dir_all(output).map_err(|error| cannot(output, &error))?;
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

fn cannot(path: &std::path::Path, error: &std::io::Error) -> Failure {
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

// `photofinish score`: one framework's logits of given tokens.

fn score(args: &ScoreArgs) -> Result<u8> {
    let sequences = read_sequences(args)?;
    let capacity = sequences.first().map_or(0, Vec::len);
    let single = Single::of_decoder(&args.on, (sequences.len(), capacity))?;
    for sequence in &sequences {
        prompts::check_vocabulary(sequence, single.bundle.config())?;
        plan::work::check_context(sequence.len(), 0, single.bundle.config())?;
    }
    // The file is written next to its destination and moved there when it is complete.
    let parent = args.out.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(std::path::Path::new("."));
    let cannot =
        |e: &dyn std::fmt::Display| Failure::usage(format!("cannot write {}: {e}", args.out.display()));
    let directory = tempfile::Builder::new().prefix(".score-").tempdir_in(parent).map_err(|e| cannot(&e))?;
    let file = directory.path().join("logits.safetensors");
    let task = Task::Score(Score {
        sequences,
        types: Vec::new(),
        piece: args.piece,
        kept: None,
        file: file.display().to_string(),
    });
    single.run(args.hidden_states, task)?;
    std::fs::rename(&file, &args.out).map_err(|e| cannot(&e))?;
    measure::results::readable_by_all(&args.out);
    Ok(0)
}

/// The sequences of the file of tokens.
fn read_sequences(args: &ScoreArgs) -> Result<Vec<Vec<u32>>> {
    let path = args.tokens_file.display();
    let text = untrusted::file::read_text(&args.tokens_file, untrusted::file::INPUT)
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

//! `photofinish run` of an encoder: one framework turns texts into vectors or scores.

use bundle::{ModelConfig, Scored};
use comparison::plan::prompts::{self, Text, Whole};
use comparison::plan::work::encode::{self, BATCHES, Made};
use comparison::plan::{Failure, Request, Result, TaskAsked, VectorsAsked};
use protocol::{EncodeWork, Output, TextBatch, Work};
use serde_json::{Value, json};

use super::dry_run::Prompt;
use crate::cli::Format;
use crate::cli::encode::Ids;
use crate::cli::work::{ProfileArgs, RunArgs, RunTask};
use crate::commands::single::{Single, of_texts};
use crate::measure::{self, texts};
use crate::output::print;

/// Numbers of a vector that the table shows.
const SHOWN: usize = 6;

/// Texts that an encoder is asked about.
pub(super) struct Asked<'a> {
    /// `None`: as the model's files say.
    task: Option<TaskAsked>,
    args: &'a RunArgs,
    /// Each text, with the one that it is a pair with.
    texts: Vec<(&'a str, Option<&'a str>)>,
}

impl<'a> Asked<'a> {
    pub(super) fn new(args: &'a RunArgs, task: Option<TaskAsked>) -> Asked<'a> {
        let alone = args.text.iter().map(|text| (text.as_str(), None));
        let pairs = args.pair.chunks_exact(2).map(|pair| (pair[0].as_str(), Some(pair[1].as_str())));
        Asked { task, args, texts: alone.chain(pairs).collect() }
    }

    /// Number of tokens of each text, if they are given.
    fn counts(&self) -> Vec<Option<usize>> {
        match self.args.tokens.as_slice() {
            [] => vec![None; self.texts.len()],
            tokens => tokens.iter().map(|ids| Some(ids.0.len())).collect(),
        }
    }

    /// Refuses flags that do not go together.
    fn check(&self) -> Result<()> {
        let RunArgs { tokens, token_types, format, .. } = self.args;
        if matches!(format, Format::Markdown | Format::Csv) {
            return Err(Failure::usage("run prints of an encoder a table (a line for each text) or json"));
        }
        let lengths = |ids: &[Ids]| ids.iter().map(|ids| ids.0.len()).collect::<Vec<_>>();
        if !token_types.is_empty() && lengths(token_types) != lengths(tokens) {
            return Err(Failure::usage(
                "--token-types gives each token of every --tokens a type: as many lists, each as long as its ids",
            ));
        }
        Ok(())
    }

    /// The texts, as far as the arguments determine them.
    pub(super) fn described(&self) -> Result<Vec<Prompt>> {
        self.check()?;
        let named = |(index, tokens)| Prompt { name: format!("text {}", index + 1), tokens };
        Ok(self.counts().into_iter().enumerate().map(named).collect())
    }

    /// Runs the job and prints its results.
    pub(super) fn run(&self) -> Result<u8> {
        self.check()?;
        let RunArgs { on, format, .. } = self.args;
        let framework = &on.framework;
        let single = Single::resolve(on, (self.counts().len(), 0))?;
        of_texts(&single.bundle)?;
        let (config, name) = (single.bundle.config(), &single.bundle.manifest().name);
        if !config.encodes() {
            let why = not_encoded(name, self.task.map_or("--text", TaskAsked::name));
            return Err(Failure::usage(format!("{why}, such as minilm or synthetic:minilm-l6")));
        }
        let is_text = !self.texts.is_empty();
        let tokenizer = is_text.then(|| measure::tokenizer::text(&single.bundle)).transpose()?;
        let task_asked = self.task.unwrap_or_else(|| self.usual(config));
        self.args.check(&[task_asked.into()])?;
        let mut vectors = self.args.vectors.clone();
        if !is_text && task_asked == TaskAsked::Embed {
            // Token ids have no prompt in front.
            vectors.prompt_name.get_or_insert("none".into());
        }
        let (made, pooled) =
            texts::encoded(&single.bundle, tokenizer.as_ref(), (Some(task_asked), &vectors))?;
        let Made { task, steps, prompt, notes, .. } = made;
        let notes = notes.iter().filter(|_| !on.here.quiet);
        notes.for_each(|note| protocol::say!("{name} {note}"));
        let mut texts = self.tokens(&single, tokenizer.as_ref(), prompt.as_deref())?;
        for (number, text) in texts.iter_mut().enumerate() {
            if self.args.truncate {
                encode::cut(
                    [&mut text.tokens, &mut text.types],
                    encode::longest_taken(config, pooled.as_ref()),
                );
            }
            prompts::check_vocabulary(&text.tokens, config)?;
            encode::check(&text.tokens, &format!("text {}", number + 1), config)?;
        }
        let (tokens, types): (Vec<_>, Vec<_>) =
            texts.into_iter().map(|Whole { tokens, types }| (tokens, types)).unzip();
        let batch = TextBatch { texts: tokens.clone(), types: all_typed(&tokens, types) };
        let work = Work::Encode(EncodeWork { cases: vec![batch], task, steps });
        let count = tokens.len();
        let vectors = single
            .answer(work)?
            .map(Output::into_vectors)
            .filter(|vectors| vectors.len() == count)
            .ok_or_else(|| {
                Failure::failed(format!("{framework} gave no {} of {count} texts", noun(task_asked)))
            })?;
        let output = match format {
            Format::Json => {
                let precision = single.contender.precision.name();
                self.json((&tokens, &vectors), task_asked, (config, precision)).to_string()
            }
            _ => vectors
                .iter()
                .enumerate()
                .map(|(text, vector)| line(text, vector))
                .collect::<Vec<_>>()
                .join("\n"),
        };
        print(&(output + "\n"))?;
        Ok(0)
    }

    /// What a model is for, as its files say.
    fn usual(&self, config: &ModelConfig) -> TaskAsked {
        match config.scoring().map(|head| &head.of) {
            None => TaskAsked::Embed,
            Some(Scored::Texts(_)) if self.args.text.is_empty() => TaskAsked::Rerank,
            Some(_) => TaskAsked::Classify,
        }
    }

    /// The ids of every text, and the types of their tokens.
    fn tokens(&self, single: &Single, tokenizer: Option<&Text>, prompt: Option<&str>) -> Result<Vec<Whole>> {
        let Some(tokenizer) = tokenizer else {
            let types =
                self.args.token_types.iter().map(|ids| ids.0.clone()).chain(std::iter::repeat(Vec::new()));
            let whole = |(ids, types): (&Ids, Vec<u32>)| Whole { tokens: ids.0.clone(), types };
            return Ok(self.args.tokens.iter().zip(types).map(whole).collect());
        };
        let types = single.bundle.config().token_types();
        let encode = |&(text, pair): &(&str, Option<&str>)| {
            if text.trim().is_empty() || pair.is_some_and(|pair| pair.trim().is_empty()) {
                return Err(Failure::usage("a text is empty: there is nothing to encode"));
            }
            let whole = tokenizer.encode_whole(&format!("{}{text}", prompt.unwrap_or_default()), pair)?;
            // A model with one type distinguishes none, even if its tokenizer does.
            Ok(if types > 1 { whole } else { Whole { types: Vec::new(), ..whole } })
        };
        self.texts.iter().map(encode).collect()
    }

    fn json(
        &self,
        (tokens, vectors): (&[Vec<u32>], &[Vec<f32>]),
        task: TaskAsked,
        (config, precision): (&ModelConfig, &str),
    ) -> Value {
        let head = config.scoring();
        let numbers = match (task, head) {
            // A row for each token, or one for the whole text.
            (TaskAsked::Classify, Some(head)) => {
                let rows = |of_text: &Vec<f32>| -> Vec<Vec<f32>> {
                    of_text.chunks(head.labels).map(<[f32]>::to_vec).collect()
                };
                json!(vectors.iter().map(rows).collect::<Vec<_>>())
            }
            _ => json!(vectors),
        };
        let mut object = json!({
            "framework": self.args.on.framework,
            "precision": precision,
            "token_ids": tokens,
        });
        if task == TaskAsked::Embed {
            object["task"] = json!(task.name());
        }
        object[noun(task)] = numbers;
        object
    }
}

/// The name of a task's results, and their key in the JSON.
fn noun(task: TaskAsked) -> &'static str {
    match task {
        TaskAsked::Embed => "vectors",
        TaskAsked::Rerank => "scores",
        TaskAsked::Classify => "logits",
    }
}

impl From<TaskAsked> for RunTask {
    fn from(task: TaskAsked) -> RunTask {
        match task {
            TaskAsked::Embed => RunTask::Embed,
            TaskAsked::Rerank => RunTask::Rerank,
            TaskAsked::Classify => RunTask::Classify,
        }
    }
}

/// The types of all tokens, or none where no text has any.
fn all_typed(tokens: &[Vec<u32>], types: Vec<Vec<u32>>) -> Vec<Vec<u32>> {
    if types.iter().all(Vec::is_empty) {
        return Vec::new();
    }
    let filled =
        |(tokens, types): (&Vec<u32>, Vec<u32>)| if types.is_empty() { vec![0; tokens.len()] } else { types };
    tokens.iter().zip(types).map(filled).collect()
}

/// "text 1: 384 numbers, 0.0123, −0.0456, …".
fn line(text: usize, vector: &[f32]) -> String {
    let shown: Vec<String> = vector.iter().take(SHOWN).map(|number| format!("{number:.4}")).collect();
    let (more, count) = (if vector.len() > SHOWN { ", …" } else { "" }, vector.len());
    let noun = if count == 1 { "number" } else { "numbers" };
    format!("text {}: {count} {noun}, {}{more}", text + 1, shown.join(", "))
}

// Its part of other commands.

/// Why a model that continues texts cannot be asked for this.
pub(super) fn not_encoded(name: &str, asked: &str) -> Failure {
    Failure::usage(format!("{name} continues texts: {asked} is for encoders"))
}

/// The batches of a comparison, and how it makes vectors or scores, in words.
pub(super) fn planned(request: &Request) -> [String; 2] {
    let sizes: Vec<String> = match &request.batch[..] {
        [] => BATCHES.map(|size| size.to_string()).to_vec(),
        sizes => sizes.iter().map(u32::to_string).collect(),
    };
    let VectorsAsked { pooling, normalise, prompt_name } = &request.encode.vectors;
    let task = request.encode.task.map_or("as the model's files say", TaskAsked::name);
    let pooling = pooling.map(|way| format!("pooling {}", way.name()));
    let normalise =
        normalise.map(|is_on| if is_on { "normalised".to_owned() } else { "not normalised".to_owned() });
    let prompt = prompt_name.as_ref().map(|name| format!("prompt {name}"));
    let asked = [Some(task.to_owned()), pooling, normalise, prompt];
    [format!("{} texts", sizes.join(" and ")), asked.into_iter().flatten().collect::<Vec<_>>().join(", ")]
}

/// A batch of texts that are encoded, all of one length.
pub(super) fn traced(args: &ProfileArgs, single: &Single) -> Result<Work> {
    let (config, name) = (single.bundle.config(), &single.bundle.manifest().name);
    if args.work.says_new_tokens() {
        return Err(Failure::usage(format!(
            "{name} encodes texts: --new-tokens is for models that continue them"
        )));
    }
    let (length, positions) = (args.work.of_trace().0 as usize, config.max_positions);
    if length > positions {
        return Err(Failure::usage(format!(
            "texts of {length} tokens are longer than the model's {positions} positions"
        )));
    }
    let pooled = single.bundle.pooled().map_err(|error| Failure::failed(error.to_string()))?;
    let Made { task, steps, .. } = encode::made(config, pooled.as_ref(), (None, &VectorsAsked::default()))
        .map_err(|why| Failure::usage(format!("{name} {why}")))?;
    // Which tokens are computed makes no difference to the work.
    let token = |place: usize| (place % config.vocab_size) as u32;
    let texts = vec![(0..length).map(token).collect(); args.batch.unwrap_or(1) as usize];
    Ok(Work::Encode(EncodeWork { cases: vec![TextBatch { texts, types: Vec::new() }], task, steps }))
}

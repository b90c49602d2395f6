//! `photofinish embed`, `rerank` and `classify`: one framework turns texts into vectors or scores.

use bundle::ModelConfig;
use comparison::plan::prompts::{self, Text, Whole};
use comparison::plan::work::encode::{self, Made};
use comparison::plan::{Failure, Result, TaskAsked, VectorsAsked};
use protocol::{EncodeWork, Output, TextBatch, Work};
use serde_json::{Value, json};

use super::dry_run::{Described, Prompt};
use crate::cli::Format;
use crate::cli::work::{ClassifyArgs, EmbedArgs, EncoderArgs, Ids, RerankArgs};
use crate::commands::single::{Single, of_texts};
use crate::measure::{self, texts};
use crate::output::print;

/// Numbers of a vector that the table shows.
const SHOWN: usize = 6;

/// One of the three commands.
pub(super) struct Asked<'a> {
    task: TaskAsked,
    args: &'a EncoderArgs,
    /// Each text, with the one that it is a pair with.
    texts: Vec<(&'a str, Option<&'a str>)>,
    embedding: Option<&'a EmbedArgs>,
}

impl<'a> Asked<'a> {
    pub(super) fn embed(args: &'a EmbedArgs) -> Asked<'a> {
        let texts = args.text.iter().map(|text| (text.as_str(), None)).collect();
        Asked { task: TaskAsked::Embed, args: &args.encoder, texts, embedding: Some(args) }
    }

    pub(super) fn rerank(args: &'a RerankArgs) -> Asked<'a> {
        let pair = |pair: &'a [String]| (pair[0].as_str(), Some(pair[1].as_str()));
        let texts = args.pair.chunks_exact(2).map(pair).collect();
        Asked { task: TaskAsked::Rerank, args: &args.encoder, texts, embedding: None }
    }

    pub(super) fn classify(args: &'a ClassifyArgs) -> Asked<'a> {
        let texts = args.text.iter().map(|text| (text.as_str(), None)).collect();
        Asked { task: TaskAsked::Classify, args: &args.encoder, texts, embedding: None }
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
        let EncoderArgs { tokens, token_types, format, .. } = self.args;
        if matches!(format, Format::Markdown | Format::Csv) {
            return Err(Failure::usage(format!(
                "{} prints a table (a line for each text) or json",
                self.task.name()
            )));
        }
        let lengths = |ids: &[Ids]| ids.iter().map(|ids| ids.0.len()).collect::<Vec<_>>();
        if !token_types.is_empty() && lengths(token_types) != lengths(tokens) {
            return Err(Failure::usage(
                "--token-types gives each token of every --tokens a type: as many lists, each as long as its ids",
            ));
        }
        Ok(())
    }

    /// The job, as far as the arguments determine it.
    pub(super) fn described(&self) -> Result<Described<'a>> {
        self.check()?;
        let named = |(index, tokens)| Prompt { name: format!("text {}", index + 1), tokens };
        let prompts = self.counts().into_iter().enumerate().map(named).collect();
        let EncoderArgs { on, format, .. } = self.args;
        Ok(Described { command: self.task.name(), on, prompts, added: 0, format: *format })
    }

    /// Runs the job and prints its results.
    pub(super) fn run(&self) -> Result<u8> {
        self.check()?;
        let EncoderArgs { on, format, .. } = self.args;
        let framework = &on.framework;
        let single = Single::resolve(on, (self.counts().len(), 0))?;
        of_texts(&single.bundle)?;
        let (config, name) = (single.bundle.config(), &single.bundle.manifest().name);
        if !config.encodes() {
            return Err(Failure::usage(format!(
                "{name} continues texts: {} is for encoders, such as minilm or synthetic:minilm-l6",
                self.task.name()
            )));
        }
        let is_text = !self.texts.is_empty();
        let tokenizer = is_text.then(|| measure::tokenizer::text(&single.bundle)).transpose()?;
        let (made, pooled) =
            texts::encoded(&single.bundle, tokenizer.as_ref(), (Some(self.task), &self.vectors()))?;
        let Made { task, steps, prompt, notes, .. } = made;
        let notes = notes.iter().filter(|_| !on.here.quiet);
        notes.for_each(|note| protocol::say!("{name} {note}"));
        let most = self.args.truncate.then(|| encode::longest_taken(config, pooled.as_ref()));
        let fitting = |Whole { tokens, types }| {
            let (tokens, types) = encode::cut((tokens, types), most);
            Whole { tokens, types }
        };
        let texts = self.tokens(&single, tokenizer.as_ref(), prompt.as_deref())?;
        let texts: Vec<Whole> = texts.into_iter().map(fitting).collect();
        for (number, text) in texts.iter().enumerate() {
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
                Failure::failed(format!("{framework} gave no {} of {count} texts", self.noun()))
            })?;
        let output = match format {
            Format::Json => {
                self.json(&tokens, &vectors, (config, single.contender.precision.name())).to_string()
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

    /// The name of the task's results, and their key in the JSON.
    fn noun(&self) -> &'static str {
        match self.task {
            TaskAsked::Embed => "vectors",
            TaskAsked::Rerank => "scores",
            TaskAsked::Classify => "logits",
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

    /// The flags for vectors. Token ids have no prompt in front.
    fn vectors(&self) -> VectorsAsked {
        let mut asked = self.embedding.map(|args| args.vectors.clone()).unwrap_or_default();
        if self.task == TaskAsked::Embed && self.texts.is_empty() && asked.prompt_name.is_none() {
            asked.prompt_name = Some("none".into());
        }
        asked
    }

    fn json(
        &self,
        tokens: &[Vec<u32>],
        vectors: &[Vec<f32>],
        (config, precision): (&ModelConfig, &str),
    ) -> Value {
        let head = config.scoring();
        let numbers = match (self.task, head) {
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
        if self.task == TaskAsked::Embed {
            object["task"] = json!(self.task.name());
        }
        object[self.noun()] = numbers;
        object
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

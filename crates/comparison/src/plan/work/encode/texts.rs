//! Batches of texts, and how a model makes vectors or scores of them.

use std::str::FromStr;

use bundle::{Head, ModelConfig, Pooled, Scored};
use protocol::{EncodeTask, Step, TextBatch};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::{PAIRS, TEXTS, TaskAsked, VectorsAsked};
use crate::plan::{Failure, Prompt, Result};

/// Texts that are encoded together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Batch {
    pub name: String,
    /// The token ids of each text.
    pub texts: Vec<Vec<u32>>,
    /// The type of each token; all 0 if empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub types: Vec<Vec<u32>>,
}

/// So many of the texts, in turn. A single one is that of median length.
pub(super) fn chosen(texts: &[Prompt], size: usize) -> Vec<&Prompt> {
    if size != 1 {
        return texts.iter().cycle().take(size).collect();
    }
    let mut sorted: Vec<&Prompt> = texts.iter().collect();
    sorted.sort_by_key(|text| text.tokens.len());
    sorted.get(sorted.len() / 2).into_iter().copied().collect()
}

impl Batch {
    pub(super) fn new(texts: &[Prompt], size: usize, lengths: &mut Lengths) -> Batch {
        let chosen = chosen(texts, size);
        let name = if size == 1 { "1 text".to_owned() } else { format!("{size} texts") };
        let (mut tokens, mut types) = (Vec::new(), Vec::new());
        for text in chosen {
            let places = lengths.places(text.tokens.len());
            tokens.push(places.iter().map(|&place| text.tokens[place]).collect());
            let kind = |&place: &usize| text.types.get(place).copied().unwrap_or(0);
            types.push(places.iter().map(kind).collect::<Vec<u32>>());
        }
        if types.iter().flatten().all(|&kind| kind == 0) {
            types.clear();
        }
        Batch { name, texts: tokens, types }
    }

    pub(super) fn tokens(&self) -> usize {
        self.texts.iter().map(Vec::len).sum()
    }

    pub(super) fn given(&self) -> TextBatch {
        TextBatch { texts: self.texts.clone(), types: self.types.clone() }
    }
}

/// Lengths of texts in tokens, special tokens included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LengthsAsked {
    /// The texts' own.
    #[default]
    Real,
    /// All equal: longer texts are cut, shorter ones repeated.
    Fixed(u32),
    /// Drawn for each text, all lengths in the range equally likely.
    Uniform { from: u32, to: u32 },
}

impl LengthsAsked {
    /// The longest length asked for, if any.
    pub(super) fn longest(self) -> Option<usize> {
        match self {
            LengthsAsked::Real => None,
            LengthsAsked::Fixed(tokens) | LengthsAsked::Uniform { to: tokens, .. } => Some(tokens as usize),
        }
    }
}

impl FromStr for LengthsAsked {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<LengthsAsked, String> {
        let wanted =
            || format!("{text:?} is none of real, fixed:N and uniform:A-B, with lengths from 1 token");
        let length = |text: &str| text.parse::<u32>().ok().filter(|&length| length > 0).ok_or_else(wanted);
        match text.split_once(':') {
            None if text == "real" => Ok(LengthsAsked::Real),
            Some(("fixed", tokens)) => length(tokens).map(LengthsAsked::Fixed),
            Some(("uniform", range)) => {
                let (from, to) = range.split_once('-').ok_or_else(wanted)?;
                let (from, to) = (length(from)?, length(to)?);
                if from > to {
                    return Err(format!(
                        "{text:?} goes from {from} down to {to}: name the shorter length first"
                    ));
                }
                Ok(LengthsAsked::Uniform { from, to })
            }
            _ => Err(wanted()),
        }
    }
}

/// Draws the lengths of texts.
pub(super) struct Lengths {
    asked: LengthsAsked,
    random: ChaCha8Rng,
}

impl Lengths {
    pub(super) fn new(asked: LengthsAsked, seed: u64) -> Lengths {
        Lengths { asked, random: ChaCha8Rng::seed_from_u64(seed) }
    }

    /// The places of the tokens that make a text of `tokens` tokens as long as asked for. The last token
    /// stays the last; a text that is too short is repeated between its first and its last.
    fn places(&mut self, tokens: usize) -> Vec<usize> {
        let wanted = match self.asked {
            LengthsAsked::Real => tokens,
            LengthsAsked::Fixed(length) => length as usize,
            LengthsAsked::Uniform { from, to } => self.random.random_range(from..=to) as usize,
        };
        let last = tokens.saturating_sub(1);
        let inner = (0..last).chain((1.min(last)..last).chain((last < 2).then_some(0)).cycle());
        inner.take(wanted.saturating_sub(1)).chain([last]).collect()
    }
}

// How vectors or scores are made.

/// How a model's texts become vectors or scores.
#[derive(Debug, Clone, PartialEq)]
pub struct Made {
    pub task: EncodeTask,
    pub steps: Vec<Step>,
    pub width: Width,
    /// What is put in front of each text.
    pub prompt: Option<String>,
    /// What users may not expect. Each sentence follows the model's name.
    pub notes: Vec<String>,
}

/// How texts are encoded: for the task asked for, or else the one that the model's files are for: scores if it has a
/// head, else vectors.
///
/// # Errors
/// Why that is impossible; the text follows the model's name.
pub fn made(
    config: &ModelConfig,
    pooled: Option<&Pooled>,
    (task, asked): (Option<TaskAsked>, &VectorsAsked),
) -> std::result::Result<Made, String> {
    let head = config.scoring();
    let scores = |head: &Head| {
        if !asked.is_default() {
            return Err("gives scores: --pooling, --normalise and --prompt-name are for vectors".to_owned());
        }
        let width = match head.of {
            Scored::Texts(_) => Width::OfText(head.labels),
            Scored::Tokens => Width::OfToken(head.labels),
        };
        Ok(Made { task: EncodeTask::Score, steps: Vec::new(), width, prompt: None, notes: Vec::new() })
    };
    match (task, head) {
        (None | Some(TaskAsked::Classify), Some(head)) => return scores(head),
        (Some(TaskAsked::Rerank), Some(head)) => {
            let is_of_texts = matches!(head.of, Scored::Texts(_));
            return if is_of_texts {
                scores(head)
            } else {
                Err("scores tokens: its task is classify".into())
            };
        }
        (Some(task @ (TaskAsked::Rerank | TaskAsked::Classify)), None) => {
            return Err(format!("has no head that gives scores, which {} needs", task.name()));
        }
        (None | Some(TaskAsked::Embed), _) => {}
    }
    let mut notes = Vec::new();
    if pooled.is_none() && asked.pooling.is_none() {
        notes.push(
            "does not say in its files how the vectors of tokens are pooled: it is their mean, as in \
             sentence-transformers; --pooling names another way"
                .to_owned(),
        );
    }
    let own = pooled.cloned().unwrap_or_default();
    let prompt = prompt(&own, asked.prompt_name.as_deref(), &mut notes)?;
    let mut whole = own.whole();
    if let (Some(pooling), Some(Step::Pool { ways, .. })) = (asked.pooling, whole.first_mut()) {
        *ways = vec![pooling.way()];
    }
    let end = whole.iter().rposition(|step| !matches!(step, Step::Cut(_))).unwrap_or(0);
    match (asked.normalise, whole.get(end) == Some(&Step::Normalise)) {
        (Some(true), false) => whole.insert(whole.len().min(end + 1), Step::Normalise),
        (Some(false), true) => drop(whole.remove(end)),
        _ => {}
    }
    let mut width = config.hidden_size;
    for step in &whole {
        if let Step::Dense(dense) = step
            && dense.inputs != width
        {
            return Err(format!(
                "has a dense module for vectors of {} numbers, and that pooling gives {width}: leave --pooling out",
                dense.inputs
            ));
        }
        width = step.width(width);
    }
    let Pooled { pooling, normalise, steps, .. } = own.with(whole);
    Ok(Made {
        task: EncodeTask::Embed { pooling, normalise },
        steps,
        width: Width::OfText(width),
        prompt,
        notes,
    })
}

/// The text of the prompt in front of each text: that of a name, or of the files' default.
fn prompt(
    pooled: &Pooled,
    name: Option<&str>,
    notes: &mut Vec<String>,
) -> std::result::Result<Option<String>, String> {
    let own = pooled.default_prompt.as_deref();
    match name.or(own) {
        None | Some("none") => Ok(None),
        Some(chosen) => {
            let Some(text) = pooled.prompts.get(chosen) else {
                let names: Vec<&str> = pooled.prompts.keys().map(String::as_str).collect();
                let there = if names.is_empty() { "none".into() } else { names.join(", ") };
                return Err(format!("has no prompt {chosen:?} in its files; there are {there}"));
            };
            if name.is_none() && !text.is_empty() {
                notes.push(format!(
                    "asks for its prompt {chosen:?} in front of each text, which is {text:?}; --prompt-name none \
                     leaves it out"
                ));
            }
            Ok((!text.is_empty()).then(|| text.clone()))
        }
    }
}

/// Number of numbers for each text, or for each of its tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Width {
    OfText(usize),
    OfToken(usize),
}

impl Width {
    /// Number of numbers for a text of so many tokens.
    pub fn numbers(self, tokens: usize) -> usize {
        match self {
            Width::OfText(width) => width,
            Width::OfToken(width) => width * tokens,
        }
    }
}

/// The longest text in tokens that a model accepts: the limit in its files, or its number of positions.
pub fn longest_taken(config: &ModelConfig, pooled: Option<&Pooled>) -> usize {
    let said = pooled.and_then(|pooled| pooled.max_tokens);
    said.unwrap_or(config.max_positions).min(config.max_positions)
}

/// The file of the default texts, under `configs`: pairs, for a model that gives each one score.
pub fn usual_texts(task: Option<TaskAsked>, config: &ModelConfig) -> &'static str {
    let gives_one = |head: &Head| matches!(head.of, Scored::Texts(_)) && head.labels == 1;
    let scores = match task {
        None => config.scoring().is_some_and(gives_one),
        Some(task) => task == TaskAsked::Rerank,
    };
    if scores { PAIRS } else { TEXTS }
}

/// Cuts the ids of a text's tokens, and their types, to `most`. The last, which marks the end of the text, stays the
/// last.
pub fn cut(rows: [&mut Vec<u32>; 2], most: usize) {
    for row in rows.into_iter().filter(|row| row.len() > most) {
        let last = row.pop();
        row.truncate(most.saturating_sub(1));
        row.extend(last);
    }
}

/// Rejects a text that the model cannot encode.
pub fn check(tokens: &[u32], name: &str, config: &ModelConfig) -> Result<()> {
    if tokens.is_empty() {
        return Err(Failure::usage(format!("{name} is empty: there is nothing to encode")));
    }
    let (length, positions) = (tokens.len(), config.max_positions);
    if length > positions {
        return Err(Failure::usage(format!(
            "{name} has {length} tokens, more than the model's {positions} positions; --truncate cuts it"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_before_the_token_that_ends_it() {
        let texts = [
            (3, (vec![1, 5, 6, 7, 2], vec![0, 0, 0, 1, 1]), (vec![1, 5, 2], vec![0, 0, 1])),
            (5, (vec![1, 5, 6, 7, 2], vec![0, 0, 0, 1, 1]), (vec![1, 5, 6, 7, 2], vec![0, 0, 0, 1, 1])),
            (1, (vec![1, 5, 2], Vec::new()), (vec![2], Vec::new())),
        ];
        for (most, (mut tokens, mut types), expected) in texts {
            cut([&mut tokens, &mut types], most);
            assert_eq!((tokens, types), expected, "{most}");
        }
    }

    #[test]
    fn lengths_are_read_as_typed() {
        let read = |text: &str| text.parse::<LengthsAsked>();
        assert_eq!(read("real"), Ok(LengthsAsked::Real));
        assert_eq!(read("fixed:128"), Ok(LengthsAsked::Fixed(128)));
        assert_eq!(read("uniform:16-512"), Ok(LengthsAsked::Uniform { from: 16, to: 512 }));
        assert!(read("uniform:9-3").unwrap_err().contains("from 9 down to 3"));
        for wrong in ["fixed", "fixed:0", "fixed:x", "uniform:3", "normal:1-2", ""] {
            assert!(read(wrong).unwrap_err().contains("none of real, fixed:N and uniform:A-B"), "{wrong}");
        }
    }

    #[test]
    fn a_text_is_cut_or_repeated_between_its_ends() {
        let places = |asked, tokens| Lengths::new(asked, 1).places(tokens);
        assert_eq!(places(LengthsAsked::Real, 4), [0, 1, 2, 3]);
        assert_eq!(places(LengthsAsked::Fixed(3), 5), [0, 1, 4]);
        assert_eq!(places(LengthsAsked::Fixed(7), 4), [0, 1, 2, 1, 2, 1, 3]);
        assert_eq!(places(LengthsAsked::Fixed(3), 1), [0, 0, 0]);
        assert_eq!(places(LengthsAsked::Fixed(4), 2), [0, 0, 0, 1]);
    }

    #[test]
    fn drawn_lengths_are_in_the_range_and_the_same_for_a_seed() {
        let drawn = |seed| {
            let mut lengths = Lengths::new(LengthsAsked::Uniform { from: 3, to: 9 }, seed);
            (0..200).map(|_| lengths.places(5).len()).collect::<Vec<_>>()
        };
        let lengths = drawn(1);
        assert_eq!((lengths.iter().min(), lengths.iter().max()), (Some(&3), Some(&9)));
        assert_eq!(lengths, drawn(1));
        assert_ne!(lengths, drawn(2));
    }
}

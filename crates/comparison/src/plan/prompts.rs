//! Turns texts into token ids. The program tokenises once, and workers receive ids (fairness rule R3).

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;
use std::time::Instant;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use bundle::{Bundle, ModelConfig};
use configs::{Suite, SuitePrompt};
use protocol::untrusted;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokenizers::{EncodeInput, Tokenizer};

use crate::plan::chat::Chat;
pub use crate::plan::chat::Whole;
use crate::plan::chat::{Asked, Question, Written};
use crate::plan::work::encode;
use crate::plan::{Failure, Result};

/// Text that extends a prompt to a requested length by repetition. It is plain English in the public domain: the
/// opening of "On the Origin of Species" (Darwin 1859).
const PASSAGE: &str = "When on board H.M.S. Beagle, as naturalist, I was much struck with certain facts in the \
    distribution of the inhabitants of South America, and in the geological relations of the present to the \
    past inhabitants of that continent. These facts seemed to me to throw some light on the origin of species, \
    that mystery of mysteries, as it has been called by one of our greatest philosophers. ";

const MOST_PROMPTS: usize = 1000;

/// One prompt, as token ids.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Prompt {
    pub name: String,
    /// The prompt's text; `None` if ids were given.
    pub text: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pair: Option<String>,
    /// The prompt's text after the model's chat template, if that was applied. Its tokens are `tokens`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chat: Option<String>,
    pub tokens: Vec<u32>,
    /// The type of each token, used for the second of a pair of texts; all 0 if empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub types: Vec<u32>,
    /// Number of special tokens that the tokenizer put before the text, and between or behind texts.
    #[serde(default, skip_serializing_if = "has_none")]
    pub special: [usize; 2],
    /// The audio that it is continued with, of a model that hears.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audio: Option<Spoken>,
}

/// A recording, as every framework hears it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Spoken {
    /// The file of its spectrogram: [`protocol::Heard::file`].
    pub file: String,
    /// Frames of the spectrogram.
    pub frames: usize,
    pub seconds: f64,
}

fn has_none(special: &[usize; 2]) -> bool {
    *special == [0, 0]
}

/// The prompt of studies that vary the length: it is cut or repeated to each length.
pub(crate) const STUDY_PROMPT: &str =
    "The quick brown fox jumps over the lazy dog, and then it runs off into";

/// The tokenizer of a bundle's model, or its replacement.
pub enum Text {
    Tokens(Box<Tokenizer>),
    /// The model has none that can be read. `why` is a sentence about that.
    Absent {
        why: String,
    },
    /// A tokenizer in a separate process.
    Apart(Asked),
}

/// Rejects invalid JSON anywhere in the file, and SentencePiece tables shorter than their stated size: the
/// tokenizer library trusts that size.
fn check(bytes: &[u8]) -> std::result::Result<(), String> {
    // The whole document: serde does not validate UTF-8 in skipped fields, but the tokenizer library does.
    let document: Value = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    match document.get("normalizer") {
        Some(normalizer) => check_tables(normalizer),
        None => Ok(()),
    }
}

fn check_tables(normalizer: &Value) -> std::result::Result<(), String> {
    match normalizer {
        Value::Array(values) => values.iter().try_for_each(check_tables),
        Value::Object(fields) => {
            if let Some(tables) = fields.get("precompiled_charsmap")
                && !tables.as_str().is_some_and(is_whole)
            {
                return Err(
                    "its normalizer holds tables of SentencePiece (`precompiled_charsmap`) that are broken"
                        .into(),
                );
            }
            fields.values().try_for_each(check_tables)
        }
        _ => Ok(()),
    }
}

/// Whether SentencePiece tables contain a trie as long as the number of bytes that they begin with.
fn is_whole(tables: &str) -> bool {
    let Ok(bytes) = BASE64_STANDARD.decode(tables) else { return false };
    bytes.split_first_chunk().is_some_and(|(size, rest)| {
        let size = u32::from_le_bytes(*size) as usize;
        size > 0 && size.is_multiple_of(4) && size <= rest.len()
    })
}

impl Text {
    pub fn open(bundle: &Bundle) -> Result<Text> {
        let Some(path) = bundle.tokenizer() else { return Ok(Text::Absent { why: absent(bundle) }) };
        let bytes = untrusted::file::read(&path, untrusted::file::INPUT)
            .map_err(|e| Failure::usage(format!("cannot read {}: {e}", path.display())))?;
        Text::parse(&bundle.manifest().name, &bytes)
    }

    /// The tokenizer from the bytes of the tokenizer.json of `model`.
    pub fn parse(model: &str, bytes: &[u8]) -> Result<Text> {
        let refused =
            |why: String| Failure::usage(format!("the tokenizer.json of {model} is not a tokenizer: {why}"));
        check(bytes).map_err(refused)?;
        let mut tokenizer = survived(|| Tokenizer::from_bytes(bytes)).map_err(refused)?;
        // A prompt is measured as it is: truncation and padding of a tokenizer.json do not apply. Padding
        // could use any amount of memory.
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).map_err(|why| refused(why.to_string()))?;
        Ok(Text::Tokens(Box::new(tokenizer)))
    }

    /// Ids of `text` without special tokens.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        Ok(self.ids(text, None, false)?.tokens)
    }

    /// Ids of `text`, and of a second text after it, with the model's special tokens around them, as the
    /// model's own tokenizer gives them.
    pub fn encode_whole(&self, text: &str, pair: Option<&str>) -> Result<Whole> {
        self.ids(text, pair, true)
    }

    pub(crate) fn ids(&self, text: &str, pair: Option<&str>, special: bool) -> Result<Whole> {
        match self {
            Text::Tokens(tokenizer) => {
                let encoding = survived(|| tokenizer.encode(input(text, pair), special))
                    .map_err(|why| Failure::usage(format!("cannot tokenise: {why}")))?;
                let types = encoding.get_type_ids();
                let types = if types.iter().all(|&kind| kind == 0) { Vec::new() } else { types.to_vec() };
                Ok(Whole { tokens: encoding.get_ids().to_vec(), types })
            }
            Text::Apart(process) => {
                let (text, pair) = (text.to_owned(), pair.map(str::to_owned));
                process.ids(&Question::Ids { text, pair, special })
            }
            Text::Absent { why } => Err(Failure::usage(why)),
        }
    }

    /// The special tokens before a text, and those behind it.
    pub fn ends(&self) -> Result<(Vec<u32>, Vec<u32>)> {
        // A tokenizer may give an empty text none.
        const PROBE: &str = "a";
        let (inner, mut whole) = (self.encode(PROBE)?, self.encode_whole(PROBE, None)?.tokens);
        let starts = whole.windows(inner.len().max(1)).position(|window| window == inner);
        let after = starts.map_or(Vec::new(), |start| whole.split_off(start + inner.len()));
        whole.truncate(starts.unwrap_or(0));
        Ok((whole, after))
    }

    /// The time to compute the ids of all `texts`, in nanoseconds: of several texts on the tokenizer
    /// library's own number of threads. `None` without a tokenizer.
    pub fn time(&self, texts: &[Written], now: fn() -> Instant) -> Result<Option<u64>> {
        let tokenizer = match self {
            Text::Tokens(tokenizer) => tokenizer,
            Text::Apart(process) => return process.time(&Question::Time { texts: texts.to_vec() }),
            Text::Absent { .. } => return Ok(None),
        };
        let inputs = texts.iter().map(|one| input(&one.text, one.pair.as_deref()));
        let inputs: Vec<EncodeInput> = inputs.collect();
        let begun = now();
        let ids = survived(|| tokenizer.encode_batch(inputs, true));
        let took = begun.elapsed();
        ids.map_err(|why| Failure::usage(format!("cannot tokenise: {why}")))?;
        Ok(Some(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// The text of `tokens`; `None` without a tokenizer.
    pub fn decode(&self, tokens: &[u32]) -> Result<Option<String>> {
        let tokenizer = match self {
            Text::Tokens(tokenizer) => tokenizer,
            Text::Apart(process) => return process.text(&Question::Decode { tokens: tokens.to_vec() }),
            Text::Absent { .. } => return Ok(None),
        };
        let text = survived(|| tokenizer.decode(tokens, false));
        text.map(Some).map_err(|why| Failure::failed(format!("cannot turn tokens into text: {why}")))
    }

    /// Tokens that extend a prompt, to be repeated.
    fn filler(&self, vocabulary: usize) -> Result<Vec<u32>> {
        match self {
            Text::Tokens(_) | Text::Apart(_) => self.encode(PASSAGE),
            Text::Absent { .. } => Ok(drawn("", vocabulary.min(256), vocabulary)),
        }
    }
}

/// Why the model has no tokenizer, and what to do.
pub fn absent(bundle: &Bundle) -> String {
    let (model, reason) = (&bundle.manifest().name, bundle.no_tokenizer().unwrap_or_default());
    format!("{model} has no tokenizer: {reason}; give token ids (--tokens), or take a model that has one")
}

/// So many ids of the vocabulary in place of a text that cannot be read. Any will do to measure, if all frameworks get
/// the same: a walk with a full period touches much of the embedding. Other texts begin elsewhere.
pub fn drawn(text: &str, count: usize, vocabulary: usize) -> Vec<u32> {
    let start = text.bytes().fold(0, |sum: usize, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    (0..count).map(|place| (((start % vocabulary + place) * 7919 + 1) % vocabulary) as u32).collect()
}

fn input<'a>(text: &'a str, pair: Option<&'a str>) -> EncodeInput<'a> {
    match pair {
        Some(pair) => (text, pair).into(),
        None => text.into(),
    }
}

pub fn from_texts(texts: &[String]) -> Suite {
    let prompt = |text: &String| SuitePrompt { text: Some(text.clone()), ..SuitePrompt::default() };
    Suite { prompts: texts.iter().map(prompt).collect(), ..Suite::default() }
}

/// The texts and pairs of texts of a file with a JSON value a line.
///
/// # Errors
/// The line, and its error.
pub fn from_json_lines(text: &str) -> std::result::Result<Suite, String> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Line {
        Pair([String; 2]),
        Fields { query: Option<String>, text: String },
    }
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let prompt = |(place, line): (usize, &str)| {
        let (text, pair) = match serde_json::from_str(line) {
            Ok(Line::Pair([text, pair])) => (text, Some(pair)),
            Ok(Line::Fields { query: Some(query), text }) => (query, Some(text)),
            Ok(Line::Fields { query: None, text }) => (text, None),
            Err(_) => {
                let number = place + 1;
                return Err(format!(
                    r#"line {number} is none of {{"query": "…", "text": "…"}}, ["…", "…"] and {{"text": "…"}}"#
                ));
            }
        };
        Ok(SuitePrompt { text: Some(text), pair, ..SuitePrompt::default() })
    };
    Ok(Suite { prompts: lines.map(prompt).collect::<std::result::Result<_, _>>()?, ..Suite::default() })
}

/// Resolves prompts to ids of the vocabulary of `config`: with a chat template applied if one is given, cut
/// or extended to `length` tokens if that is given. Without a tokenizer, the ids of texts are drawn.
pub fn resolve(
    prompts: &[SuitePrompt],
    length: Option<usize>,
    config: &ModelConfig,
    text: &Text,
    chat: Option<&Chat>,
) -> Result<Vec<Prompt>> {
    let mut resolved = Vec::new();
    // A text to encode gets its length when batches are made of it: its ends stay.
    let length = length.filter(|_| !config.encodes());
    let filler = if length.is_some() { text.filler(config.vocab_size)? } else { Vec::new() };
    let reads = !matches!(text, Text::Absent { .. }) && chat.is_none();
    let is_read = reads && prompts.iter().any(|prompt| prompt.text.is_some());
    let (before, after) = if is_read { text.ends()? } else { Default::default() };
    for (index, prompt) in prompts.iter().enumerate() {
        let name = prompt.name.clone().unwrap_or_else(|| format!("prompt {}", index + 1));
        let rendered = match (chat, &prompt.text) {
            (Some(chat), Some(text_of_prompt)) => Some(chat.render(text_of_prompt)?),
            _ => None,
        };
        encode::check_pair(prompt, &name, config)?;
        let plain = |tokens| Whole { tokens, types: Vec::new() };
        let mut special = [0, 0];
        let Whole { mut tokens, mut types } = match (&rendered, &prompt.text, &prompt.tokens) {
            (None, None, Some(tokens)) => plain(tokens.clone()),
            // A template writes the special tokens itself.
            (Some(rendered), _, None) => plain(text.encode(rendered)?),
            (None, Some(_), None) if !reads => drawn_in_place(prompt, config.vocab_size),
            (None, Some(of_prompt), None) => {
                let mut whole = text.encode_whole(of_prompt, prompt.pair.as_deref())?;
                if length.is_some() {
                    // More tokens follow: it has no end yet.
                    whole.tokens.truncate(whole.tokens.len().saturating_sub(after.len()));
                }
                let texts = [Some(of_prompt), prompt.pair.as_ref()].into_iter().flatten();
                let inner =
                    texts.map(|inner| text.encode(inner).map(|ids| ids.len())).sum::<Result<usize>>()?;
                special = [before.len(), whole.tokens.len().saturating_sub(inner + before.len())];
                whole
            }
            _ => return Err(Failure::usage(format!("{name} needs either a text or tokens"))),
        };
        if !config.encodes() {
            types.clear();
        }
        if tokens.is_empty() && length.is_none() {
            return Err(Failure::usage(format!("{name} is empty: there is nothing to continue")));
        }
        if let Some(length) = length {
            tokens.extend(filler.iter().cycle().take(length.saturating_sub(tokens.len())));
            tokens.truncate(length);
        }
        check_vocabulary(&tokens, config)?;
        let (text, pair) = (prompt.text.clone(), prompt.pair.clone());
        resolved.push(Prompt { name, text, pair, chat: rendered, tokens, types, special, audio: None });
    }
    Ok(resolved)
}

/// One id for each byte of the texts, so that longer texts stay longer.
fn drawn_in_place(prompt: &SuitePrompt, vocabulary: usize) -> Whole {
    let [text, pair] = [&prompt.text, &prompt.pair].map(|text| text.as_deref().unwrap_or_default());
    let mut tokens = drawn(text, text.len(), vocabulary);
    let mut types = Vec::new();
    if !pair.is_empty() {
        tokens.extend(drawn(pair, pair.len(), vocabulary));
        types = [vec![0; text.len()], vec![1; pair.len()]].concat();
    }
    Whole { tokens, types }
}

/// Rejects more prompts than a comparison can measure in reasonable time.
pub(crate) fn check_count(suite: &Suite) -> Result<()> {
    let count = suite.prompts.len();
    if count > MOST_PROMPTS {
        return Err(Failure::usage(format!(
            "{count} prompts are asked for, and a comparison takes at most {MOST_PROMPTS}, each of which every \
             framework runs several times: choose fewer, or divide them over several comparisons"
        )));
    }
    Ok(())
}

/// Rejects ids that the model does not have.
pub fn check_vocabulary(tokens: &[u32], config: &ModelConfig) -> Result<()> {
    let vocabulary = config.vocab_size;
    match tokens.iter().find(|&&token| token as usize >= vocabulary) {
        None => Ok(()),
        Some(token) => Err(Failure::usage(format!(
            "token id {token} is outside the model's vocabulary of {vocabulary} tokens"
        ))),
    }
}

// Catches panics of libraries on untrusted input. They become errors, as for any other unreadable input.

thread_local! {
    /// Whether this thread is inside such a call: its panics are not shown.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Runs the call. The error is its own, or the panic's message.
fn survived<T, E: ToString>(
    work: impl FnOnce() -> std::result::Result<T, E>,
) -> std::result::Result<T, String> {
    static HOOKED: Once = Once::new();
    HOOKED.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            if !INSIDE.get() {
                usual(panic);
            }
        }));
    });
    let was_inside = INSIDE.replace(true);
    let done = panic::catch_unwind(AssertUnwindSafe(work));
    INSIDE.set(was_inside);
    done.map_or_else(
        |panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it gives no reason");
            Err(format!("the library for it broke off ({})", text.lines().next().unwrap_or_default()))
        },
        |done| done.map_err(|error| error.to_string()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_a_sentence_and_the_next_work_is_done() {
        let error = survived::<(), String>(|| panic!("index {} is out of range\nand more", 7)).unwrap_err();
        assert_eq!(error, "the library for it broke off (index 7 is out of range)");
        assert_eq!(survived(|| Ok::<_, String>(3)), Ok(3));
        assert_eq!(survived(|| Err::<(), _>("its own error")), Err("its own error".to_owned()));
        let because = survived::<(), String>(|| panic!("{}", "because"));
        assert!(because.is_err_and(|error| error.contains("because")));
    }
}

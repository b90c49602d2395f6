//! Text processing in a separate process. A tokenizer or a chat template comes with a model and may use any
//! amount of memory, time or stack; it must not end this program. Questions and answers are lines of JSON.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{Failure, Result};

/// A question to a model's tokenizer or template.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum Question {
    /// The ids of a text, without special tokens.
    Encode { text: String },
    /// The ids and types of a text, or of a pair of texts, with the model's special tokens around it.
    EncodeWhole { text: String, pair: Option<String> },
    /// The text of ids.
    Decode { tokens: Vec<u32> },
    /// The time to compute the ids of all these texts, in nanoseconds.
    Time { texts: Vec<Written> },
    /// The text that the model is fed for a prompt.
    Render { prompt: String },
}

/// A text, or a pair of texts, as a person writes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    pub text: String,
    pub pair: Option<String>,
}

/// Ids of a text, or of a pair of texts, with the model's special tokens around it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Whole {
    pub tokens: Vec<u32>,
    /// The type of each token; all 0 where it is empty.
    pub types: Vec<u32>,
}

/// The answer.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    Tokens(Vec<u32>),
    Whole(Whole),
    Text(Option<String>),
    Time(Option<u64>),
    /// Why there is none: a mistake in the input.
    Refused(String),
    /// Why there is none: an internal failure.
    Failed(String),
}

/// A client of such a process.
pub trait Apart: Send + Sync {
    /// # Errors
    /// Why there is no answer, in one sentence.
    fn ask(&self, question: &Question) -> Result<Answer>;
}

/// A process to which questions are sent.
#[derive(Clone)]
pub struct Asked(pub Arc<dyn Apart>);

impl fmt::Debug for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a process of its own")
    }
}

impl Asked {
    fn answer(&self, question: &Question) -> Result<Answer> {
        match self.0.ask(question)? {
            Answer::Refused(reason) => Err(Failure::usage(reason)),
            Answer::Failed(reason) => Err(Failure::failed(reason)),
            answer => Ok(answer),
        }
    }

    pub(crate) fn tokens(&self, question: &Question) -> Result<Vec<u32>> {
        match self.answer(question)? {
            Answer::Tokens(tokens) => Ok(tokens),
            _ => Err(Failure::failed("a text in the place of tokens")),
        }
    }

    pub(crate) fn whole(&self, question: &Question) -> Result<Whole> {
        match self.answer(question)? {
            Answer::Whole(whole) => Ok(whole),
            _ => Err(Failure::failed("something else in the place of tokens and their types")),
        }
    }

    pub(crate) fn time(&self, question: &Question) -> Result<Option<u64>> {
        match self.answer(question)? {
            Answer::Time(time) => Ok(time),
            _ => Err(Failure::failed("something else in the place of a time")),
        }
    }

    pub(crate) fn text(&self, question: &Question) -> Result<Option<String>> {
        match self.answer(question)? {
            Answer::Text(text) => Ok(text),
            _ => Err(Failure::failed("tokens in the place of a text")),
        }
    }
}

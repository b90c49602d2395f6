//! Settings for an encoder other than the texts: the task, and the lengths of the texts.

use std::str::FromStr;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

/// Settings for encoders.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EncodeAsked {
    /// The task; `None` is the one that the model's files are for.
    pub task: Option<TaskAsked>,
    pub lengths: LengthsAsked,
    /// Whether texts that are too long for the model are cut.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub truncate: bool,
    /// Whether tokenising is timed, too.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub include_tokenizer: bool,
}

impl EncodeAsked {
    pub fn is_default(&self) -> bool {
        *self == EncodeAsked::default()
    }

    /// Whether a study may choose the lengths of texts: none are asked for, and tokenising is not timed.
    pub(crate) fn has_real_lengths(&self) -> bool {
        self.lengths == LengthsAsked::Real && !self.include_tokenizer
    }
}

/// The task of an encoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskAsked {
    /// Vectors
    Embed,
    /// Scores of texts, such as pairs of a question and an answer
    Rerank,
    /// Scores of the tokens of texts
    Classify,
}

impl TaskAsked {
    pub const ALL: [TaskAsked; 3] = [TaskAsked::Embed, TaskAsked::Rerank, TaskAsked::Classify];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            TaskAsked::Embed => "embed",
            TaskAsked::Rerank => "rerank",
            TaskAsked::Classify => "classify",
        }
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
    pub(crate) fn longest(self) -> Option<usize> {
        match self {
            LengthsAsked::Real => None,
            LengthsAsked::Fixed(tokens) | LengthsAsked::Uniform { to: tokens, .. } => Some(tokens as usize),
        }
    }
}

impl FromStr for LengthsAsked {
    type Err = String;

    fn from_str(text: &str) -> Result<LengthsAsked, String> {
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
pub(crate) struct Lengths {
    asked: LengthsAsked,
    random: ChaCha8Rng,
}

impl Lengths {
    pub(crate) fn new(asked: LengthsAsked, seed: u64) -> Lengths {
        Lengths { asked, random: ChaCha8Rng::seed_from_u64(seed) }
    }

    /// The places of the tokens that make a text of `tokens` tokens as long as asked for. The last token
    /// stays the last; a text that is too short is repeated between its first and its last.
    pub(crate) fn places(&mut self, tokens: usize) -> Vec<usize> {
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

#[cfg(test)]
mod tests {
    use super::*;

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

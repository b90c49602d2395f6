//! The capability to turn texts into vectors, or into scores.

use bundle::{ModelConfig, Pooling};

use crate::{EngineError, HiddenStates};

/// Texts of different lengths, one after the other.
#[derive(Debug, Clone, Copy)]
pub struct Texts<'a> {
    pub tokens: &'a [u32],
    /// The type of each token, as for the second of a pair of texts; all 0 where it is empty.
    pub types: &'a [u32],
    /// Number of tokens of each text, 1 or more.
    pub lengths: &'a [usize],
}

/// The output for texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EncodeTask {
    /// A vector for each text, `[texts, hidden]`, divided by its length (the root of the sum of squares) if
    /// `normalise` is set.
    Embed { pooling: Pooling, normalise: bool },
    /// The output of the model's head: `[texts, labels]`, or `[tokens, labels]` of a head that scores tokens.
    Score,
}

/// Encodes texts, with the loaded model.
pub trait Encode {
    /// The numbers of `task`, row-major. Complete on return.
    ///
    /// # Errors
    /// [`EngineError::Input`] if [`Texts::check`] fails.
    fn encode(&mut self, texts: Texts<'_>, task: EncodeTask) -> Result<&[f32], EngineError>;

    /// The model that is loaded.
    fn config(&self) -> &ModelConfig;

    /// Positions that the last call computed, padding included.
    fn positions(&self) -> usize;

    /// Hidden states of the last call, `[tokens, hidden]` each, text by text without padding, if
    /// [`Settings::hidden_states`](crate::Settings::hidden_states) was set at load.
    fn hidden_states(&mut self) -> Result<HiddenStates, EngineError> {
        Err(EngineError::Unsupported("this framework gives no access to hidden states".into()))
    }
}

impl Texts<'_> {
    /// Rejects texts that this model cannot encode, and scores from a model without a head.
    pub fn check(&self, config: &ModelConfig, task: EncodeTask) -> Result<(), EngineError> {
        let Some(encoder) = &config.encoder else {
            return Err(EngineError::Input("the model continues texts and encodes none".into()));
        };
        let refuse = |text: String| Err(EngineError::Input(text));
        if task == EncodeTask::Score && encoder.head.is_none() {
            return refuse("the model has no head that gives scores".into());
        }
        if self.lengths.is_empty() || self.lengths.contains(&0) {
            return refuse("there is an empty text, or none at all".into());
        }
        let all: usize = self.lengths.iter().sum();
        if all != self.tokens.len() || ![0, all].contains(&self.types.len()) {
            return refuse(format!("texts of {all} tokens come with {}", self.tokens.len()));
        }
        if let Some(longest) = self.lengths.iter().find(|&&length| length > config.max_positions) {
            let positions = config.max_positions;
            return refuse(format!(
                "a text of {longest} tokens is longer than the model's {positions} positions"
            ));
        }
        if let Some(token) = self.tokens.iter().find(|&&token| token as usize >= config.vocab_size) {
            let vocabulary = config.vocab_size;
            return refuse(format!("token {token} is outside the vocabulary of {vocabulary} tokens"));
        }
        if let Some(kind) = self.types.iter().find(|&&kind| kind as usize >= encoder.token_types.max(1)) {
            return refuse(format!(
                "token type {kind} is not one of the model's {}",
                encoder.token_types.max(1)
            ));
        }
        Ok(())
    }
}

impl EncodeTask {
    /// Number of numbers for a text of so many tokens.
    pub fn width(self, config: &ModelConfig, tokens: usize) -> usize {
        match self {
            EncodeTask::Embed { .. } => config.hidden_size,
            EncodeTask::Score => config.scoring().map_or(0, |head| head.numbers(tokens)),
        }
    }
}

/// The places of texts by their lengths: those of one length, in their order, for each length. Texts of one
/// length can be computed as one batch.
pub fn by_length(lengths: &[usize]) -> Vec<(usize, Vec<usize>)> {
    let mut groups: Vec<(usize, Vec<usize>)> = Vec::new();
    for (place, &length) in lengths.iter().enumerate() {
        match groups.iter_mut().find(|(of, _)| *of == length) {
            Some((_, places)) => places.push(place),
            None => groups.push((length, vec![place])),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_one_length_are_together_and_keep_their_order() {
        let groups = by_length(&[3, 1, 3, 2, 1]);
        assert_eq!(groups, [(3, vec![0, 2]), (1, vec![1, 4]), (2, vec![3])]);
    }
}

//! The capability to turn texts into vectors, or into scores.

use bundle::{Head, ModelConfig, Pooling, Scored};
use protocol::{EncodeTask, Way};

use crate::engine::{EngineError, HiddenStates, Result};

/// Texts of different lengths, one after the other.
#[derive(Debug, Clone, Copy)]
pub struct Texts<'a> {
    pub tokens: &'a [u32],
    /// The type of each token, as for the second of a pair of texts; all 0 where it is empty.
    pub types: &'a [u32],
    /// Number of tokens of each text, 1 or more.
    pub lengths: &'a [usize],
}

/// Encodes texts, with the loaded model.
pub trait Encode {
    /// The numbers of `task`, row-major. Complete on return.
    ///
    /// # Errors
    /// [`EngineError::Input`] if [`Texts::check`] fails.
    fn encode(&mut self, texts: Texts<'_>, task: EncodeTask) -> Result<&[f32]>;

    fn config(&self) -> &ModelConfig;

    /// Positions that the last call computed, padding included.
    fn positions(&self) -> usize;

    /// Hidden states of the last call, `[tokens, hidden]` each, text by text without padding, if
    /// [`Settings::hidden_states`](crate::engine::Settings::hidden_states) was set at load.
    fn hidden_states(&mut self) -> Result<HiddenStates> {
        Err(EngineError::Unsupported("this framework gives no access to hidden states".into()))
    }
}

impl Texts<'_> {
    /// Rejects texts that this model cannot encode, and scores from a model without a head.
    pub fn check(&self, config: &ModelConfig, task: EncodeTask) -> Result<()> {
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

// Texts that are padded to one length, and their outputs without the padding.

impl Texts<'_> {
    /// Number of tokens of the longest text.
    pub fn longest(&self) -> usize {
        self.lengths.iter().copied().max().unwrap_or(0)
    }

    /// One number for each token, as rows of a matrix `[texts, longest]` that `fill` completes.
    pub fn padded<T: Copy>(&self, numbers: impl Iterator<Item = T>, fill: T) -> Vec<T> {
        self.padded_to(self.longest(), numbers, fill)
    }

    /// The same as rows of `width`.
    pub fn padded_to<T: Copy>(&self, width: usize, mut numbers: impl Iterator<Item = T>, fill: T) -> Vec<T> {
        let rows = self.lengths.iter().flat_map(|&length| {
            let mut row: Vec<T> = numbers.by_ref().take(length).collect();
            row.resize(width, fill);
            row
        });
        rows.collect()
    }

    /// The cell of each token in a matrix with rows of `width`.
    pub fn cells(&self, width: usize) -> impl Iterator<Item = usize> {
        self.lengths
            .iter()
            .enumerate()
            .flat_map(move |(text, &length)| (0..length).map(move |at| text * width + at))
    }

    /// The numbers of `task`, from the model's output for so many rows of each text; the first rows are its
    /// tokens: vectors `[rows, hidden]`, or the head's output, `[rows, labels]`, or `[texts, labels]` of a
    /// head of texts.
    pub fn numbers(
        &self,
        rows: &[usize],
        (task, config): (EncodeTask, &ModelConfig),
        found: &[f32],
    ) -> Vec<f32> {
        let width = match (task, config.scoring()) {
            (EncodeTask::Embed { .. }, _) => config.hidden_size,
            (EncodeTask::Score, Some(Head { of: Scored::Tokens, labels, .. })) => *labels,
            (EncodeTask::Score, _) => return found.to_vec(),
        };
        let (mut rest, mut numbers) = (found, Vec::new());
        for (&rows, &length) in rows.iter().zip(self.lengths) {
            let of_text;
            (of_text, rest) = rest.split_at(rows * width);
            let of_tokens = &of_text[..length * width];
            match task {
                EncodeTask::Embed { pooling, normalise } => {
                    pool(of_tokens, width, (pooling, normalise), &mut numbers);
                }
                EncodeTask::Score => numbers.extend_from_slice(of_tokens),
            }
        }
        numbers
    }
}

/// The length that an encoder's texts are padded to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextPadding {
    /// The longest of their batch.
    Longest,
    /// So many tokens, or the longest of their batch if that has more.
    To(usize),
}

impl TextPadding {
    /// Tokens of each text, padding included.
    pub fn width(self, texts: &Texts<'_>) -> usize {
        match self {
            TextPadding::Longest => texts.longest(),
            TextPadding::To(tokens) => texts.longest().max(tokens),
        }
    }
}

impl std::fmt::Display for TextPadding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TextPadding::Longest => write!(f, "texts padded to the longest"),
            TextPadding::To(tokens) => write!(f, "texts padded to {tokens} tokens each"),
        }
    }
}

/// Texts that are padded, to be computed as texts of one length.
#[derive(Debug)]
pub struct Padded {
    tokens: Vec<u32>,
    types: Vec<u32>,
    lengths: Vec<usize>,
}

impl Padded {
    /// To the longest.
    pub fn new(texts: Texts<'_>, pad_token: u32) -> Padded {
        Padded::to(texts.longest(), texts, pad_token)
    }

    /// To texts of `width` tokens.
    pub fn to(width: usize, texts: Texts<'_>, pad_token: u32) -> Padded {
        let filled = |numbers: &[u32], with| texts.padded_to(width, numbers.iter().copied(), with);
        Padded {
            tokens: filled(texts.tokens, pad_token),
            types: if texts.types.is_empty() { Vec::new() } else { filled(texts.types, 0) },
            lengths: vec![width; texts.lengths.len()],
        }
    }

    pub fn texts(&self) -> Texts<'_> {
        Texts { tokens: &self.tokens, types: &self.types, lengths: &self.lengths }
    }
}

/// Appends the vector of a text to `vectors`, from those of its tokens, or all of those.
fn pool(rows: &[f32], width: usize, (pooling, normalise): (Pooling, bool), vectors: &mut Vec<f32>) {
    let start = vectors.len();
    let way = match pooling {
        Pooling::Each => return vectors.extend_from_slice(rows),
        Pooling::Cls => Way::Cls,
        Pooling::Mean => Way::Mean,
        Pooling::Max => Way::Max,
        Pooling::Last => Way::Last,
    };
    pool_in(way, rows, (width, 0), vectors);
    if normalise {
        self::normalise(&mut vectors[start..]);
    }
}

/// Appends the vector of a text, from those of its tokens behind the first `skipped`.
pub(crate) fn pool_in(way: Way, rows: &[f32], (width, skipped): (usize, usize), vectors: &mut Vec<f32>) {
    let start = vectors.len();
    let mut tokens = rows.chunks_exact(width).zip(1..).skip(skipped);
    let first = match way {
        Way::Last => tokens.by_ref().last(),
        _ => tokens.next(),
    };
    let Some((first, place)) = first else { return vectors.resize(start + width, 0.0) };
    vectors.extend_from_slice(first);
    let vector = &mut vectors[start..];
    let count = (rows.len() / width - skipped) as f32;
    let scale = |vector: &mut [f32], by: f32| vector.iter_mut().for_each(|number| *number *= by);
    let add = |vector: &mut [f32], row: &[f32]| vector.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
    match way {
        Way::Cls | Way::Last => {}
        Way::Max => tokens.for_each(|(row, _)| {
            vector.iter_mut().zip(row).for_each(|(largest, number)| *largest = largest.max(*number));
        }),
        Way::Mean | Way::MeanSqrtLen => {
            tokens.for_each(|(row, _)| add(vector, row));
            scale(vector, if way == Way::Mean { count } else { count.sqrt() }.recip());
        }
        Way::WeightedMean => {
            scale(vector, place as f32);
            let mut sum = place;
            for (row, place) in tokens {
                vector.iter_mut().zip(row).for_each(|(sum, x)| *sum += place as f32 * x);
                sum += place;
            }
            scale(vector, (sum as f32).recip());
        }
    }
}

/// Divides a vector by its length.
pub(crate) fn normalise(vector: &mut [f32]) {
    // The lower bound is that of PyTorch's `normalize`.
    let norm = vector.iter().map(|number| number * number).sum::<f32>().sqrt().max(1e-12);
    vector.iter_mut().for_each(|number| *number /= norm);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_one_length_are_together_and_keep_their_order() {
        let groups = by_length(&[3, 1, 3, 2, 1]);
        assert_eq!(groups, [(3, vec![0, 2]), (1, vec![1, 4]), (2, vec![3])]);
    }

    #[test]
    fn a_vector_is_pooled_from_the_rows_of_its_text() {
        let pooled = |pooling, normalise| {
            let mut vectors = vec![9.0];
            pool(&[1.0, -8.0, 5.0, 0.0], 2, (pooling, normalise), &mut vectors);
            vectors
        };
        assert_eq!(pooled(Pooling::Cls, false), [9.0, 1.0, -8.0]);
        assert_eq!(pooled(Pooling::Last, false), [9.0, 5.0, 0.0]);
        assert_eq!(pooled(Pooling::Max, false), [9.0, 5.0, 0.0]);
        assert_eq!(pooled(Pooling::Mean, false), [9.0, 3.0, -4.0]);
        assert_eq!(pooled(Pooling::Mean, true), [9.0, 0.6, -0.8]);
        assert_eq!(pooled(Pooling::Each, true), [9.0, 1.0, -8.0, 5.0, 0.0]);
    }

    #[test]
    fn skipped_tokens_have_no_share_and_keep_their_places() {
        let pooled = |way, skipped| {
            let mut vector = Vec::new();
            pool_in(way, &[1.0, 2.0, 4.0, 8.0], (1, skipped), &mut vector);
            vector[0]
        };
        let ways = [Way::Cls, Way::Max, Way::Mean, Way::MeanSqrtLen, Way::WeightedMean, Way::Last];
        assert_eq!(ways.map(|way| pooled(way, 0)), [1.0, 8.0, 3.75, 7.5, 4.9, 8.0]);
        let expected = [4.0, 8.0, 6.0, 12.0 / 2f32.sqrt(), 44.0 / 7.0, 8.0];
        let close = |(way, expected): (Way, f32)| (pooled(way, 2) - expected).abs() < 1e-5;
        assert!(ways.into_iter().zip(expected).all(close));
        assert_eq!(ways.map(|way| pooled(way, 4)), [0.0; 6]);
    }

    #[test]
    fn padding_completes_the_shorter_texts() {
        let texts = Texts { tokens: &[5, 6, 7, 8], types: &[], lengths: &[1, 3] };
        assert_eq!(Padded::new(texts, 9).texts().tokens, [5, 9, 9, 6, 7, 8]);
        assert_eq!(texts.cells(3).collect::<Vec<_>>(), [0, 3, 4, 5]);
        let width = |padding: TextPadding| padding.width(&texts);
        assert_eq!([TextPadding::Longest, TextPadding::To(2), TextPadding::To(4)].map(width), [3, 3, 4]);
        let wider = Padded::to(4, texts, 9);
        assert_eq!(wider.texts().tokens, [5, 9, 9, 9, 6, 7, 8, 9]);
        assert_eq!(texts.cells(4).collect::<Vec<_>>(), [0, 4, 5, 6]);
    }
}

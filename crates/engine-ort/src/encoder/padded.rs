//! Texts that are all as long as the longest.

use engine::Texts;

use super::inputs::longest;

pub(super) struct Padded {
    tokens: Vec<u32>,
    types: Vec<u32>,
    lengths: Vec<usize>,
}

impl Padded {
    pub(super) fn new(texts: Texts<'_>, pad_token: u32) -> Padded {
        let longest = longest(texts.lengths);
        let fill = |values: &[u32], padding: u32| {
            let mut rest = values;
            let mut filled = Vec::with_capacity(texts.lengths.len() * longest);
            for (text, &length) in (1..).zip(texts.lengths) {
                let (of_text, others) = rest.split_at(length.min(rest.len()));
                rest = others;
                filled.extend_from_slice(of_text);
                filled.resize(text * longest, padding);
            }
            filled
        };
        Padded {
            tokens: fill(texts.tokens, pad_token),
            types: fill(texts.types, 0),
            lengths: vec![longest; texts.lengths.len()],
        }
    }

    pub(super) fn texts(&self) -> Texts<'_> {
        Texts { tokens: &self.tokens, types: &self.types, lengths: &self.lengths }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shorter_texts_are_filled_behind_their_tokens() {
        let texts = Texts { tokens: &[1, 2, 3, 4, 5, 6], types: &[0, 0, 1, 1, 1, 1], lengths: &[2, 3, 1] };
        let padded = Padded::new(texts, 9);
        let Texts { tokens, types, lengths } = padded.texts();
        assert_eq!(tokens, [1, 2, 9, 3, 4, 5, 6, 9, 9]);
        assert_eq!(types, [0, 0, 0, 1, 1, 1, 1, 0, 0]);
        assert_eq!(lengths, [3; 3]);
    }
}

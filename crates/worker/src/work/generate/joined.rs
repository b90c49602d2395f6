//! Sequences joined for an engine.

use crate::engine::{Decode, Result, Want};

/// Tokens of several sequences, one sequence after another.
#[derive(Default)]
pub(super) struct Joined {
    pub(super) tokens: Vec<u32>,
    /// Tokens of each sequence, if sequences differ in length; else empty.
    lengths: Vec<usize>,
    pub(super) batch: usize,
    pub(super) longest: usize,
}

impl Joined {
    pub(super) fn new<'a>(rows: impl Iterator<Item = &'a [u32]> + Clone) -> Joined {
        let lengths: Vec<usize> = rows.clone().map(<[u32]>::len).collect();
        let (batch, longest) = (lengths.len(), lengths.iter().copied().max().unwrap_or(0));
        let is_even = lengths.iter().all(|&length| length == longest);
        let tokens = rows.flatten().copied().collect();
        Joined { tokens, lengths: if is_even { Vec::new() } else { lengths }, batch, longest }
    }

    pub(super) fn differ(&self) -> bool {
        !self.lengths.is_empty()
    }

    /// Lengths if they differ, all of them greater by `more`.
    pub(super) fn lengthen(&mut self, more: usize) {
        self.lengths.iter_mut().for_each(|length| *length += more);
    }

    /// Appends them, the first of sequences that have begun, for the logits of the last token of each.
    pub(super) fn append<'a>(&self, decoder: &'a mut dyn Decode) -> Result<&'a [f32]> {
        match self.differ() {
            false => decoder.append(&self.tokens, Want::Last),
            true => decoder.append_each(&self.tokens, &self.lengths),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_told_where_they_differ() {
        let joined = |rows: &[&[u32]]| {
            let joined = Joined::new(rows.iter().copied());
            (joined.differ(), joined.tokens, joined.lengths, joined.longest)
        };
        assert_eq!(joined(&[&[1, 2], &[3, 4]]), (false, vec![1, 2, 3, 4], vec![], 2));
        assert_eq!(joined(&[&[1], &[2, 3, 4]]), (true, vec![1, 2, 3, 4], vec![1, 3], 3));
    }
}

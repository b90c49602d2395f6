//! Compares greedy continuations with the reference's: how many tokens agree, and whether the first difference is a
//! tie.

use serde::{Deserialize, Serialize};

use crate::parity::Reference;
use crate::parity::logits::argmax;

/// One framework's continuations of every prompt, compared with the reference's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Continuation {
    /// Number of generated tokens, over all prompts.
    pub tokens: usize,
    /// Number of tokens before each prompt's first difference, over all prompts.
    pub common: usize,
    /// The first difference of each prompt. Later tokens have another context and are not compared.
    pub divergences: Vec<Divergence>,
}

/// A point where a continuation leaves the reference's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Divergence {
    pub prompt: String,
    /// Place among the new tokens, from 1.
    pub token: usize,
    /// Token id of the continuation.
    pub ours: u32,
    /// Token id of the reference's continuation.
    pub reference: u32,
    /// The reference's preference for its own token, in logits.
    #[serde(deserialize_with = "facts::reading::distance")]
    pub margin: f32,
    /// Whether the preference is within numerical noise.
    pub tie: bool,
}

impl Continuation {
    /// Compares tokens, `[prompt][batch][new tokens]`. `names` are the prompts' names; `tie` is in logits.
    pub fn new(reference: &Reference, tokens: &[Vec<Vec<u32>>], names: &[&str], tie: f32) -> Continuation {
        let mut continuation = Continuation { tokens: 0, common: 0, divergences: Vec::new() };
        let cases = tokens
            .iter()
            .zip(reference.outputs.iter().map(protocol::Output::tokens))
            .zip(&reference.logits)
            .zip(names);
        for (((ours, traces), logits), name) in cases {
            for (sequence, (ours, trace)) in ours.iter().zip(traces).enumerate() {
                let common = ours.iter().zip(trace).take_while(|(ours, theirs)| ours == theirs).count();
                continuation.tokens += ours.len();
                continuation.common += common;
                let (Some(&ours), Some(&theirs)) = (ours.get(common), trace.get(common)) else { continue };
                // The row of the position before the token predicts it.
                let row = logits.row(sequence, logits.positions - trace.len() + common - 1);
                let logit = row.get(ours as usize).copied().unwrap_or(f32::NEG_INFINITY);
                let margin = row[argmax(row)] - logit;
                let prompt = (*name).to_owned();
                let divergence = Divergence {
                    prompt,
                    token: common + 1,
                    ours,
                    reference: theirs,
                    margin,
                    tie: margin <= tie,
                };
                continuation.divergences.push(divergence);
            }
        }
        continuation
    }

    /// Whether the share of differences that are not ties exceeds the tolerance on top-1 agreement.
    pub fn diverges(&self, top1: f64) -> bool {
        let allowed = ((1.0 - top1) * self.tokens as f64).floor() as usize;
        self.divergences.iter().filter(|divergence| !divergence.tie).count() > allowed
    }
}

/// The first difference between two continuations of the same prompts, as `(prompt, new token from 1)`.
pub fn first_difference(
    one: &[Vec<Vec<u32>>],
    other: &[Vec<Vec<u32>>],
    names: &[&str],
) -> Option<(String, usize)> {
    let cases = one.iter().zip(other).zip(names);
    cases.flat_map(|((one, other), name)| one.iter().zip(other).map(move |rows| (rows, name))).find_map(
        |((one, other), name)| {
            let at = one.iter().zip(other).position(|(one, other)| one != other);
            let at = at.or_else(|| (one.len() != other.len()).then(|| one.len().min(other.len())));
            at.map(|at| ((*name).to_string(), at + 1))
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parity::logits::Logits;

    /// One prompt token, three new ones, a vocabulary of three; the second choice is a tie.
    fn reference() -> Reference {
        let values = vec![0.0, 9.0, 1.0, 8.0, 2.0, 7.9995, 3.0, 1.0, 0.0, 0.0, 0.0, 0.0];
        Reference {
            framework: "r".into(),
            inputs: Vec::new(),
            outputs: vec![protocol::Output::Tokens(vec![vec![1, 0, 0]])],
            logits: vec![Logits { batch: 1, positions: 4, vocabulary: 3, values }],
            unquantised: None,
        }
    }

    fn continued(tokens: &[u32]) -> Continuation {
        Continuation::new(&reference(), &[vec![tokens.to_vec()]], &["p"], 1e-3)
    }

    #[test]
    fn the_same_tokens_do_not_diverge() {
        let same = continued(&[1, 0, 0]);
        assert_eq!((same.tokens, same.common, same.divergences.len()), (3, 3, 0));
        assert!(!same.diverges(1.0));
    }

    #[test]
    fn parting_at_a_tie_is_no_divergence() {
        let tied = continued(&[1, 2, 1]);
        assert_eq!((tied.common, tied.divergences[0].token, tied.divergences[0].tie), (1, 2, true));
        assert!(!tied.diverges(1.0));
    }

    #[test]
    fn parting_against_a_clear_preference_is_one() {
        let wrong = continued(&[2, 0, 0]);
        assert_eq!((wrong.common, wrong.divergences[0].margin), (0, 8.0));
        assert!(wrong.diverges(1.0) && !wrong.diverges(0.5));
    }

    #[test]
    fn two_runs_differ_at_their_first_difference() {
        let tokens = |last| vec![vec![vec![1, 2, 3]], vec![vec![4, 5, last]]];
        assert_eq!(first_difference(&tokens(6), &tokens(6), &["a", "b"]), None);
        assert_eq!(first_difference(&tokens(6), &tokens(7), &["a", "b"]), Some(("b".into(), 3)));
    }
}

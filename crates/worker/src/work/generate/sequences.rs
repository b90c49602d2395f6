//! Prompts that several callers have continued, a request for each.

use engine::{EngineError, InferenceEngine, Want};
use protocol::{GenerateWork, Input};

use super::super::served::Requests;
use super::joined::Joined;
use crate::logits::argmax;
use crate::pace::Pace;

pub(super) struct Sequences {
    prompts: Vec<Vec<u32>>,
    /// The tokens each sequence is fed, as many as the new tokens.
    pub(super) traces: Vec<Vec<u32>>,
    new_tokens: usize,
    vocabulary: usize,
    pace: Pace,
}

impl Sequences {
    pub(super) fn new(
        (work, case): (&GenerateWork, usize),
        input: Option<Input>,
        (vocabulary, pace): (usize, Pace),
    ) -> Sequences {
        let case = &work.cases[case];
        let traces = match input {
            Some(Input::Trace(trace)) => trace,
            _ => case.trace.clone(),
        };
        let (prompts, new_tokens) = (case.prompts.clone(), work.new_tokens);
        Sequences { prompts, traces, new_tokens, vocabulary, pace }
    }
}

impl<E: InferenceEngine> Requests<E> for Sequences {
    /// The most likely token at each step.
    type Answer = Vec<u32>;

    fn count(&self) -> usize {
        self.prompts.len()
    }

    fn compute(&self, engine: &mut E, requests: &[usize]) -> Result<Vec<Vec<u32>>, EngineError> {
        let decoder = engine.decode()?;
        let prompts = Joined::new(requests.iter().map(|&row| self.prompts[row].as_slice()));
        let mut feed = Vec::with_capacity(requests.len());
        decoder.begin(requests.len(), prompts.longest + self.new_tokens)?;
        let mut chosen: Vec<Vec<u32>> =
            requests.iter().map(|_| Vec::with_capacity(self.new_tokens)).collect();
        for step in 0..self.new_tokens {
            let logits = self.pace.keep(|| match step {
                0 => prompts.append(decoder),
                _ => decoder.append(&feed, Want::Last),
            })?;
            let rows = logits.chunks_exact(self.vocabulary).map(argmax);
            chosen.iter_mut().zip(rows).for_each(|(tokens, token)| tokens.push(token));
            feed.clear();
            feed.extend(requests.iter().map(|&row| self.traces[row][step]));
        }
        Ok(chosen)
    }
}

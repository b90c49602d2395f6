//! The timed loop.
//!
//! Between the first and the last sample of a case there is no I/O, no logging and no allocation for
//! results: buffers are made before, events are sent after.

use engine::{InferenceEngine, Want};
use protocol::{Case, CaseSample, Decode, Iteration, KvCache, Measure};

use crate::clock;
use crate::serve::ServeError;

/// Runs cases through an engine and times them.
pub(crate) struct Runner<'a> {
    cases: &'a [Case],
    new_tokens: usize,
    decode: Decode,
    kv_cache: KvCache,
    vocabulary: usize,
    /// Most likely tokens of the case that runs, `[new tokens][batch]`.
    tokens: Vec<u32>,
}

impl<'a> Runner<'a> {
    pub(crate) fn new(task: &'a Measure, vocabulary: usize) -> Runner<'a> {
        Runner {
            cases: &task.cases,
            new_tokens: task.new_tokens,
            decode: task.decode,
            kv_cache: task.kv_cache,
            vocabulary,
            tokens: Vec::new(),
        }
    }

    /// Continues each prompt with the engine's own most likely tokens.
    pub(crate) fn greedy(cases: &'a [Case], new_tokens: usize, vocabulary: usize) -> Runner<'a> {
        let (decode, kv_cache) = (Decode::Greedy, KvCache::On);
        Runner { cases, new_tokens, decode, kv_cache, vocabulary, tokens: Vec::new() }
    }

    /// The cold start: one request up to its first token, its result thrown away.
    pub(crate) fn first_token<E: InferenceEngine>(
        &mut self,
        engine: &mut E,
        case: &Case,
    ) -> Result<(), ServeError> {
        let prompt = case.prompts.concat();
        self.tokens.clear();
        engine.begin(case.prompts.len(), case.prompts[0].len() + self.new_tokens)?;
        let logits = engine.append(&prompt, Want::Last)?;
        push_argmax(&mut self.tokens, logits, self.vocabulary);
        Ok(())
    }

    pub(crate) fn iteration<E: InferenceEngine>(
        &mut self,
        engine: &mut E,
        index: usize,
    ) -> Result<Iteration, ServeError> {
        let mut cases = Vec::with_capacity(self.cases.len());
        for case in self.cases {
            cases.push(self.case(engine, case)?);
        }
        Ok(Iteration { index, cases })
    }

    fn case<E: InferenceEngine>(&mut self, engine: &mut E, case: &Case) -> Result<CaseSample, ServeError> {
        let batch = case.prompts.len();
        let capacity = case.prompts[0].len() + self.new_tokens;
        let prompt = case.prompts.concat();
        let mut gaps_ns = Vec::with_capacity(self.new_tokens);
        // With the cache off, each sequence's prefix as far as it has come.
        let mut prefixes: Vec<Vec<u32>> = Vec::new();
        if self.kv_cache == KvCache::Off {
            prefixes.extend(case.prompts.iter().map(|prompt| {
                let mut prefix = Vec::with_capacity(capacity);
                prefix.extend_from_slice(prompt);
                prefix
            }));
        }
        let mut flat = Vec::with_capacity(batch * capacity);
        let mut feed = Vec::with_capacity(batch);
        self.tokens.clear();
        self.tokens.reserve(batch * self.new_tokens);

        let start = clock::now_ns();
        engine.begin(batch, capacity)?;
        push_argmax(&mut self.tokens, engine.append(&prompt, Want::Last)?, self.vocabulary);
        let mut last = clock::now_ns();
        let first_token_ns = last - start;
        for step in 1..self.new_tokens {
            feed.clear();
            match self.decode {
                Decode::Forced => feed.extend(case.trace.iter().map(|row| row[step - 1])),
                Decode::Greedy => feed.extend_from_slice(&self.tokens[(step - 1) * batch..]),
            }
            let logits = match self.kv_cache {
                KvCache::On => engine.append(&feed, Want::Last)?,
                KvCache::Off => {
                    flat.clear();
                    for (prefix, token) in prefixes.iter_mut().zip(&feed) {
                        prefix.push(*token);
                        flat.extend_from_slice(prefix);
                    }
                    engine.begin(batch, capacity)?;
                    engine.append(&flat, Want::Last)?
                }
            };
            push_argmax(&mut self.tokens, logits, self.vocabulary);
            let now = clock::now_ns();
            gaps_ns.push(now - last);
            last = now;
        }

        let tokens = (0..batch).map(|row| self.tokens.iter().skip(row).step_by(batch).copied().collect());
        Ok(CaseSample { first_token_ns, gaps_ns, tokens: tokens.collect() })
    }
}

/// Appends the most likely token of each row of `logits`.
fn push_argmax(tokens: &mut Vec<u32>, logits: &[f32], vocabulary: usize) {
    tokens.extend(logits.chunks_exact(vocabulary).map(argmax));
}

/// The first of the largest. This runs inside the timed loop, where a plain search of a large vocabulary
/// would add most of a percent to a token of 2 ms (`benches/overhead.rs`): the largest of each block is
/// found by vector instructions, and one block alone is searched for its place.
fn argmax(logits: &[f32]) -> u32 {
    const BLOCK: usize = 1024;
    let (mut largest, mut start) = (f32::NEG_INFINITY, 0);
    for (index, block) in logits.chunks(BLOCK).enumerate() {
        let candidate = maximum(block);
        if candidate > largest {
            (largest, start) = (candidate, index * BLOCK);
        }
    }
    let within = logits[start..].iter().position(|&value| value == largest);
    within.map_or(0, |within| (start + within) as u32)
}

/// The largest, passing over what is no number.
fn maximum(values: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let mut lanes = [f32::NEG_INFINITY; 32];
    let (chunks, rest) = values.as_chunks::<32>();
    for chunk in chunks {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane = larger(*lane, value);
        }
    }
    lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |a, &b| larger(a, b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn argmax_is_the_first_of_the_largest() {
        for length in [1, 63, 64, 65, 100, 1023, 1024, 1025, 5000] {
            let logits: Vec<f32> = (0..length).map(|i| ((i * 37) % 2311) as f32).collect();
            assert_eq!(argmax(&logits), engine::conformance::argmax(&logits), "{length} logits");
        }
        assert_eq!(argmax(&[f32::NAN, 1.0, 1.0]), 1);
        let mut late = vec![0.0; 3000];
        (late[1500], late[2500]) = (1.0, 1.0);
        assert_eq!(argmax(&late), 1500);
    }
}

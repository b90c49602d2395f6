//! Continuation: the requests, and rules on their results.

use std::time::Duration;

use protocol::{Case, Decode, GenerateWork, InEffect, KvCache, Marks, Sample, Task, Work};

use crate::problem::{Problem, time, wrong};

/// Tokens that are added to every prompt.
pub(crate) const NEW_TOKENS: usize = 3;

/// Requests with a cache that are fed the tokens of their cases.
pub(crate) fn forced(cases: Vec<Case>) -> GenerateWork {
    GenerateWork {
        cases,
        new_tokens: NEW_TOKENS,
        decode: Decode::Forced,
        kv_cache: KvCache::On,
        prefill_chunk: None,
    }
}

/// The same without a cache.
pub(crate) fn without_cache(cases: Vec<Case>) -> GenerateWork {
    GenerateWork { kv_cache: KvCache::Off, ..forced(cases) }
}

/// A prompt that is continued by the most likely tokens.
pub(crate) fn greedy(prompt: Vec<u32>) -> Work {
    let case = Case { prompts: vec![prompt], ..Case::default() };
    Work::Generate(GenerateWork { decode: Decode::Greedy, ..forced(vec![case]) })
}

/// How keys and values are kept, where the task switches that off.
pub(crate) fn cache(in_effect: &InEffect, task: &Task) -> Option<Problem> {
    let is_off = match task {
        Task::Measure(measure) => measure.work.kv_cache() == KvCache::Off,
        _ => false,
    };
    // A worker without a cache reports that for every task.
    let has_cache = is_off && in_effect.cache.policy != "recomputed";
    let text = "the job switched the cache off; send \"recomputed\" and compute the whole prefix each time";
    wrong(has_cache, "in_effect.kv_cache", text)
}

/// The size of a request and its case.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked<'a> {
    case: &'a Case,
    new_tokens: usize,
    vocabulary: usize,
}

impl<'a> Asked<'a> {
    /// The requests of each case.
    pub(crate) fn each(work: &'a GenerateWork, vocabulary: usize) -> Vec<Asked<'a>> {
        let asked = |case| Asked { case, new_tokens: work.new_tokens, vocabulary };
        work.cases.iter().map(asked).collect()
    }

    /// The marks of a request, one for each new token. `prefix` comes before the names of its fields.
    pub(crate) fn marks(self, marks: &Marks, prefix: &str, at_most: Duration) -> Vec<Problem> {
        let new_tokens = self.new_tokens;
        let field = format!("{prefix}marks_ns");
        let count = marks.len();
        let text = format!(
            "{count} for {new_tokens} new tokens; send the time from the start of the request to each token"
        );
        let wrong = wrong(count != new_tokens, &field, text);
        wrong.or_else(|| time(&field, marks.end(), at_most)).into_iter().collect()
    }

    /// A request: its times, and as many tokens as were asked for. `prefix` comes before the names of its fields.
    pub(crate) fn sample(self, sample: &Sample, prefix: &str, at_most: Duration) -> Vec<Problem> {
        let Asked { case, new_tokens, vocabulary } = self;
        let mut found = self.marks(&sample.marks_ns, prefix, at_most);
        let field = format!("{prefix}output.tokens");
        found.extend(tokens(sample.output.tokens(), case.prompts.len(), new_tokens, vocabulary, &field));
        found
    }
}

/// `[batch][new tokens]`, ids of the vocabulary.
pub(crate) fn tokens(
    tokens: &[Vec<u32>],
    batch: usize,
    new_tokens: usize,
    vocabulary: usize,
    field: &str,
) -> Option<Problem> {
    if tokens.len() != batch {
        let text = format!("{} rows for {batch} sequences; send [batch][new tokens]", tokens.len());
        return Some(Problem::at(field, text));
    }
    for (row, ids) in tokens.iter().enumerate() {
        let field = format!("{field}[{row}]");
        if ids.len() != new_tokens {
            let text = format!("{} tokens, but {new_tokens} were asked for; send as many", ids.len());
            return Some(Problem::at(&field, text));
        }
        if let Some(id) = ids.iter().find(|id| **id as usize >= vocabulary) {
            let text = format!(
                "{id} is no token: the vocabulary has {vocabulary}; send the index of the largest logit"
            );
            return Some(Problem::at(&field, text));
        }
    }
    None
}

//! The requests as far as they are known before the model: a part of the output of `--dry-run`.

use plan::{Contender, Draft};
use serde::Serialize;

/// Prompts, and the tokens added to them, named as in plan.json.
#[derive(Serialize)]
pub(crate) struct Requests {
    suite: Option<String>,
    prompts: Vec<PlannedPrompt>,
    batch: usize,
    context: usize,
    new_tokens: usize,
}

#[derive(Debug, PartialEq, Serialize)]
struct PlannedPrompt {
    name: String,
    /// Number of tokens, if it is known without the model's tokenizer.
    tokens: Option<usize>,
}

impl Requests {
    pub(crate) fn new(draft: &Draft) -> Requests {
        Requests {
            suite: draft.suite_name().map(str::to_owned),
            prompts: prompts(draft),
            batch: draft.batch(),
            context: draft.lengths().context,
            new_tokens: draft.lengths().new_tokens,
        }
    }

    pub(crate) fn of_job(prompts: Vec<(String, Option<usize>)>, new_tokens: usize) -> Requests {
        let prompts = prompts.into_iter().map(|(name, tokens)| PlannedPrompt { name, tokens }).collect();
        Requests { suite: None, prompts, batch: 1, context: 0, new_tokens }
    }

    /// The values for people, each with its name.
    pub(crate) fn lines(&self) -> Vec<(&'static str, String)> {
        let mut lines = vec![("prompts", self.words())];
        if self.batch > 1 {
            lines.push(("batch", self.batch.to_string()));
        }
        if self.context > 0 {
            lines.push(("context", count(self.context, "token")));
        }
        lines
    }

    fn words(&self) -> String {
        let lengths: Option<Vec<String>> =
            self.prompts.iter().map(|prompt| prompt.tokens.map(|tokens| tokens.to_string())).collect();
        let of_suite = self.suite.as_ref().map_or_else(String::new, |suite| format!(" of suite {suite}"));
        let tokens = lengths.map_or_else(String::new, |mut lengths| {
            lengths.dedup();
            format!(", {} tokens", lengths.join(" and "))
        });
        let new_tokens = match self.new_tokens {
            0 => String::new(),
            new_tokens => format!(", {} each", count(new_tokens, "new token")),
        };
        format!("{}{of_suite}{tokens}{new_tokens}", self.prompts.len())
    }

    /// The open point, if there is one.
    pub(crate) fn open(&self) -> Option<&'static str> {
        let is_open = self.prompts.iter().any(|prompt| prompt.tokens.is_none());
        is_open.then_some("prompts are counted once the model is prepared")
    }
}

/// The prompts of a comparison: of the suite, or its first one at each of several lengths.
fn prompts(draft: &Draft) -> Vec<PlannedPrompt> {
    if !draft.prompt_lengths().is_empty() {
        let at =
            |&length: &u32| PlannedPrompt { name: format!("{length} tokens"), tokens: Some(length as usize) };
        return draft.prompt_lengths().iter().map(at).collect();
    }
    let all = draft.suite().prompts.iter().enumerate();
    let planned = all.map(|(index, prompt)| {
        let name = prompt.name.clone().unwrap_or_else(|| format!("prompt {}", index + 1));
        let given = prompt.tokens.as_ref().map(Vec::len);
        PlannedPrompt { name, tokens: draft.lengths().prompt.or(given) }
    });
    planned.collect()
}

/// The optimisation that a contender runs without.
pub(crate) fn without(contender: &Contender) -> Option<&'static str> {
    (!contender.cache.is_on()).then_some("no KV cache")
}

pub(crate) fn count(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

//! The work that is profiled: a prompt that is continued.

use clap::ValueEnum;
use protocol::{Case, Decode, GenerateWork, KvCache, Work};

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Phase {
    Decode,
    Prefill,
}

#[derive(Debug, clap::Args)]
pub(crate) struct WorkArgs {
    #[arg(long, value_enum, default_value = "decode")]
    pub(crate) phase: Phase,
    /// 16 for decode, 512 for prefill, unless given
    #[arg(long, value_name = "N")]
    prompt_tokens: Option<usize>,
    /// 128 for decode, 1 for prefill, unless given
    #[arg(long, value_name = "N")]
    new_tokens: Option<usize>,
}

impl Phase {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Phase::Decode => "decode",
            Phase::Prefill => "prefill",
        }
    }
}

impl WorkArgs {
    /// Prompt and new tokens.
    pub(crate) fn lengths(&self) -> (usize, usize) {
        let (prompt, new) = match self.phase {
            Phase::Decode => (16, 128),
            Phase::Prefill => (512, 1),
        };
        (self.prompt_tokens.unwrap_or(prompt), self.new_tokens.unwrap_or(new))
    }

    /// Requests of mostly one phase. Which tokens are fed makes no difference to the work.
    pub(crate) fn work(&self) -> Work {
        let (prompt, new_tokens) = self.lengths();
        let tokens = |count: usize| (0..count as u32).map(|i| 100 + i % 100).collect();
        let case = Case { prompts: vec![tokens(prompt)], trace: vec![tokens(new_tokens)], ..Case::default() };
        Work::Generate(GenerateWork {
            cases: vec![case],
            new_tokens,
            decode: Decode::Forced,
            kv_cache: KvCache::On,
            prefill_chunk: None,
        })
    }

    #[cfg(test)]
    pub(crate) fn usual(phase: Phase) -> WorkArgs {
        WorkArgs { phase, prompt_tokens: None, new_tokens: None }
    }
}

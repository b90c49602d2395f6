//! The profiled work: continuing a prompt.

use clap::ValueEnum;
use protocol::{Case, Decode, GenerateWork, KvCache, Measure, Task, Warmup, Work};

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Phase {
    Decode,
    Prefill,
}

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct WorkArgs {
    /// Part of a request that most of the work is in
    #[arg(long, value_enum, default_value = "decode")]
    pub(crate) phase: Phase,
    /// Tokens of the prompt [default: 16 for decode, 512 for prefill]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    prompt_tokens: Option<u32>,
    /// Tokens that are added [default: 128 for decode, 1 for prefill]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    new_tokens: Option<u32>,
}

impl Phase {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Phase::Decode => "decode",
            Phase::Prefill => "prefill",
        }
    }

    /// Recorded requests.
    pub(crate) fn requests(self) -> usize {
        match self {
            Phase::Decode => 3,
            Phase::Prefill => 8,
        }
    }
}

impl WorkArgs {
    /// Numbers of prompt tokens and of new tokens.
    pub(crate) fn lengths(&self) -> (usize, usize) {
        let (prompt, new) = match self.phase {
            Phase::Decode => (16, 128),
            Phase::Prefill => (512, 1),
        };
        (self.prompt_tokens.unwrap_or(prompt) as usize, self.new_tokens.unwrap_or(new) as usize)
    }

    /// A measuring job that is mostly one phase. The choice of tokens does not affect the work.
    pub(crate) fn task(&self, vocab_size: usize) -> Task {
        let (prompt, new_tokens) = self.lengths();
        let tokens = |count: usize| (0..count).map(|i| ((100 + i % 100) % vocab_size) as u32).collect();
        let case = Case { prompts: vec![tokens(prompt)], trace: vec![tokens(new_tokens)], ..Case::default() };
        Task::Measure(Measure {
            work: Work::Generate(GenerateWork {
                cases: vec![case],
                new_tokens,
                decode: Decode::Forced,
                kv_cache: KvCache::On,
                prefill_chunk: None,
            }),
            warmup: Warmup {
                min_iterations: 1,
                max_iterations: 2,
                max_ns: 30_000_000_000,
                settled_within: 0.05,
                from_cold: false,
            },
            lead_in: 0,
            load: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_mostly_of_the_phase_asked_for() {
        let tokens = |phase| match (WorkArgs { phase, prompt_tokens: None, new_tokens: None }).task(1000) {
            Task::Measure(Measure { work: Work::Generate(work), .. }) => {
                (work.cases[0].prompts[0].len(), work.cases[0].trace[0].len())
            }
            other => panic!("{other:?}"),
        };
        assert_eq!((tokens(Phase::Decode), tokens(Phase::Prefill)), ((16, 128), (512, 1)));
    }
}

//! The sweeps that have a name: which axes they vary unless told, and what their tables show.

use clap::ValueEnum;

use super::columns::{Column, Part};
use crate::axes::Axis;
use crate::cli::CompareArgs;
use crate::failure::{Failure, Result};
use crate::judge::metrics::Metric;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// One pass over --batch sequences of --seq tokens each
    Forward,
    /// Prefill and decoding over --prompt-tokens, --new-tokens, --context, --threads, --batch
    Generate,
    /// Iteration 1, 2, 3 …: what the first costs, when it settles, and what too short a warm-up would report
    Warmup,
    /// Where the memory goes, over --batch
    Memory,
    /// What each --precision costs and saves: speed, memory, perplexity, agreement with f32
    Precision,
    /// Cost against the size of the --model
    Size,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Forward => "forward",
            Kind::Generate => "generate",
            Kind::Warmup => "warmup",
            Kind::Memory => "memory",
            Kind::Precision => "precision",
            Kind::Size => "size",
        }
    }

    /// Fills in the axes that were not given.
    pub(super) fn complete(self, args: &mut CompareArgs) -> Result<()> {
        fn usual<T: Clone>(values: &mut Vec<T>, usual: &[T]) {
            if values.is_empty() {
                *values = usual.to_vec();
            }
        }
        if !args.quantize.is_empty() {
            return Err(Failure::usage("--quantize is for `compare`; a sweep takes --precision"));
        }
        // A single prompt, so that its length is the axis.
        if args.prompt.is_empty() && args.prompts.is_none() && args.suite.is_none() {
            args.prompt = vec![PROMPT.to_owned()];
        }
        match self {
            Kind::Forward => {
                if args.new_tokens.iter().any(|&tokens| tokens != 1) {
                    return Err(Failure::usage(
                        "a forward pass yields one token: leave --new-tokens out, or `driver sweep generate`",
                    ));
                }
                args.new_tokens = vec![1];
                usual(&mut args.batch, &[1, 2, 4, 8]);
                usual(&mut args.prompt_tokens, &[128, 256, 512]);
            }
            Kind::Generate => {
                usual(&mut args.prompt_tokens, &[16, 64, 256]);
                usual(&mut args.new_tokens, &[32]);
            }
            Kind::Warmup => {
                args.iterations = args.iterations.filter(|&iterations| iterations > 1).or(Some(10));
                usual(&mut args.prompt_tokens, &[16]);
                usual(&mut args.new_tokens, &[32]);
            }
            Kind::Memory => {
                usual(&mut args.batch, &[1, 2, 4, 8]);
                usual(&mut args.prompt_tokens, &[128]);
                usual(&mut args.new_tokens, &[16]);
            }
            Kind::Precision => {
                usual(&mut args.model.precision, &bundle::Precision::ALL);
                usual(&mut args.prompt_tokens, &[16]);
                usual(&mut args.new_tokens, &[64]);
                args.study.text = true;
            }
            Kind::Size => {
                if args.model.model.len() < 2 {
                    args.model.model = SIZES.map(str::to_owned).to_vec();
                }
                usual(&mut args.prompt_tokens, &[16]);
                usual(&mut args.new_tokens, &[32]);
            }
        }
        Ok(())
    }

    /// The columns of figures, after those of the axes and the framework's.
    pub(super) fn columns(self) -> Vec<Column> {
        let middle = match self {
            Kind::Forward => vec![
                Column::Metric(Metric::PrefillThroughput),
                Column::Metric(Metric::FirstToken),
                Column::Memory(Part::Activations),
                Column::Metric(Metric::PeakMemory),
                Column::Efficiency,
            ],
            Kind::Generate => vec![
                Column::Metric(Metric::FirstToken),
                Column::Metric(Metric::PrefillThroughput),
                Column::Metric(Metric::Latency),
                Column::Metric(Metric::Throughput),
                Column::Metric(Metric::PeakMemory),
                Column::Efficiency,
            ],
            Kind::Warmup => vec![
                Column::Metric(Metric::ColdStart),
                Column::FirstIteration,
                Column::SettledAt,
                Column::Metric(Metric::Latency),
                Column::Metric(Metric::Throughput),
                Column::ShortWarmup,
            ],
            Kind::Memory => Part::ALL.map(Column::Memory).to_vec(),
            Kind::Precision => vec![
                Column::Metric(Metric::Load),
                Column::Metric(Metric::PrefillThroughput),
                Column::Metric(Metric::Throughput),
                Column::Metric(Metric::PeakMemory),
                Column::ThroughputPerGigabyte,
                Column::Perplexity,
                Column::Kl,
                Column::Top1,
            ],
            Kind::Size => vec![
                Column::WeightsSize,
                Column::Metric(Metric::Load),
                Column::Metric(Metric::FirstToken),
                Column::Metric(Metric::Throughput),
                Column::Metric(Metric::PeakMemory),
            ],
        };
        middle.into_iter().chain([Column::Parity]).collect()
    }

    /// Axes that have a column even where they have one value.
    pub(super) fn own_axes(self) -> &'static [Axis] {
        match self {
            Kind::Forward => &[Axis::Batch, Axis::PromptTokens],
            Kind::Generate => &[Axis::PromptTokens, Axis::NewTokens],
            Kind::Warmup => &[],
            Kind::Memory => &[Axis::Batch],
            Kind::Precision => &[Axis::Precision],
            Kind::Size => &[Axis::Model],
        }
    }
}

const PROMPT: &str = "The quick brown fox jumps over the lazy dog, and then it runs off into";
/// Published shapes with seeded weights: see docs/models.md.
const SIZES: [&str; 3] = ["synthetic:gpt2-124m", "synthetic:llama-160m", "synthetic:llama-360m"];

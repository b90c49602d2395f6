//! The names of sweeps as typed.

use clap::ValueEnum;

/// The named sweeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SweepArg {
    /// One pass over --batch sequences of --prompt-tokens each
    #[value(alias = "prefill")]
    Forward,
    #[value(alias = "decode")]
    /// Prefill and decoding over --prompt-tokens, --new-tokens, --context, --threads, --batch
    Generate,
    /// Iteration 1, 2, 3 …: what the first runs cost, when times settle, from how many tokens on compiling pays, and the
    /// error of a benchmark whose warm-up is shorter than its test
    Warmup,
    /// Its last part alone, as published claims name it
    #[value(hide = true)]
    ShortWarmup,
    /// Memory by part, over --batch
    Memory,
    /// Costs and savings of each --precision: speed, memory, perplexity, agreement with f32
    Precision,
    /// Cost against the size of the --model
    Size,
    /// Masked diffusion over --steps and --new-tokens, and the same body token by token
    Denoise,
    /// Texts to vectors or scores, with an encoder, over --batch and --prompt-tokens
    Embed,
    /// Several callers at once, over --callers or --rate
    Callers,
}

impl From<SweepArg> for plan::sweep::SweepKind {
    fn from(kind: SweepArg) -> plan::sweep::SweepKind {
        use plan::sweep::SweepKind;
        match kind {
            SweepArg::Forward => SweepKind::Forward,
            SweepArg::Generate => SweepKind::Generate,
            SweepArg::Warmup => SweepKind::Warmup,
            SweepArg::ShortWarmup => SweepKind::ShortWarmup,
            SweepArg::Memory => SweepKind::Memory,
            SweepArg::Precision => SweepKind::Precision,
            SweepArg::Size => SweepKind::Size,
            SweepArg::Denoise => SweepKind::Denoise,
            SweepArg::Embed => SweepKind::Embed,
            SweepArg::Callers => SweepKind::Callers,
        }
    }
}

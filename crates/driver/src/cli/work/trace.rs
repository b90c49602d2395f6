//! The flags of `trace`.

use std::path::PathBuf;

use clap::Args;

use super::OnArgs;

#[derive(Debug, Clone, Args)]
pub(crate) struct TraceArgs {
    #[command(flatten)]
    pub(crate) on: OnArgs,
    /// Tokens of the prompt, or of each text that is encoded
    #[arg(short, long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) prompt_tokens: u32,
    /// Tokens that are added, greedily [default: 8]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) new_tokens: Option<u32>,
    /// Texts that are encoded together [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) batch: Option<u32>,
    /// File to write [default: trace-NAME.json]
    #[arg(short, long, value_name = "FILE.json")]
    pub(crate) output: Option<PathBuf>,
}

/// Tokens that are added where no number is asked for.
const NEW_TOKENS: u32 = 8;

impl TraceArgs {
    /// Tokens that are added, where a model continues any.
    pub(crate) fn new_tokens(&self) -> u32 {
        self.new_tokens.unwrap_or(NEW_TOKENS)
    }
}

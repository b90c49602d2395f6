//! The flags of `trace`.

use std::path::PathBuf;

use clap::Args;

use super::{HereArgs, ModelArgs};

#[derive(Debug, Clone, Args)]
pub(crate) struct TraceArgs {
    /// A name from configs/engines
    #[arg(long, value_name = "NAME")]
    pub(crate) framework: String,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) here: HereArgs,
    /// Tokens of the prompt
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) prompt_tokens: u32,
    /// Tokens that are added, greedily
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) new_tokens: u32,
    /// File to write [default: trace-NAME.json]
    #[arg(long, value_name = "FILE.json")]
    pub(crate) output: Option<PathBuf>,
}

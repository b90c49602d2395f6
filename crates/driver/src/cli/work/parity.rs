//! `photofinish parity` as typed.

use std::path::PathBuf;

use clap::Args;

use crate::cli::{ChatFlag, Format, HereArgs, ModelArgs};

#[derive(Debug, Clone, Args)]
pub(crate) struct ParityArgs {
    /// Names from configs/engines [default: candle,tch,ort]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub(crate) frameworks: Vec<String>,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) here: HereArgs,
    /// Framework whose f32 results are the reference, one of --frameworks or another [default: the first that runs]
    #[arg(long = "parity-reference", value_name = "FRAMEWORK")]
    pub(crate) reference: Option<String>,
    /// A prompt; may be given several times [default: those of the default suite]
    #[arg(long, conflicts_with_all = ["prompts", "tokens"])]
    pub(crate) prompt: Vec<String>,
    /// Prompts from a file: one a line, or TOML as in configs/suites
    #[arg(long = "prompt-file", value_name = "FILE", conflicts_with = "tokens")]
    pub(crate) prompts: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) chat: ChatFlag,
    /// Token ids of a prompt, separated by commas
    #[arg(long, value_delimiter = ',')]
    pub(crate) tokens: Vec<u32>,
    /// Tokens to generate for each prompt [default: 32, or the suite's]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) new_tokens: Option<u32>,
    /// Continue on a noisy machine; every disturbance is printed
    #[arg(long)]
    pub(crate) accept_noise: bool,
    /// Directory of the results
    #[arg(long, value_name = "DIR")]
    pub(crate) results_dir: Option<PathBuf>,
    /// Format of the output on stdout: table, json or markdown
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub(crate) format: Format,
}

//! The flags of sampling, which `compare` and `generate` share.

use clap::Args;
use plan::SamplingAsked;

use super::help::WORK;
use super::values::{parse_temperature, parse_top_p};

/// Sampling settings. The worker draws the tokens, in the same way for every engine.
#[derive(Debug, Clone, Default, PartialEq, Args)]
pub(crate) struct SamplingArgs {
    /// Draw tokens from the logits divided by T; 0 takes the most likely token [default: 0]
    #[arg(long, value_name = "T", value_parser = parse_temperature, help_heading = WORK, hide_short_help = true)]
    pub(crate) temperature: Option<f32>,
    /// Draw only among the K most likely tokens
    #[arg(long, value_name = "K", requires = "temperature", value_parser = clap::value_parser!(u32).range(1..), help_heading = WORK, hide_short_help = true)]
    top_k: Option<u32>,
    /// Draw among the fewest tokens that together have this probability, above 0 up to 1
    #[arg(long, value_name = "P", requires = "temperature", value_parser = parse_top_p, help_heading = WORK, hide_short_help = true)]
    top_p: Option<f32>,
}

impl SamplingArgs {
    pub(crate) fn asked(&self) -> SamplingAsked {
        SamplingAsked { temperature: self.temperature, top_k: self.top_k, top_p: self.top_p }
    }
}

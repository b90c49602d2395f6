//! `photofinish denoise` as typed.

use clap::Args;
use plan::{DenoiseAsked, Request, SamplingAsked};

use super::masked::{DENOISING, DenoiseFlags};
use super::values::{parse_temperature, parse_top_p};
use super::{ChatFlag, Format, HereArgs, ModelArgs};

#[derive(Debug, Clone, Args)]
pub(crate) struct DenoiseArgs {
    /// A name from configs/engines
    #[arg(long, value_name = "NAME")]
    pub(crate) framework: String,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) here: HereArgs,
    /// Text to put before the masks
    #[arg(long, required_unless_present = "tokens", conflicts_with = "tokens")]
    pub(crate) prompt: Option<String>,
    #[command(flatten)]
    pub(crate) chat: ChatFlag,
    /// Token ids to put before the masks, separated by commas
    #[arg(long, value_delimiter = ',')]
    pub(crate) tokens: Vec<u32>,
    /// Masks to fill in
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) new_tokens: u32,
    #[command(flatten)]
    flags: DenoiseFlags,
    /// Draw tokens from the logits divided by T; 0 takes the most likely token [default: 0]
    #[arg(long, value_name = "T", value_parser = parse_temperature, help_heading = DENOISING)]
    temperature: Option<f32>,
    /// Keep the fewest most likely tokens that together have this probability, above 0 up to 1
    #[arg(long, value_name = "P", value_parser = parse_top_p, help_heading = DENOISING)]
    top_p: Option<f32>,
    /// Keep the K most likely tokens of these
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..), help_heading = DENOISING)]
    top_k: Option<u32>,
    /// Seed of what is drawn; equal seeds draw equal tokens from equal logits [default: random, and printed if anything
    /// is drawn]
    #[arg(long, value_name = "N", help_heading = DENOISING)]
    pub(crate) seed: Option<u64>,
    /// Format of the output: table prints the text, json one object with every state
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub(crate) format: Format,
}

impl DenoiseArgs {
    pub(crate) fn asked(&self) -> DenoiseAsked {
        let mut request = Request::default();
        self.flags.lay_upon(&mut request);
        request.denoise
    }

    pub(crate) fn sampling(&self) -> SamplingAsked {
        SamplingAsked { temperature: self.temperature, top_k: self.top_k, top_p: self.top_p }
    }
}

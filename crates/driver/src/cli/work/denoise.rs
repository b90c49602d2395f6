//! Flags of masked diffusion, for every command that generates by it, and `photofinish denoise` as typed.

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use plan::{DenoiseAsked, Request, SamplingAsked};
use protocol::Algorithm;

use super::OnArgs;
use crate::cli::values::{parse_temperature, parse_top_p, set_list};
use crate::cli::{ChatFlag, Format};

const DENOISING: &str = "Masked diffusion";

/// How masked tokens are filled in: for models such as Dream and DiffuCoder.
#[derive(Debug, Clone, Default, PartialEq, Args)]
pub(crate) struct DenoiseFlags {
    /// Steps of denoising, each a pass over all positions [default: as many as new tokens]
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..), help_heading = DENOISING, hide_short_help = true)]
    steps: Vec<u32>,
    /// Which positions a step unmasks [default: entropy]
    #[arg(long, value_parser = algorithms(), help_heading = DENOISING, hide_short_help = true)]
    algorithm: Option<Algorithm>,
    /// Draw the positions by softmax(confidence / T); 0 takes the surest [default: 0]
    #[arg(long, value_name = "T", value_parser = parse_temperature, help_heading = DENOISING, hide_short_help = true)]
    alg_temp: Option<f32>,
    /// Time at which the last step ends, from 0 up to less than 1; steps begin at 1 [default: 0.001]
    #[arg(long, value_name = "T", value_parser = parse_eps, help_heading = DENOISING, hide_short_help = true)]
    eps: Option<f32>,
}

fn algorithms() -> impl TypedValueParser<Value = Algorithm> {
    let names = PossibleValuesParser::new(Algorithm::ALL.map(Algorithm::name));
    names.map(|name| {
        Algorithm::ALL.into_iter().find(|algorithm| algorithm.name() == name).unwrap_or(Algorithm::Entropy)
    })
}

fn parse_eps(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(eps) if (0.0..1.0).contains(&eps) => Ok(eps),
        _ => Err("a time from 0 up to less than 1".into()),
    }
}

impl DenoiseFlags {
    pub(super) fn apply_to(&self, request: &mut Request) {
        let asked = &mut request.denoise;
        set_list(&mut asked.steps, &self.steps);
        asked.algorithm = self.algorithm.or(asked.algorithm);
        asked.alg_temp = self.alg_temp.or(asked.alg_temp);
        asked.eps = self.eps.or(asked.eps);
    }
}

#[derive(Debug, Clone, Args)]
pub(crate) struct DenoiseArgs {
    #[command(flatten)]
    pub(crate) on: OnArgs,
    /// Text to put before the masks
    #[arg(long, required_unless_present = "tokens", conflicts_with = "tokens")]
    pub(crate) prompt: Option<String>,
    #[command(flatten)]
    pub(crate) chat: ChatFlag,
    /// Token ids to put before the masks, separated by commas
    #[arg(long, value_delimiter = ',')]
    pub(crate) tokens: Vec<u32>,
    /// Masks to fill in
    #[arg(short, long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
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
        self.flags.apply_to(&mut request);
        request.denoise
    }

    pub(crate) fn sampling(&self) -> SamplingAsked {
        SamplingAsked { temperature: self.temperature, top_k: self.top_k, top_p: self.top_p }
    }
}

//! Flags of masked diffusion, for every command that generates by it.

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use plan::Request;
use protocol::Algorithm;

use super::values::{parse_temperature, set_list};

pub(super) const DENOISING: &str = "Masked diffusion";

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
    pub(super) fn lay_upon(&self, request: &mut Request) {
        let asked = &mut request.denoise;
        set_list(&mut asked.steps, &self.steps);
        asked.algorithm = self.algorithm.or(asked.algorithm);
        asked.alg_temp = self.alg_temp.or(asked.alg_temp);
        asked.eps = self.eps.or(asked.eps);
    }
}

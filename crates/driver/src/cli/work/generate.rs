//! Flags of continuation, token by token, and `photofinish generate` as typed.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use plan::{DecodeAsked, KvPrecision, Request, SamplingAsked};
use protocol::KvCache;

use super::OnArgs;
use crate::cli::help::{EXPERT, WORK};
use crate::cli::values::{OnOff, parse_temperature, parse_top_p, set, set_list};
use crate::cli::{ChatFlag, Format};

#[derive(Debug, Clone, Args)]
pub(crate) struct GenerateArgs {
    #[command(flatten)]
    pub(crate) on: OnArgs,
    /// Text to continue
    #[arg(long, required_unless_present = "tokens", conflicts_with = "tokens")]
    pub(crate) prompt: Option<String>,
    #[command(flatten)]
    pub(crate) chat: ChatFlag,
    /// Token ids to continue, separated by commas
    #[arg(long, value_delimiter = ',')]
    pub(crate) tokens: Vec<u32>,
    /// Tokens to generate
    #[arg(short, long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) new_tokens: u32,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    /// Seed of the draws; equal seeds draw equal tokens from equal logits [default: random, and printed]
    #[arg(long, value_name = "N", requires = "temperature")]
    pub(crate) seed: Option<u64>,
    /// Format of the output: table prints the text, json one object
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub(crate) format: Format,
}

/// How many tokens a comparison continues prompts by, and after how many.
#[derive(Debug, Clone, Default, PartialEq, Args)]
pub(crate) struct TokenFlags {
    /// Tokens in the KV cache before each prompt; filling it is not timed [default: 0]
    #[arg(long, visible_alias = "depth", value_name = "N", value_delimiter = ',', help_heading = WORK, hide_short_help = true)]
    context: Vec<u32>,
    /// Tokens to generate for each prompt [default: 32, or the suite's]
    #[arg(short, long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..), help_heading = WORK)]
    new_tokens: Vec<u32>,
    /// Compute all prompts as one batch, whatever their lengths: with --prompt-lengths 16,64,256 or a file of prompts.
    /// Shorter ones are padded on the side that each framework chooses
    #[arg(long, help_heading = WORK, hide_short_help = true)]
    mixed: bool,
    /// Tokens of a prompt that are read at once, chunk after chunk, as servers do; 0 for all [default: 0]
    #[arg(long, value_name = "N", value_delimiter = ',', help_heading = WORK, hide_short_help = true)]
    prefill_chunk: Vec<u32>,
}

impl TokenFlags {
    pub(crate) fn apply_to(&self, request: &mut Request) {
        set_list(&mut request.context, &self.context);
        set_list(&mut request.new_tokens, &self.new_tokens);
        set_list(&mut request.prefill_chunk, &self.prefill_chunk);
        request.mixed |= self.mixed;
    }
}

/// What each step of a comparison's requests is fed.
#[derive(Debug, Clone, Default, PartialEq, Args)]
pub(crate) struct StepFlags {
    /// Tokens that a decode step is fed [default: forced]
    #[arg(long, value_enum, conflicts_with = "temperature", help_heading = WORK, hide_short_help = true)]
    decode: Option<DecodeArg>,
    /// With a temperature above 0, every engine draws its own tokens, from the same random numbers
    #[command(flatten)]
    sampling: SamplingArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DecodeArg {
    /// Feed given tokens, whatever the logits say: equal work by construction
    Forced,
    /// Feed each engine its own most likely token
    Greedy,
}

impl StepFlags {
    pub(crate) fn apply_to(&self, request: &mut Request) {
        if let Some(decode) = self.decode {
            // Neither way of decoding draws.
            request.sampling = SamplingAsked::default();
            request.decode = match decode {
                DecodeArg::Forced => DecodeAsked::Forced,
                DecodeArg::Greedy => DecodeAsked::Greedy,
            };
        }
        if self.sampling.temperature.is_some() {
            request.sampling = self.sampling.asked();
        }
    }
}

/// Whether a comparison's models are continued with a KV cache, and of which type.
#[derive(Debug, Clone, Default, PartialEq, Args)]
pub(crate) struct CacheFlags {
    /// Run a masked-diffusion model autoregressively, token by token, for comparison
    #[arg(long, help_heading = EXPERT, hide_short_help = true)]
    autoregressive: bool,
    /// Use the KV cache; off computes the whole prefix again for every token [default: on]
    #[arg(long, value_enum, help_heading = EXPERT, hide_short_help = true)]
    kv_cache: Option<OnOff>,
    /// Data type of the KV cache; auto is 16 bits if the weights have 16 bits, else f32 [default: auto]
    #[arg(long = "kv-type", value_parser = kv_precision(), help_heading = EXPERT, hide_short_help = true)]
    kv_precision: Option<KvPrecision>,
}

impl CacheFlags {
    pub(crate) fn apply_to(&self, request: &mut Request) {
        request.autoregressive |= self.autoregressive;
        if let Some(kv_cache) = self.kv_cache {
            request.kv_cache = if kv_cache == OnOff::On { KvCache::On } else { KvCache::Off };
        }
        set(&mut request.kv_precision, self.kv_precision.as_ref());
    }
}

/// Parses what keys and values are kept in.
fn kv_precision() -> impl TypedValueParser<Value = KvPrecision> {
    let named = |name: &str| KvPrecision::ALL.into_iter().find(|precision| precision.name() == name);
    PossibleValuesParser::new(KvPrecision::ALL.map(KvPrecision::name))
        .try_map(move |name| named(&name).ok_or_else(|| format!("no KV cache is kept in {name}")))
}

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

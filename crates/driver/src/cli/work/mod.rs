//! Commands and flags of one kind of work each, as typed.

pub(crate) mod denoise;
pub(crate) mod encode;
pub(crate) mod generate;
pub(crate) mod graph;
pub(crate) mod parity;
pub(crate) mod profile;
pub(crate) mod score;
pub(crate) mod trace;

use clap::{Args, Subcommand};
use plan::Request;

use super::{HereArgs, ModelArgs};
use denoise::{DenoiseArgs, DenoiseFlags};
use encode::{ClassifyArgs, EmbedArgs, EncodeFlags, RerankArgs};
use generate::GenerateArgs;
use graph::{GraphFlags, InferArgs};
use profile::ProfileArgs;
use score::ScoreArgs;
use trace::TraceArgs;

/// Commands that give one framework one job.
#[derive(Debug, Subcommand)]
pub(crate) enum Job {
    /// Continue a prompt on one framework, greedily or by sampling
    Generate(GenerateArgs),
    /// Fill in masked tokens behind a prompt on one framework, by masked diffusion
    Denoise(DenoiseArgs),
    /// Turn texts into vectors on one framework, with an encoder
    Embed(EmbedArgs),
    /// Score pairs of texts on one framework, such as a question and what may answer it
    Rerank(RerankArgs),
    /// Score each token of texts on one framework
    Classify(ClassifyArgs),
    /// Run an ONNX file once on one framework, and write its outputs as .npy files
    Infer(InferArgs),
    /// Write the logits of given token sequences to a safetensors file
    Score(ScoreArgs),
    /// Write one run of a framework as a trace for Perfetto or chrome://tracing
    Trace(TraceArgs),
    /// Show which part of a framework its CPU time goes to, with Linux's perf
    Profile(ProfileArgs),
}

/// What runs such a job.
#[derive(Debug, Clone, Args)]
pub(crate) struct OnArgs {
    /// A name from configs/engines
    #[arg(long, alias = "frameworks", value_name = "NAME")]
    pub(crate) framework: String,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) here: HereArgs,
}

/// What a comparison is asked of single kinds of work.
#[derive(Debug, Clone, Default, PartialEq, Args)]
pub(crate) struct WorkFlags {
    #[command(flatten)]
    denoise: DenoiseFlags,
    #[command(flatten)]
    encode: EncodeFlags,
    #[command(flatten)]
    graph: GraphFlags,
}

impl WorkFlags {
    pub(crate) fn apply_to(&self, request: &mut Request) {
        self.denoise.apply_to(request);
        self.encode.apply_to(request);
        self.graph.apply_to(request);
    }
}

//! `photofinish infer` as typed.

use std::path::PathBuf;

use clap::Args;

use super::graph::GraphFlags;
use super::{HereArgs, ModelArgs};

#[derive(Debug, Clone, Args)]
pub(crate) struct InferArgs {
    /// A name from configs/engines
    #[arg(long, value_name = "NAME")]
    pub(crate) framework: String,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) here: HereArgs,
    #[command(flatten)]
    pub(crate) graph: GraphFlags,
    /// Seed of drawn values
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Directory that each output is written to, as NAME.npy
    #[arg(long, value_name = "DIR")]
    pub(crate) output: PathBuf,
}

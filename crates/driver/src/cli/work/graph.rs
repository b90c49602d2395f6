//! Flags for an ONNX file: sizes of its free dimensions, and values of its inputs; and `photofinish infer`.

use std::path::PathBuf;

use clap::{ArgAction, Args};
use plan::{Dims, NamedInput, Request};

use super::OnArgs;
use crate::cli::help::WORK;

/// What a comparison is asked of ONNX files.
#[derive(Debug, Clone, Default, PartialEq, Args)]
pub(crate) struct GraphFlags {
    /// Sizes of an ONNX file's free dimensions: batch=1,width=640. Several sizes of one, as batch=1,8, make a case each
    #[arg(long, value_name = "NAME=N,…", action = ArgAction::Append, help_heading = WORK, hide_short_help = true)]
    dim: Vec<Dims>,
    /// What an input of an ONNX file is given: ids=0..30000 draws, rate=16000 is one value, images=FILE.npy an array. Give it
    /// again for each further input [default: drawn, floats from 0 to 1, whole numbers 0 and 1]
    #[arg(long, value_name = "NAME=LOW..HIGH|NUMBER|FILE.npy", action = ArgAction::Append, allow_hyphen_values = true,
          help_heading = WORK, hide_short_help = true)]
    input: Vec<NamedInput>,
}

impl GraphFlags {
    pub(crate) fn apply_to(&self, request: &mut Request) {
        for Dims(dims) in &self.dim {
            request.graph.dims.extend(dims.clone());
        }
        let inputs = self.input.iter().map(|NamedInput(name, asked)| (name.clone(), asked.clone()));
        request.graph.inputs.extend(inputs);
    }
}

#[derive(Debug, Clone, Args)]
pub(crate) struct InferArgs {
    #[command(flatten)]
    pub(crate) on: OnArgs,
    #[command(flatten)]
    pub(crate) graph: GraphFlags,
    /// Seed of drawn values
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Directory that each output is written to, as NAME.npy
    #[arg(long, value_name = "DIR")]
    pub(crate) output: PathBuf,
}

//! `photofinish footprint` as typed.

use clap::Args;

use super::{Format, HereArgs};

#[derive(Debug, Clone, Args)]
pub(crate) struct FootprintArgs {
    /// Names from configs/engines [default: candle,tch,ort]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub(crate) frameworks: Vec<String>,
    /// Also build each worker twice from nothing, for the time of a build and the smallest size; takes minutes for each
    #[arg(long)]
    pub(crate) build: bool,
    #[command(flatten)]
    pub(crate) here: HereArgs,
    /// Format of the output on stdout
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub(crate) format: Format,
}

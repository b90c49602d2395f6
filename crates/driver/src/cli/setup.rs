//! The flags of commands that say what there is and provide it: `setup`, `doctor`, `list`, `prepare`, `open`.

use std::path::PathBuf;

use bundle::Precision;
use clap::{Args, ValueEnum};

use super::values::precisions;
use super::{Format, HereArgs, Places, ResultsArgs};

#[derive(Debug, Clone, Args)]
pub(crate) struct SetupArgs {
    #[command(flatten)]
    pub(crate) asked: setup::Asked,
    #[command(flatten)]
    pub(crate) places: Places,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct DoctorArgs {
    /// Also hash every file of the installed libraries, which takes seconds
    #[arg(long)]
    pub(crate) deep: bool,
    #[command(flatten)]
    pub(crate) places: Places,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ListArgs {
    /// What to list [default: all three]
    #[arg(value_enum)]
    pub(crate) kind: Option<ListKind>,
    /// Format of the output on stdout
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) places: Places,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ListKind {
    /// Names for --frameworks
    #[value(alias = "engines")]
    Frameworks,
    /// Names for --model. Paths, .gguf and .onnx files, hf:owner/name and synthetic:NAME are models, too
    Models,
    /// Names for --suite
    Suites,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct PrepareArgs {
    /// Names from configs/models, directories, .gguf or .onnx files, hf:owner/name, or synthetic:NAME
    #[arg(required = true, value_name = "MODEL", value_delimiter = ',')]
    pub(crate) models: Vec<String>,
    /// Precisions to prepare
    #[arg(long, value_parser = precisions(), value_delimiter = ',', default_value = "f32")]
    pub(crate) precision: Vec<Precision>,
    #[command(flatten)]
    pub(crate) here: HereArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct OpenArgs {
    /// A results directory [default: the newest one]
    #[arg(value_name = "DIR")]
    pub(crate) directory: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) from: ResultsArgs,
}

//! `photofinish embed` as typed.

use std::str::FromStr;

use clap::{ArgAction, Args, ValueEnum};
use protocol::Pooling;

use super::{Format, HereArgs, ModelArgs};

#[derive(Debug, Clone, Args)]
pub(crate) struct EmbedArgs {
    /// A name from configs/engines
    #[arg(long, value_name = "NAME")]
    pub(crate) framework: String,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) here: HereArgs,
    /// Text to embed; give it again for each further text
    #[arg(long, required_unless_present = "tokens", conflicts_with = "tokens")]
    pub(crate) text: Vec<String>,
    /// Token ids of a text, separated by commas, special tokens included; give it again for each further text
    #[arg(long, value_name = "IDS", action = ArgAction::Append)]
    pub(crate) tokens: Vec<Ids>,
    /// How the vector of a text comes from those of its tokens [default: as the model's files say]
    #[arg(long, value_enum)]
    pub(crate) pooling: Option<PoolingFlag>,
    /// Whether vectors are divided by their length [default: as the model's files say]
    #[arg(long, value_name = "true|false")]
    pub(crate) normalise: Option<bool>,
    /// Format of the output: table prints a line for each text, json one object with every vector
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub(crate) format: Format,
}

/// Token ids of one text.
#[derive(Debug, Clone)]
pub(crate) struct Ids(pub(crate) Vec<u32>);

impl FromStr for Ids {
    type Err = String;

    fn from_str(text: &str) -> Result<Ids, String> {
        let id = |id: &str| id.trim().parse().map_err(|_| format!("{id:?} is no token id"));
        text.split(',').map(id).collect::<Result<_, _>>().map(Ids)
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum PoolingFlag {
    /// The first token's vector
    Cls,
    Mean,
    /// The largest of each component
    Max,
    /// The last token's vector
    Last,
}

impl PoolingFlag {
    pub(crate) fn pooling(self) -> Pooling {
        match self {
            PoolingFlag::Cls => Pooling::Cls,
            PoolingFlag::Mean => Pooling::Mean,
            PoolingFlag::Max => Pooling::Max,
            PoolingFlag::Last => Pooling::Last,
        }
    }
}

//! `photofinish embed`, `rerank` and `classify` as typed.

use std::str::FromStr;

use bundle::Pooling;
use clap::{ArgAction, Args, ValueEnum};

use super::{Format, HereArgs, ModelArgs};

/// What the three commands share.
#[derive(Debug, Clone, Args)]
pub(crate) struct EncoderArgs {
    /// A name from configs/engines
    #[arg(long, value_name = "NAME")]
    pub(crate) framework: String,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) here: HereArgs,
    /// Token ids of a text, separated by commas, special tokens included; give it again for each further text
    #[arg(long, value_name = "IDS", action = ArgAction::Append)]
    pub(crate) tokens: Vec<Ids>,
    /// The type of each token of a text, separated by commas; give it for each --tokens, or for none [default: 0]
    #[arg(long, value_name = "TYPES", action = ArgAction::Append, requires = "tokens")]
    pub(crate) token_types: Vec<Ids>,
    /// Cut texts that are longer than the model takes: its max_seq_length, or its positions
    #[arg(long)]
    pub(crate) truncate: bool,
    /// Format of the output: table prints a line for each text, json one object with every number
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub(crate) format: Format,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct EmbedArgs {
    #[command(flatten)]
    pub(crate) encoder: EncoderArgs,
    /// Text to embed; give it again for each further text
    #[arg(long, required_unless_present = "tokens", conflicts_with = "tokens")]
    pub(crate) text: Vec<String>,
    /// How the vector of a text comes from those of its tokens [default: as the model's files say]
    #[arg(long, value_enum)]
    pub(crate) pooling: Option<PoolingFlag>,
    /// Whether vectors are divided by their length [default: as the model's files say]
    #[arg(long, value_name = "true|false")]
    pub(crate) normalise: Option<bool>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct RerankArgs {
    #[command(flatten)]
    pub(crate) encoder: EncoderArgs,
    /// Two texts to score together; give it again for each further pair
    #[arg(long, num_args = 2, value_names = ["QUERY", "TEXT"], action = ArgAction::Append,
          required_unless_present = "tokens", conflicts_with = "tokens")]
    pub(crate) pair: Vec<String>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ClassifyArgs {
    #[command(flatten)]
    pub(crate) encoder: EncoderArgs,
    /// Text whose tokens are scored; give it again for each further text
    #[arg(long, required_unless_present = "tokens", conflicts_with = "tokens")]
    pub(crate) text: Vec<String>,
}

/// Numbers of the tokens of one text: their ids, or their types.
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

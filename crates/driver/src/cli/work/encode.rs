//! Flags that say what encoders are asked, and `photofinish embed`, `rerank` and `classify` as typed.

use std::str::FromStr;

use bundle::Pooling;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgAction, Args, ValueEnum};
use plan::{LengthsAsked, Request, TaskAsked};

use super::OnArgs;
use crate::cli::Format;
use crate::cli::help::WORK;
use crate::cli::values::set;

/// What a comparison is asked of encoders.
#[derive(Debug, Clone, Default, PartialEq, Args)]
pub(crate) struct EncodeFlags {
    /// Task of an encoder: vectors of texts, scores of texts, or scores of their tokens [default: as the model's files say]
    #[arg(long, value_name = "embed|rerank|classify", value_parser = tasks(), help_heading = WORK, hide_short_help = true)]
    task: Option<TaskAsked>,
    /// Lengths of an encoder's texts in tokens: real, fixed:N, or uniform:A-B, drawn for each text [default: real]
    #[arg(long, value_name = "real|fixed:N|uniform:A-B", help_heading = WORK, hide_short_help = true)]
    lengths: Option<LengthsAsked>,
    /// Cut texts that are longer than an encoder takes: its max_seq_length, or its positions
    #[arg(long, help_heading = WORK, hide_short_help = true)]
    truncate: bool,
    /// Time an encoder's tokenizer, too: from text to vector, with the crate tokenizers for all frameworks
    #[arg(long, help_heading = WORK, hide_short_help = true)]
    include_tokenizer: bool,
}

impl EncodeFlags {
    pub(crate) fn apply_to(&self, request: &mut Request) {
        request.encode.task = self.task.or(request.encode.task);
        set(&mut request.encode.lengths, self.lengths.as_ref());
        request.encode.truncate |= self.truncate;
        request.encode.include_tokenizer |= self.include_tokenizer;
    }
}

fn tasks() -> impl TypedValueParser<Value = TaskAsked> {
    let named = |name: String| TaskAsked::ALL.into_iter().find(|task| task.name() == name);
    PossibleValuesParser::new(TaskAsked::ALL.map(TaskAsked::name))
        .try_map(move |name| named(name).ok_or("no such task"))
}

/// What the three commands share.
#[derive(Debug, Clone, Args)]
pub(crate) struct EncoderArgs {
    #[command(flatten)]
    pub(crate) on: OnArgs,
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

//! Flags of `photofinish embed`, `rerank` and `classify`, and of `parity` for texts.

use std::str::FromStr;

use clap::{ArgAction, Args, Subcommand};
use comparison::plan::work::encode;
use comparison::plan::{EncodeAsked, TaskAsked, VectorsAsked};

use super::Format;
use super::work::OnArgs;

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum TextsJob {
    /// Turn texts into vectors on one framework, with an encoder
    Embed(EmbedArgs),
    /// Score pairs of texts on one framework, such as a question and what may answer it; scores are logits
    Rerank(RerankArgs),
    /// Score each token of texts on one framework; scores are logits
    Classify(ClassifyArgs),
}

/// What the three commands share.
#[derive(Debug, Clone, Args)]
pub(crate) struct TextsArgs {
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
    pub(crate) encoder: TextsArgs,
    /// Text to embed; give it again for each further text
    #[arg(long, required_unless_present = "tokens", conflicts_with = "tokens")]
    pub(crate) text: Vec<String>,
    #[command(flatten)]
    pub(crate) vectors: VectorsAsked,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct RerankArgs {
    #[command(flatten)]
    pub(crate) encoder: TextsArgs,
    /// Two texts to score together; give it again for each further pair
    #[arg(long, num_args = 2, value_names = ["QUERY", "TEXT"], action = ArgAction::Append,
          required_unless_present = "tokens", conflicts_with = "tokens")]
    pub(crate) pair: Vec<String>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ClassifyArgs {
    #[command(flatten)]
    pub(crate) encoder: TextsArgs,
    /// Text whose tokens are scored; give it again for each further text
    #[arg(long, required_unless_present = "tokens", conflicts_with = "tokens")]
    pub(crate) text: Vec<String>,
}

/// Numbers of the tokens of one text: their ids, or their types.
#[derive(Debug, Clone)]
pub(crate) struct Ids(pub(crate) Vec<u32>);

impl FromStr for Ids {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Ids, String> {
        let id = |id: &str| id.trim().parse().map_err(|_| format!("{id:?} is no token id"));
        text.split(',').map(id).collect::<std::result::Result<_, _>>().map(Ids)
    }
}

/// Flags of `photofinish parity` for texts to encode.
#[derive(Debug, Clone, Args)]
pub(crate) struct ParityTextsArgs {
    /// Task of an encoder: vectors of texts, scores of texts, or scores of their tokens [default: as the model's files
    /// say]
    #[arg(long, value_enum, value_name = "embed|rerank|classify", hide_possible_values = true)]
    pub(crate) task: Option<TaskAsked>,
    #[command(flatten)]
    pub(crate) vectors: VectorsAsked,
    /// Cut texts that are longer than an encoder takes: its max_seq_length, or its positions
    #[arg(long, help_heading = encode::TOPIC.1)]
    pub(crate) truncate: bool,
}

impl ParityTextsArgs {
    pub(crate) fn asked(&self) -> EncodeAsked {
        let ParityTextsArgs { task, ref vectors, truncate } = *self;
        EncodeAsked { task, vectors: vectors.clone(), truncate, ..EncodeAsked::default() }
    }
}

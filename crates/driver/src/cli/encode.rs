//! Flags for texts to encode, of `run` and `parity`.

use std::str::FromStr;

use clap::Args;
use comparison::plan::work::encode;
use comparison::plan::{EncodeAsked, TaskAsked, VectorsAsked};

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

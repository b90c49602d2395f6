//! Flags that say what encoders are asked in comparisons.

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use plan::{LengthsAsked, Request, TaskAsked};

use super::help::WORK;
use super::values::set;

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
    pub(crate) fn lay_upon(&self, request: &mut Request) {
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

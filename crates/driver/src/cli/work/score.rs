//! `photofinish score` as typed.

use std::path::PathBuf;

use clap::Args;

use super::OnArgs;

#[derive(Debug, Clone, Args)]
pub(crate) struct ScoreArgs {
    #[command(flatten)]
    pub(crate) on: OnArgs,
    /// JSON: [[id, ..], ..], sequences of equal length
    #[arg(long, value_name = "IDS.json")]
    pub(crate) tokens_file: PathBuf,
    /// File to write `logits` to, f32 [batch, positions, vocabulary]
    #[arg(short, long = "output", value_name = "FILE.safetensors")]
    pub(crate) out: PathBuf,
    /// Also write `hidden.0` (embeddings) … `hidden.L`
    #[arg(long)]
    pub(crate) hidden_states: bool,
    /// Positions fed at a time; 0 feeds all at once
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) piece: usize,
}

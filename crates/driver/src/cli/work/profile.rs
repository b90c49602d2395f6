//! The flags of `profile`.

use std::path::PathBuf;

use clap::Args;

use super::OnArgs;

#[derive(Debug, Clone, Args)]
pub(crate) struct ProfileArgs {
    #[command(flatten)]
    pub(crate) on: OnArgs,
    #[command(flatten)]
    pub(crate) work: crate::perf::WorkArgs,
    /// Directory to write profile.md to [default: results/profile-NAME-PRECISION-PHASE]
    #[arg(long, value_name = "DIR")]
    pub(crate) results: Option<PathBuf>,
}

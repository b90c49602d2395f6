//! The flags of `photofinish cache`, as typed.

use clap::{Args, Subcommand};
use measure::bundles::Rule;

use super::{Format, Places};

#[derive(Debug, Clone, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct CacheArgs {
    #[command(subcommand)]
    pub(crate) command: Option<CacheCommand>,
    #[command(flatten)]
    pub(crate) shown: ShownArgs,
}

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum CacheCommand {
    /// Remove prepared models that are not used any more; --dry-run lists them and removes nothing
    ///
    /// A model that is in use stays. A removed one is prepared again when a run asks for it.
    Prune(PruneArgs),
}

#[derive(Debug, Clone, Args)]
pub(crate) struct PruneArgs {
    /// Days without use after which a prepared model is removed; 0 removes all
    #[arg(long, value_name = "DAYS", default_value_t = 30)]
    pub(crate) unused_for: u32,
    /// Prepared models to keep, by the name of the model or of the directory
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub(crate) keep: Vec<String>,
    #[command(flatten)]
    pub(crate) shown: ShownArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ShownArgs {
    /// Format of the output on stdout
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) places: Places,
}

impl PruneArgs {
    pub(crate) fn rule(&self) -> Rule {
        Rule { unused_for: self.unused_for, keep: self.keep.clone() }
    }
}

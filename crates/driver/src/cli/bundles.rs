//! The flags of `photofinish bundles`, as typed.

use clap::{Args, Subcommand};
use measure::bundles::Rule;

use super::{Format, Places};

#[derive(Debug, Clone, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct BundlesArgs {
    #[command(subcommand)]
    pub(crate) command: Option<BundlesCommand>,
    #[command(flatten)]
    pub(crate) shown: ShownArgs,
}

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum BundlesCommand {
    /// Remove bundles that are not used any more: without --yes, only say which
    ///
    /// A bundle that is in use stays in any case. A removed one is prepared again when a run asks for its model.
    Prune(PruneArgs),
}

#[derive(Debug, Clone, Args)]
pub(crate) struct PruneArgs {
    /// Days without use after which a bundle goes; 0 takes them all
    #[arg(long, value_name = "DAYS", default_value_t = 30)]
    pub(crate) unused_for: u32,
    /// Bundles that stay in any case, by the name of the model or of the directory
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub(crate) keep: Vec<String>,
    /// Remove them
    #[arg(long)]
    pub(crate) yes: bool,
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

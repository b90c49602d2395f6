//! The flags of the commands on published results: `collection` and `site`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Where the published results of a checkout are.
const COLLECTION: &str = "results/collection";

#[derive(Debug, Clone, Args)]
pub(crate) struct CollectionArgs {
    #[command(subcommand)]
    pub(crate) command: CollectionCommand,
}

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum CollectionCommand {
    /// Judge every submission again from its samples, and check its files: one line for each problem
    Check {
        /// Directory of the collection
        #[arg(value_name = "DIR", default_value = COLLECTION)]
        directory: PathBuf,
    },
    /// Add the run of an archive that `photofinish report DIR --archive` made, unless something is wrong with it
    Add {
        #[arg(value_name = "FILE.tar.gz")]
        archive: PathBuf,
        /// Directory of the collection
        #[arg(long, value_name = "DIR", default_value = COLLECTION)]
        to: PathBuf,
    },
}

#[derive(Debug, Clone, Args)]
pub(crate) struct SiteArgs {
    /// Directory to make; an earlier site there is replaced
    #[arg(value_name = "OUT")]
    pub(crate) out: PathBuf,
    /// Directory of the collection
    #[arg(long, value_name = "DIR", default_value = COLLECTION)]
    pub(crate) collection: PathBuf,
    /// Address that the site will have: previews of a shared page need the whole address of its picture
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) url: Option<String>,
}

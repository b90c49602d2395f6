//! Workers built with another version of their framework than the pinned one: `candle@0.10.2`,
//! `candle@../my-candle`, `candle@git:URL#REVISION`.
//!
//! The worker's sources are those of this repository. Its package is rewritten with other dependencies
//! (`manifest.rs`) into its own directory below the cache, with its own lock file. Such packages share one
//! target directory, so common dependencies are compiled once. cargo decides what has to be built, so that a
//! second run builds nothing.

mod asked;
mod build;
mod manifest;
mod packages;
mod repository;
mod tree;

pub use asked::{Build, Version};
pub use build::{Builder, Built, Framework};
pub use manifest::packages;
pub use packages::{install_package, place_of_package};
pub use repository::Repository;

/// Why a program failed, in its own words, without the command line, which says little to people.
fn cause(error: &anyhow::Error) -> String {
    let text = format!("{error:#}");
    text.split_once("` failed: ").map_or(text.clone(), |(_, cause)| cause.to_owned())
}

/// Gives the worker the framework's name and version when it is compiled (`engine::framework_version!`).
const NAMED: &str = "PHOTOFINISH_FRAMEWORK";

//! Tests of published claims. A claim is a file of `configs/claims`: the source and its claim, the studies
//! that test it here, and which of their figures are compared with which published ones. `cargo xtask claims`
//! runs the studies, stores their results in `results/published/claims`, and makes `docs/evidence/claims.md`
//! from them.
//!
//! Verdicts are decided here by code, from reports alone; no figure of ours is in a claim's file.

pub mod claim;

pub mod judged;
pub mod kept;

pub mod page;

pub mod published;

pub mod rows;

#[cfg(test)]
mod testing;

use std::path::Path;

use anyhow::{Context, Result};
use setup::tooling;

/// The page below `root`, with its block made again from the stored results.
pub fn page(root: &Path) -> Result<String> {
    let claims = claim::read_all(root)?;
    let judged: Result<Vec<_>> = claims.iter().map(|claim| judged::judge(root, claim)).collect();
    let file = root.join(page::PAGE);
    let text = std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    tooling::splice(&text, page::BLOCK, &page::render(&judged?)).context(page::PAGE)
}

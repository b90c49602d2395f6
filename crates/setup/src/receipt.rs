//! The receipt of an installed piece: what it was made from, and every file with its size.
//!
//! A piece without a receipt that fits does not exist. Sizes are enough for the check that is made
//! before each use: contents were verified when they were unpacked from a wheel of the pinned sha256.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::Piece;
use crate::pins::Pin;

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Receipt {
    pub(crate) pin: Pin,
    /// Bytes by file, relative to the piece's directory.
    pub(crate) files: BTreeMap<String, u64>,
}

/// Within the piece's directory; named for the piece, because pieces may share a directory.
pub(crate) fn file_name(piece: Piece) -> String {
    format!("{piece}.receipt.json")
}

impl Receipt {
    pub(crate) fn write(&self, file: &Path) -> Result<()> {
        std::fs::write(file, serde_json::to_string(self)?)
            .with_context(|| format!("cannot write {}", file.display()))
    }

    fn read(file: &Path) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(file).ok()?).ok()
    }
}

pub(crate) fn is_whole(cache: &Path, piece: Piece, pin: &Pin) -> bool {
    let directory: PathBuf = cache.join(&pin.directory);
    let Some(receipt) = Receipt::read(&directory.join(file_name(piece))) else { return false };
    let has = |(name, &bytes): (&String, &u64)| {
        std::fs::metadata(directory.join(name)).is_ok_and(|found| found.is_file() && found.len() == bytes)
    };
    receipt.pin == *pin && receipt.files.iter().all(has)
}

//! Installing one piece: fetch, verify, unpack next to its place, move in.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tooling::Reporter;

use crate::pins::{Pin, Wheel};
use crate::receipt::{self, Look, Receipt, State};
use crate::{Piece, extract, staging};

/// The source of wheels: pip, or a test.
pub(crate) trait Fetch {
    /// Puts the wheel somewhere below `directory`, which is empty and for this wheel alone.
    fn fetch(&self, wheel: &Wheel, directory: &Path, reporter: Reporter) -> Result<PathBuf>;
}

/// If the piece is there, does nothing, and needs neither network nor write access.
pub(crate) fn install(
    cache: &Path,
    piece: Piece,
    pin: &Pin,
    source: &dyn Fetch,
    reporter: Reporter,
) -> Result<()> {
    match receipt::state(cache, piece, pin, Look::Usual) {
        State::Whole => return Ok(()),
        State::Missing => {}
        State::Damaged(what) => reporter.warn(&format!("{what}; {piece} is installed again")),
    }
    let lock = staging::lock(cache, reporter)?;
    // Another set-up may have installed it while this one waited.
    if receipt::is_whole(cache, piece, pin) {
        return Ok(());
    }
    let staging = staging::directory(cache, &lock)?;
    let staged = staging.path().join("piece");
    fs::create_dir(&staged)?;
    let mut files = BTreeSet::new();
    let mut pin = pin.clone();
    for wheel in &mut pin.wheels {
        let download = staging.path().join("download");
        fs::create_dir(&download)?;
        let file = source.fetch(wheel, &download, reporter)?;
        reporter.note(&format!("unpacking {}", wheel.requirement));
        wheel.sha256 = extract::verify(&file, wheel)?;
        extract::extract(&file, wheel, &staged, &mut files)
            .with_context(|| format!("wheel of {}", wheel.requirement))?;
        fs::remove_dir_all(&download)?;
    }
    for (name, text) in &pin.write {
        let file = staged.join(name);
        fs::create_dir_all(file.parent().unwrap_or(&staged))?;
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
        files.insert(name.clone());
    }
    let files: Vec<String> = files.into_iter().collect();
    Receipt::of_files(&pin, &staged, &files)?.write(&staging.path().join(receipt::file_name(piece)))?;
    publish(staging.path(), &staged, &cache.join(&pin.directory), &receipt::file_name(piece))
        .with_context(|| format!("cannot move {piece} into {}", cache.display()))
}

/// Moves a staged piece to its place. The old receipt is removed first and the new one comes last: at no
/// moment is there a receipt next to files other than those that it lists. Other files in the directory are
/// left alone.
fn publish(staging: &Path, staged: &Path, place: &Path, receipt: &str) -> std::io::Result<()> {
    fs::create_dir_all(place)?;
    remove(&place.join(receipt))?;
    for entry in fs::read_dir(staged)? {
        let entry = entry?;
        let target = place.join(entry.file_name());
        remove(&target)?;
        fs::rename(entry.path(), target)?;
    }
    fs::rename(staging.join(receipt), place.join(receipt))
}

fn remove(path: &Path) -> std::io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;

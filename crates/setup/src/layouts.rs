//! A program with its functions in several orders. Where code is in memory changes its speed by up to some percent, and any
//! change of the code moves all that follows it (Curtsinger & Berger 2013, *Stabilizer*). So two builds are compared in
//! several orders each, and no order decides.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::receipt::sha256;
use crate::tooling;

/// Orders of a program: one for each of the fewest rounds that a verdict takes.
pub const LAYOUTS: usize = 6;

/// The files of a program in all of its orders; none if it was not linked so. They are named by the content of the
/// program, so that those of an earlier build are not taken for its own.
pub fn files(program: &Path) -> Vec<PathBuf> {
    let Ok(digest) = sha256(program) else { return Vec::new() };
    let all: Vec<PathBuf> = (0..LAYOUTS).map(|order| place(program, &digest, order)).collect();
    if all.iter().all(|file| file.is_file()) { all } else { Vec::new() }
}

fn place(program: &Path, digest: &str, order: usize) -> PathBuf {
    program.with_added_extension(format!("{}-{order}", &digest[..8]))
}

/// Makes them, unless they are there. `link` links the program with a flag of the linker, and returns its path.
///
/// # Errors
/// If it cannot be linked so: not every linker can. The program itself is as it was.
pub fn make(program: &Path, link: impl Fn(&str) -> Result<PathBuf>) -> Result<()> {
    if !files(program).is_empty() {
        return Ok(());
    }
    let digest = sha256(program).with_context(|| format!("cannot read {}", program.display()))?;
    remove_others(program);
    let keep = |from: &Path, order| {
        let file = place(program, &digest, order);
        tooling::replace(from, &file).with_context(|| format!("cannot write {}", file.display()))
    };
    keep(program, 0)?;
    let made = (1..LAYOUTS).try_for_each(|order| {
        // Functions alone: the order of data would change what constructors find.
        let linked = link(&format!("-Wl,--shuffle-sections=.text.*={order}"))?;
        keep(&linked, order)
    });
    // `link` may have written to the same path.
    tooling::replace(&place(program, &digest, 0), program)
        .with_context(|| format!("cannot write {}", program.display()))?;
    if made.is_err() {
        for order in 0..LAYOUTS {
            let _ = fs::remove_file(place(program, &digest, order));
        }
    }
    made
}

/// Removes the layouts of earlier builds.
fn remove_others(program: &Path) {
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    let is_layout = |file: &str| {
        let digest = file.strip_prefix(&*name).and_then(|rest| rest.strip_prefix('.')?.rsplit_once('-'));
        digest.is_some_and(|(digest, order)| {
            digest.len() == 8
                && digest.chars().all(|letter| letter.is_ascii_hexdigit())
                && order.parse().is_ok_and(|order: usize| order < LAYOUTS)
        })
    };
    let there = program.parent().and_then(|directory| fs::read_dir(directory).ok()).into_iter().flatten();
    for file in there.flatten().filter(|file| file.file_name().to_str().is_some_and(is_layout)) {
        let _ = fs::remove_file(file.path());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_of_the_program_that_was_linked_so_and_leave_it_as_it_was() {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("worker");
        fs::write(&program, "plain").unwrap();
        let link = |flag: &str| {
            fs::write(&program, flag)?;
            Ok(program.clone())
        };
        make(&program, link).unwrap();
        let texts =
            || files(&program).iter().map(|file| fs::read_to_string(file).unwrap()).collect::<Vec<_>>();
        let made = texts();
        assert_eq!((made.len(), made[0].as_str()), (LAYOUTS, "plain"));
        assert!(made[1].ends_with("=1") && made[5].ends_with("=5"), "{made:?}");
        assert_eq!(fs::read_to_string(&program).unwrap(), "plain");
        make(&program, |_| unreachable!("they are there")).unwrap();
        fs::write(&program, "another build").unwrap();
        assert!(texts().is_empty());
        assert!(make(&program, |_| anyhow::bail!("unknown argument")).is_err());
        assert_eq!(fs::read_to_string(&program).unwrap(), "another build");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "none of either build is left");
    }
}

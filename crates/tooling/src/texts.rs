//! The files of a checkout.

use std::path::Path;

use anyhow::{Context, Result};

use crate::process::{command, output_of};

/// The repository's files that are text, each with its name from the root.
pub fn texts(root: &Path) -> Result<Vec<(String, String)>> {
    // A listed file may be missing: deleted, but not committed yet.
    let read = |name: String| Some((std::fs::read_to_string(root.join(&name)).ok()?, name));
    Ok(files(root)?.into_iter().filter_map(read).map(|(text, name)| (name, text)).collect())
}

/// Tracked files and those about to be, by name from the root; all files if there is no git.
pub fn files(root: &Path) -> Result<Vec<String>> {
    let mut git = command("git");
    git.current_dir(root).args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    match output_of(&mut git) {
        Ok(names) => Ok(names.split('\0').filter(|name| !name.is_empty()).map(str::to_owned).collect()),
        Err(_) => {
            let mut found = Vec::new();
            walk(root, root, &mut found)?;
            Ok(found)
        }
    }
}

fn walk(root: &Path, directory: &Path, found: &mut Vec<String>) -> Result<()> {
    let entries =
        std::fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
    for entry in entries {
        let entry = entry?;
        let path = entry.path();
        let name = path.strip_prefix(root)?.to_string_lossy().into_owned();
        if entry.file_type()?.is_dir() {
            if !["target", "results", ".git"].contains(&name.as_str()) {
                walk(root, &path, found)?;
            }
        } else {
            found.push(name);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_git_the_files_are_found_all_the_same() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("crates/x")).unwrap();
        std::fs::create_dir_all(root.path().join("target/release")).unwrap();
        std::fs::write(root.path().join("crates/x/lib.rs"), "").unwrap();
        std::fs::write(root.path().join("target/release/x.rs"), "").unwrap();
        let mut found = Vec::new();
        walk(root.path(), root.path(), &mut found).unwrap();
        assert_eq!(found, ["crates/x/lib.rs"]);
    }
}

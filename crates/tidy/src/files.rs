//! Rules on the text of the repository's files.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tooling::process::{command, output_of};

use crate::Finding;

const LONGEST: usize = 400;

pub(crate) fn check(root: &Path) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for name in files(root)? {
        // Listed and gone: deleted, but not committed yet.
        let Ok(bytes) = std::fs::read(root.join(&name)) else { continue };
        if let Ok(text) = String::from_utf8(bytes) {
            findings.extend(check_text(&name, &text));
        }
    }
    Ok(findings)
}

fn check_text(name: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let lines = text.lines().count();
    if name.ends_with(".rs") && lines > LONGEST {
        findings.push(Finding {
            rule: "a file is under 400 lines",
            found: format!("{name} has {lines}"),
            remedy: "ask what it hides, and move that out",
        });
    }
    let paths = text.lines().enumerate().filter(|(_, line)| names_a_machine_path(line));
    findings.extend(paths.map(|(index, _)| Finding {
        rule: "no absolute path of a machine",
        found: format!("{name}:{} has one", index + 1),
        remedy: "write it relative to the repository, or take it from the environment",
    }));
    if name.ends_with(".md")
        && let Err(found) = check_markers(text)
    {
        findings.push(Finding {
            rule: "markers of spliced text come in pairs",
            found: format!("{name} {found}"),
            remedy: "write `<!-- NAME: begin -->` and `<!-- NAME: end -->` around it",
        });
    }
    findings
}

/// A path into a directory that only this or that machine has: its user's, its work.
fn names_a_machine_path(line: &str) -> bool {
    let begins_path = |before: &str| {
        before.chars().next_back().is_none_or(|last| last.is_whitespace() || "\"'`=([{<>,;:|".contains(last))
    };
    let in_name = |c: char| c.is_alphanumeric() || c == '_' || c == '.' || c == '-';
    ["home", "root", "work", "tmp"].iter().any(|directory| {
        let prefix = format!("/{directory}/");
        line.match_indices(&prefix).any(|(at, _)| {
            let rest = &line[at + prefix.len()..];
            let after_name = rest.trim_start_matches(in_name);
            // A file right in the directory for temporary files is nobody's in particular.
            let is_path =
                after_name.len() < rest.len() && (*directory != "tmp" || after_name.starts_with('/'));
            begins_path(&line[..at]) && is_path
        })
    })
}

fn check_markers(text: &str) -> Result<(), String> {
    let mut open: Option<&str> = None;
    for line in text.lines() {
        let marker = line.trim().strip_prefix("<!-- ").and_then(|rest| rest.strip_suffix(" -->"));
        match (marker.and_then(|marker| marker.rsplit_once(": ")), open) {
            (Some((name, "begin")), None) => open = Some(name),
            (Some((name, "end")), Some(begun)) if name == begun => open = None,
            (Some((name, "begin" | "end")), _) => return Err(format!("has an unpaired marker of {name}")),
            _ => {}
        }
    }
    open.map_or(Ok(()), |name| Err(format!("never ends {name}")))
}

/// Tracked files and those about to be; all of them where there is no git.
fn files(root: &Path) -> Result<Vec<String>> {
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
        let path: PathBuf = entry.path();
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

    fn rules(name: &str, text: &str) -> Vec<&'static str> {
        check_text(name, text).into_iter().map(|finding| finding.rule).collect()
    }

    #[test]
    fn a_file_of_more_than_400_lines_is_found() {
        assert_eq!(rules("crates/x/src/lib.rs", &"x\n".repeat(400)), [""; 0]);
        assert_eq!(rules("crates/x/src/lib.rs", &"x\n".repeat(401)), ["a file is under 400 lines"]);
        assert_eq!(rules("Cargo.lock", &"x\n".repeat(401)), [""; 0]);
    }

    #[test]
    fn a_path_of_a_machine_is_found() {
        // Spelt so that this file does not break the rule.
        for (line, expected) in [
            ("LIBTORCH=@home/someone/libtorch", true),
            ("see `@work/main`", true),
            ("@root/.cache", true),
            ("\"@tmp/x/y\"", true),
            ("@tmp/x", false),
            ("https://example.org@home/page", false),
            ("target@work/x", false),
            ("the directory @home/", false),
            ("~@work/x", false),
        ] {
            let line = line.replace('@', "/");
            assert_eq!(names_a_machine_path(&line), expected, "{line}");
            assert_eq!(!check_text("README.md", &line).is_empty(), expected, "{line}");
        }
    }

    #[test]
    fn markers_must_pair() {
        let pair = "<!-- table: begin -->\nx\n<!-- table: end -->\n";
        assert_eq!(rules("README.md", pair), [""; 0]);
        assert_eq!(rules("README.md", &pair.repeat(2)), [""; 0]);
        for text in ["<!-- table: begin -->", "<!-- table: end -->", "<!-- a: begin -->\n<!-- b: end -->"] {
            assert_eq!(rules("README.md", text), ["markers of spliced text come in pairs"], "{text}");
            assert_eq!(rules("src/lib.rs", text), [""; 0]);
        }
    }

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

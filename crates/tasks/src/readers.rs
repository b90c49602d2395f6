//! Tests the one-liners for other programs in docs/reference/files.md: they run unchanged in a virtual
//! environment with pinned versions of these programs, and must print the output on the page. In the same
//! environment the Kubernetes example is compared with the schema that Kubernetes publishes.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, ensure};
use setup::tooling::process::{command, output_of};

use crate::workspace::Workspace;

const PAGE: &str = "docs/reference/files.md";
/// The file that they read.
const HISTORY: &str = "docs/examples/history.jsonl";
const KUBERNETES: &str = "examples/parts/kubernetes.yaml";
/// Around them on the page.
const MARKERS: [&str; 2] = ["<!-- readers: begin -->", "<!-- readers: end -->"];

pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let page = read(&workspace.root.join(PAGE))?;
    let examples = examples(&page).with_context(|| PAGE.to_owned())?;
    let programs = environment(workspace)?;
    let scratch = tempfile::tempdir()?;
    fs::create_dir(scratch.path().join("results"))?;
    fs::copy(workspace.root.join(HISTORY), scratch.path().join("results/history.jsonl"))
        .with_context(|| format!("cannot copy {HISTORY}"))?;
    let others = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths([programs].into_iter().chain(std::env::split_paths(&others)))?;
    for (line, expected) in examples {
        let mut shell = command("sh");
        shell.args(["-c", &line]).current_dir(&scratch).env("PATH", &path);
        // The output of pandas and DuckDB must not depend on personal settings.
        shell.env("HOME", scratch.path()).env("COLUMNS", "120");
        let printed = output_of(&mut shell)?;
        ensure!(
            trimmed(&printed) == trimmed(&expected),
            "{PAGE}: the line\n{line}\nprints\n{printed}\nrather than\n{expected}"
        );
    }
    Ok(())
}

/// Holds the Kubernetes example against the published schema of its kinds. Fields that it does not know are errors.
pub(crate) fn kubernetes(workspace: &Workspace) -> Result<()> {
    let validate = environment(workspace)?.join("kubernetes-validate");
    output_of(command(validate).args(["--strict", "--quiet"]).arg(workspace.root.join(KUBERNETES))).map(drop)
}

/// Shell blocks between the markers, each with the block of text that it prints.
fn examples(page: &str) -> Result<Vec<(String, String)>> {
    let [begin, end] = MARKERS;
    let between = page.split_once(begin).and_then(|(_, rest)| Some(rest.split_once(end)?.0));
    let between = between.ok_or_else(|| anyhow!("has no {begin} … {end}"))?;
    let mut blocks = between.split("```").skip(1).step_by(2);
    let mut examples = Vec::new();
    while let Some(block) = blocks.next() {
        let line = block.strip_prefix("sh\n").ok_or_else(|| anyhow!("a block that is not ```sh: {block}"))?;
        let printed = blocks.next().and_then(|block| block.strip_prefix("text\n"));
        let printed = printed.ok_or_else(|| anyhow!("no ```text after the block {line}"))?;
        examples.push((line.trim().to_owned(), printed.to_owned()));
    }
    ensure!(!examples.is_empty(), "has no block between {begin} and {end}");
    Ok(examples)
}

/// Ends of lines do not count: editors strip them.
fn trimmed(text: &str) -> Vec<&str> {
    text.trim_end().lines().map(str::trim_end).collect()
}

/// Directory of the programs that the one-liners call: made once, and again when the pins change.
fn environment(workspace: &Workspace) -> Result<PathBuf> {
    let given = workspace.root.join("crates/tasks/readers");
    let place = workspace.binaries.with_file_name("readers");
    let programs = place.join("bin");
    let (requirements, receipt) = (given.join("requirements.txt"), place.join("requirements.txt"));
    let pinned = read(&requirements)?;
    let python = programs.join("python3");
    // An interpreter that has since been removed leaves a dangling link.
    let is_there = || output_of(command(&python).arg("--version")).is_ok();
    if !fs::read_to_string(&receipt).is_ok_and(|installed| installed == pinned) || !is_there() {
        output_of(command("python3").args(["-m", "venv", "--clear"]).arg(&place)).map_err(|error| {
            anyhow!(
                "python3 with venv and pip is needed to check what {PAGE} says of pandas, DuckDB and jq ({error:#}): \
                 install it (on Debian and Ubuntu: apt-get install python3-venv)"
            )
        })?;
        let mut pip = command(&python);
        pip.args(["-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"])
            .args(["--only-binary=:all:", "--requirement"])
            .arg(&requirements);
        output_of(&mut pip).context("check the network, and that python3 is 3.11 or later")?;
        fs::write(&receipt, pinned).context("cannot write the receipt")?;
    }
    install_jq(&given, &programs)?;
    Ok(programs)
}

/// No package carries the program itself, but one its library.
fn install_jq(given: &Path, programs: &Path) -> Result<()> {
    let jq = programs.join("jq");
    let script = format!("#!{}\n{}", programs.join("python3").display(), read(&given.join("jq.py"))?);
    fs::write(&jq, script).with_context(|| format!("cannot write {}", jq.display()))?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(&jq, fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}

fn read(file: &Path) -> Result<String> {
    fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_stands_above_what_it_prints() {
        let [begin, end] = MARKERS;
        let page =
            format!("```sh\nother\n```\n{begin}\nA:\n```sh\nx y\n```\ngives\n```text\n1\n2\n```\n{end}\n");
        assert_eq!(examples(&page).unwrap(), [("x y".to_owned(), "1\n2\n".to_owned())]);
        for broken in ["", "```sh\nx\n```", "```\nx\n```\n```text\n```"] {
            assert!(examples(&format!("{begin}\n{broken}\n{end}")).is_err(), "{broken}");
        }
        assert!(examples("no markers").is_err());
    }

    #[test]
    fn pandas_duckdb_and_jq_are_shown() {
        let root = Workspace::locate().unwrap().root;
        let examples = examples(&read(&root.join(PAGE)).unwrap()).unwrap();
        for (tool, (line, _)) in ["pandas", "duckdb", "jq"].iter().zip(&examples) {
            assert!(line.contains(tool) && line.contains("results/history.jsonl"), "{line}");
            assert_eq!(line.lines().count(), 1, "a one-liner");
        }
        assert_eq!(examples.len(), 3);
    }
}

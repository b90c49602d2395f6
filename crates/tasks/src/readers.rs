//! The Python environment of the tests: the programs that read results on a page, and what examples/worker.py needs.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, anyhow};
use setup::tooling::process::{command, output_of};

use crate::workspace::Workspace;

/// Runs what docs/reference/files.md says of pandas, DuckDB and jq, and checks the Kubernetes example.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let python = environment(workspace)?;
    output_of(command(python).arg("crates/tasks/readers/check.py").current_dir(&workspace.root)).map(drop)
}

/// Python of a virtual environment with pinned packages: made once, and again when the pins change.
fn environment(workspace: &Workspace) -> Result<PathBuf> {
    let place = workspace.binaries.with_file_name("readers");
    let requirements = workspace.root.join("crates/tasks/readers/requirements.txt");
    let receipt = place.join("requirements.txt");
    let pinned = fs::read_to_string(&requirements)
        .with_context(|| format!("cannot read {}", requirements.display()))?;
    let python = place.join("bin/python3");
    // An interpreter that has since been removed leaves a dangling link.
    let is_there = || output_of(command(&python).arg("--version")).is_ok();
    if !fs::read_to_string(&receipt).is_ok_and(|installed| installed == pinned) || !is_there() {
        output_of(command("python3").args(["-m", "venv", "--clear"]).arg(&place)).map_err(|error| {
            anyhow!(
                "python3 with venv and pip is needed for the tests ({error:#}): install it (on Debian and Ubuntu: \
                 apt-get install python3-venv)"
            )
        })?;
        let mut pip = command(&python);
        pip.args(["-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"])
            .args(["--only-binary=:all:", "--requirement"])
            .arg(&requirements);
        output_of(&mut pip).context("check the network, and that python3 is 3.11 or later")?;
        fs::write(&receipt, pinned).context("cannot write the receipt")?;
    }
    Ok(python)
}

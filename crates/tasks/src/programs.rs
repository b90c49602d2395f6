//! Programs of this workspace in the place of a task: `doctor` and `profile` are commands of `photofinish`, as `compare`
//! is; `calibrate` is a program of package `evidence`, and `claims` one of `tools`.

use std::ffi::OsString;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use setup::tooling::Reporter;
use setup::tooling::process::{command, exit_code};

use crate::cargo::build;
use crate::workspace::{PHOTOFINISH, Workspace};

/// Builds the program and runs one of its commands, which provides what else it needs.
pub(crate) fn run(workspace: &Workspace, name: &str, args: &[OsString]) -> Result<ExitCode> {
    build(workspace, &["driver"], None, Reporter::new(true))?;
    let mut program = command(workspace.binary(PHOTOFINISH));
    // As `cargo run` sets it: workers whose sources have changed are built again.
    program.arg(name).args(args).env("CARGO_MANIFEST_DIR", &workspace.root);
    replace_this_process(program)
}

/// Signals reach the program itself, and its exit code is this command's.
pub(crate) fn replace_this_process(mut program: Command) -> Result<ExitCode> {
    xtask::replace_this_process(&mut program).context("cannot start the driver")
}

/// `cargo xtask calibrate`: the statistics against simulated comparisons.
pub(crate) fn calibrate(workspace: &Workspace, args: &[OsString]) -> Result<ExitCode> {
    build(workspace, &["evidence"], None, Reporter::new(false))?;
    // The page's default place is relative to the root.
    let status = command(workspace.binary("calibrate"))
        .args(args)
        .current_dir(&workspace.root)
        .status()
        .context("cannot start calibrate")?;
    Ok(exit_code(status))
}

/// With these flags nothing is measured, so that no driver is needed.
const WITHOUT_RUNS: [&str; 3] = ["--from-results", "--help", "-h"];

/// `cargo xtask claims`: tests of published claims.
pub(crate) fn claims(workspace: &Workspace, args: &[OsString]) -> Result<ExitCode> {
    let runs = !args.iter().any(|arg| WITHOUT_RUNS.iter().any(|name| arg == name));
    if runs {
        build(workspace, &["driver"], None, Reporter::new(false))?;
    }
    let mut claims = command("python3");
    claims.arg(workspace.root.join("tools/claims/claims.py")).args(args);
    claims.arg("--photofinish").arg(workspace.binary(PHOTOFINISH));
    let status = claims.status().context("cannot start python3")?;
    Ok(exit_code(status))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_scripts_of_tools_pass_their_own_tests() {
        let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools");
        for script in ["claims/test_claims.py", "gpu/test_gpu_run.py"] {
            let ran = command("python3").arg("-B").arg(tools.join(script)).output().unwrap();
            let said = String::from_utf8_lossy(&ran.stderr);
            assert!(ran.status.success() && said.contains("\nOK"), "{script}: {said}");
        }
    }
}

//! `cargo xtask gpu-run`: a plan of comparisons on a borrowed GPU, in order of value, within some minutes. It
//! continues where it stopped, and keeps every complete result.
//!
//! A borrowed machine may have neither a network nor cargo. For such a machine `--pack` writes an
//! installation in pieces, including this program; NVIDIA's and PyTorch's packages are taken from the
//! machine's own Python.

mod fatbin;
mod pack;
mod plan;
mod rehearsal;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use setup::tooling::process::{command, output_of};
use setup::tooling::{self, BadInput, Reporter};
use setup::{Piece, Target};

use self::plan::{Machine, Plan};
use crate::build::Engines;
use crate::build::{self, PROGRAMS, Wanted};
use crate::cuda;
use crate::workspace::{PHOTOFINISH, Workspace};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Minutes that it may take; a step that no longer fits waits for the next call
    #[arg(long, value_name = "N", default_value_t = 9.0)]
    minutes: f64,
    /// What is measured, step by step
    #[arg(long, value_name = "FILE", default_value = "configs/gpu-run.toml")]
    plan: PathBuf,
    /// Directory of the results; steps that are complete there are not repeated
    #[arg(long, value_name = "DIR", default_value = "results/gpu-run")]
    results_dir: PathBuf,
    /// List what a machine needs, with sizes, and measure nothing
    #[arg(long, conflicts_with_all = ["pack", "installed"])]
    list: bool,
    /// Write it to DIR instead, in pieces, for a machine without network or cargo: `sh DIR/run.sh` is this command there
    #[arg(long, value_name = "DIR", conflicts_with = "installed")]
    pack: Option<PathBuf>,
    /// Megabytes of a piece at most
    #[arg(long, value_name = "MB", default_value_t = 60, requires = "pack")]
    piece: u64,
    /// Compute capability of the GPU: 9.0 of an H100 or H200, 8.0 of an A100
    #[arg(long, value_name = "X.Y", default_value = "9.0", requires = "pack")]
    capability: String,
    /// Follow the plan without a GPU: mocks play the frameworks, and the figures say nothing
    #[arg(long, conflicts_with_all = ["pack", "list", "installed"])]
    rehearse: bool,
    /// Root of an unpacked installation, which is used as it is
    #[arg(long, value_name = "DIR", hide = true)]
    installed: Option<PathBuf>,
}

pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<ExitCode> {
    tooling::listen()?;
    let reporter = Reporter::new(false);
    if args.list {
        return pack::list(workspace).map(|()| ExitCode::SUCCESS);
    }
    let plan = Plan::read(&place_of_plan(workspace, args))?;
    if let Some(directory) = &args.pack {
        let cut = pack::Cut { megabytes: args.piece, capability: capability(&args.capability)? };
        return pack::pack(workspace, directory, &cut, reporter).map(|()| ExitCode::SUCCESS);
    }
    let scratch = tempfile::tempdir()?;
    let machine = match &args.installed {
        None if args.rehearse => rehearsal::machine(workspace, &plan, scratch.path(), reporter)?,
        Some(root) => of_installation(root, &workspace.cache.join("references"))?,
        None => of_checkout(workspace, &plan, reporter)?,
    };
    let is_complete = plan.follow(&machine, &args.results_dir, args.minutes)?;
    Ok(if is_complete { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The plan of a checkout or an installation, unless another file is named.
fn place_of_plan(workspace: &Workspace, args: &Args) -> PathBuf {
    let root = match &args.installed {
        Some(root) => setup::Layout::below(root).data().to_owned(),
        None => workspace.root.clone(),
    };
    if args.plan.is_file() { args.plan.clone() } else { root.join(&args.plan) }
}

/// Parses `9.0`, which the kernels' files write as 90.
fn capability(text: &str) -> Result<u32> {
    let digits: String = text.split('.').collect();
    let parts = text.split('.').count();
    let number = digits.parse().ok().filter(|_| parts == 2);
    number.with_context(|| BadInput(format!("--capability {text}: two numbers with a point, such as 9.0")))
}

/// This checkout, with everything built that the plan needs.
fn of_checkout(workspace: &Workspace, plan: &Plan, reporter: Reporter) -> Result<Machine> {
    let engines = Engines::read(workspace)?;
    let names = plan.frameworks();
    let wanted = Wanted {
        programs: PROGRAMS.into(),
        engines: engines.select(&names)?,
        target: Target::Cuda,
        ..Wanted::default()
    };
    build::together(workspace, &wanted, reporter)?;
    cuda::build(workspace, &names, reporter)?;
    let variables = vec![("PHOTOFINISH_PROVISIONED".to_owned(), "1".into())];
    Ok(Machine { program: workspace.binary(PHOTOFINISH), arguments: Vec::new(), variables })
}

/// An unpacked installation, with the libraries of the machine's own Python, and its frameworks as references.
fn of_installation(root: &Path, references: &Path) -> Result<Machine> {
    let root = std::path::absolute(root)?;
    let mut variables = vec![("PHOTOFINISH_PROVISIONED".to_owned(), "1".into())];
    let packages = packages_of_python()?;
    lend_python(&packages, references)?;
    for (piece, place) in
        [(Piece::Cuda, packages.join("nvidia")), (Piece::LibtorchCuda, packages.join("torch"))]
    {
        ensure!(
            place.is_dir(),
            "{} is missing: this machine's python3 must have PyTorch with CUDA",
            place.display()
        );
        variables.push((piece.variable().to_owned(), place.into_os_string()));
    }
    let onnxruntime = pack::onnxruntime(&root)?;
    variables.push((Piece::OnnxruntimeCuda.variable().to_owned(), onnxruntime.into_os_string()));
    Ok(Machine { program: root.join("bin").join(PHOTOFINISH), arguments: Vec::new(), variables })
}

/// Where the machine's Python has PyTorch and NVIDIA's libraries for it.
fn packages_of_python() -> Result<PathBuf> {
    let script = "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])";
    let said = output_of(command("python3").args(["-c", script]))
        .context("this machine's python3 has no PyTorch")?;
    let torch = PathBuf::from(said.trim());
    Ok(torch.parent().context("PyTorch is in no directory")?.to_owned())
}

/// Lets references run in the machine's own Python, where none is set up: with the versions there, which
/// their rows show. A reference that it lacks is a row with a reason.
fn lend_python(packages: &Path, references: &Path) -> Result<()> {
    const OWN: &str = "venv-of-the-machine";
    // PREFIX/lib/python3.12/site-packages
    let prefix = packages.ancestors().nth(3).context("Python's packages are in no environment")?;
    std::fs::create_dir_all(references).with_context(|| format!("cannot create {}", references.display()))?;
    let own = references.join(OWN);
    if !own.exists() {
        #[cfg(unix)]
        std::os::unix::fs::symlink(prefix, &own).with_context(|| format!("cannot make {}", own.display()))?;
    }
    for (package, name) in [("transformers", "transformers"), ("jax", "jax-cuda")] {
        let receipt = references.join(format!("{name}.txt"));
        if packages.join(package).is_dir() && !receipt.exists() {
            std::fs::write(references.join(format!("{name}.python")), format!("{OWN}/bin/python3\n"))?;
            std::fs::write(receipt, "of this machine\n")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capability_is_two_numbers() {
        assert_eq!((capability("9.0").unwrap(), capability("12.1").unwrap()), (90, 121));
        for wrong in ["9", "sm_90", "9.0.1", ""] {
            assert!(capability(wrong).unwrap_err().to_string().contains("such as 9.0"), "{wrong}");
        }
    }
}

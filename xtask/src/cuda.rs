//! `cargo xtask build --device cuda`: the engines' workers for a GPU, in a target directory of their own, so that
//! nothing that is compared on a CPU is another program for it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use setup::{Piece, Provision, Target};
use tooling::Reporter;
use tooling::process::succeeds;

use crate::cargo::cargo;
use crate::catalog::Engines;
use crate::workspace::Workspace;

/// Packages whose workers can compute on a GPU, with the features that switch it on. ONNX Runtime loads what it needs
/// by itself, and libtorch is what the worker is linked with.
const WORKERS: [(&str, &[&str]); 3] =
    [("engine-candle", &["cuda"]), ("engine-ort", &[]), ("engine-tch", &[])];

/// Where these workers lie.
pub(crate) fn directory(workspace: &Workspace) -> PathBuf {
    workspace.binaries.parent().unwrap_or(&workspace.binaries).join("cuda/release")
}

/// Sets up, and builds the workers of these frameworks. One that cannot be built is told and stops no other.
pub(crate) fn build(workspace: &Workspace, frameworks: &[String], reporter: Reporter) -> Result<()> {
    let engines = Engines::read(workspace)?;
    let selected = engines.select(frameworks)?;
    let provision = workspace.provision(reporter)?;
    provision.provide_all(&Target::Cuda.pieces())?;
    let environment = environment(&provision)?;
    let place = directory(workspace);
    let apart = workspace.built_with(place.parent().unwrap_or(&place).to_owned(), Vec::new());
    let mut failed = Vec::new();
    for (package, features) in WORKERS {
        if selected.iter().all(|engine| engine.worker != package) {
            continue;
        }
        let mut build = cargo(&apart);
        build.args(["build", "--release", "--locked", "--package", package]);
        build.args(features.iter().flat_map(|feature| ["--features", feature]));
        build.envs(environment.iter().map(|(name, value)| (name, value)));
        if reporter.is_quiet() {
            build.arg("--quiet");
        }
        if !succeeds(&mut build)? {
            reporter.warn(&format!("{package} does not build for a GPU"));
            failed.push(package);
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(anyhow!("not built for a GPU: {}", failed.join(", "))) }
}

/// What the builds are told: where libtorch and CUDA lie.
fn environment(provision: &Provision) -> Result<Vec<(&'static str, OsString)>> {
    let mut variables = vec![("LIBTORCH", provision.place(Piece::LibtorchCuda)?.into_os_string())];
    if !setup::has_nvcc() {
        let toolkit = provision.place(Piece::Nvcc)?;
        let path = std::env::var_os("PATH").unwrap_or_default();
        let programs = std::iter::once(toolkit.join("bin")).chain(std::env::split_paths(&path));
        variables.push(("PATH", std::env::join_paths(programs)?));
        for name in ["CUDA_HOME", "CUDA_PATH", "CUDA_ROOT", "CUDA_TOOLKIT_ROOT_DIR"] {
            variables.push((name, toolkit.clone().into_os_string()));
        }
    }
    // Kernels are compiled for the GPU that is there; without one, for this.
    if !Path::new("/proc/driver/nvidia").exists() && std::env::var_os("CUDA_COMPUTE_CAP").is_none() {
        variables.push(("CUDA_COMPUTE_CAP", DEFAULT_CAPABILITY.into()));
    }
    Ok(variables)
}

/// That of an A100 and newer GPUs: f16 and bf16 kernels take it.
const DEFAULT_CAPABILITY: &str = "80";

//! `cargo xtask build --device cuda`: the engines' workers for a GPU, in a separate target directory, so that
//! no program that is compared on a CPU changes.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, ensure};
use setup::tooling::process::{command, cxx_compiler, output_of, succeeds};
use setup::tooling::{self, Reporter};
use setup::{Piece, Provision, Target};

use crate::build::Engines;
use crate::cargo::cargo;
use crate::workspace::Workspace;

/// Packages with workers that can compute on a GPU, with the features that enable it. ONNX Runtime loads its
/// libraries by itself, and the worker of libtorch is linked with libtorch.
const WORKERS: [(&str, &[&str]); 3] =
    [("engine-candle", &["cuda"]), ("engine-ort", &[]), ("engine-tch", &[])];

/// Sets up, and builds the workers of these frameworks. A failed build is reported and stops no other.
pub(crate) fn build(workspace: &Workspace, frameworks: &[String], reporter: Reporter) -> Result<()> {
    let engines = Engines::read(workspace)?;
    let selected = engines.select(frameworks)?;
    let provision = workspace.provision(reporter)?;
    provision.provide_all(&Target::Cuda.pieces())?;
    let target = workspace.binaries.parent().unwrap_or(&workspace.binaries).join("cuda");
    let apart = workspace.built_with(target, Vec::new());
    let place = setup::gpu_workers(&workspace.binaries);
    fs::create_dir_all(&place).with_context(|| format!("cannot make {}", place.display()))?;
    let environment = environment(&provision, &apart)?;
    let mut failed = Vec::new();
    for (package, features) in WORKERS {
        if !selected.iter().any(|engine| engine.worker == package) {
            continue;
        }
        let mut build = cargo(&apart);
        build.args(["build", "--release", "--locked", "--package", package]);
        build.args(features.iter().flat_map(|feature| ["--features", feature]));
        build.envs(environment.iter().map(|(name, value)| (name, value)));
        if reporter.is_quiet() {
            build.arg("--quiet");
        }
        if succeeds(&mut build)? {
            let (built, place) = (apart.binary(package), place.join(package));
            tooling::replace(&built, &place)
                .with_context(|| format!("cannot copy {} to {}", built.display(), place.display()))?;
        } else {
            reporter.warn(&format!("{package} does not build for a GPU"));
            failed.push(package);
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(anyhow!("not built for a GPU: {}", failed.join(", "))) }
}

/// Where the workers are that can be built for a GPU.
pub(crate) fn workers(workspace: &Workspace) -> Vec<PathBuf> {
    let place = setup::gpu_workers(&workspace.binaries);
    WORKERS.iter().map(|(package, _)| place.join(package)).collect()
}

/// The directories with the libraries that these workers are linked with.
pub(crate) fn library_path(provision: &Provision) -> Result<String> {
    let mut directories = provision.library_directories(Piece::Cuda)?;
    directories.extend(provision.library_directories(Piece::LibtorchCuda)?);
    Ok(std::env::join_paths(directories)?.to_string_lossy().into_owned())
}

/// Whether a program finds every library that it is linked with, except that of NVIDIA's driver.
pub(crate) fn finds_its_libraries(program: &Path, library_path: &str) -> Result<()> {
    let listed = output_of(command("ldd").arg(program).env("LD_LIBRARY_PATH", library_path))?;
    let missing = listed.lines().filter_map(|line| line.trim().strip_suffix("=> not found"));
    let missing: Vec<&str> = missing.map(str::trim).filter(|name| *name != DRIVER).collect();
    ensure!(missing.is_empty(), "{} is not found", missing.join(", "));
    Ok(())
}

/// The variables of the builds: where libtorch and CUDA are.
fn environment(provision: &Provision, apart: &Workspace) -> Result<Vec<(&'static str, OsString)>> {
    let mut variables = vec![("LIBTORCH", provision.place(Piece::LibtorchCuda)?.into_os_string())];
    if !setup::has_nvcc() {
        let toolkit = provision.place(Piece::Nvcc)?;
        let path = std::env::var_os("PATH").unwrap_or_default();
        let programs = std::iter::once(toolkit.join("bin")).chain(std::env::split_paths(&path));
        let link = apart.binaries.with_file_name("link");
        fill(&link, provision)?;
        variables.push(("LIBRARY_PATH", link.into_os_string()));
        variables.push(("PATH", std::env::join_paths(programs)?));
        for name in ["CUDA_HOME", "CUDA_PATH", "CUDA_ROOT", "CUDA_TOOLKIT_ROOT_DIR"] {
            variables.push((name, toolkit.clone().into_os_string()));
        }
    }
    // Kernels are compiled for the GPU of this machine; without one, for the default.
    if !Path::new("/proc/driver/nvidia").exists() && std::env::var_os(CAPABILITY).is_none() {
        variables.push((CAPABILITY, DEFAULT_CAPABILITY.into()));
    }
    Ok(variables)
}

/// Variable with the GPU's compute capability, for the build of candle's kernels.
const CAPABILITY: &str = "CUDA_COMPUTE_CAP";

/// That of an A100 and newer GPUs: f16 and bf16 kernels need it.
const DEFAULT_CAPABILITY: &str = "80";

// Files that a linker needs from CUDA and that NVIDIA's wheels lack: libraries under the expected names, and
// a substitute for the driver's `libcuda.so`, which a machine without a card does not have.

/// Libraries that candle is linked with, as they are called with their version.
const LIBRARIES: [&str; 5] =
    ["libcudart.so.13", "libcublas.so.13", "libcublasLt.so.13", "libcurand.so.10", "libnvrtc.so.13"];

/// The name under which the driver's library is looked for when a program starts.
const DRIVER: &str = "libcuda.so.1";

/// Fills `directory` with it.
fn fill(directory: &Path, provision: &Provision) -> Result<()> {
    let lacks = || format!("cannot write to {}", directory.display());
    if directory.exists() {
        fs::remove_dir_all(directory).with_context(lacks)?;
    }
    fs::create_dir_all(directory).with_context(lacks)?;
    for name in LIBRARIES {
        let plain = name.trim_end_matches(|c: char| c == '.' || c.is_ascii_digit());
        std::os::unix::fs::symlink(library(provision, name)?, directory.join(plain)).with_context(lacks)?;
    }
    let header = provision.place(Piece::Nvcc)?.join("include/cuda.h");
    let text = fs::read_to_string(&header).with_context(|| format!("cannot read {}", header.display()))?;
    let source = directory.join("cuda.c");
    fs::write(&source, stand_in(&text)).with_context(lacks)?;
    let compiler = cxx_compiler().context("a C++ compiler is needed: install g++ or set CXX")?;
    let linked = succeeds(
        command(compiler)
            .args(["-x", "c", "-shared", "-fPIC", "-o"])
            .arg(directory.join("libcuda.so"))
            .arg(format!("-Wl,-soname,{DRIVER}"))
            .arg(&source),
    )?;
    ensure!(linked, "the substitute for the driver's library could not be linked");
    Ok(())
}

fn library(provision: &Provision, name: &str) -> Result<PathBuf> {
    let directories = provision.library_directories(Piece::Cuda)?;
    let found = directories.into_iter().map(|directory| directory.join(name)).find(|path| path.is_file());
    found.with_context(|| format!("NVIDIA's packages hold no {name}"))
}

/// C that defines every function of the driver. None is ever called: programs load the real library.
fn stand_in(header: &str) -> String {
    let words = header.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let is_function = |word: &&str| {
        word.strip_prefix("cu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()))
    };
    let mut text = String::new();
    for name in words.filter(is_function).collect::<BTreeSet<_>>() {
        let _ = writeln!(text, "void {name}(void) {{}}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_function_that_the_header_names_is_defined_once() {
        let header =
            "#define cuCtxCreate cuCtxCreate_v2\nCUresult CUDAAPI cuInit(unsigned int Flags); cuda_x\n";
        let text = stand_in(&format!("{header}{header}"));
        let defined: Vec<&str> = text.lines().collect();
        assert_eq!(
            defined,
            ["void cuCtxCreate(void) {}", "void cuCtxCreate_v2(void) {}", "void cuInit(void) {}"]
        );
    }
}

//! The files that a borrowed machine needs, listed or packed in pieces.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use setup::tooling::process::{command, succeeds};
use setup::tooling::{BadInput, Reporter};
use setup::{Layout, Piece, Target as Device};

use super::fatbin;
use crate::cuda;
use crate::install;
use crate::install::Target;
use crate::workspace::Workspace;

/// How it is cut.
pub(super) struct Cut {
    /// Size of a piece at most.
    pub(super) megabytes: u64,
    /// Compute capability of the GPU: 90 for 9.0.
    pub(super) capability: u32,
}

/// The directory of ONNX Runtime's libraries in an unpacked installation.
const ONNXRUNTIME: &str = "lib/onnxruntime";
/// This program there.
const GPU_RUN: &str = "gpu-run";
const ARCHIVE: &str = "gpu-run.tar.xz";

/// Prints each piece of set-up with its size and origin.
pub(super) fn list(workspace: &Workspace) -> Result<()> {
    let provision = workspace.provision(Reporter::new(true))?;
    for piece in Device::Cuda.pieces() {
        let version = provision.pinned_version(piece);
        let megabytes = provision.download_bytes(piece) / 1_000_000;
        let from = match piece {
            Piece::Cuda | Piece::LibtorchCuda => {
                "a wheel; --pack leaves it out where python3 has PyTorch with CUDA"
            }
            Piece::OnnxruntimeCuda => "a wheel; --pack carries the code of one generation of GPUs",
            Piece::Nvcc => "a wheel; only where workers are built",
            _ => "a wheel; models named synthetic: need none",
        };
        println!("{piece} {version}: {megabytes} MB, {from}");
    }
    println!("bundles are prepared there: those of synthetic models without a download");
    Ok(())
}

/// Builds everything and writes the pieces, their checksums and run.sh to `directory`.
pub(super) fn pack(workspace: &Workspace, directory: &Path, cut: &Cut, reporter: Reporter) -> Result<()> {
    ensure!(cut.megabytes > 0, BadInput("--piece 0: a number above 0".into()));
    fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    let provision = workspace.provision(reporter)?;
    provision.provide_all(&Device::Cuda.pieces())?;
    let place = workspace.binaries.with_file_name("dist");
    let shipped = workspace.shipped().built_with(place.join("build"), install::variables());
    crate::cargo::build(&shipped, &["driver", "prepare", "xtask", "tasks"], None, reporter)?;
    let staging = tempfile::Builder::new().prefix(".staging-").tempdir_in(&place)?;
    let root = staging.path().join("photofinish");
    let record = setup::BuildRecord { libtorch: None, ..install::record(&shipped)? };
    install::put(&shipped, &["prepare".to_owned()], &record, &Target::below(&root))?;
    let gpu_workers = setup::gpu_workers(&Layout::below(&root).workers());
    cuda::build_for(&shipped, cut.capability, (place.join("cuda"), &gpu_workers), reporter)?;
    copy(&shipped.binary("tasks"), &root.join("bin").join(GPU_RUN))?;
    carry_onnxruntime(&provision.place(Piece::OnnxruntimeCuda)?, &root.join(ONNXRUNTIME), cut.capability)?;
    // Debugging symbols are left out.
    for program in programs(&root) {
        ensure!(succeeds(command("strip").arg(&program))?, "{} cannot be stripped", program.display());
    }
    let archive = staging.path().join(ARCHIVE);
    let packed = succeeds(
        command("tar").env("XZ_OPT", "-T0").arg("-cJf").arg(&archive).arg("-C").arg(&root).arg("."),
    )?;
    ensure!(packed, "tar could not write {}: it needs xz", archive.display());
    cut_up(&archive, directory, cut.megabytes)
}

fn programs(root: &Path) -> Vec<PathBuf> {
    let layout = Layout::below(root);
    let directories = [root.join("bin"), layout.workers(), setup::gpu_workers(&layout.workers())];
    let entries = directories.iter().flat_map(|directory| fs::read_dir(directory).into_iter().flatten());
    entries.flatten().map(|entry| entry.path()).filter(|path| path.is_file()).collect()
}

/// Copies the libraries in `library`'s directory, the provider with the code of one generation alone.
fn carry_onnxruntime(library: &Path, to: &Path, capability: u32) -> Result<()> {
    fs::create_dir_all(to)?;
    let from = library.parent().context("a library is in a directory")?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let path = entry?.path();
        let mut bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        fatbin::keep(&mut bytes, capability);
        fs::write(to.join(path.file_name().context("a file has a name")?), bytes)?;
    }
    Ok(())
}

/// ONNX Runtime's library in an unpacked installation.
pub(super) fn onnxruntime(root: &Path) -> Result<PathBuf> {
    let directory = root.join(ONNXRUNTIME);
    let entries = fs::read_dir(&directory).with_context(|| format!("cannot read {}", directory.display()))?;
    let mut paths = entries.flatten().map(|entry| entry.path());
    let is_it = |path: &PathBuf| path.to_string_lossy().contains("libonnxruntime.so");
    paths.find(is_it).with_context(|| format!("{} holds no libonnxruntime.so", directory.display()))
}

/// Cuts the archive into numbered pieces, and writes the script that joins them.
fn cut_up(archive: &Path, directory: &Path, megabytes: u64) -> Result<()> {
    let bytes = fs::read(archive)?;
    let size = usize::try_from(megabytes * 1_000_000)?;
    let mut sums = String::new();
    for (number, piece) in bytes.chunks(size).enumerate() {
        let name = format!("piece-{number:02}");
        let file = directory.join(&name);
        fs::write(&file, piece).with_context(|| format!("cannot write {}", file.display()))?;
        sums += &format!("{}  {name}\n", setup::sha256(&file)?);
        println!("{}: {:.1} MB", file.display(), piece.len() as f64 / 1e6);
    }
    fs::write(directory.join("SHA256SUMS"), sums)?;
    fs::write(directory.join("run.sh"), RUN)?;
    println!("there: sh {}/run.sh --minutes 9 --results-dir DIR", directory.display());
    Ok(())
}

/// Unpacks once, then hands over.
const RUN: &str = "#!/bin/sh
# Unpacks the pieces beside this file, once, and runs `cargo xtask gpu-run` with these arguments.
set -e
here=$(cd \"$(dirname \"$0\")\" && pwd)
root=${PHOTOFINISH_ROOT:-$here/photofinish}
if [ ! -f \"$root/unpacked\" ]; then
    (cd \"$here\" && sha256sum --check --quiet SHA256SUMS)
    mkdir -p \"$root\"
    cat \"$here\"/piece-* | tar -xJ -C \"$root\"
    touch \"$root/unpacked\"
fi
exec \"$root/bin/gpu-run\" gpu-run --installed \"$root\" \"$@\"
";

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    Ok(())
}

//! Files that a linker needs from CUDA and that NVIDIA's wheels lack: libraries under the expected names, and
//! a substitute for the driver's `libcuda.so`, which a machine without a card does not have.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use setup::{Piece, Provision};
use tooling::process::{command, cxx_compiler, succeeds};

/// Libraries that candle is linked with, as they are called with their version.
const LIBRARIES: [&str; 5] =
    ["libcudart.so.13", "libcublas.so.13", "libcublasLt.so.13", "libcurand.so.10", "libnvrtc.so.13"];
/// The name under which the driver's library is looked for when a program starts.
pub(super) const DRIVER: &str = "libcuda.so.1";

/// Fills `directory` with it.
pub(super) fn fill(directory: &Path, provision: &Provision) -> Result<()> {
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

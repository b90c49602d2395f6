//! NVIDIA's management library for tests. The shared library of this crate exports the functions of NVML that
//! crate `gpu` calls, and answers them from a [`Script`] in a file next to it: `libnvidia-ml.so.1` reads
//! `libnvidia-ml.so.1.json`. So one process can open several different ones, and a comparison's driver and
//! workers the same one.
//!
//! A process that pretends to use a GPU ([`play`]) is listed with the memory that it claims.

mod exports;
mod played;
mod script;

use std::path::{Path, PathBuf};

pub use played::{Played, play};
pub use script::{Device, Process, Script};

/// The name that programs look for.
const NAME: &str = "libnvidia-ml.so.1";

/// Installs the library with its script into `directory`, and returns its path.
pub fn install(directory: &Path, script: &Script) -> std::io::Result<PathBuf> {
    let library = directory.join(NAME);
    std::fs::copy(built()?, &library)?;
    std::fs::write(script_of(&library), serde_json::to_vec_pretty(script)?)?;
    Ok(library)
}

/// Changes the answers of an installed library from the next call on.
pub fn change(library: &Path, script: &Script) -> std::io::Result<()> {
    // Whole or not at all: another process may be reading it.
    let new = library.with_extension("new");
    std::fs::write(&new, serde_json::to_vec_pretty(script)?)?;
    std::fs::rename(new, script_of(library))
}

fn script_of(library: &Path) -> PathBuf {
    let mut name = library.as_os_str().to_owned();
    name.push(".json");
    PathBuf::from(name)
}

/// The shared library that cargo built with this crate: in the directory of the program's dependencies, where
/// a test's own program is, or one directory further down.
fn built() -> std::io::Result<PathBuf> {
    let program = std::env::current_exe()?;
    let directory = program.parent().unwrap_or(Path::new("."));
    let name = format!("{}nvml_fake{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    let places = [directory.join(&name), directory.join("deps").join(&name)];
    places.into_iter().find(|place| place.is_file()).ok_or_else(|| {
        let place = directory.display();
        std::io::Error::other(format!("{name} is not in {place}: `cargo build -p nvml-fake` makes it"))
    })
}

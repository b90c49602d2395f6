//! The files needed to run a contender without its model, measured on this machine.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use comparison::facts::evidence::Shipped;
use comparison::plan::{Contender, HugePages, Request};
use configs::Engine;
use protocol::Hello;
use protocol::untrusted;
use serde::Serialize;
use setup::tooling::Scratch;
use setup::tooling::process::{cargo, command, output_of};

use crate::measure::places::Places;
use crate::measure::worker::{self, Worker};

/// Number of times that a worker is started.
const STARTS: usize = 7;
const TIMEOUT_S: u64 = 60;
/// Variables that name a worker's Python packages, and the directory of all of them.
const REFERENCE: &str = "PHOTOFINISH_REFERENCE";
const REFERENCES: &str = "PHOTOFINISH_REFERENCES";
/// Directories of the system's own libraries.
const SYSTEM: [&str; 4] = ["/lib/", "/lib64/", "/usr/lib/", "/usr/lib64/"];

/// The shipped files, in bytes, and the libraries required of the system.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Footprint {
    pub framework: String,
    pub shipped_bytes: u64,
    pub files: usize,
    /// The worker itself, stripped of symbols; `None` for one in Python.
    pub binary_bytes: Option<u64>,
    /// Its shared libraries and their dependencies, by file name.
    pub libraries: BTreeMap<String, u64>,
    /// The environment of a worker in Python: its packages and the worker's own sources, without the
    /// interpreter's library.
    pub environment_bytes: Option<u64>,
    pub system: Vec<String>,
    /// Crates that the worker is compiled from, or Python packages; `None` outside a checkout.
    pub packages: Option<usize>,
    /// From starting the process to its hello, milliseconds: the median of several starts.
    pub startup_ms: f64,
    /// Time and size of builds from scratch, if they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub builds: Option<Builds>,
}

#[derive(Debug, Clone, Copy, Serialize)]
pub struct Builds {
    /// Seconds of cargo's usual build of all crates, without downloads.
    pub cold_build_s: f64,
    /// Bytes of the program optimised for size: profile `smallest`.
    pub smallest_bytes: u64,
}

/// Measures a contender. The error is why it cannot run here, or what could not be read.
#[expect(clippy::disallowed_methods, reason = "the time that a worker takes to start is what is asked")]
pub fn footprint(places: &Places, engine: &Engine, builds: bool) -> Result<Footprint> {
    let contender = Contender::new(engine.name.clone(), engine.clone(), &Request::default(), 1);
    let worker = worker::worker(&contender, None, places, (TIMEOUT_S, HugePages::On));
    let mut startup_ms = Vec::new();
    let mut hello = None;
    for _ in 0..STARTS {
        let begun = Instant::now();
        hello = Some(worker.hello().map_err(anyhow::Error::msg)?);
        startup_ms.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    let mut found = files(&worker, hello.as_ref())?;
    found.framework.clone_from(&engine.name);
    found.startup_ms = statistics::median(&startup_ms).unwrap_or_default();
    let checkout = places.checkout.as_deref();
    if let Some(checkout) = checkout.filter(|_| found.packages.is_none()) {
        found.packages = crates(checkout, &engine.worker);
    }
    if builds && found.binary_bytes.is_some() {
        let checkout = checkout.context("its builds can be measured in a checkout alone")?;
        found.builds = Some(built(checkout, &engine.worker)?);
    }
    Ok(found)
}

/// Size of the files needed to run a worker: only the part of the footprint that is quick to read. `None` if it cannot be
/// read here.
pub(crate) fn shipped(worker: &Worker, hello: &Hello) -> Option<Shipped> {
    let found = files(worker, Some(hello)).ok()?;
    Some(Shipped { bytes: found.shipped_bytes, files: found.files })
}

/// Only sizes and libraries.
fn files(worker: &Worker, hello: Option<&Hello>) -> Result<Footprint> {
    if let Some(packages) = worker.environment.get(REFERENCE) {
        return in_python(worker, packages);
    }
    let (binary, environment) = (&worker.binary, &worker.environment);
    let mut all = needed(binary, environment)?;
    let library =
        hello.and_then(|hello| hello.library_path.as_ref()).map(|path| PathBuf::from(path.as_str()));
    if let Some(library) = library.filter(|library| library.is_file()) {
        all.extend(needed(&library, environment)?);
        all.insert(library);
    }
    let mut found = Footprint { binary_bytes: Some(stripped(binary)?), files: 1, ..Footprint::default() };
    found.shipped_bytes = found.binary_bytes.unwrap_or_default();
    for path in all {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if SYSTEM.iter().any(|directory| path.starts_with(directory)) {
            found.system.push(name);
            continue;
        }
        let bytes = size(&path)?;
        if found.libraries.insert(name, bytes).is_none() {
            found.shipped_bytes += bytes;
            found.files += 1;
        }
    }
    Ok(found)
}

/// A worker in Python: everything in its environment, and its own sources.
fn in_python(worker: &Worker, packages: &str) -> Result<Footprint> {
    let directory = worker.environment.get(REFERENCES).map(PathBuf::from).unwrap_or_default();
    let receipt = directory.join(format!("{packages}.python"));
    let interpreter = untrusted::file::read_text(&receipt, untrusted::file::CONFIG)
        .with_context(|| receipt.display().to_string())?;
    // `venv/bin/python`, relative to that directory.
    let interpreter = directory.join(interpreter.trim());
    let environment = interpreter.parent().and_then(Path::parent);
    let mut found = Footprint { packages: Some(0), ..Footprint::default() };
    found.add(environment.context("its interpreter is in no environment")?)?;
    let sources = worker.binary.parent().map(|parent| parent.join("reference_worker"));
    if let Some(sources) = sources.filter(|sources| sources.is_dir()) {
        found.add(&sources)?;
    }
    found.environment_bytes = Some(found.shipped_bytes);
    found.system = vec!["the Python that the environment was made with".into()];
    Ok(found)
}

impl Footprint {
    /// Adds the files of a directory, and the packages of Python that are installed there.
    fn add(&mut self, directory: &Path) -> Result<()> {
        let failed = || directory.display().to_string();
        for entry in std::fs::read_dir(directory).with_context(failed)? {
            let entry = entry.with_context(failed)?;
            // Links lead to the system's interpreter, or to files that are counted at their own place.
            let metadata = entry.path().symlink_metadata().with_context(failed)?;
            let file_name = entry.file_name();
            if metadata.is_dir() && file_name != "__pycache__" {
                let is_package = file_name.to_string_lossy().ends_with(".dist-info");
                self.packages = self.packages.map(|count| count + usize::from(is_package));
                self.add(&entry.path())?;
            } else if metadata.is_file() {
                self.shipped_bytes += metadata.len();
                self.files += 1;
            }
        }
        Ok(())
    }
}

/// The shared libraries of a program or library, by the system's own loader.
fn needed(file: &Path, environment: &BTreeMap<String, String>) -> Result<BTreeSet<PathBuf>> {
    let output = command("ldd").arg(file).envs(environment).stdin(Stdio::null()).output();
    let output = output.context("ldd, which lists libraries, cannot be started")?;
    let mut libraries = BTreeSet::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        // "libm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x…)", or a path alone for the loader.
        let (library, path) = line.trim().split_once(" => ").unwrap_or((line.trim(), line.trim()));
        if path.starts_with("not found") {
            bail!("{} needs {library}, which is not found", file.display());
        }
        let path = path.split(" (").next().unwrap_or_default();
        if path.starts_with('/') {
            libraries.insert(PathBuf::from(path));
        }
    }
    Ok(libraries)
}

/// Bytes of a program without its symbols.
fn stripped(program: &Path) -> Result<u64> {
    let scratch = Scratch::new()?;
    let copy = scratch.path().join("stripped");
    output_of(command("strip").arg("-o").arg(&copy).arg(program))?;
    size(&copy)
}

/// External crates that a worker is compiled from, as cargo resolves them.
fn crates(checkout: &Path, package: &str) -> Option<usize> {
    let arguments = ["tree", "--package", package, "--edges", "normal", "--prefix", "none"];
    let text = output_of(cargo(checkout).args(arguments)).ok()?;
    // Our own have a path after their version.
    let others = text.lines().filter(|line| !line.is_empty() && !line.contains(" (/"));
    Some(others.map(|line| line.trim_end_matches(" (*)")).collect::<BTreeSet<_>>().len())
}

/// Builds a worker twice from scratch.
#[expect(clippy::disallowed_methods, reason = "the time of a build is what is asked")]
fn built(checkout: &Path, package: &str) -> Result<Builds> {
    output_of(cargo(checkout).args(["fetch", "--locked"]))?;
    let build = |profile: &str| -> Result<(f64, u64)> {
        let scratch = Scratch::new()?;
        let begun = Instant::now();
        let mut command = cargo(checkout);
        command.args(["build", "--locked", "--package", package, "--profile", profile, "--target-dir"]);
        output_of(command.arg(scratch.path()))?;
        let seconds = begun.elapsed().as_secs_f64();
        Ok((seconds, size(&scratch.path().join(profile).join(package))?))
    };
    let (cold_build_s, _) = build("release")?;
    let (_, smallest_bytes) = build("smallest")?;
    Ok(Builds { cold_build_s, smallest_bytes })
}

fn size(file: &Path) -> Result<u64> {
    let metadata = std::fs::metadata(file).with_context(|| file.display().to_string())?;
    Ok(metadata.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_packages_of_an_environment_are_counted_once() {
        let scratch = Scratch::new().unwrap();
        let root = &scratch.path().join("environment");
        std::fs::create_dir_all(root.join("lib/a-1.dist-info")).unwrap();
        std::fs::create_dir_all(root.join("lib/__pycache__")).unwrap();
        for (file, bytes) in [("lib/a.py", 3), ("lib/a-1.dist-info/RECORD", 4), ("lib/__pycache__/a.pyc", 9)]
        {
            std::fs::write(root.join(file), vec![0; bytes]).unwrap();
        }
        std::os::unix::fs::symlink(root.join("lib/a.py"), root.join("lib/b.py")).unwrap();
        let mut found = Footprint { packages: Some(0), ..Footprint::default() };
        found.add(root).unwrap();
        assert_eq!((found.shipped_bytes, found.files, found.packages), (7, 2, Some(1)));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_program_s_libraries_are_those_that_it_is_loaded_with() {
        let own = std::env::current_exe().unwrap();
        let libraries = needed(&own, &BTreeMap::new()).unwrap();
        assert!(libraries.iter().any(|path| path.to_string_lossy().contains("libc.so")), "{libraries:?}");
        assert!(libraries.iter().all(|path| path.is_file()));
    }
}

//! The files needed to run a contender without its model, measured on this machine.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use comparison::facts::evidence::Shipped;
use comparison::plan::{Contender, Failure, HugePages, Request, Result};
use configs::Engine;
use protocol::Hello;
use protocol::untrusted;
use serde::Serialize;
use setup::tooling::Scratch;

use crate::measure::places::Places;
use crate::measure::worker;
use crate::measure::worker::Worker;

/// Number of times that a worker is started.
const STARTS: usize = 7;
const TIMEOUT_S: u64 = 60;
/// Variables that name a worker's Python packages, and the directory of all of them.
const REFERENCE: &str = "PHOTOFINISH_REFERENCE";
const REFERENCES: &str = "PHOTOFINISH_REFERENCES";
/// Directories of the system's own libraries.
const SYSTEM: [&str; 4] = ["/lib/", "/lib64/", "/usr/lib/", "/usr/lib64/"];

/// The shipped files, in bytes, and the libraries required of the system.
#[derive(Debug, Clone, Serialize)]
pub struct Footprint {
    pub framework: String,
    /// Bytes of all shipped files.
    pub shipped_bytes: u64,
    pub files: usize,
    /// The worker itself, stripped of symbols; `None` for one in Python.
    pub binary_bytes: Option<u64>,
    /// Its shared libraries and their dependencies, by file name.
    pub libraries: BTreeMap<String, u64>,
    /// The environment of a worker in Python: its packages and the worker's own sources, without the
    /// interpreter's library.
    pub environment_bytes: Option<u64>,
    /// Libraries required of the system.
    pub system: Vec<String>,
    /// Crates that the worker is compiled from, or Python packages; `None` outside a checkout.
    pub packages: Option<usize>,
    /// From starting the process to its hello, milliseconds: the median of several starts.
    pub startup_ms: f64,
    /// Time and size of builds from scratch, if they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub builds: Option<Builds>,
}

/// Builds of a worker from scratch.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Builds {
    /// Seconds of cargo's usual build of all crates, without downloads.
    pub cold_build_s: f64,
    /// Bytes of the program optimised for size: profile `smallest`.
    pub smallest_bytes: u64,
}

/// Measures a contender.
///
/// # Errors
/// Why it cannot run here, or what could not be read.
#[expect(clippy::disallowed_methods, reason = "the time that a worker takes to start is what is asked")]
pub fn footprint(places: &Places, engine: &Engine, builds: bool) -> std::result::Result<Footprint, String> {
    let contender = Contender::new(engine.name.clone(), engine.clone(), &Request::default(), 1);
    let worker = worker::worker(&contender, None, places, (TIMEOUT_S, HugePages::On));
    let mut startup_ms = Vec::new();
    let mut hello = None;
    for _ in 0..STARTS {
        let begun = Instant::now();
        hello = Some(worker.hello()?);
        startup_ms.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    let startup_ms = statistics::median(&startup_ms).unwrap_or_default();
    let looked = looked_at(&engine.name, &worker, hello.as_ref())?;
    let checkout = places.checkout.as_deref();
    let packages = looked.packages.or_else(|| crates(checkout?, &engine.worker));
    let builds = match (builds && looked.binary_bytes.is_some(), checkout) {
        (true, Some(checkout)) => Some(built(checkout, &engine.worker)?),
        (true, None) => return Err("its builds can be measured in a checkout alone".into()),
        (false, _) => None,
    };
    Ok(Footprint { startup_ms, packages, builds, ..looked })
}

/// Size of the files needed to run a worker: only the part of the footprint that is quick to read. `None` if
/// it cannot be read here.
pub(crate) fn shipped(worker: &Worker, hello: &Hello) -> Option<Shipped> {
    let looked = looked_at("", worker, Some(hello)).ok()?;
    Some(Shipped { bytes: looked.shipped_bytes, files: looked.files })
}

/// Only sizes and libraries.
fn looked_at(
    name_of: &str,
    worker: &Worker,
    hello: Option<&Hello>,
) -> std::result::Result<Footprint, String> {
    let base = Footprint {
        framework: name_of.to_owned(),
        shipped_bytes: 0,
        files: 0,
        binary_bytes: None,
        libraries: BTreeMap::new(),
        environment_bytes: None,
        system: Vec::new(),
        packages: None,
        startup_ms: 0.0,
        builds: None,
    };
    if let Some(packages) = worker.environment.get(REFERENCE) {
        return in_python(worker, packages, base);
    }
    let library =
        hello.and_then(|hello| hello.library_path.as_ref()).map(|path| PathBuf::from(path.as_str()));
    let (binary, environment) = (&worker.binary, &worker.environment);
    let mut all = needed(binary, environment)?;
    if let Some(library) = library.filter(|library| library.is_file()) {
        all.extend(needed(&library, environment)?);
        all.insert(library);
    }
    let is_system = |path: &PathBuf| SYSTEM.iter().any(|directory| path.starts_with(directory));
    let (system, shipped): (BTreeSet<PathBuf>, BTreeSet<PathBuf>) = all.into_iter().partition(is_system);
    let binary_bytes = stripped(binary)?;
    let libraries = shipped.iter().map(|path| Ok((name(path), size(path)?)));
    let libraries: BTreeMap<String, u64> = libraries.collect::<std::result::Result<_, String>>()?;
    Ok(Footprint {
        shipped_bytes: binary_bytes + libraries.values().sum::<u64>(),
        files: 1 + libraries.len(),
        binary_bytes: Some(binary_bytes),
        libraries,
        system: system.iter().map(|path| name(path)).collect(),
        ..base
    })
}

/// A worker in Python: everything in its environment, and its own sources.
fn in_python(worker: &Worker, packages: &str, base: Footprint) -> std::result::Result<Footprint, String> {
    let directory = worker.environment.get(REFERENCES).map(PathBuf::from).unwrap_or_default();
    let receipt = directory.join(format!("{packages}.python"));
    let interpreter = untrusted::file::read_text(&receipt, untrusted::file::CONFIG)
        .map_err(|error| format!("{}: {error}", receipt.display()))?;
    // `venv/bin/python`, relative to that directory.
    let environment = directory.join(interpreter.trim());
    let environment =
        environment.parent().and_then(Path::parent).ok_or("its interpreter is in no environment")?;
    let sources = worker.binary.parent().map(|parent| parent.join("reference_worker"));
    let mut found = Walked::default();
    found.walk(environment)?;
    if let Some(sources) = sources.filter(|sources| sources.is_dir()) {
        found.walk(&sources)?;
    }
    Ok(Footprint {
        shipped_bytes: found.bytes,
        files: found.files,
        environment_bytes: Some(found.bytes),
        system: vec!["the Python that the environment was made with".into()],
        packages: Some(found.packages),
        ..base
    })
}

/// Files of a directory.
#[derive(Debug, Default)]
struct Walked {
    bytes: u64,
    files: usize,
    /// Installed packages of Python.
    packages: usize,
}

impl Walked {
    fn walk(&mut self, directory: &Path) -> std::result::Result<(), String> {
        let failed = |error: std::io::Error| format!("{}: {error}", directory.display());
        for entry in std::fs::read_dir(directory).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            // Links lead to the system's interpreter, or to files that are counted at their own place.
            let metadata = entry.path().symlink_metadata().map_err(failed)?;
            let file_name = entry.file_name();
            if metadata.is_dir() && file_name != "__pycache__" {
                self.packages += usize::from(file_name.to_string_lossy().ends_with(".dist-info"));
                self.walk(&entry.path())?;
            } else if metadata.is_file() {
                self.bytes += metadata.len();
                self.files += 1;
            }
        }
        Ok(())
    }
}

/// The shared libraries of a program or library, by the system's own loader.
#[expect(clippy::disallowed_methods, reason = "a tool of the system, and no worker")]
fn needed(
    file: &Path,
    environment: &BTreeMap<String, String>,
) -> std::result::Result<BTreeSet<PathBuf>, String> {
    let output = Command::new("ldd").arg(file).envs(environment).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("ldd, which lists libraries, cannot be started: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut libraries = BTreeSet::new();
    for line in text.lines() {
        // "libm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x…)", or a path alone for the loader.
        let (library, path) = line.trim().split_once(" => ").unwrap_or((line.trim(), line.trim()));
        if path.starts_with("not found") {
            return Err(format!("{} needs {library}, which is not found", file.display()));
        }
        let path = path.split(" (").next().unwrap_or_default();
        if path.starts_with('/') {
            libraries.insert(PathBuf::from(path));
        }
    }
    Ok(libraries)
}

/// Bytes of a program without its symbols.
#[expect(clippy::disallowed_methods, reason = "a tool of the system, and no worker")]
fn stripped(program: &Path) -> std::result::Result<u64, String> {
    let scratch = Scratch::new().map_err(|error| format!("no temporary directory: {error}"))?;
    let copy = scratch.path().join("stripped");
    let done = Command::new("strip").arg("-o").arg(&copy).arg(program).stdin(Stdio::null()).output();
    match done {
        Ok(output) if output.status.success() => size(&copy),
        Ok(output) => Err(format!("strip: {}", String::from_utf8_lossy(&output.stderr).trim())),
        Err(error) => Err(format!("strip, which removes symbols, cannot be started: {error}")),
    }
}

/// External crates that a worker is compiled from, as cargo resolves them.
fn crates(checkout: &Path, package: &str) -> Option<usize> {
    let arguments = ["tree", "--package", package, "--edges", "normal", "--prefix", "none"];
    let output = cargo(checkout).args(arguments).stderr(Stdio::null()).output().ok()?;
    let text = String::from_utf8(output.stdout).ok().filter(|_| output.status.success())?;
    // Our own have a path after their version.
    let others: BTreeSet<&str> =
        text.lines().filter(|line| !line.contains(" (/")).map(|line| line.trim_end_matches(" (*)")).collect();
    Some(others.iter().filter(|line| !line.is_empty()).count())
}

/// Builds a worker twice from scratch.
#[expect(clippy::disallowed_methods, reason = "the time of a build is what is asked")]
fn built(checkout: &Path, package: &str) -> std::result::Result<Builds, String> {
    let fetched =
        cargo(checkout).args(["fetch", "--locked"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !fetched.is_ok_and(|status| status.success()) {
        return Err("cargo fetch failed: the crates could not be downloaded".into());
    }
    let build = |profile: &str| {
        let scratch = Scratch::new().map_err(|error| format!("no temporary directory: {error}"))?;
        let begun = Instant::now();
        let mut command = cargo(checkout);
        command.args(["build", "--locked", "--package", package, "--profile", profile, "--target-dir"]);
        let output = command.arg(scratch.path()).stdout(Stdio::null()).output();
        let output = output.map_err(|error| format!("cargo cannot be started: {error}"))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let error = said.lines().find(|line| line.starts_with("error")).unwrap_or("error");
            return Err(format!("cargo build --profile {profile}: {error}"));
        }
        let seconds = begun.elapsed().as_secs_f64();
        Ok((seconds, size(&scratch.path().join(profile).join(package))?))
    };
    let (cold_build_s, _) = build("release")?;
    let (_, smallest_bytes) = build("smallest")?;
    Ok(Builds { cold_build_s, smallest_bytes })
}

#[expect(clippy::disallowed_methods, reason = "cargo is no worker")]
fn cargo(checkout: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(checkout).stdin(Stdio::null());
    command
}

fn size(file: &Path) -> std::result::Result<u64, String> {
    std::fs::metadata(file)
        .map(|metadata| metadata.len())
        .map_err(|error| format!("{}: {error}", file.display()))
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Rejects a machine on which programs cannot be examined.
///
/// # Errors
/// One sentence.
pub fn check() -> Result<()> {
    if cfg!(target_os = "linux") {
        return Ok(());
    }
    Err(Failure::usage("footprint reads Linux programs, by ldd and strip: run it on Linux"))
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
        #[cfg(unix)]
        std::os::unix::fs::symlink(root.join("lib/a.py"), root.join("lib/b.py")).unwrap();
        let mut found = Walked::default();
        found.walk(root).unwrap();
        assert_eq!((found.bytes, found.files, found.packages), (7, 2, 1));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_program_s_libraries_are_those_that_it_is_loaded_with() {
        let own = std::env::current_exe().unwrap();
        let libraries = needed(&own, &BTreeMap::new()).unwrap();
        assert!(libraries.iter().any(|path| name(path).starts_with("libc.so")), "{libraries:?}");
        assert!(libraries.iter().all(|path| path.is_file()));
    }
}

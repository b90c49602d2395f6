//! Native libraries, the model and references, by crate `setup`: provided by `photofinish setup`, or by a run
//! itself if they are missing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::bail;
use configs::{Engine, Versions};
use plan::{Failure, Result};
use setup::versions::{Builder, Framework, Version, install_package, place_of_package};
use setup::{Asked, Layout, Piece, Provision, References, Target};
use tooling::Reporter;

use crate::interrupt;
use crate::places::Places;

/// Names the directory in which CUDA keeps kernels that it has compiled for a GPU. By default it is below
/// `HOME`, which workers do not have.
pub(crate) const CUDA_KERNELS: &str = "CUDA_CACHE_PATH";

/// The variable with the system's search path for shared libraries.
pub(crate) const LIBRARY_PATH: &str =
    if cfg!(target_os = "macos") { "DYLD_LIBRARY_PATH" } else { "LD_LIBRARY_PATH" };

/// The file of what can be set up.
const PINS: &str = "native.toml";

/// `photofinish setup`.
pub fn set_up(places: &Places, asked: &Asked) -> Result<()> {
    let reporter = Reporter::new(asked.quiet);
    let done = match &asked.references {
        Some(named) => references(places, asked.device).set_up(named, reporter, |_| Ok(())),
        None => provision(places, asked.quiet)?.provide_all(&asked.pieces()),
    };
    done.map_err(|error| failure(&error))
}

/// Provides all of these pieces.
pub(crate) fn pieces(places: &Places, named: &[String], quiet: bool) -> Result<()> {
    let provision = provision(places, quiet)?;
    for piece in Piece::named(named).map_err(|error| failure(&error))? {
        provision.provide(piece).map_err(|error| stopped(&error))?;
    }
    Ok(())
}

/// Provides the libraries of these engines. One that cannot be provided is a warning: its engine becomes a
/// row with its reason. An unsuitable library of the user's own is an error.
pub(crate) fn libraries(places: &Places, engines: &[Engine], quiet: bool) -> Result<()> {
    let can_run = engines.iter().filter(|engine| places.binary(&engine.worker).is_file());
    let mut named: Vec<String> = can_run.flat_map(|engine| engine.native.clone()).collect();
    named.sort();
    named.dedup();
    if named.is_empty() {
        return Ok(());
    }
    let provision = provision(places, quiet)?;
    let named = Piece::named(&named).map_err(|error| failure(&error))?;
    let pieces: BTreeSet<Piece> = named.into_iter().flat_map(|piece| piece.on(places.target)).collect();
    for &piece in &pieces {
        provision.check_given(piece).map_err(|error| failure(&error))?;
    }
    for piece in pieces {
        if let Err(error) = provision.provide(piece) {
            if interrupt::requested() {
                return Err(Failure::Interrupted);
            }
            untrusted::say!("warning: {error:#}; the run goes on without {piece}");
        }
    }
    Ok(())
}

/// Provides another library or another worker for columns with a version. A column without its version
/// becomes a row with the reason.
pub(crate) fn versions(places: &Places, engines: &[Engine], quiet: bool) -> Result<()> {
    for engine in engines.iter().filter(|engine| engine.version.is_some()) {
        let Err(error) = version(places, engine, quiet) else { continue };
        if interrupt::requested() {
            return Err(Failure::Interrupted);
        }
        absences().insert(engine.name.clone(), format!("{error:#}"));
    }
    Ok(())
}

/// Why a column has no worker in this run, if its version could not be provided.
pub fn absent(engine: &Engine) -> Option<String> {
    absences().get(&engine.name).cloned()
}

/// Columns of this run without their version, with the reasons.
fn absences() -> MutexGuard<'static, BTreeMap<String, String>> {
    static ABSENCES: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());
    ABSENCES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Provides the version that a column names.
fn version(places: &Places, engine: &Engine, quiet: bool) -> anyhow::Result<()> {
    let Some((versions, version)) = asked(engine)? else { return Ok(()) };
    if let Some(package) = &versions.package {
        let python = references(places, places.target).python(&engine.framework)?;
        let reporter = Reporter::new(quiet);
        return install_package(&places.cache, &python, package, &version, reporter).map(drop);
    }
    let mut linked = None;
    if let Some(piece) = library(versions)? {
        let provision = Provision::new(&places.directory_of(PINS), &places.cache, Reporter::new(quiet))?;
        linked = Some((piece.variable(), provision.provide_version(piece, &version)?.path));
    }
    if !is_compiled(versions, &version) {
        return Ok(());
    }
    if places.target == Target::Cuda {
        bail!("other versions of {} are built for the CPU alone so far", engine.framework);
    }
    let Some(sources) = sources(places) else {
        bail!(
            "{} is compiled with its framework, and there are no sources of it here; `cargo xtask install`, in a checkout of \
             photofinish, installs them",
            engine.worker
        );
    };
    let Versions { crates, shims, supported, .. } = versions;
    let library = linked.as_ref().map(|(variable, path)| (*variable, path.as_path()));
    let framework = Framework { worker: &engine.worker, crates, shims, supported, library };
    builder(places, &sources, quiet).build(&framework, &version).map(drop)
}

/// The path of an engine's worker.
pub(crate) fn binary(places: &Places, engine: &Engine) -> PathBuf {
    match (asked(engine), sources(places)) {
        (Ok(Some((versions, version))), Some(sources)) if is_compiled(versions, &version) => {
            builder(places, &sources, true).place(&engine.worker, &version)
        }
        _ => places.binary(&engine.worker),
    }
}

/// Directory of the workspace with the workers' sources, if there is one.
fn sources(places: &Places) -> Option<PathBuf> {
    let installed = || places.installed.as_ref().map(Layout::sources).filter(|sources| sources.is_dir());
    places.checkout.clone().or_else(installed)
}

fn builder<'a>(places: &'a Places, sources: &'a Path, quiet: bool) -> Builder<'a> {
    let flags = places.build().and_then(|build| build.rustflags);
    Builder { cache: &places.cache, sources, flags, reporter: Reporter::new(quiet) }
}

/// The version that a column names, and the source of such versions.
fn asked(engine: &Engine) -> anyhow::Result<Option<(&Versions, Version)>> {
    let (Some(versions), Some(version)) = (&engine.versions, &engine.version) else { return Ok(None) };
    Ok(Some((versions, Version::parse(version)?)))
}

/// Whether a column has a worker of its own.
fn is_compiled(versions: &Versions, version: &Version) -> bool {
    let is_build = matches!(version, Version::Build(_));
    versions.package.is_none() && (is_build || !versions.crates.is_empty())
}

/// The piece whose library a worker loads.
fn library(versions: &Versions) -> anyhow::Result<Option<Piece>> {
    Ok(Piece::named(versions.library.as_slice())?.first().copied())
}

/// Variables by which an engine's worker finds its libraries, if it does not know them itself.
pub(crate) fn variables(places: &Places, engine: &Engine) -> BTreeMap<String, String> {
    let mut variables = of_target(places, engine);
    if let Ok(Some((Versions { package: Some(package), .. }, version))) = asked(engine) {
        let place = place_of_package(&places.cache, package, &version);
        variables.insert("PHOTOFINISH_PACKAGES".to_owned(), place.display().to_string());
    }
    if let Ok(Some((versions, version))) = asked(engine)
        && let (Ok(Some(piece)), Ok(provision)) = (library(versions), provision(places, true))
    {
        let library = provision.place_of_version(piece, &version);
        let (name, path) = match versions.crates.is_empty() {
            true => (piece.variable(), library),
            // The worker is linked with it.
            false => (LIBRARY_PATH, library.join("lib")),
        };
        variables.insert(name.to_owned(), path.display().to_string());
    }
    variables
}

fn of_target(places: &Places, engine: &Engine) -> BTreeMap<String, String> {
    match places.target {
        Target::Cpu => {
            let directory = library_path(places, engine);
            let path = directory.map(|directory| (LIBRARY_PATH.to_owned(), directory.display().to_string()));
            path.into_iter().collect()
        }
        // A missing piece is no error here: the worker reports it.
        Target::Cuda => {
            let mut variables = on_gpu(places, engine).unwrap_or_default();
            let kernels = places.cache.join("cuda-kernels").display().to_string();
            variables.insert(CUDA_KERNELS.to_owned(), kernels);
            if engine.reference {
                variables.insert("PHOTOFINISH_TARGET".to_owned(), "cuda".to_owned());
            }
            variables
        }
    }
}

/// The paths of NVIDIA's libraries, and of the libraries built on them.
fn on_gpu(places: &Places, engine: &Engine) -> anyhow::Result<BTreeMap<String, String>> {
    let provision = provision(places, true)?;
    let mut variables = BTreeMap::new();
    let mut directories = BTreeSet::new();
    let named = Piece::named(&engine.native)?.into_iter().flat_map(|piece| piece.on(places.target));
    // A worker that was built for a GPU is linked with NVIDIA's libraries, whatever other pieces it needs.
    let own = places.gpu_workers().join(&engine.worker).is_file().then_some(Piece::Cuda);
    for piece in named.chain(own) {
        let is_given = std::env::var_os(piece.variable()).is_some_and(|value| !value.is_empty());
        if !is_given {
            let place = provision.place(piece)?.display().to_string();
            variables.insert(piece.variable().to_owned(), place);
        }
        directories.extend(provision.library_directories(piece)?);
    }
    if !directories.is_empty() {
        // The driver's own library may be only in the user's path.
        let users = std::env::var_os(LIBRARY_PATH).unwrap_or_default();
        let users = std::env::split_paths(&users).filter(|path| path.is_absolute());
        let path = std::env::join_paths(directories.into_iter().chain(users))?;
        variables.insert(LIBRARY_PATH.to_owned(), path.to_string_lossy().into_owned());
    }
    Ok(variables)
}

/// The directory of shared libraries that an engine's worker is linked with, if the worker itself does not
/// know it: a checkout's knows where it was built, an installation may have come from another machine.
fn library_path(places: &Places, engine: &Engine) -> Option<PathBuf> {
    let libtorch = Piece::Libtorch.to_string();
    if places.checkout.is_some() || !engine.native.contains(&libtorch) {
        return None;
    }
    let named = std::env::var_os(Piece::Libtorch.variable()).is_some_and(|value| !value.is_empty());
    let found = if named { None } else { built_with(places) };
    let found = found.or_else(|| provision(places, true).ok()?.place(Piece::Libtorch).ok())?;
    Some(found.join("lib"))
}

/// The user's own libtorch that the workers of this installation were built with, if it still exists.
fn built_with(places: &Places) -> Option<PathBuf> {
    places.build()?.libtorch.filter(|path| path.is_dir())
}

pub(crate) fn provision(places: &Places, quiet: bool) -> Result<Provision> {
    Provision::new(&places.directory_of(PINS), &places.cache, Reporter::new(quiet))
        .map_err(|error| failure(&error))
}

pub(crate) fn references(places: &Places, target: Target) -> References {
    References {
        cache: places.cache.clone(),
        sources: places.root().join("references/python"),
        binaries: places.workers.clone(),
        command: places.setup_command(),
        target,
    }
}

/// The failure of a set-up that may have been interrupted.
pub(crate) fn stopped(error: &anyhow::Error) -> Failure {
    if interrupt::requested() { Failure::Interrupted } else { failure(error) }
}

/// The failure of a set-up.
pub fn failure(error: &anyhow::Error) -> Failure {
    let text = format!("{error:#}");
    if tooling::is_bad_input(error) { Failure::usage(text) } else { Failure::failed(text) }
}

#[cfg(test)]
mod tests;

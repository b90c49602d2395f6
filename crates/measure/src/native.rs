//! Native libraries, the model and references, by crate `setup`: what `photofinish setup` brings, and what a run brings
//! by itself where it is missing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use configs::Engine;
use plan::{Failure, Result};
use setup::{Asked, Piece, Provision, References, Target};
use tooling::Reporter;

use crate::interrupt;
use crate::places::Places;

/// The variable that tells the system where libraries are.
pub(crate) const LIBRARY_PATH: &str =
    if cfg!(target_os = "macos") { "DYLD_LIBRARY_PATH" } else { "LD_LIBRARY_PATH" };

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

/// Provides the libraries of these engines. One that is not to be had is a warning: its engine becomes a row with its
/// reason. A wrong library of the user's own is an error.
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
            foreign::say!("warning: {error:#}; the run goes on without {piece}");
        }
    }
    Ok(())
}

/// Provides the libraries that columns name versions of.
pub(crate) fn versions(places: &Places, engines: &[Engine], quiet: bool) -> Result<()> {
    for (engine, version) in engines.iter().filter_map(|engine| Some((engine, engine.version.as_ref()?))) {
        let provided = provision(places, quiet)?.provide_version(loaded(engine)?, version);
        provided.map_err(|error| named(&engine.name, stopped(&error)))?;
    }
    Ok(())
}

/// The piece whose library an engine's worker loads.
fn loaded(engine: &Engine) -> Result<Piece> {
    let named = Piece::named(engine.loads.as_slice()).map_err(|error| failure(&error))?;
    named.first().copied().ok_or_else(|| Failure::usage(format!("{} loads no library", engine.name)))
}

/// The failure with the column that it is about.
fn named(name: &str, failure: Failure) -> Failure {
    match failure {
        Failure::Usage(text) => Failure::Usage(format!("{name}: {text}")),
        Failure::Failed(text) => Failure::Failed(format!("{name}: {text}")),
        other => other,
    }
}

/// Variables by which an engine's worker finds its libraries, where it does not know them by itself.
pub(crate) fn variables(places: &Places, engine: &Engine) -> BTreeMap<String, String> {
    let mut variables = of_target(places, engine);
    if let Some(version) = &engine.version
        && let (Ok(piece), Ok(provision)) = (loaded(engine), provision(places, true))
    {
        let library = provision.place_of_version(piece, version);
        variables.insert(piece.variable().to_owned(), library.display().to_string());
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
        // What cannot be found is no error here: the worker says what it lacks.
        Target::Cuda => {
            let mut variables = on_gpu(places, engine).unwrap_or_default();
            if engine.reference {
                variables.insert("PHOTOFINISH_TARGET".to_owned(), "cuda".to_owned());
            }
            variables
        }
    }
}

/// Where NVIDIA's libraries are, and the libraries that are built on them.
fn on_gpu(places: &Places, engine: &Engine) -> anyhow::Result<BTreeMap<String, String>> {
    let provision = provision(places, true)?;
    let mut variables = BTreeMap::new();
    let mut directories = BTreeSet::new();
    let named = Piece::named(&engine.native)?.into_iter().flat_map(|piece| piece.on(places.target));
    // A worker that was built for a GPU is linked with NVIDIA's libraries, whatever else it takes.
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
        let path = std::env::join_paths(directories)?;
        variables.insert(LIBRARY_PATH.to_owned(), path.to_string_lossy().into_owned());
    }
    Ok(variables)
}

/// The directory of shared libraries that an engine's worker is linked with, where the worker itself does not know it:
/// a checkout's knows where it was built, an installation may have come from another machine.
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

/// The user's own libtorch that the workers of this installation were built with, if it is still there.
fn built_with(places: &Places) -> Option<PathBuf> {
    places.build()?.libtorch.filter(|path| path.is_dir())
}

fn provision(places: &Places, quiet: bool) -> Result<Provision> {
    Provision::new(&places.pins(), &places.cache, Reporter::new(quiet)).map_err(|error| failure(&error))
}

fn references(places: &Places, target: Target) -> References {
    References {
        cache: places.cache.clone(),
        sources: places.root().join("references/python"),
        binaries: places.workers.clone(),
        command: if places.checkout.is_some() { "cargo xtask setup" } else { "photofinish setup" },
        target,
    }
}

/// The failure of a set-up that may have been interrupted.
pub(crate) fn stopped(error: &anyhow::Error) -> Failure {
    if interrupt::requested() { Failure::Interrupted } else { failure(error) }
}

fn failure(error: &anyhow::Error) -> Failure {
    let text = format!("{error:#}");
    if tooling::is_bad_input(error) { Failure::usage(text) } else { Failure::failed(text) }
}

#[cfg(test)]
mod tests;

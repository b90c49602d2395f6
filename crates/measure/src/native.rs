//! Native libraries, the model and references, by crate `setup`: what `photofinish setup` brings, and what a run brings
//! by itself where it is missing.

use std::path::PathBuf;

use configs::Engine;
use plan::{Failure, Result};
use setup::{Asked, Piece, Provision, References};
use tooling::Reporter;

use crate::interrupt;
use crate::places::Places;

/// The variable that tells the system where libraries lie.
pub(crate) const LIBRARY_PATH: &str =
    if cfg!(target_os = "macos") { "DYLD_LIBRARY_PATH" } else { "LD_LIBRARY_PATH" };

/// `photofinish setup`.
pub fn set_up(places: &Places, asked: &Asked) -> Result<()> {
    let reporter = Reporter::new(asked.quiet);
    let done = match &asked.references {
        Some(named) => references(places).set_up(named, reporter, |_| Ok(())),
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
    let pieces = Piece::named(&named).map_err(|error| failure(&error))?;
    for &piece in &pieces {
        provision.check_given(piece).map_err(|error| failure(&error))?;
    }
    for piece in pieces {
        if let Err(error) = provision.provide(piece) {
            if interrupt::requested() {
                return Err(Failure::Interrupted);
            }
            eprintln!("warning: {error:#}; the run goes on without {piece}");
        }
    }
    Ok(())
}

/// The directory of shared libraries that an engine's worker is linked with, where the worker itself does not know it:
/// a checkout's knows where it was built, an installation may have come from another machine.
pub(crate) fn library_path(places: &Places, engine: &Engine) -> Option<PathBuf> {
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

fn references(places: &Places) -> References {
    References {
        cache: places.cache.clone(),
        sources: places.root().join("references/python"),
        binaries: places.workers.clone(),
        command: if places.checkout.is_some() { "cargo xtask setup" } else { "photofinish setup" },
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

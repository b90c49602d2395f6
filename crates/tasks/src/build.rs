//! `cargo xtask build`: the driver, `prepare` and the workers, in one invocation of cargo while their libraries download.
//!
//! One invocation gives the same as several: every crate that programs share declares the same features for
//! all of them (crates `features` and `features-large`; invariant 10 of docs/explanation/architecture.md,
//! which `features.rs` tests).

use std::collections::BTreeSet;
use std::process::ExitCode;

use anyhow::{Error, Result, anyhow};
use configs::Engine;
use setup::{DERIVE, Piece, Provision, Reference, Target};
use tooling::{Reporter, interrupt, process};

use crate::cargo;
use crate::catalog::Engines;
use crate::references;
use crate::workspace::Workspace;

/// The programs of every comparison besides workers.
pub(crate) const PROGRAMS: [&str; 2] = ["driver", "prepare"];
/// Only models of `hf:` need it.
pub(crate) const HUB: &str = "hub";
/// Needs no native library, and many crates depend on it: built while libtorch downloads.
const WITHOUT_LIBRARIES: &str = "features-large";

/// The programs and libraries of one build.
#[derive(Default)]
pub(crate) struct Wanted<'a> {
    pub(crate) programs: Vec<&'a str>,
    pub(crate) engines: Vec<&'a Engine>,
    /// Pieces that no program is built with, such as a model.
    pub(crate) pieces: Vec<Piece>,
    /// Where the workers will run; those for a GPU are built elsewhere (`cuda.rs`).
    pub(crate) target: Target,
}

pub(crate) fn run(
    workspace: &Workspace,
    frameworks: &[String],
    hub: bool,
    reporter: Reporter,
) -> Result<ExitCode> {
    let engines = Engines::read(workspace)?;
    let programs = PROGRAMS.into_iter().chain(["engine-mock"]).chain(hub.then_some(HUB)).collect();
    let wanted = Wanted { programs, engines: engines.select(frameworks)?, ..Wanted::default() };
    together(workspace, &wanted, reporter)?;
    Ok(ExitCode::SUCCESS)
}

/// Provides the pieces and builds programs and workers. A worker that cannot be built is reported and stops no other; an
/// error if none of several could be, or if a program could not.
pub(crate) fn together(workspace: &Workspace, wanted: &Wanted, reporter: Reporter) -> Result<()> {
    let provision = workspace.provision(reporter.without_bars())?;
    let mut pieces = BTreeSet::new();
    for engine in &wanted.engines {
        for piece in Piece::named(&engine.native)? {
            // The user named a wrong library: nothing is missing, and the user must correct it.
            provision.check_given(piece)?;
            pieces.insert(piece);
        }
    }
    pieces.extend(&wanted.pieces);
    std::thread::scope(|scope| {
        // In the order of `Piece`: libtorch first, for which cargo waits.
        let (sender, provided) = std::sync::mpsc::channel();
        scope.spawn({
            let (provision, pieces) = (&provision, &pieces);
            move || pieces.iter().all(|&piece| sender.send((piece, provision.provide(piece))).is_ok())
        });
        let mut no_libtorch = None;
        if pieces.contains(&Piece::Libtorch) {
            // An older commit has no such package.
            if !workspace.is_apart() && !matches!(provision.find(Piece::Libtorch), Ok(Some(_))) {
                cargo::build(workspace, &[WITHOUT_LIBRARIES], None, reporter)?;
            }
            no_libtorch = provided.recv().ok().and_then(|(_, result)| result.err());
        }
        let outcome = workers(workspace, wanted, &provision, no_libtorch, reporter);
        let results: Vec<_> = provided.iter().collect();
        interrupt::check()?;
        let mut failures = outcome?;
        for (piece, result) in results {
            let Err(error) = result else { continue };
            let needed_by = |engine: &&Engine| engine.native.contains(&piece.to_string());
            if wanted.pieces.contains(&piece) || wanted.engines.iter().all(needed_by) {
                return Err(error);
            }
            failures.push(error);
        }
        for failure in failures {
            reporter.warn(&format!("{failure:#}; the comparison goes on without it"));
        }
        Ok(())
    })
}

/// Builds the programs and the workers; the workers that could not be built, if others could.
fn workers(
    workspace: &Workspace,
    wanted: &Wanted,
    provision: &Provision,
    mut no_libtorch: Option<Error>,
    reporter: Reporter,
) -> Result<Vec<Error>> {
    let has_libtorch = no_libtorch.is_none();
    let mut failures = Vec::new();
    let mut packages: Vec<&str> = Vec::new();
    let mut others = 0;
    let mut checked = BTreeSet::new();
    for engine in &wanted.engines {
        if !checked.insert((&engine.worker, &engine.framework)) {
            // Variants share a worker. References in Python also share a launcher, but not the program it
            // starts.
            continue;
        }
        match check(workspace, engine, wanted.target, has_libtorch) {
            Ok(true) => packages.push(&engine.worker),
            Ok(false) => others += 1,
            Err(error) if engine.native.contains(&Piece::Libtorch.to_string()) => {
                // Why libtorch could not be provided says more than that a worker needs it.
                failures.push(no_libtorch.take().unwrap_or(error));
            }
            Err(error) => failures.push(error),
        }
    }
    let needs_libtorch =
        wanted.engines.iter().any(|engine| engine.native.contains(&Piece::Libtorch.to_string()));
    let libtorch = needs_libtorch.then(|| provision.place(Piece::Libtorch)).transpose()?;
    let all: Vec<&str> = wanted.programs.iter().chain(&packages).copied().collect();
    let unbuilt = cargo::build_what_can_be(workspace, &all, libtorch.as_deref(), reporter)?;
    for (name, error) in unbuilt {
        if wanted.programs.contains(&name) {
            return Err(error);
        }
        packages.retain(|package| *package != name);
        failures.push(error);
    }
    if packages.is_empty() && others == 0 && !failures.is_empty() {
        let first = failures.remove(0);
        for failure in failures {
            reporter.warn(&format!("{failure:#}"));
        }
        return Err(first);
    }
    Ok(failures)
}

/// Whether cargo builds this engine's worker; an error if something is missing that it needs.
fn check(workspace: &Workspace, engine: &Engine, target: Target, has_libtorch: bool) -> Result<bool> {
    if let Some(reference) = references::behind(engine) {
        references::all(workspace, target).check(reference)?;
        return Ok(false);
    }
    if engine.worker.contains('/') {
        // A program of the user's own.
        return Ok(false);
    }
    if engine.native.contains(&Piece::Libtorch.to_string()) {
        if !has_libtorch {
            return Err(anyhow!("{} needs libtorch", engine.worker));
        }
        if process::cxx_compiler().is_none() {
            return Err(anyhow!(
                "{} needs a C++ compiler: install one (on Debian and Ubuntu: apt-get install g++) or set CXX",
                engine.worker
            ));
        }
    }
    Ok(true)
}

/// The programs of an installation besides `PROGRAMS` and the workers of these engines.
pub(crate) fn tools(engines: &[&Engine], hub: bool) -> Vec<&'static str> {
    let has_llamacpp = engines.iter().any(|engine| engine.framework == Reference::Llamacpp.to_string());
    has_llamacpp.then_some(DERIVE).into_iter().chain(hub.then_some(HUB)).collect()
}

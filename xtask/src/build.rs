//! `cargo xtask build`: the driver, `prepare`, and one worker for each framework.
//!
//! Every package is built by a cargo invocation of its own: in a shared one, cargo would unify
//! features, and one framework's would change another's binary.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::{Error, Result, anyhow};
use configs::Engine;
use setup::{Piece, Provision, Target};
use tooling::{Reporter, interrupt, process};

use crate::cargo::package;
use crate::catalog::Engines;
use crate::references;
use crate::workspace::Workspace;

pub(crate) fn run(workspace: &Workspace, frameworks: &[String], reporter: Reporter) -> Result<ExitCode> {
    let engines = Engines::read(workspace)?;
    let selected = engines.select(frameworks)?;
    let provision = workspace.provision(reporter)?;
    for name in ["driver", "prepare"] {
        package(workspace, name, &[], reporter)?;
    }
    if let Err(error) = package(workspace, "engine-mock", &[], reporter) {
        reporter.warn(&format!("{error:#}"));
    }
    workers(workspace, &selected, &provision, Target::Cpu, reporter)?;
    Ok(ExitCode::SUCCESS)
}

/// Builds the workers of these engines for a CPU, with the pieces they need, and looks for references of `target`. A worker that cannot be built is
/// reported and stops no other; an error if not one could be.
pub(crate) fn workers(
    workspace: &Workspace,
    engines: &[&Engine],
    provision: &Provision,
    target: Target,
    reporter: Reporter,
) -> Result<()> {
    // A wrong library of the user's own is for the user to mend, not a framework that is missing.
    for engine in engines {
        for piece in Piece::named(&engine.native)? {
            provision.check_given(piece)?;
        }
    }
    // Variants share a worker; references in Python share a launcher, too, but not what it starts.
    let workers: BTreeMap<(&str, &str), &Engine> =
        engines.iter().map(|engine| ((engine.worker.as_str(), engine.framework.as_str()), *engine)).collect();
    let failures: Vec<Error> = workers
        .values()
        .filter_map(|engine| worker(workspace, engine, (provision, target), reporter).err())
        .collect();
    // What the user interrupted is not missing.
    interrupt::check()?;
    if failures.len() < workers.len() {
        for failure in failures {
            reporter.warn(&format!("{failure:#}; the comparison goes on without it"));
        }
        return Ok(());
    }
    let mut failures = failures.into_iter();
    let Some(first) = failures.next() else { return Ok(()) };
    for failure in failures {
        reporter.warn(&format!("{failure:#}"));
    }
    Err(first)
}

fn worker(
    workspace: &Workspace,
    engine: &Engine,
    (provision, target): (&Provision, Target),
    reporter: Reporter,
) -> Result<()> {
    if let Some(reference) = references::behind(engine) {
        return references::all(workspace, target).check(reference);
    }
    if engine.worker.contains('/') {
        // A program of the user's own.
        return Ok(());
    }
    let pieces = Piece::named(&engine.native)?;
    let provided = pieces.iter().map(|&piece| provision.provide(piece)).collect::<Result<Vec<_>>>()?;
    if pieces.contains(&Piece::Libtorch) && process::cxx_compiler().is_none() {
        return Err(anyhow!(
            "{} needs a C++ compiler: install one (on Debian and Ubuntu: apt-get install g++) or set CXX",
            engine.worker
        ));
    }
    package(workspace, &engine.worker, &provided, reporter)
}

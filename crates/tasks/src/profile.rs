//! `cargo xtask profile`: prepares the profiling of a worker, then profiles.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Result;
use configs::Engine;
use profile::{Args, Provided};
use setup::{Piece, Provision};
use tooling::Reporter;

use crate::build::{self, Wanted};
use crate::catalog::Engines;
use crate::workspace::Workspace;

pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<ExitCode> {
    profile::require_perf()?;
    let reporter = Reporter::new(false);
    let engines = Engines::read(workspace)?;
    let engine = engines.select(&[args.framework().to_owned()])?[0];
    let provision = workspace.provision(reporter)?;
    let wanted = Wanted { programs: vec!["prepare"], engines: vec![engine], ..Wanted::default() };
    build::together(workspace, &wanted, reporter)?;
    let model = match args.model() {
        Some(path) => path.to_owned(),
        None => provision.provide(Piece::Model)?.path,
    };
    let provided = Provided {
        engine,
        worker: workspace.binary(&engine.worker),
        environment: environment(workspace, engine, &provision)?,
        prepare: workspace.binary("prepare"),
        bundles: workspace.cache.join("bundles"),
        model,
        root: workspace.root.clone(),
    };
    profile::run(args, &provided)?;
    Ok(ExitCode::SUCCESS)
}

fn environment(
    workspace: &Workspace,
    engine: &Engine,
    provision: &Provision,
) -> Result<Vec<(String, OsString)>> {
    let mut environment = workspace.environment(engine);
    for piece in Piece::named(&engine.native)? {
        environment.push((piece.variable().to_owned(), provision.provide(piece)?.path.into()));
    }
    Ok(environment)
}

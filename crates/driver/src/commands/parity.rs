//! `driver parity`: frameworks held against a reference, layer by layer, token by token, process by process.

mod found;
mod jobs;

pub(crate) use found::{Findings, Found, Repeated};

use std::io::Write;

use clap::Parser;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::cli::{Cli, CompareArgs, Format, ParityArgs, RoundsArg};
use crate::evidence::Evidence;
use crate::failure::{Failure, Result};
use crate::places::Places;
use crate::plan;
use crate::report::parity::{self as document, ParityReport};
use crate::results::Results;
use crate::rounds::Session;
use crate::{compare, environment, interrupt, text};

/// Timed processes of each framework: the fewest that tell anything of variation between them.
const PROCESSES: u32 = 3;

pub(crate) fn parity(args: &ParityArgs) -> Result<u8> {
    if args.format == Format::Csv {
        return Err(Failure::usage("parity prints a table, json or markdown"));
    }
    interrupt::listen()?;
    let started = OffsetDateTime::now_utc();
    let places = Places::find(&args.model.places)?;
    let (plan, bundle) = resolve(args, &places)?;
    let parent = args.results_dir.clone().unwrap_or_else(|| places.results());
    let environment = environment::read(&places, started.format(&Rfc3339).unwrap_or_default());
    let mut session = Session::new(&plan, &bundle, &places, args.model.quiet)?;
    let mut results = Results::create(&parent, started, "parity", "samples.jsonl")?;
    results.write("environment.json", &compare::pretty(&environment));
    results.write("plan.json", &compare::pretty(&plan));

    let mut evidence = Evidence::default();
    session.greet(&mut evidence)?;
    let prose = text::bundled(&places, &bundle);
    let found = session.parity(&mut evidence, prose, &mut results);
    session.progress.done();
    let report = ParityReport::new(&plan, &bundle, found, &evidence, environment, results.directory());

    results.write("parity.json", &report.json());
    results.write("parity.md", &document::markdown(&report));
    let unsaved = results.finish();
    crate::print(&match args.format {
        Format::Json => report.json() + "\n",
        Format::Markdown => document::markdown(&report),
        Format::Table | Format::Csv => document::table(&report),
    })?;
    match unsaved {
        Some(reason) => Err(Failure::failed(reason)),
        None if report.interrupted => Err(Failure::Interrupted),
        None => Ok(report.exit_code()),
    }
}

/// The plan of a comparison of the same frameworks on the same prompts: parity has no planning of its own.
fn resolve(args: &ParityArgs, places: &Places) -> Result<(plan::Plan, bundle::Bundle)> {
    let defaults = Cli::parse_from(["driver"]).compare;
    let mut compare = CompareArgs {
        frameworks: args.frameworks.clone(),
        model: args.model.clone(),
        prompt: args.prompt.clone(),
        prompts: args.prompts.clone(),
        new_tokens: args.new_tokens.into_iter().collect(),
        reference: args.reference.clone(),
        rounds: Some(RoundsArg::Fixed(PROCESSES)),
        ..defaults
    };
    if args.tokens.is_empty() {
        return plan::resolve(&compare, places);
    }
    // Ids are prompts in a file's form alone.
    let cannot = |e: std::io::Error| Failure::failed(format!("cannot write a temporary file: {e}"));
    let mut file = tempfile::Builder::new().suffix(".toml").tempfile().map_err(cannot)?;
    writeln!(file, "[[prompts]]\nname = \"tokens\"\ntokens = {:?}", args.tokens).map_err(cannot)?;
    compare.prompts = Some(file.path().to_path_buf());
    plan::resolve(&compare, places)
}

//! One module for each command, named as it is typed.

mod archive;
mod cache;
mod check;
mod compare;
mod diff;
mod dry_run;
pub(crate) mod encode;
mod footprint;
mod history;
mod list;
mod operators;
mod parity;
mod reference;
mod report;
mod single;
mod study;
mod trace;
mod worker_check;

use comparison::judge;
use comparison::plan::Result;

use crate::cli::{Cli, Command, ListKind};
use crate::measure;
use crate::output::print;

/// Runs the typed command, and returns its exit code.
pub(crate) fn run(cli: &Cli) -> Result<u8> {
    if let Some(Command::List(args)) = &cli.command {
        args.check()?;
    }
    // `list cache --prune` lists by itself the prepared models that it would remove.
    let lists_itself = matches!(&cli.command, Some(Command::List(args)) if args.prune);
    if cli.dry_run && !lists_itself {
        return dry_run::dry_run(cli);
    }
    match &cli.command {
        None => compare::compare(&cli.compare),
        Some(Command::Compare(args)) => compare::compare(args),
        Some(Command::Run(args)) => single::run(args),
        Some(Command::Sweep(args)) => study::run(&args.study(), &args.compare, Some(&args.cells)),
        Some(Command::Check(args)) => check::check(args),
        Some(Command::Parity(args)) => parity::parity(args),
        Some(Command::Profile(args)) => trace::profile(args),
        Some(Command::Show(args)) => report::show(args),
        Some(Command::Diff(args)) => diff::diff(args),
        Some(Command::History(args)) => history::history(args),
        Some(Command::Report(args)) => report::report(args),
        Some(Command::Setup(args)) if args.models.is_empty() => {
            measure::provision::set_up(&args.places.find()?, &args.asked).map(|()| 0)
        }
        Some(Command::Setup(args)) => cache::prepare(args),
        Some(Command::List(args)) => match args.kind {
            Some(ListKind::Cache) => cache::cache(args, cli.dry_run),
            Some(ListKind::Footprint) => footprint::footprint(args),
            _ => list::list(args),
        },
        Some(Command::Doctor(args)) => list::doctor(args),
        Some(Command::WorkerCheck(args)) => worker_check::worker_check(args),
        Some(Command::Completions { shell, places }) => list::completions(*shell, places),
        Some(Command::Man) => list::man(),
        Some(Command::TextProcess { bundle }) => measure::tokenizer::serve(bundle).map(|()| 0),
        Some(Command::MemoryProcess { bytes }) => {
            measure::machine::readings::serve(*bytes);
            Ok(0)
        }
        Some(Command::Reference { page }) => print(&reference::page(*page)).map(|()| 0),
        Some(Command::Rules) => print(&judge::report::fairness::markdown()).map(|()| 0),
    }
}

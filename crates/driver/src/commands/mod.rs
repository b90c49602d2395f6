//! One module for each command, named as it is typed.

mod ab;
mod bisect;
mod bundles;
mod check;
mod compare;
mod completions;
mod diff;
mod dry_run;
mod footprint;
mod gate;
mod history;
mod measured;
mod merge;
mod outputs;
mod packed;
mod plan;
mod report;
mod run;
mod shards;
mod single;
mod study;
mod sweep;
mod work;
mod worker_check;

use ::plan::Result;

use crate::cli::{Cli, Command};
use crate::output::print;

/// Runs the typed command, and returns its exit code.
pub(crate) fn run(cli: &Cli) -> Result<u8> {
    if cli.dry_run {
        return dry_run::dry_run(cli);
    }
    match &cli.command {
        None => compare::compare(&cli.compare),
        Some(Command::Compare(args)) => compare::compare(args),
        Some(Command::Sweep(args)) => sweep::sweep(args),
        Some(Command::Ab(args)) => ab::ab(args),
        Some(Command::Job(job)) => work::run(job),
        Some(Command::Footprint(args)) => footprint::footprint(args),
        Some(Command::Parity(args)) => work::parity::parity(args),
        Some(Command::Report(args)) => report::report(args),
        Some(Command::Plan(args)) => plan::plan(args),
        Some(Command::Run(args)) => run::run(args),
        Some(Command::Merge(args)) => merge::merge(args),
        Some(Command::Check(args)) => check::check(args),
        Some(Command::Gate(args)) => gate::gate(args),
        Some(Command::Bisect(args)) => bisect::bisect(args),
        Some(Command::Diff(args)) => diff::diff(args),
        Some(Command::History(args)) => history::history(args),
        Some(Command::Bundles(args)) => bundles::bundles(args),
        Some(Command::Completions { shell }) => completions::completions(*shell),
        Some(Command::Man) => completions::man(),
        Some(Command::WorkerCheck(args)) => worker_check::worker_check(args),
        Some(Command::Setup(args)) => measure::native::set_up(&args.places.find()?, &args.asked).map(|()| 0),
        Some(Command::TextProcess { bundle }) => measure::apart::serve(bundle).map(|()| 0),
        Some(Command::Rules) => print(&judge::report::fairness::markdown()).map(|()| 0),
    }
}

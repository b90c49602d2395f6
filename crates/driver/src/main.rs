//! `driver`: plans, spawns workers, judges what they report, and prints it. It links no framework and
//! loads no weights, so that a broken engine can break neither its build nor its run.

mod arms;
mod axes;
mod check;
mod chronicle;
mod cli;
mod compare;
mod configs;
mod environment;
mod evidence;
mod failure;
mod interrupt;
mod judge;
mod launch;
mod machine;
mod page;
mod parity;
mod places;
mod plan;
mod probing;
mod process;
mod progress;
mod prompts;
mod provision;
mod record;
mod records;
mod reference;
mod report;
mod results;
mod rounds;
mod single;
mod studies;
mod text;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

use crate::cli::{Cli, Command};
use crate::failure::{Failure, Result};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let outcome = match &cli.command {
        None => compare::compare(&cli.compare),
        Some(Command::Compare(args)) => compare::compare(args),
        Some(Command::Sweep(args)) => studies::sweep(args),
        Some(Command::Ab(args)) => studies::ab(args),
        Some(Command::Generate(args)) => single::generate(args),
        Some(Command::Score(args)) => single::score(args),
        Some(Command::Parity(args)) => parity::parity(args),
        Some(Command::Report(args)) => page::report(args),
        Some(Command::Plan(args)) => studies::shards::plan(args),
        Some(Command::Run(args)) => studies::shards::run(args),
        Some(Command::Merge(args)) => studies::merge::merge(args),
        Some(Command::Check(args)) => check::check(args),
        Some(Command::Diff(args)) => check::diff(args),
        Some(Command::History(args)) => chronicle::history(args),
        Some(Command::Rules) => print(&judge::fairness::markdown()).map(|()| 0),
    };
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            if !matches!(failure, Failure::Spoken(_)) {
                eprintln!("error: {failure}");
            }
            ExitCode::from(failure.exit_code())
        }
    }
}

/// Prints a result on stdout. A reader that has gone (`| head`) is no error.
fn print(text: &str) -> Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::failed(format!("cannot write to stdout: {e}")))
        }
        _ => Ok(()),
    }
}

//! `photofinish`: the commands that people type. The crates `plan`, `measure`, `judge` and `render` do the work. The
//! program links no framework and loads no weights, so a broken engine can break neither its build nor its run.

mod cli;
mod commands;
mod output;

use std::process::ExitCode;

use clap::Parser;
use plan::Failure;

use crate::cli::Cli;

fn main() -> ExitCode {
    let cli = Cli::parse();
    output::set_screen(&cli.screen);
    match commands::run(&cli) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            if !matches!(failure, Failure::Spoken(_)) {
                foreign::say!("error: {}", foreign::line(&failure.to_string()));
            }
            ExitCode::from(failure.exit_code())
        }
    }
}

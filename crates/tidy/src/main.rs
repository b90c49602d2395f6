//! `tidy [ROOT]`: holds a checkout to the rules; without `ROOT`, the workspace around the current directory.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use tooling::BadInput;
use tooling::process::{cargo, output_of};

fn main() -> ExitCode {
    run().map_or_else(
        |error| {
            eprintln!("error: {error:#}");
            tooling::exit_code(&error)
        },
        |()| ExitCode::SUCCESS,
    )
}

fn run() -> Result<()> {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let directory = match arguments.as_slice() {
        [] => Path::new("."),
        [root] if Path::new(root).is_dir() => Path::new(root),
        _ => return Err(BadInput("usage: tidy [ROOT], with ROOT a directory of a checkout".into()).into()),
    };
    let mut locate = cargo(directory);
    let manifest = output_of(locate.args(["locate-project", "--workspace", "--message-format", "plain"]))?;
    tidy::run(Path::new(manifest.trim_end()).parent().unwrap_or(directory))
}

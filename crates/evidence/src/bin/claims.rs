use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use evidence::claims;
use evidence::claims::claim::{self, Claim};
use evidence::claims::kept::Runner;
use evidence::claims::page::PAGE;
use setup::tooling;
use setup::tooling::BadInput;

/// Put published claims to the test: run their studies, keep the results, make docs/evidence/claims.md from them
///
/// Each claim is a file of configs/claims. What its studies write is kept in results/published/claims, small.
#[derive(Parser)]
#[command(name = "cargo xtask claims", bin_name = "cargo xtask claims")]
struct Cli {
    /// Numbers of the claims to run; all, unless given
    #[arg(long, value_name = "N,…", value_delimiter = ',')]
    only: Vec<u32>,
    /// Run nothing: make the page again from what is kept
    #[arg(long, conflicts_with = "only")]
    from_results: bool,
}

fn main() -> ExitCode {
    run(&Cli::parse()).map_or_else(
        |error| {
            eprintln!("error: {error:#}");
            tooling::exit_code(&error)
        },
        |()| ExitCode::SUCCESS,
    )
}

fn run(cli: &Cli) -> Result<()> {
    // `cargo xtask claims` starts this program there.
    let root = std::env::current_dir().context("cannot find the current directory")?;
    if !cli.from_results {
        let claims = claim::read_all(&root)?;
        let chosen = chosen(&claims, &cli.only)?;
        let own = std::env::current_exe().context("cannot find where this program is")?;
        let photofinish = own.with_file_name(format!("photofinish{}", std::env::consts::EXE_SUFFIX));
        Runner { root: root.clone(), photofinish }.run(&chosen)?;
    }
    write(&root)
}

fn chosen<'a>(claims: &'a [Claim], only: &[u32]) -> Result<Vec<&'a Claim>> {
    for number in only {
        if !claims.iter().any(|claim| claim.number == *number) {
            let known: Vec<String> = claims.iter().map(|claim| claim.number.to_string()).collect();
            return Err(
                BadInput(format!("--only {number}: there are the claims {}", known.join(", "))).into()
            );
        }
    }
    Ok(claims.iter().filter(|claim| only.is_empty() || only.contains(&claim.number)).collect())
}

fn write(root: &Path) -> Result<()> {
    let text = claims::page(root)?;
    std::fs::write(root.join(PAGE), text).with_context(|| format!("cannot write {PAGE}"))?;
    eprintln!("{PAGE} shows the results in {}", claims::kept::RESULTS);
    Ok(())
}

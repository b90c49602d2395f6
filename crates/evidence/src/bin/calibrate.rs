use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use evidence::calibrate::kept::Kept;
use evidence::calibrate::page::Options;
use evidence::calibrate::page::{self, Table};
use evidence::calibrate::recorded::{self, Recording};
use evidence::calibrate::{rules, studies};

/// Hold the statistics against simulated comparisons whose truth is known
///
/// Prints the figures with their limits and writes the page. Exit code 1 if a figure is beyond its limit.
#[derive(Parser)]
#[command(name = "cargo xtask calibrate", bin_name = "cargo xtask calibrate")]
struct Cli {
    /// Simulated comparisons of each setting
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..))]
    comparisons: u32,
    /// Seed of everything random: the same seed gives the same page
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
    /// The page [default: docs/evidence/calibration.md, with --rules decision-rules.md]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Results directories whose rounds are drawn from; COMMIT:DIR has the journal that DIR had at a commit
    #[arg(long, value_name = "DIR", num_args = 1.., default_values = studies::PUBLISHED)]
    journals: Vec<String>,
    /// Record the comparisons in these results directories in place of those of the repository, and stop: another build
    /// plays them
    #[arg(long, value_name = "DIR", num_args = 1..)]
    record: Vec<PathBuf>,
    /// Decision rules of other tools beside ours, on the same recordings; it installs their packages with pip
    #[arg(long)]
    rules: bool,
    /// With --rules --record: what was going on meanwhile, such as "beside a build"; the runs are added
    #[arg(long, value_name = "NAME", requires_all = ["rules", "record"])]
    weather: Option<String>,
}

fn main() -> ExitCode {
    run(&Cli::parse()).unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

fn run(cli: &Cli) -> Result<ExitCode> {
    if cli.rules {
        return of_rules(cli);
    }
    if !cli.record.is_empty() {
        return record(&cli.record);
    }
    let options = Options { comparisons: cli.comparisons as usize, seed: cli.seed };
    let kept = cli.journals.iter().map(|place| Kept::read(place)).collect::<Result<Vec<Kept>>>()?;
    let tables = studies::all(&options, &kept);
    let page = page::render(&options, &tables);
    print!("{page}");
    write(cli.output.as_deref().unwrap_or(Path::new("docs/evidence/calibration.md")), page.as_bytes())?;
    let failed: usize = tables.iter().map(Table::failed).sum();
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn of_rules(cli: &Cli) -> Result<ExitCode> {
    if !cli.record.is_empty() {
        let weather = cli.weather.as_deref().context("--record with --rules needs --weather NAME")?;
        rules::record(weather, &cli.record)?;
        return Ok(ExitCode::SUCCESS);
    }
    let page = rules::page(&rules::environment()?, cli.seed)?;
    print!("{page}");
    write(cli.output.as_deref().unwrap_or(Path::new("docs/evidence/decision-rules.md")), page.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// Where the recordings of the repository are.
const RECORDED: &str = "crates/evidence/recorded.jsonl.gz";

fn record(directories: &[PathBuf]) -> Result<ExitCode> {
    let mut recordings = Vec::new();
    for directory in directories {
        let journal = directory.join("samples.jsonl");
        let recording = std::fs::read_to_string(&journal)
            .map_err(Into::into)
            .and_then(|text| Recording::of_journal(&text))
            .with_context(|| format!("cannot record {}", journal.display()))?;
        println!(
            "{}: {} rounds of {}",
            directory.display(),
            recording.rounds.len(),
            recording.contenders.join(", ")
        );
        recordings.push(recording);
    }
    write(RECORDED.as_ref(), &recorded::write(&recordings)?)?;
    Ok(ExitCode::SUCCESS)
}

fn write(path: &Path, contents: &[u8]) -> Result<()> {
    std::fs::write(path, contents).with_context(|| format!("cannot write {}", path.display()))
}

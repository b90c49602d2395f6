//! Changed models, of which the accepted ones are run.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::{Result, ensure};
use bundle::Precision;
use clap::Parser;
use fuzz::models::{Ended, Model, Worker, originals, prepared};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use setup::tooling;

/// Changes models at random, prepares them, and runs those that are accepted for two tokens on each framework.
#[derive(Parser)]
struct Arguments {
    /// Stop after so many models that were accepted
    #[arg(long)]
    accepted: Option<u64>,
    /// Stop after this time
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// Seed of the changes
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Directory of the workers
    #[arg(long, default_value = "target/release")]
    workers: PathBuf,
    #[arg(long, value_delimiter = ',', default_value = "candle,tch,ort")]
    frameworks: Vec<String>,
    /// Where models are kept that are findings
    #[arg(long, default_value = "target/fuzz/models")]
    findings: PathBuf,
}

#[derive(Default)]
struct Tally {
    refused: u64,
    accepted: u64,
    runs: u64,
    computed: u64,
    findings: u64,
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    tooling::listen()?;
    let mut workers = Vec::new();
    for framework in &arguments.frameworks {
        let worker = Worker::find(framework, &arguments.workers);
        ensure!(worker.is_some(), "there is no worker of {framework} in {}", arguments.workers.display());
        workers.extend(worker);
    }
    let originals = originals()?;
    let mut tally = Tally::default();
    let begun = SystemTime::now();
    let is_enough = |tally: &Tally| match arguments.accepted {
        Some(wanted) => tally.accepted >= wanted,
        // A clock that was set back ends nothing too early.
        None => begun.elapsed().is_ok_and(|time| time.as_secs_f64() >= arguments.minutes * 60.0),
    };
    for number in 0.. {
        if is_enough(&tally) || tooling::check().is_err() {
            break;
        }
        // Each model has its own seed, so that one can be made again without those before it.
        let mut random = ChaCha8Rng::seed_from_u64(arguments.seed);
        random.set_stream(number);
        let (name, original) = &originals[random.random_range(0..originals.len())];
        let model = original.changed(&mut random);
        let precision = Precision::ALL[random.random_range(0..Precision::ALL.len())];
        let label = format!("{}-{number}-{name}", arguments.seed);
        attempt(&label, &model, precision, &workers, &arguments.findings, &mut tally)?;
    }
    let Tally { refused, accepted, runs, computed, findings } = tally;
    println!(
        "seed {}: {refused} models refused, {accepted} accepted; {runs} runs, of which {computed} computed; \
         {findings} findings",
        arguments.seed
    );
    Ok(if findings == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn attempt(
    label: &str,
    model: &Model,
    precision: Precision,
    workers: &[Worker],
    findings: &Path,
    tally: &mut Tally,
) -> Result<()> {
    let scratch = tempfile::tempdir()?;
    let bundle = match prepared(model, precision, scratch.path())? {
        Ok(bundle) => bundle,
        Err(_) => {
            tally.refused += 1;
            return Ok(());
        }
    };
    tally.accepted += 1;
    for worker in workers {
        tally.runs += 1;
        match worker.run(&bundle, precision, scratch.path())? {
            Ended::Computed => tally.computed += 1,
            Ended::Refused(_) => {}
            Ended::Finding(what) => {
                tally.findings += 1;
                println!("finding: {label} at {precision} on {}: {what}", worker.framework);
                model.write(&findings.join(format!("{label}-{precision}")))?;
            }
        }
    }
    Ok(())
}

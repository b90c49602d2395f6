//! `cargo xtask profile`: where a worker's time goes, as a table. The worker runs one job under `perf record`, which is
//! switched on for the measured iterations alone: load, warm-up and hashing are not in it.

mod parts;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::build;
use crate::catalog::Engines;
use crate::failure::BadInput;
use crate::process::{command, output_of};
use crate::report::Reporter;
use crate::setup::{Piece, Provision};
use crate::workspace::Workspace;
use parts::{Part, Sample};

/// Version of the protocol that jobs are written in (docs/protocol.md).
const PROTOCOL: u32 = 4;
/// Samples a second: not a divisor of the kernel's ticks.
const FREQUENCY: &str = "997";
/// Symbols shown of each part, and the least share that is shown.
const SYMBOLS: usize = 3;
const LEAST: f64 = 0.5;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Phase {
    Decode,
    Prefill,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A name of configs/engines
    #[arg(long, value_name = "NAME")]
    framework: String,
    #[arg(long, value_name = "P", default_value = "f32")]
    precision: String,
    #[arg(long, value_enum, default_value = "decode")]
    phase: Phase,
    /// 16 for decode, 512 for prefill, unless given
    #[arg(long, value_name = "N")]
    prompt_tokens: Option<usize>,
    /// 128 for decode, 1 for prefill, unless given
    #[arg(long, value_name = "N")]
    new_tokens: Option<usize>,
    #[arg(long, value_name = "N", default_value = "2")]
    threads: usize,
    /// A GGUF file or a Hugging Face directory; the default model, unless given
    #[arg(long, value_name = "PATH")]
    model: Option<PathBuf>,
    /// Where profile.md goes: results/profile-NAME-P-PHASE, unless given
    #[arg(long, value_name = "DIR")]
    results: Option<PathBuf>,
}

/// What of an engine's configuration goes into a job.
#[derive(Deserialize)]
struct Variant {
    #[serde(default)]
    settings: Settings,
    #[serde(default)]
    options: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
struct Settings {
    jit: Option<bool>,
}

#[derive(Deserialize)]
struct Prepared {
    bundle: PathBuf,
}

pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<ExitCode> {
    if output_of(command("perf").arg("--version")).is_err() {
        let text = "perf is not installed: on Debian and Ubuntu `apt-get install linux-perf` (or linux-tools-generic)";
        return Err(BadInput(text.into()).into());
    }
    let reporter = Reporter::new(false);
    let engines = Engines::read(workspace)?;
    let engine = engines.select(std::slice::from_ref(&args.framework))?[0];
    let provision = Provision::new(workspace, reporter)?;
    build::package(workspace, "prepare", &[], reporter)?;
    build::workers(workspace, &[engine], &provision, reporter)?;
    let source = match &args.model {
        Some(path) => path.clone(),
        None => provision.provide(Piece::Model)?.path,
    };
    let mut prepare = command(workspace.binary("prepare"));
    prepare.arg(&source).args(["--precision", &args.precision, "--quiet", "--bundles"]);
    let prepared: Prepared = serde_json::from_str(&output_of(prepare.arg(workspace.cache.join("bundles")))?)
        .context("prepare did not print a bundle's path")?;

    let scratch = tempfile::tempdir()?;
    let variant = workspace.root.join(format!("configs/engines/{}.toml", engine.name));
    let variant: Variant = toml::from_str(&std::fs::read_to_string(variant)?)?;
    let job = scratch.path().join("job.json");
    std::fs::write(&job, job_of(args, &variant, &prepared.bundle).to_string())?;
    let mut worker = vec![("OMP_NUM_THREADS", args.threads.to_string())];
    worker.extend(["RAYON_NUM_THREADS", "CANDLE_NUM_THREADS"].map(|name| (name, args.threads.to_string())));
    let mut perf = command("perf");
    perf.envs(worker);
    for (name, value) in &engine.env {
        if std::env::var_os(name).is_none_or(|value| value.is_empty()) {
            perf.env(name, workspace.expand(value));
        }
    }
    for &piece in &engine.native {
        let provided = provision.provide(piece)?;
        perf.env(provided.piece.variable(), provided.path);
    }
    record(perf, &workspace.binary(&engine.worker), &job, scratch.path())?;

    let mut report = command("perf");
    report.args(["report", "--stdio", "--no-children", "-g", "none", "--percent-limit", "0"]);
    report
        .args(["--sort", "dso,symbol", "--field-separator", ";", "--input"])
        .arg(scratch.path().join("data"));
    let samples = parts::samples(&output_of(&mut report)?);
    ensure!(!samples.is_empty(), "perf took no sample: the job was too short, or perf may not record here");
    let table = table(&parts::parts(&parts::rules(workspace, &engine.framework)?, samples));
    let page = format!("```\n{}\n```\n\n{table}", command_line(args));
    let phase = phase_name(args.phase);
    let name = format!("results/profile-{}-{}-{phase}", engine.name, args.precision);
    let directory = args.results.clone().unwrap_or_else(|| workspace.root.join(name));
    std::fs::create_dir_all(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
    std::fs::write(directory.join("profile.md"), &page)?;
    print!("{page}");
    Ok(ExitCode::SUCCESS)
}

fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Decode => "decode",
        Phase::Prefill => "prefill",
    }
}

/// Prompt and new tokens.
fn lengths(args: &Args) -> (usize, usize) {
    let (prompt, new) = match args.phase {
        Phase::Decode => (16, 128),
        Phase::Prefill => (512, 1),
    };
    (args.prompt_tokens.unwrap_or(prompt), args.new_tokens.unwrap_or(new))
}

/// A measuring job (docs/protocol.md) of mostly one phase. Which tokens are fed makes no difference to the work.
fn job_of(args: &Args, variant: &Variant, bundle: &Path) -> Value {
    let (prompt, new_tokens) = lengths(args);
    let tokens = |count: usize| (0..count).map(|i| 100 + i % 100).collect::<Vec<_>>();
    let iterations = if args.phase == Phase::Decode { 3 } else { 8 };
    json!({
        "protocol": PROTOCOL,
        "bundle": bundle,
        "settings": {
            "precision": args.precision, "device": "cpu", "threads": args.threads,
            "jit": variant.settings.jit.unwrap_or(true), "options": variant.options,
        },
        "task": {
            "kind": "measure",
            "cases": [{"prompts": [tokens(prompt)], "trace": [tokens(new_tokens)]}],
            "new_tokens": new_tokens, "decode": "forced", "kv_cache": "on",
            "warmup": {"min_iterations": 1, "max_iterations": 2, "max_ns": 30_000_000_000_u64, "settled_within": 0.05},
            "iterations": iterations, "parity": null,
        },
    })
}

/// Runs the worker under perf, which records from the end of warm-up to the last sample.
fn record(mut perf: std::process::Command, worker: &Path, job: &Path, scratch: &Path) -> Result<()> {
    let control = scratch.join("control");
    output_of(command("mkfifo").arg(&control))?;
    perf.args(["record", "--quiet", "-e", "cpu-clock", "-F", FREQUENCY, "-D", "-1", "--control"])
        .arg(format!("fifo:{}", control.display()))
        .arg("--output")
        .arg(scratch.join("data"))
        .arg("--")
        .arg(worker);
    let mut child =
        perf.stdin(File::open(job)?).stdout(Stdio::piped()).spawn().context("cannot start perf")?;
    // For reading as well, so that opening does not wait for perf.
    let mut control = File::options().read(true).write(true).open(&control)?;
    let mut failed = None;
    for line in BufReader::new(child.stdout.take().context("perf has no output")?).lines() {
        let event: Value = serde_json::from_str(&line?).context("the worker sent a line that is no event")?;
        match event["event"].as_str() {
            Some("warmup") => control.write_all(b"enable\n")?,
            Some("iteration") if event["index"] == 0 => control.write_all(b"disable\n")?,
            Some("failed") => failed = event["reason"].as_str().map(str::to_owned),
            _ => {}
        }
    }
    let status = child.wait()?;
    if let Some(reason) = failed {
        bail!("the worker failed: {reason}");
    }
    ensure!(status.success(), "perf record ended with {status}; what it printed says why");
    Ok(())
}

fn command_line(args: &Args) -> String {
    let (prompt, new) = lengths(args);
    format!(
        "cargo xtask profile --framework {} --precision {} --phase {} --prompt-tokens {prompt} --new-tokens {new} --threads {}",
        args.framework,
        args.precision,
        phase_name(args.phase),
        args.threads
    )
}

fn table(parts: &[Part]) -> String {
    let mut text = "| part | share | most of it in |\n|---|---:|---|\n".to_owned();
    for part in parts.iter().filter(|part| part.share >= LEAST) {
        let shown = |sample: &&Sample| sample.share >= LEAST;
        let symbol = |sample: &Sample| format!("`{}` {:.0} %", parts::short(&sample.symbol), sample.share);
        let symbols: Vec<_> = part.symbols.iter().filter(shown).take(SYMBOLS).map(symbol).collect();
        text += &format!("| {} | {:.1} % | {} |\n", part.name, part.share, symbols.join(", "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(phase: Phase) -> Args {
        Args {
            framework: "candle".into(),
            precision: "f32".into(),
            phase,
            prompt_tokens: None,
            new_tokens: None,
            threads: 2,
            model: None,
            results: None,
        }
    }

    #[test]
    fn a_job_is_mostly_of_the_phase_asked_for() {
        let variant = Variant { settings: Settings::default(), options: BTreeMap::new() };
        let tokens = |phase| {
            let job = job_of(&args(phase), &variant, "bundle".as_ref());
            let case = job["task"]["cases"][0].clone();
            let count = |name: &str| case[name][0].as_array().unwrap().len();
            (count("prompts"), count("trace"))
        };
        assert_eq!((tokens(Phase::Decode), tokens(Phase::Prefill)), ((16, 128), (512, 1)));
    }

    /// This crate depends on none of ours, so that it builds before any of them does.
    #[test]
    fn jobs_are_of_the_protocol_s_version() {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/protocol/src/lib.rs");
        let source = std::fs::read_to_string(source).unwrap();
        assert!(source.contains(&format!("pub const VERSION: u32 = {PROTOCOL};")));
    }

    #[test]
    fn a_table_shows_parts_and_their_largest_symbols() {
        let sample = |share, symbol: &str| Sample { share, object: "o".into(), symbol: symbol.into() };
        let symbols = vec![sample(70.0, "a::b::c"), sample(0.1, "rare")];
        let part = |name: &str, share, symbols| Part { name: name.into(), share, symbols };
        let text = table(&[part("products", 70.1, symbols), part("nothing much", 0.2, Vec::new())]);
        assert!(text.ends_with("| products | 70.1 % | `b::c` 70 % |\n"), "{text}");
    }
}

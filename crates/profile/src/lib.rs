//! Where a worker's time goes, as a table. The worker runs one job under `perf record`, which is
//! switched on for the measured iterations alone: load, warm-up and hashing are not in it.

mod parts;
mod work;

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use configs::Engine;
use parts::{Part, Sample};
use protocol::{Event, Finish, Job, Measure, Settings, Task, Turn, Warmup};
use serde::Deserialize;
use tooling::BadInput;
use tooling::process::{command, output_of};
use work::{Phase, WorkArgs};

/// Samples a second: not a divisor of the kernel's ticks.
const FREQUENCY: &str = "997";
/// Symbols shown of each part, and the least share that is shown.
const SYMBOLS: usize = 3;
const LEAST: f64 = 0.5;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// A name of configs/engines
    #[arg(long, value_name = "NAME")]
    framework: String,
    #[arg(long, value_name = "P", default_value = "f32")]
    precision: String,
    #[command(flatten)]
    work: WorkArgs,
    #[arg(long, value_name = "N", default_value = "2")]
    threads: usize,
    /// A GGUF file or a Hugging Face directory; the default model, unless given
    #[arg(long, value_name = "PATH")]
    model: Option<PathBuf>,
    /// Where profile.md goes: results/profile-NAME-P-PHASE, unless given
    #[arg(long, value_name = "DIR")]
    results: Option<PathBuf>,
}

/// What must be there before a worker can be profiled.
pub struct Provided<'a> {
    pub engine: &'a Engine,
    /// The engine's program.
    pub worker: PathBuf,
    /// Variables that it needs.
    pub environment: Vec<(String, OsString)>,
    /// The program that prepares models, and the directory that it keeps them in.
    pub prepare: PathBuf,
    pub bundles: PathBuf,
    /// The model's source: [`Args::model`], or the default model.
    pub model: PathBuf,
    /// The checkout.
    pub root: PathBuf,
}

#[derive(Deserialize)]
struct Prepared {
    bundle: PathBuf,
}

impl Args {
    /// A name of configs/engines.
    pub fn framework(&self) -> &str {
        &self.framework
    }

    pub fn model(&self) -> Option<&Path> {
        self.model.as_deref()
    }
}

/// An error that says how to install perf, unless it is there.
pub fn require_perf() -> Result<()> {
    if output_of(command("perf").arg("--version")).is_ok() {
        return Ok(());
    }
    let text =
        "perf is not installed: on Debian and Ubuntu `apt-get install linux-perf` (or linux-tools-generic)";
    Err(BadInput(text.into()).into())
}

/// Profiles the worker, writes profile.md, and prints it.
pub fn run(args: &Args, provided: &Provided) -> Result<()> {
    let scratch = tempfile::tempdir()?;
    let bundle = prepared(args, provided)?;
    let job = scratch.path().join("job.jsonl");
    std::fs::write(&job, lines(&job_for(args, provided.engine, &bundle), requests(args))?)?;
    let mut perf = command("perf");
    for name in ["OMP_NUM_THREADS", "RAYON_NUM_THREADS", "CANDLE_NUM_THREADS"] {
        perf.env(name, args.threads.to_string());
    }
    perf.env(configs::TUNABLES, configs::HUGE_PAGES);
    perf.envs(provided.environment.iter().map(|(name, value)| (name, value)));
    record(perf, &provided.worker, (&job, requests(args)), scratch.path())?;
    let samples = report(&scratch.path().join("data"))?;
    let rules = parts::rules(&provided.root.join("configs"), &provided.engine.framework)?;
    let page = format!("```\n{}\n```\n\n{}", command_line(args), table(&parts::parts(&rules, samples)));
    let phase = args.work.phase.name();
    let name = format!("results/profile-{}-{}-{phase}", provided.engine.name, args.precision);
    let directory = args.results.clone().unwrap_or_else(|| provided.root.join(name));
    std::fs::create_dir_all(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
    std::fs::write(directory.join("profile.md"), &page)?;
    print!("{page}");
    Ok(())
}

/// Directory of the prepared model.
fn prepared(args: &Args, provided: &Provided) -> Result<PathBuf> {
    let mut prepare = command(&provided.prepare);
    prepare
        .arg(&provided.model)
        .args(["--precision", &args.precision, "--quiet", "--bundles"])
        .arg(&provided.bundles);
    let prepared: Prepared =
        serde_json::from_str(&output_of(&mut prepare)?).context("prepare did not print a bundle's path")?;
    Ok(prepared.bundle)
}

/// What perf recorded, by symbol.
fn report(data: &Path) -> Result<Vec<Sample>> {
    let mut report = command("perf");
    report.args(["report", "--stdio", "--no-children", "-g", "none", "--percent-limit", "0"]);
    report.args(["--sort", "dso,symbol", "--field-separator", ";", "--input"]).arg(data);
    let samples = parts::samples(&output_of(&mut report)?);
    ensure!(!samples.is_empty(), "perf took no sample: the job was too short, or perf may not record here");
    Ok(samples)
}

/// A measuring job of mostly one phase. Which tokens are fed makes no difference to the work.
fn job_for(args: &Args, engine: &Engine, bundle: &Path) -> Job {
    Job {
        protocol: protocol::VERSION,
        bundle: bundle.to_string_lossy().into_owned(),
        // The workers that are profiled read the bundle by its crate.
        model: serde_json::Value::Null,
        settings: Settings {
            decoder: Default::default(),
            precision: args.precision.clone(),
            device: "cpu".into(),
            threads: args.threads,
            shards: 1,
            jit: engine.settings.jit.unwrap_or(true),
            hidden_states: false,
            dequantised: false,
            options: engine.options.clone(),
            slowdown: 0.0,
            anew: false,
            serve: Default::default(),
        },
        spawned_at_ns: None,
        evict: false,
        task: Task::Measure(Measure {
            work: args.work.work(),
            warmup: Warmup {
                min_iterations: 1,
                max_iterations: 2,
                max_ns: 30_000_000_000,
                settled_within: 0.05,
                from_cold: false,
            },
            lead_in: 0,
            load: None,
        }),
    }
}

/// Requests that are profiled.
fn requests(args: &Args) -> usize {
    match args.work.phase {
        Phase::Decode => 3,
        Phase::Prefill => 8,
    }
}

/// A job and its turns, a line each.
fn lines(job: &Job, requests: usize) -> Result<String> {
    let turns = std::iter::repeat_n(Turn::request(0), requests);
    let mut text = serde_json::to_string(job)? + "\n";
    for turn in turns.chain([Turn::Finish(Finish::default())]) {
        text += &(serde_json::to_string(&turn)? + "\n");
    }
    Ok(text)
}

/// Runs the worker under perf, which records from the end of warm-up to the last sample.
fn record(mut perf: Command, worker: &Path, (job, requests): (&Path, usize), scratch: &Path) -> Result<()> {
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
    let mut answers = 0;
    for line in BufReader::new(child.stdout.take().context("perf has no output")?).lines() {
        match serde_json::from_str(&line?).context("the worker sent a line that is no event")? {
            Event::Warmup(_) => control.write_all(b"enable\n")?,
            Event::Sample(_) => {
                answers += 1;
                if answers == requests {
                    control.write_all(b"disable\n")?;
                }
            }
            Event::Failed(found) => failed = Some(found.reason),
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
    let (prompt, new) = args.work.lengths();
    format!(
        "cargo xtask profile --framework {} --precision {} --phase {} --prompt-tokens {prompt} --new-tokens {new} --threads {}",
        args.framework,
        args.precision,
        args.work.phase.name(),
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
    use protocol::Work;

    use super::*;

    fn args(phase: Phase) -> Args {
        Args {
            framework: "candle".into(),
            precision: "f32".into(),
            work: WorkArgs::usual(phase),
            threads: 2,
            model: None,
            results: None,
        }
    }

    #[test]
    fn a_job_is_mostly_of_the_phase_asked_for() {
        let tokens = |phase| match job_for(&args(phase), &Engine::default(), "bundle".as_ref()).task {
            Task::Measure(Measure { work: Work::Generate(work), .. }) => {
                (work.cases[0].prompts[0].len(), work.cases[0].trace[0].len())
            }
            other => panic!("{other:?}"),
        };
        assert_eq!((tokens(Phase::Decode), tokens(Phase::Prefill)), ((16, 128), (512, 1)));
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

//! `cargo xtask fuzz`: builds the fuzz targets with the instrumentation that libFuzzer needs, which a stable compiler
//! has, and runs them one after another.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use setup::Piece;
use tooling::process::{command, succeeds};
use tooling::{BadInput, Reporter, interrupt};

use crate::build::{self, PROGRAMS, Wanted};
use crate::cargo::cargo;
use crate::catalog::Engines;
use crate::workspace::Workspace;

/// Not a target of libFuzzer: changed models, of which the accepted ones are run by workers.
const MODELS: &str = "models";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Targets, by the names of crates/fuzz/corpus, or `models`; all targets but that one, unless given
    #[arg(value_name = "TARGET")]
    targets: Vec<String>,
    /// Time for each target
    #[arg(long, value_name = "N", default_value_t = 1.0)]
    minutes: f64,
    /// Executions of each target, in place of a time; with `models`, models that were accepted
    #[arg(long, value_name = "N")]
    runs: Option<u64>,
    /// Seed of all random choices; begins with the committed corpus alone, so that a run can be repeated
    #[arg(long, value_name = "S")]
    seed: Option<u32>,
    /// Write the figures between the markers of this page
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
}

/// The result of a run of a target.
struct Figures {
    target: String,
    executions: u64,
    seed: String,
    seconds: u64,
    finding: Option<PathBuf>,
}

pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<ExitCode> {
    let known = targets(workspace)?;
    let is_known = |name: &&String| *name == MODELS || known.contains(name);
    if let Some(unknown) = args.targets.iter().find(|name| !is_known(name)) {
        let known = known.join(", ");
        return Err(
            BadInput(format!("there is no target {unknown:?}; there are {known} and {MODELS}")).into()
        );
    }
    if !(args.minutes > 0.0 && args.minutes <= 100_000.0) {
        return Err(BadInput(format!("--minutes is {}, which is no time to fuzz", args.minutes)).into());
    }
    interrupt::listen()?;
    let targets = if args.targets.is_empty() { &known } else { &args.targets };
    let guided: Vec<&String> = targets.iter().filter(|name| *name != MODELS).collect();
    let mut is_clean = true;
    if !guided.is_empty() {
        let program = build_guided(workspace)?;
        let figures: Result<Vec<Figures>> =
            guided.into_iter().map(|target| fuzz(workspace, args, &program, target)).collect();
        let figures = figures?;
        is_clean = figures.iter().all(|figures| figures.finding.is_none());
        let table = table(&figures);
        print!("{table}");
        if let Some(page) = &args.page {
            let text = fs::read_to_string(page).with_context(|| format!("cannot read {}", page.display()))?;
            fs::write(page, tooling::splice(&text, "figures", &table)?)?;
        }
    }
    if targets.iter().any(|name| name == MODELS) {
        is_clean &= models(workspace, args)?;
    }
    Ok(if is_clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Names of the targets: each has a directory of seeds.
fn targets(workspace: &Workspace) -> Result<Vec<String>> {
    let corpus = corpus(workspace);
    let entries = fs::read_dir(&corpus).with_context(|| format!("cannot read {}", corpus.display()))?;
    let mut names: Vec<String> =
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect::<Result<_>>()?;
    names.sort();
    Ok(names)
}

fn corpus(workspace: &Workspace) -> PathBuf {
    workspace.root.join("crates/fuzz/corpus")
}

/// The files that fuzzing leaves: the corpora that grow, logs, findings.
fn place(workspace: &Workspace) -> PathBuf {
    workspace.binaries.with_file_name("fuzz")
}

/// Builds the workspace's own crates with instrumentation, separately from the plain ones. Their dependencies
/// are shared with every other build.
fn build_guided(workspace: &Workspace) -> Result<PathBuf> {
    let built = succeeds(
        cargo(workspace)
            .args(["build", "--release", "--locked", "--package", "fuzz", "--bin", "guided"])
            .args(["--features", "guided"])
            .env("RUSTC_WORKSPACE_WRAPPER", workspace.root.join("crates/fuzz/instrumented.sh")),
    )?;
    ensure!(
        built,
        "the fuzz targets do not build; libFuzzer takes a C++ compiler (on Debian and Ubuntu: g++)"
    );
    Ok(workspace.binary("guided"))
}

fn fuzz(workspace: &Workspace, args: &Args, program: &Path, target: &str) -> Result<Figures> {
    let place = place(workspace).join(target);
    let (grown, findings) = (place.join("corpus"), place.join("findings"));
    if args.seed.is_some() && grown.exists() {
        fs::remove_dir_all(&grown).with_context(|| format!("cannot empty {}", grown.display()))?;
    }
    fs::create_dir_all(&grown)?;
    fs::create_dir_all(&findings)?;
    let mut fuzzer = command(program);
    fuzzer.env("PHOTOFINISH_FUZZ_TARGET", target);
    match args.runs {
        Some(runs) => fuzzer.arg(format!("-runs={runs}")),
        None => {
            let time = Duration::from_secs_f64(args.minutes * 60.0);
            fuzzer.arg(format!("-max_total_time={}", time.as_secs().max(1)))
        }
    };
    if let Some(seed) = args.seed {
        fuzzer.arg(format!("-seed={seed}"));
    }
    // A slow input is a finding after ten seconds.
    fuzzer.args(["-print_final_stats=1", "-timeout=10", "-rss_limit_mb=4096"]);
    fuzzer.arg(format!("-artifact_prefix={}/", findings.display()));
    fuzzer.args([grown, corpus(workspace).join(target)]).stderr(Stdio::piped());
    println!("== {target}");
    let mut child = fuzzer.spawn().with_context(|| format!("cannot start {}", program.display()))?;
    let mut output = Output::default();
    let mut log = fs::File::create(place.join("log"))?;
    for line in BufReader::new(child.stderr.take().context("its output is piped")?).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        writeln!(log, "{line}")?;
        output.read(&line);
    }
    let status = child.wait()?;
    interrupt::check()?;
    if !status.success() && output.finding.is_none() {
        bail!("{target} ended with {status} and no finding: {} says more", place.join("log").display());
    }
    let Output { executions, seconds, seed, finding } = output;
    if let Some(finding) = &finding {
        println!("finding: {}; {} says more", finding.display(), place.join("log").display());
    }
    Ok(Figures { target: target.to_owned(), executions, seed, seconds, finding })
}

/// The output of libFuzzer.
#[derive(Debug, Default, PartialEq)]
struct Output {
    executions: u64,
    seconds: u64,
    seed: String,
    finding: Option<PathBuf>,
}

impl Output {
    fn read(&mut self, line: &str) {
        if let Some(seed) = line.strip_prefix("INFO: Seed: ") {
            self.seed = seed.to_owned();
        } else if let Some(count) = line.strip_prefix("stat::number_of_executed_units: ") {
            self.executions = count.trim().parse().unwrap_or(0);
        } else if let Some((_, seconds)) =
            line.strip_suffix(" second(s)").and_then(|line| line.rsplit_once(" in "))
        {
            self.seconds = seconds.parse().unwrap_or(0);
        } else if let Some((_, file)) = line.split_once("Test unit written to ") {
            self.finding = Some(file.into());
        }
    }
}

fn table(figures: &[Figures]) -> String {
    let mut text =
        String::from("| target | executions | seed | seconds | findings |\n|---|---:|---|---:|---|\n");
    for Figures { target, executions, seed, seconds, finding } in figures {
        let found = if finding.is_some() { "1, where it ended" } else { "none" };
        text += &format!("| `{target}` | {executions} | {seed} | {seconds} | {found} |\n");
    }
    let (executions, seconds) = figures
        .iter()
        .fold((0, 0), |(executions, seconds), each| (executions + each.executions, seconds + each.seconds));
    text + &format!("| all | {executions} | | {seconds} | |\n")
}

/// Changed models. Whether nothing was found.
fn models(workspace: &Workspace, args: &Args) -> Result<bool> {
    let engines = Engines::read(workspace)?;
    let programs = PROGRAMS.into_iter().chain(["fuzz"]).collect();
    let wanted = Wanted { programs, engines: engines.select(&[])?, ..Wanted::default() };
    build::together(workspace, &wanted, Reporter::new(false))?;
    let mut program = command(workspace.binary(MODELS));
    program.arg("--workers").arg(&workspace.binaries);
    program.arg("--findings").arg(place(workspace).join(MODELS));
    match args.runs {
        Some(runs) => program.arg("--accepted").arg(runs.to_string()),
        None => program.arg("--minutes").arg(args.minutes.to_string()),
    };
    program.arg("--seed").arg(args.seed.unwrap_or(1).to_string());
    let provision = workspace.provision(Reporter::new(true))?;
    for piece in Piece::ALL.into_iter().filter(|piece| *piece != Piece::Model) {
        program.env(piece.variable(), provision.provide(piece)?.path);
    }
    succeeds(&mut program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_libfuzzer_prints_becomes_figures() {
        let mut output = Output::default();
        for line in [
            "INFO: Seed: 7",
            "#2\tINITED cov: 2 ft: 2 corp: 1/1b exec/s: 0 rss: 30Mb",
            "Done 4096 runs in 3 second(s)",
            "stat::number_of_executed_units: 4096",
            "artifact_prefix='x/'; Test unit written to x/crash-1",
        ] {
            output.read(line);
        }
        let finding = Some("x/crash-1".into());
        assert_eq!(output, Output { executions: 4096, seconds: 3, seed: "7".into(), finding });
    }

    #[test]
    fn the_table_sums_up() {
        let figures = |executions| Figures {
            target: "gguf".into(),
            executions,
            seed: "1".into(),
            seconds: 2,
            finding: None,
        };
        let table = table(&[figures(10), figures(5)]);
        assert!(
            table.contains("| `gguf` | 10 | 1 | 2 | none |") && table.contains("| all | 15 | | 4 | |"),
            "{table}"
        );
    }

    #[test]
    fn every_target_of_the_corpus_is_known() {
        let names = targets(&Workspace::locate().unwrap()).unwrap();
        assert!(names.contains(&"gguf".to_owned()) && !names.contains(&MODELS.to_owned()), "{names:?}");
    }
}

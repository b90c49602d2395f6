//! `cargo xtask test`: everything that must pass, counted and timed.
//!
//! One invocation of cargo compiles the tests of all packages and runs them. Set-up runs at the same time.

mod watched;

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use serde::Deserialize;
use setup::tooling::process::{command, output_of, succeeds, succeeds_watched};
use setup::tooling::{BadInput, Reporter};
use setup::{Piece, Provided, Reference, Target};

use self::watched::{Tally, Watched};
use crate::build::{self, Engines, Wanted};
use crate::cargo::{self, cargo};
use crate::workspace::Workspace;
use crate::{cuda, readers, references, rehearsal, tidy};

/// References that install from the registry alone in a minute: crate `worker-check` tests them (`columns`). Those with
/// PyTorch take five gigabytes, and llama.cpp ten minutes to build: they are tested where they are set up.
const TESTED: [Reference; 3] = [Reference::Openvino, Reference::Jax, Reference::Tinygrad];

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Leave out what needs a native library, the model or a framework's own crates; counted as skipped
    #[arg(long, conflicts_with_all = ["all", "packages"])]
    quick: bool,
    /// With long campaigns, whole models and all references: what CI runs by night
    #[arg(long)]
    all: bool,
    /// The tests of these packages alone
    #[arg(long = "package", short = 'p', value_name = "NAME")]
    packages: Vec<String>,
    /// cuda-build: in place of all that, what can be proved of the workers for a GPU without one (docs/how-to/gpu.md)
    #[arg(long, value_name = "DEVICE", conflicts_with_all = ["quick", "all", "packages"])]
    device: Option<Device>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Device {
    CudaBuild,
}

#[derive(Clone, Copy)]
enum Which {
    Usual,
    /// Those that are ignored for their length.
    Campaigns,
}

/// The findings so far.
#[derive(Default)]
struct Findings {
    tally: Tally,
    /// Steps and packages, to be named again at the end of a long output.
    failed: Vec<String>,
    times: Times,
}

pub(crate) fn run(workspace: &Workspace, asked: &Args) -> Result<ExitCode> {
    if let Some(Device::CudaBuild) = asked.device {
        return cuda_build(workspace);
    }
    let mut findings = Findings::default();
    if !asked.packages.is_empty() {
        findings.with_programs(workspace, &named(&asked.packages)?, asked.all)?;
        return findings.told();
    }
    let scope = match asked {
        Args { quick: true, .. } => Scope::Quick,
        Args { all: true, .. } => Scope::All,
        _ => Scope::Usual,
    };
    let (chosen, left_out): (Vec<&Package>, Vec<&Package>) =
        PACKAGES.iter().partition(|package| package.scope <= scope);
    findings.timed("formatting", |findings| findings.formatting(workspace))?;
    for package in left_out {
        findings.skip(&format!("tests of {}", package.name), scope.reason());
    }
    if scope == Scope::Quick {
        for what in ["readers of results", "the Kubernetes example", "an installation at work"] {
            findings.skip(what, "it takes the network or native libraries");
        }
        findings.tidy(workspace)?;
        findings.compile(workspace, &chosen, &[])?;
        findings.tests_of(workspace, &chosen, &[], Which::Usual)?;
        return findings.told();
    }
    findings.with_set_up(workspace, &chosen, scope)?;
    findings.timed("an installation at work", |findings| {
        findings.step("an installation at work", rehearsal::check(workspace));
        Ok(())
    })?;
    findings.told()
}

/// Tests of the workers for a GPU on a machine without one: that they are built and linked, that each finds
/// its libraries except the driver's, and that ONNX Runtime's GPU library does everything that the CPU's
/// does.
fn cuda_build(workspace: &Workspace) -> Result<ExitCode> {
    let mut findings = Findings::default();
    findings.step("build for a GPU", cuda::build(workspace, &[], Reporter::new(false)));
    let provision = workspace.provision(Reporter::new(false))?;
    let libraries = cuda::library_path(&provision)?;
    for worker in cuda::workers(workspace) {
        let name = format!("libraries of {}", worker.display());
        findings.step(&name, cuda::finds_its_libraries(&worker, &libraries));
    }
    let shown = Workspace { variables: vec![("LD_LIBRARY_PATH", libraries)], ..workspace.clone() };
    match provision.find(Piece::OnnxruntimeCuda)? {
        Some(library) => {
            findings.tests_of(&shown, &named(&["engine-ort".to_owned()])?, &[library], Which::Usual)?;
        }
        None => findings.fail("tests of engine-ort"),
    }
    findings.told()
}

impl Findings {
    /// Prints the times of the steps, the failures, and the number of passed tests.
    fn told(&self) -> Result<ExitCode> {
        print!("{}", self.times.table());
        if !self.failed.is_empty() {
            println!("failed: {}", self.failed.join(", "));
        }
        println!("{}", self.tally);
        Ok(if self.tally.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn step(&mut self, name: &str, outcome: Result<()>) {
        match outcome {
            Ok(()) => println!("ok: {name}"),
            Err(error) => {
                println!("failed: {name}: {error:#}");
                self.fail(name);
            }
        }
    }

    fn timed(&mut self, name: &str, step: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let begun = now();
        let outcome = step(self);
        self.times.step(name, begun.elapsed());
        outcome
    }

    fn fail(&mut self, name: &str) {
        self.tally.failed += 1;
        self.failed.push(name.to_owned());
    }

    fn skip(&mut self, name: &str, reason: &str) {
        println!("skipped: {name}: {reason}");
        self.tally.skipped += 1;
    }

    fn tidy(&mut self, workspace: &Workspace) -> Result<()> {
        self.timed("tidy", |findings| {
            findings.step("tidy", tidy::run(&workspace.root));
            Ok(())
        })
    }

    /// Compiles and runs the tests, and sets up their pieces while it compiles.
    fn with_set_up(&mut self, workspace: &Workspace, chosen: &[&Package], scope: Scope) -> Result<()> {
        let provision = workspace.provision(Reporter::new(false).without_bars())?;
        std::thread::scope(|threads| {
            let (sender, provided) = mpsc::channel();
            let set_up = threads.spawn({
                let provision = &provision;
                move || {
                    let begun = now();
                    for piece in Piece::ALL {
                        // The receiver is gone if the tests were given up.
                        let _ = sender.send((piece, provision.provide(piece)));
                    }
                    drop(sender);
                    let mut steps = Findings::default();
                    steps.step("readers of results", readers::check(workspace));
                    steps.step("the Kubernetes example", readers::kubernetes(workspace));
                    for reference in TESTED.into_iter().filter(|_| scope == Scope::All) {
                        steps.reference(workspace, reference, Reporter::new(false).without_bars());
                    }
                    steps.times.step("set-up, while cargo compiles", begun.elapsed());
                    steps
                }
            });
            self.tidy(workspace)?;
            let mut pieces = Vec::new();
            for (piece, outcome) in provided.iter() {
                // One that is not to be had fails the packages that need it; the others are tested.
                self.step(&format!("set-up of {piece}"), outcome.map(|provided| pieces.push(provided)));
            }
            let has_libtorch = pieces.iter().any(|provided| provided.piece == Piece::Libtorch);
            let (chosen, unbuildable): (Vec<&Package>, Vec<&Package>) =
                chosen.iter().partition(|package| has_libtorch || !package.links_libtorch());
            for package in unbuildable {
                self.step(&format!("tests of {}", package.name), Err(anyhow!("libtorch is not there")));
            }
            self.compile(workspace, &chosen, &pieces)?;
            let steps = set_up.join().map_err(|_| anyhow!("the set-up of references ended too early"))?;
            self.tally.add(steps.tally);
            self.failed.extend(steps.failed);
            self.times.extend(steps.times);
            self.tests_of(workspace, &chosen, &pieces, Which::Usual)?;
            if scope == Scope::All { self.campaigns(workspace, &pieces) } else { Ok(()) }
        })
    }

    /// Builds the programs that the tests of these packages start, with the pieces that they need.
    fn with_programs(&mut self, workspace: &Workspace, chosen: &[&Package], campaigns: bool) -> Result<()> {
        let programs = self::programs(chosen);
        let mut pieces = Vec::new();
        if !programs.is_empty() {
            let engines = Engines::read(workspace)?;
            let wanted = Wanted {
                programs,
                engines: engines.select(&[])?,
                pieces: Piece::ALL.to_vec(),
                ..Wanted::default()
            };
            build::together(workspace, &wanted, Reporter::new(false))?;
            let provision = workspace.provision(Reporter::new(true))?;
            pieces = Piece::ALL.into_iter().map(|piece| provision.provide(piece)).collect::<Result<_>>()?;
        }
        self.compile(workspace, chosen, &pieces)?;
        self.tests_of(workspace, chosen, &pieces, Which::Usual)?;
        if campaigns { self.campaigns(workspace, &pieces) } else { Ok(()) }
    }

    /// The long campaigns. Other crates ignore tests for lack of hardware or software, and those must not
    /// run; of worker-check the ignored tests are those of references, which are all set up by now.
    fn campaigns(&mut self, workspace: &Workspace, pieces: &[Provided]) -> Result<()> {
        self.tests_of(
            workspace,
            &named(&["driver", "worker-check"].map(str::to_owned))?,
            pieces,
            Which::Campaigns,
        )
    }

    /// Sets up a reference for the tests. A missing compiler is installed if that needs no password; else the
    /// reference is skipped with a message.
    fn reference(&mut self, workspace: &Workspace, reference: Reference, reporter: Reporter) {
        let set_up = || references::set_up(workspace, Target::Cpu, &[reference], reporter);
        if reference == Reference::Tinygrad && output_of(command("clang").arg("--version")).is_err() {
            let installed = succeeds(command("apt-get").args(["install", "--yes", "--quiet", "clang"]));
            if !installed.unwrap_or(false) {
                self.skip(
                    "set-up of tinygrad",
                    "it needs clang, which cannot be installed here (apt-get install clang)",
                );
                return;
            }
        }
        self.step(&format!("set-up of {reference}"), set_up());
    }

    fn formatting(&mut self, workspace: &Workspace) -> Result<()> {
        if output_of(command("rustfmt").arg("--version")).is_err() {
            self.skip("formatting", "rustfmt is not installed (rustup component add rustfmt)");
            return Ok(());
        }
        for manifest in cargo::MANIFESTS {
            let check = ["fmt", "--all", "--manifest-path", manifest];
            let formatted = succeeds(cargo(workspace).args(check).arg("--check"))?;
            let corrects = || anyhow!("`cargo {}` corrects it", check.join(" "));
            self.step(&format!("formatting of {manifest}"), formatted.then_some(()).ok_or_else(corrects));
        }
        Ok(())
    }

    /// Compiles the tests and all programs of these packages in one invocation of cargo.
    fn compile(&mut self, workspace: &Workspace, packages: &[&Package], pieces: &[Provided]) -> Result<()> {
        for mut compile in cargo_tests(workspace, packages, pieces) {
            compile.args(["--no-run", "--timings"]);
            self.timed("compiling", |_| succeeds_watched(&mut compile).map(drop))?;
        }
        if let Some(target) = workspace.binaries.parent() {
            self.times.compiled(target);
        }
        Ok(())
    }

    /// Streams the packages' compiled tests, counts and times them. Packages that do not build are one failure.
    fn tests_of(
        &mut self,
        workspace: &Workspace,
        packages: &[&Package],
        pieces: &[Provided],
        which: Which,
    ) -> Result<()> {
        for test in cargo_tests(workspace, packages, pieces) {
            self.run_tests(test, which)?;
        }
        Ok(())
    }

    fn run_tests(&mut self, mut test: Command, which: Which) -> Result<()> {
        // One pipe for cargo's lines and those of the tests, so that their order is kept.
        let (reader, writer) = std::io::pipe().context("cannot make a pipe")?;
        // Names of programs and of their packages, which the other lines do not give.
        test.args(["--no-fail-fast", "--message-format=json-render-diagnostics"])
            .env("CARGO_TERM_COLOR", "never");
        if let Which::Campaigns = which {
            test.args(["--", "--ignored"]);
        }
        let mut child =
            test.stdout(writer.try_clone()?).stderr(writer).spawn().context("cannot start cargo")?;
        // It holds ends of the pipe, which would stay open.
        drop(test);
        let mut watched = Watched::default();
        let begun = now();
        let clock = xtask::Clock::new(std::io::stdout().is_terminal());
        xtask::copy(reader, &mut std::io::stdout(), clock, |line| {
            watched.read(&String::from_utf8_lossy(line), begun.elapsed())
        })?;
        let status = child.wait()?;
        watched.end(begun.elapsed());
        self.tally.add(watched.tally);
        self.times.step("testing", begun.elapsed());
        for (package, took) in watched.took {
            self.times.tested(&package, took);
        }
        if !watched.failed.is_empty() {
            self.failed.extend(watched.failed.iter().map(|name| format!("tests of {name}")));
        } else if !status.success() {
            self.step("tests", Err(anyhow!("they did not build, or did not run to their end")));
        }
        Ok(())
    }
}

/// The tests of these packages: one command for each workspace.
fn cargo_tests(workspace: &Workspace, packages: &[&Package], pieces: &[Provided]) -> Vec<Command> {
    let mut tests = Vec::new();
    for manifest in cargo::MANIFESTS {
        let names: Vec<&str> = packages.iter().map(|package| package.name).collect();
        let names: Vec<&str> =
            names.into_iter().filter(|name| cargo::manifest_of(name) == manifest).collect();
        if names.is_empty() {
            continue;
        }
        let mut test = cargo(workspace);
        // `--tests`: all but those of the documentation, which has none.
        test.args(["test", "--release", "--locked", "--tests"]);
        if manifest != cargo::MANIFESTS[0] {
            test.args(["--manifest-path", manifest]);
            test.envs(workspace.binaries.parent().map(|target| ("CARGO_TARGET_DIR", target)));
        }
        test.args(names.iter().flat_map(|name| ["--package", name]));
        test.envs(pieces.iter().map(|provided| (provided.piece.variable(), &provided.path)));
        tests.push(test);
    }
    tests
}

// The packages to test, and when.

/// When a package is tested; each scope has those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Scope {
    /// Also by `--quick`: no native library, no model, none of the frameworks' own crates, which take minutes to compile.
    Quick,
    Usual,
    /// By `--all` alone: fuzz targets and references, which take longer to compile than everything else.
    All,
}

impl Scope {
    /// Why this scope leaves packages out.
    fn reason(self) -> &'static str {
        match self {
            Self::Quick => "they take a framework or the model",
            _ => "`cargo xtask test --all` has them",
        }
    }
}

struct Package {
    name: &'static str,
    scope: Scope,
    /// Packages with programs that its tests start.
    starts: &'static [&'static str],
}

impl Package {
    fn links_libtorch(&self) -> bool {
        ["engine-tch", "engine-hybrid"].contains(&self.name)
    }
}

const fn plain(name: &'static str) -> Package {
    Package { name, scope: Scope::Quick, starts: &[] }
}

const fn usual(name: &'static str, starts: &'static [&'static str]) -> Package {
    Package { name, scope: Scope::Usual, starts }
}

const fn rare(name: &'static str, starts: &'static [&'static str]) -> Package {
    Package { name, scope: Scope::All, starts }
}

const COMPARING: &[&str] = &["driver", "prepare", "engine-mock", "engine-candle", "engine-ort", "engine-tch"];

/// In the order of their tests.
const PACKAGES: &[Package] = &[
    plain("xtask"),
    plain("protocol"),
    plain("bundle"),
    plain("configs"),
    plain("setup"),
    plain("gpu"),
    plain("nvml-fake"),
    plain("statistics"),
    plain("tasks"),
    plain("worker"),
    plain("engine-mock"),
    plain("comparison"),
    plain("evidence"),
    plain("render"),
    // Its pages' worker needs numpy, which the readers' environment has.
    usual("driver", COMPARING),
    usual("prepare", &[]),
    usual("hub", &["prepare"]),
    usual("conformance", &[]),
    // Its tests prepare models, which compiles candle.
    usual("onnx", &[]),
    usual("engine-candle", &[]),
    usual("engine-ort", &["prepare"]),
    usual("engine-tch", &["prepare"]),
    usual("engine-hybrid", &["prepare"]),
    rare("fuzz", COMPARING),
    rare("reference-burn", &[]),
    rare("reference-candle-transformers", &[]),
    rare("reference-fastembed", &[]),
    rare("reference-gguf", &[]),
    rare("reference-rten", &[]),
    rare("reference-tract", &[]),
];

/// Crates without tests: declarations alone.
#[cfg(test)]
const UNTESTED: [&str; 1] = ["features"];

/// The packages of these names.
fn named(names: &[String]) -> Result<Vec<&'static Package>> {
    let known = |name: &String| {
        PACKAGES.iter().find(|package| package.name == *name).ok_or_else(|| {
            let all: Vec<&str> = PACKAGES.iter().map(|package| package.name).collect();
            BadInput(format!("unknown package {name:?}; there are {}", all.join(", "))).into()
        })
    };
    names.iter().map(known).collect()
}

/// Packages of the programs that these packages' tests start, each once.
fn programs(packages: &[&Package]) -> Vec<&'static str> {
    let mut programs: Vec<&str> = packages.iter().flat_map(|package| package.starts).copied().collect();
    programs.sort_unstable();
    programs.dedup();
    programs
}

// Where the time of a test run went: steps by the clock, packages by cargo's timings and by when their tests ran.

/// Seconds of the packages: compiling, and running the tests.
#[derive(Debug, Default)]
struct Times {
    steps: Vec<(String, Duration)>,
    compiled: BTreeMap<String, f64>,
    tested: BTreeMap<String, Duration>,
}

/// A unit of cargo's timing report.
#[derive(Debug, Deserialize)]
struct Unit {
    name: String,
    duration: f64,
}

#[expect(clippy::disallowed_methods, reason = "people read how long a step took; it is no measurement")]
fn now() -> Instant {
    Instant::now()
}

impl Times {
    fn step(&mut self, name: &str, took: Duration) {
        self.steps.push((name.to_owned(), took));
    }

    fn extend(&mut self, other: Self) {
        self.steps.extend(other.steps);
    }

    fn tested(&mut self, package: &str, took: Duration) {
        *self.tested.entry(package.to_owned()).or_default() += took;
    }

    /// Adds the report that `cargo --timings` has just written below the target directory.
    fn compiled(&mut self, target: &Path) {
        let report =
            std::fs::read_to_string(target.join("cargo-timings/cargo-timing.html")).unwrap_or_default();
        let Some(units) = units(&report) else {
            eprintln!(
                "warning: cargo's report of timings cannot be read; the seconds of compiling are missing"
            );
            return;
        };
        for Unit { name, duration } in units {
            *self.compiled.entry(name).or_default() += duration;
        }
    }

    /// One line a package of the workspace, one for all others, and one a step.
    fn table(&self) -> String {
        self.table_of(&PACKAGES.iter().map(|package| package.name).collect::<Vec<_>>())
    }

    fn table_of(&self, members: &[&str]) -> String {
        let mut rows: Vec<(&str, f64, f64)> = members
            .iter()
            .map(|&name| {
                let tested = self.tested.get(name).map_or(0.0, Duration::as_secs_f64);
                (name, self.compiled.get(name).copied().unwrap_or_default(), tested)
            })
            .filter(|(_, compiled, tested)| compiled + tested >= 0.05)
            .collect();
        let others = self.compiled.iter().filter(|(name, _)| !members.contains(&name.as_str()));
        rows.push(("crates of others", others.map(|(_, seconds)| seconds).sum(), 0.0));
        rows.sort_by(|a, b| (b.1 + b.2).total_cmp(&(a.1 + a.2)));
        let mut text = format!("\n{:32}{:>12}{:>12}\n", "seconds", "compiling", "testing");
        for (name, compiled, tested) in &rows {
            text += &format!("{name:32}{compiled:>12.1}{tested:>12.1}\n");
        }
        let (compiled, tested) = rows.iter().fold((0.0, 0.0), |sum, row| (sum.0 + row.1, sum.1 + row.2));
        text += &format!("{:32}{compiled:>12.1}{tested:>12.1}\n", "all; cargo compiles in parallel");
        for (name, took) in &self.steps {
            text += &format!("{name:56}{:>.1}\n", took.as_secs_f64());
        }
        text
    }
}

/// The units of a report: cargo has them as JSON in the page's script.
fn units(report: &str) -> Option<Vec<Unit>> {
    let (_, rest) = report.split_once("const UNIT_DATA = ")?;
    let (json, _) = rest.split_once("];")?;
    serde_json::from_str(&format!("{json}]")).ok()
}

#[cfg(test)]
mod tests {
    use crate::build::Engines;
    use crate::workspace::Workspace;

    use super::*;

    #[test]
    fn a_step_counts_only_where_it_fails_or_is_left_out() {
        let mut findings = Findings::default();
        findings.tally.add(Tally { passed: 7, failed: 0, skipped: 0 });
        findings.step("good", Ok(()));
        findings.step("bad", Err(anyhow!("because")));
        findings.skip("absent", "because");
        assert_eq!(findings.tally.to_string(), "7 passed, 1 failed, 1 skipped");
        assert_eq!(findings.failed, ["bad"]);
    }

    #[test]
    fn every_member_of_the_workspace_is_tested() {
        let root = Workspace::locate().unwrap().root;
        for place in ["crates", "references", "."] {
            for entry in std::fs::read_dir(root.join(place)).unwrap() {
                let manifest = entry.unwrap().path().join("Cargo.toml");
                let Ok(text) = std::fs::read_to_string(manifest) else { continue };
                let Some(name) = text.lines().find_map(|line| line.strip_prefix("name = ")) else { continue };
                let name = name.trim_matches('"');
                let is_tested = PACKAGES.iter().any(|package| package.name == name);
                assert!(is_tested != UNTESTED.contains(&name), "{name} must be in PACKAGES or in UNTESTED");
            }
        }
    }

    #[test]
    fn engines_that_need_a_native_library_are_no_part_of_a_quick_test() {
        let workspace = Workspace::locate().unwrap();
        for engine in
            Engines::read(&workspace).unwrap().all().iter().filter(|engine| !engine.native.is_empty())
        {
            let package = PACKAGES.iter().find(|package| package.name == engine.worker);
            assert!(package.is_none_or(|package| package.scope > Scope::Quick), "{}", engine.worker);
        }
    }

    #[test]
    fn packages_come_by_the_time_they_take_and_others_are_one_line() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("cargo-timings")).unwrap();
        let page = r#"x const UNIT_DATA = [
  {"i": 0, "name": "judge", "version": "0.1.0", "duration": 2.5, "target": " (test)"},
  {"i": 1, "name": "judge", "version": "0.1.0", "duration": 1.0},
  {"i": 2, "name": "serde", "version": "1", "duration": 9.0}
];
const CONCURRENCY_DATA = [];"#;
        std::fs::write(directory.path().join("cargo-timings/cargo-timing.html"), page).unwrap();
        let mut times = Times::default();
        times.compiled(directory.path());
        times.tested("judge", Duration::from_millis(500));
        times.step("formatting", Duration::from_secs(2));
        let table = times.table_of(&["judge", "plan"]);
        let words: Vec<&str> = table.split_whitespace().collect();
        assert!(words.windows(3).any(|three| three == ["judge", "3.5", "0.5"]), "{table}");
        assert!(words.windows(5).any(|five| five == ["crates", "of", "others", "9.0", "0.0"]), "{table}");
        assert!(words.windows(2).any(|two| two == ["formatting", "2.0"]), "{table}");
        assert!(!table.contains("plan") && table.find("others") < table.find("judge"), "{table}");
    }
}

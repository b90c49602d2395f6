//! `cargo xtask test`: everything that must pass, counted and timed.
//!
//! One invocation of cargo compiles the tests of all packages and runs them. Set-up runs beside it.

mod packages;
mod times;

use std::collections::{BTreeMap, BTreeSet};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use serde::Deserialize;
use setup::{Piece, Provided, Reference, Target};
use tooling::Reporter;
use tooling::process::{command, output_of, succeeds, succeeds_watched};

use self::packages::{PACKAGES, Package, Scope};
use self::times::Times;
use crate::build::{self, Wanted};
use crate::cargo::{self, cargo};
use crate::catalog::Engines;
use crate::workspace::Workspace;
use crate::{cuda, readers, references, rehearsal};

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
    /// cuda-build: in place of all that, what can be proved of the workers for a GPU without one (docs/gpu.md)
    #[arg(long, value_name = "DEVICE", conflicts_with_all = ["quick", "all", "packages"])]
    device: Option<Device>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Device {
    CudaBuild,
}

/// Counts of tests. A step that is no test counts only where it fails or is left out.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Tally {
    passed: usize,
    failed: usize,
    skipped: usize,
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

/// What has been found so far.
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
        findings.with_programs(workspace, &packages::named(&asked.packages)?, asked.all)?;
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
        findings.tests_of(workspace, &chosen, &[], false)?;
        return findings.told();
    }
    findings.with_set_up(workspace, &chosen, scope)?;
    findings.timed("an installation at work", |findings| {
        findings.step("an installation at work", rehearsal::check(workspace));
        Ok(())
    })?;
    findings.told()
}

/// The rules of the architecture, by the program that knows them.
pub(crate) fn tidy(workspace: &Workspace) -> Result<()> {
    cargo::build(workspace, &["tidy"], None, Reporter::new(false))?;
    let followed = succeeds(command(workspace.binary("tidy")).arg(&workspace.root))?;
    if followed { Ok(()) } else { Err(anyhow!("the lines above name what breaks a rule, and where")) }
}

/// What can be proved of the workers for a GPU on a machine without one: that they are built and linked, that each finds
/// its libraries but the driver's, and that ONNX Runtime's GPU library does all else that the CPU's does.
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
            findings.tests_of(&shown, &packages::named(&["engine-ort".to_owned()])?, &[library], false)?;
        }
        None => findings.fail("tests of engine-ort"),
    }
    findings.told()
}

impl Findings {
    /// Prints where the time went, what failed, and how many tests passed.
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
        let begun = times::now();
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
            findings.step("tidy", tidy(workspace));
            Ok(())
        })
    }

    /// Compiles and runs the tests, and sets up what they take while it compiles.
    fn with_set_up(&mut self, workspace: &Workspace, chosen: &[&Package], scope: Scope) -> Result<()> {
        let provision = workspace.provision(Reporter::new(false).without_bars())?;
        std::thread::scope(|threads| {
            let (sender, provided) = mpsc::channel();
            let set_up = threads.spawn({
                let provision = &provision;
                move || {
                    let begun = times::now();
                    for piece in Piece::ALL {
                        // Nobody waits for it where the tests were given up.
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
            self.tests_of(workspace, &chosen, &pieces, scope == Scope::All)
        })
    }

    /// Builds the programs that the tests of these packages start, with the pieces that they take.
    fn with_programs(&mut self, workspace: &Workspace, chosen: &[&Package], campaigns: bool) -> Result<()> {
        let programs = packages::programs(chosen);
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
        self.tests_of(workspace, chosen, &pieces, campaigns)
    }

    /// Sets up a reference for the tests. A compiler that it needs and the system lacks is installed where that takes no
    /// password; else it is left out, with a word.
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
        let formatted = succeeds(cargo(workspace).args(["fmt", "--all", "--check"]))?;
        self.step(
            "formatting",
            if formatted { Ok(()) } else { Err(anyhow!("`cargo fmt --all` corrects it")) },
        );
        Ok(())
    }

    /// Compiles the tests and all programs of these packages in one invocation of cargo.
    fn compile(&mut self, workspace: &Workspace, packages: &[&Package], pieces: &[Provided]) -> Result<()> {
        let mut compile = cargo_test(workspace, packages, pieces);
        compile.args(["--no-run", "--timings"]);
        self.timed("compiling", |_| succeeds_watched(&mut compile).map(drop))?;
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
        campaigns: bool,
    ) -> Result<()> {
        // One pipe for cargo's lines and those of the tests, so that their order is kept.
        let (reader, writer) = std::io::pipe().context("cannot make a pipe")?;
        let mut test = cargo_test(workspace, packages, pieces);
        // Names of programs and of their packages, which the other lines do not give.
        test.args(["--no-fail-fast", "--message-format=json-render-diagnostics"])
            .env("CARGO_TERM_COLOR", "never");
        if campaigns {
            test.args(["--", "--include-ignored"]);
        }
        let mut child =
            test.stdout(writer.try_clone()?).stderr(writer).spawn().context("cannot start cargo")?;
        // It holds ends of the pipe, which would stay open.
        drop(test);
        let mut watched = Watched::default();
        let begun = times::now();
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

fn cargo_test(workspace: &Workspace, packages: &[&Package], pieces: &[Provided]) -> Command {
    let mut test = cargo(workspace);
    // `--tests`: all but those of the documentation, which has none.
    test.args(["test", "--release", "--locked", "--tests"])
        .args(packages.iter().flat_map(|package| ["--package", package.name]))
        .envs(pieces.iter().map(|provided| (provided.piece.variable(), &provided.path)));
    test
}

/// What the lines of `cargo test` say.
#[derive(Default)]
struct Watched {
    tally: Tally,
    /// Packages with a test that failed.
    failed: BTreeSet<String>,
    took: BTreeMap<String, Duration>,
    /// Packages by the names of their test programs.
    programs: BTreeMap<String, String>,
    /// The package whose tests run now, and since when.
    running: Option<(String, Duration)>,
}

/// A message of cargo's on something that it has built.
#[derive(Deserialize)]
struct Artifact {
    package_id: String,
    executable: Option<PathBuf>,
}

impl Watched {
    /// Takes a line that came so long after the start; whether people should see it.
    fn read(&mut self, line: &str, at: Duration) -> bool {
        if line.starts_with("{\"reason\":") {
            if let Ok(Artifact { package_id, executable: Some(program) }) = serde_json::from_str(line) {
                self.programs.insert(stem(&program), name_of(&package_id).to_owned());
            }
            return false;
        }
        // `     Running unittests src/lib.rs (target/release/deps/judge-0f3a)`
        if let Some((_, program)) =
            line.trim_start().strip_prefix("Running ").and_then(|rest| rest.split_once('('))
        {
            self.end(at);
            let package = self.programs.get(&stem(Path::new(program.trim_end_matches(')')))).cloned();
            self.running = Some((package.unwrap_or_default(), at));
        } else if let Some(result) = parse_result(line) {
            self.tally.add(result);
            if result.failed > 0 {
                self.failed.extend(self.running.as_ref().map(|(package, _)| package.clone()));
            }
        }
        true
    }

    fn end(&mut self, at: Duration) {
        if let Some((package, since)) = self.running.take() {
            *self.took.entry(package).or_default() += at.saturating_sub(since);
        }
    }
}

fn stem(program: &Path) -> String {
    program.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

/// The package's name in cargo's identifier: `path+file:///photofinish/crates/judge#0.1.0`, `…/gguf#reference-gguf@0.1.0`.
fn name_of(package_id: &str) -> &str {
    let (place, version) = package_id.rsplit_once('#').unwrap_or((package_id, ""));
    version.split_once('@').map_or_else(|| place.rsplit('/').next().unwrap_or(place), |(name, _)| name)
}

/// `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.00s`
fn parse_result(line: &str) -> Option<Tally> {
    let counts = line.trim().strip_prefix("test result: ")?;
    let count = |word: &str| {
        counts.split([';', '.']).find_map(|part| part.trim().strip_suffix(word)?.trim().parse::<usize>().ok())
    };
    Some(Tally { passed: count("passed")?, failed: count("failed")?, skipped: count("ignored")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_the_test_harness_are_read() {
        let ok =
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.00s";
        assert_eq!(parse_result(ok), Some(Tally { passed: 3, failed: 0, skipped: 1 }));
        let failed = "test result: FAILED. 12 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.50s";
        assert_eq!(parse_result(failed), Some(Tally { passed: 12, failed: 2, skipped: 0 }));
        assert_eq!(parse_result("test tests::result ... ok"), None);
    }

    #[test]
    fn tests_are_timed_and_counted_by_package() {
        let mut watched = Watched::default();
        let at = Duration::from_secs;
        let artifact = |id: &str, program: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","package_id":"{id}","executable":"/t/deps/{program}"}}"#
            )
        };
        assert!(!watched.read(&artifact("path+file:///p/crates/judge#0.1.0", "judge-1"), at(0)));
        assert!(
            !watched.read(&artifact("path+file:///p/references/gguf#reference-gguf@0.1.0", "all-2"), at(0))
        );
        assert!(watched.read("     Running unittests src/lib.rs (target/release/deps/judge-1)", at(1)));
        let result =
            "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s";
        watched.read(result, at(2));
        watched.read("     Running tests/all/main.rs (target/release/deps/all-2)", at(4));
        watched.read(&result.replace("0 failed", "2 failed"), at(5));
        watched.end(at(9));
        assert_eq!(watched.tally, Tally { passed: 6, failed: 2, skipped: 0 });
        assert_eq!(watched.took, BTreeMap::from([("judge".into(), at(3)), ("reference-gguf".into(), at(5))]));
        assert_eq!(watched.failed, BTreeSet::from(["reference-gguf".to_owned()]));
    }

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
}

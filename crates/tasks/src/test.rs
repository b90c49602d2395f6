//! `cargo xtask test`: everything that must pass, counted and timed.
//!
//! One invocation of cargo compiles the tests of all packages and runs them. Set-up runs at the same time.

mod packages;
mod times;
mod watched;

use std::io::IsTerminal;
use std::process::{Command, ExitCode};
use std::sync::mpsc;

use anyhow::{Context, Result, anyhow};
use setup::{Piece, Provided, Reference, Target};
use tooling::Reporter;
use tooling::process::{command, output_of, succeeds, succeeds_watched};

use self::packages::{PACKAGES, Package, Scope};
use self::times::Times;
use self::watched::{Tally, Watched};
use crate::build::{self, Wanted};
use crate::cargo::{self, cargo};
use crate::catalog::Engines;
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
            findings.tests_of(
                &shown,
                &packages::named(&["engine-ort".to_owned()])?,
                &[library],
                Which::Usual,
            )?;
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
                    let begun = times::now();
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
        self.tests_of(workspace, chosen, &pieces, Which::Usual)?;
        if campaigns { self.campaigns(workspace, &pieces) } else { Ok(()) }
    }

    /// The long campaigns. Other crates ignore tests for lack of hardware or software, and those must not
    /// run; of worker-check the ignored tests are those of references, which are all set up by now.
    fn campaigns(&mut self, workspace: &Workspace, pieces: &[Provided]) -> Result<()> {
        self.tests_of(
            workspace,
            &packages::named(&["driver", "worker-check"].map(str::to_owned))?,
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
        for manifest in ["Cargo.toml", cargo::REFERENCES] {
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

/// The tests of these packages: one command, and one for references, which are a workspace of their own.
fn cargo_tests(workspace: &Workspace, packages: &[&Package], pieces: &[Provided]) -> Vec<Command> {
    let mut tests = Vec::new();
    for are_references in [false, true] {
        let names: Vec<&str> = packages.iter().map(|package| package.name).collect();
        let names: Vec<&str> =
            names.into_iter().filter(|name| cargo::is_reference(name) == are_references).collect();
        if names.is_empty() {
            continue;
        }
        let mut test = cargo(workspace);
        // `--tests`: all but those of the documentation, which has none.
        test.args(["test", "--release", "--locked", "--tests"]);
        if are_references {
            test.args(["--manifest-path", cargo::REFERENCES]);
            test.envs(workspace.binaries.parent().map(|target| ("CARGO_TARGET_DIR", target)));
        }
        test.args(names.iter().flat_map(|name| ["--package", name]));
        test.envs(pieces.iter().map(|provided| (provided.piece.variable(), &provided.path)));
        tests.push(test);
    }
    tests
}

#[cfg(test)]
mod tests {
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
}

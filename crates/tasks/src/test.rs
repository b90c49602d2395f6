//! `cargo xtask test`: everything that must pass, counted.
//!
//! One invocation of cargo compiles the tests of all packages and runs them. Set-up runs at the same time.

use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::process::{Child, Command, ExitCode};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use setup::tooling::process::{command, output_of, succeeds, succeeds_watched};
use setup::tooling::{BadInput, Reporter};
use setup::{Piece, Provided, Reference, Target};

use crate::build::{self, Engines, Wanted};
use crate::cargo::{self, cargo};
use crate::workspace::Workspace;
use crate::{cuda, readers, references, rehearsal, tidy};

/// References that install in a minute. Those with PyTorch take five gigabytes: they are tested where they are set up.
const TESTED: [Reference; 5] =
    [Reference::Llamacpp, Reference::Openvino, Reference::Jax, Reference::Tinygrad, Reference::Whispercpp];

/// No test may hang for ever: a run of tests that takes longer has failed. Less than the 90 minutes of `.ci/run`.
const LONGEST_RUN: Duration = Duration::from_secs(75 * 60);

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

pub(crate) fn run(workspace: &Workspace, asked: &Args) -> Result<ExitCode> {
    let mut findings = Findings { packages: packages(workspace)?, ..Findings::of(workspace) };
    if let Some(Device::CudaBuild) = asked.device {
        findings.cuda_build()?;
    } else if !asked.packages.is_empty() {
        let chosen = findings.named(&asked.packages)?;
        findings.with_programs(&chosen, asked.all)?;
    } else if asked.quick {
        findings.quick()?;
    } else {
        let scope = if asked.all { Scope::All } else { Scope::Usual };
        let chosen = findings.chosen(scope);
        findings.formatting()?;
        findings.with_set_up(chosen, scope)?;
        findings.step("an installation at work", || rehearsal::check(workspace));
    }
    findings.told()
}

struct Findings<'a> {
    workspace: &'a Workspace,
    /// Every package that there is.
    packages: Vec<Package>,
    tally: Tally,
    /// Steps, to be named again at the end of a long output.
    failed: Vec<String>,
}

impl<'a> Findings<'a> {
    fn of(workspace: &'a Workspace) -> Self {
        Self { workspace, packages: Vec::new(), tally: Tally::default(), failed: Vec::new() }
    }

    /// Prints the failures, and the number of passed tests.
    fn told(&self) -> Result<ExitCode> {
        if !self.failed.is_empty() {
            println!("failed: {}", self.failed.join(", "));
        }
        println!("{}", self.tally);
        Ok(if self.tally.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// A step that is no test counts only where it fails or is left out.
    #[expect(clippy::disallowed_methods, reason = "people read how long a step took; it is no measurement")]
    fn step(&mut self, name: &str, step: impl FnOnce() -> Result<()>) {
        let begun = Instant::now();
        let outcome = step();
        let seconds = begun.elapsed().as_secs();
        match outcome {
            Ok(()) => println!("ok: {name} ({seconds} s)"),
            Err(error) => {
                println!("failed: {name}: {error:#}");
                self.tally.failed += 1;
                self.failed.push(name.to_owned());
            }
        }
    }

    fn skip(&mut self, name: &str, reason: &str) {
        println!("skipped: {name}: {reason}");
        self.tally.skipped += 1;
    }

    /// The packages that this scope tests; the others are skipped.
    fn chosen(&mut self, scope: Scope) -> Vec<Package> {
        let (chosen, left_out): (Vec<_>, Vec<_>) =
            self.packages.iter().cloned().partition(|package| package.scope() <= scope);
        for package in left_out {
            self.skip(&format!("tests of {}", package.name), scope.reason());
        }
        chosen
    }

    fn named(&self, names: &[impl AsRef<str>]) -> Result<Vec<Package>> {
        let known = |name: &str| self.packages.iter().find(|package| package.name == name).cloned();
        let unknown = |name: &str| {
            let all: Vec<&str> = self.packages.iter().map(|package| package.name.as_str()).collect();
            BadInput(format!("unknown package {name:?}; there are {}", all.join(", "))).into()
        };
        names.iter().map(AsRef::as_ref).map(|name| known(name).ok_or_else(|| unknown(name))).collect()
    }

    fn quick(&mut self) -> Result<()> {
        let chosen = self.chosen(Scope::Quick);
        self.formatting()?;
        for what in ["readers of results", "an installation at work"] {
            self.skip(what, "it takes the network or native libraries");
        }
        self.tidy();
        self.compile(&chosen, &[])?;
        self.tests_of(&chosen, &[], &[])
    }

    fn tidy(&mut self) {
        let root = &self.workspace.root;
        self.step("tidy", || tidy::run(root));
    }

    /// Tests of the workers for a GPU on a machine without one: that they are built and linked, that each finds
    /// its libraries except the driver's, and that ONNX Runtime's GPU library does everything that the CPU's
    /// does.
    fn cuda_build(&mut self) -> Result<()> {
        let workspace = self.workspace;
        self.step("build for a GPU", || cuda::build(workspace, &[], Reporter::new(false)));
        let provision = workspace.provision(Reporter::new(false))?;
        let libraries = cuda::library_path(&provision)?;
        for worker in cuda::workers(workspace) {
            let name = format!("libraries of {}", worker.display());
            self.step(&name, || cuda::finds_its_libraries(&worker, &libraries));
        }
        let chosen = self.named(&["engine-ort"])?;
        let Some(library) = provision.find(Piece::OnnxruntimeCuda)? else {
            self.step("tests of engine-ort", || Err(anyhow!("ONNX Runtime for a GPU is not there")));
            return Ok(());
        };
        let shown = Workspace { variables: vec![("LD_LIBRARY_PATH", libraries)], ..workspace.clone() };
        let mut tests = Findings::of(&shown);
        tests.tests_of(&chosen, &[library], &[])?;
        self.add(tests.tally, tests.failed);
        Ok(())
    }

    fn add(&mut self, tally: Tally, failed: Vec<String>) {
        self.tally.add(tally);
        self.failed.extend(failed);
    }

    /// Compiles and runs the tests, and sets up other programs that they start while it compiles.
    fn with_set_up(&mut self, mut chosen: Vec<Package>, scope: Scope) -> Result<()> {
        self.tidy();
        let workspace = self.workspace;
        let reporter = Reporter::new(false).without_bars();
        let provision = workspace.provision(reporter)?;
        let mut pieces = Vec::new();
        for piece in Piece::ALL {
            // One that is not to be had fails the packages that need it; the others are tested.
            self.step(&format!("set-up of {piece}"), || {
                pieces.push(provision.provide(piece)?);
                Ok(())
            });
        }
        let has_libtorch = pieces.iter().any(|provided| provided.piece == Piece::Libtorch);
        for package in chosen.extract_if(.., |package| !has_libtorch && package.links_libtorch()) {
            self.step(&format!("tests of {}", package.name), || Err(anyhow!("libtorch is not there")));
        }
        std::thread::scope(|threads| {
            let set_up = threads.spawn(|| {
                let mut steps = Findings::of(workspace);
                steps.step("readers of results", || readers::check(workspace));
                // The one program of another workspace that tests of the driver start.
                steps.step("build of reference-openai", || {
                    cargo::build(workspace, &["reference-openai"], None, reporter)
                });
                for reference in TESTED.into_iter().filter(|_| scope == Scope::All) {
                    steps.reference(reference, reporter);
                }
                (steps.tally, steps.failed)
            });
            self.compile(&chosen, &pieces)?;
            let (tally, failed) =
                set_up.join().map_err(|_| anyhow!("the set-up of references ended too early"))?;
            self.add(tally, failed);
            anyhow::Ok(())
        })?;
        self.tests_of(&chosen, &pieces, &[])?;
        if scope == Scope::All { self.campaigns(&pieces) } else { Ok(()) }
    }

    /// Builds the programs that the tests of these packages start, with the pieces that they need.
    fn with_programs(&mut self, chosen: &[Package], campaigns: bool) -> Result<()> {
        // Each once.
        let programs: BTreeSet<&str> = chosen.iter().flat_map(Package::starts).copied().collect();
        let mut pieces = Vec::new();
        if !programs.is_empty() {
            let engines = Engines::read(self.workspace)?;
            let wanted = Wanted {
                programs: programs.into_iter().collect(),
                engines: engines.select(&[])?,
                pieces: Piece::ALL.to_vec(),
                ..Wanted::default()
            };
            build::together(self.workspace, &wanted, Reporter::new(false))?;
            let provision = self.workspace.provision(Reporter::new(true))?;
            pieces = Piece::ALL.into_iter().map(|piece| provision.provide(piece)).collect::<Result<_>>()?;
        }
        self.compile(chosen, &pieces)?;
        self.tests_of(chosen, &pieces, &[])?;
        if campaigns { self.campaigns(&pieces) } else { Ok(()) }
    }

    /// The long campaigns of `driver`, which are ignored for their length. Other crates ignore tests for lack of
    /// hardware or software, and those must not run.
    fn campaigns(&mut self, pieces: &[Provided]) -> Result<()> {
        self.tests_of(&self.named(&["driver"])?, pieces, &["--", "--ignored"])
    }

    /// Sets up a reference for the tests. A missing program is installed if that needs no password; else the
    /// reference is skipped with a message.
    fn reference(&mut self, reference: Reference, reporter: Reporter) {
        let program = match reference {
            Reference::Tinygrad => Some("clang"),
            Reference::Llamacpp => Some("npm"),
            _ => None,
        };
        let missing = program.filter(|program| output_of(command(program).arg("--version")).is_err());
        if let Some(program) = missing {
            let installed = succeeds(command("apt-get").args(["install", "--yes", "--quiet", program]));
            if !installed.unwrap_or(false) {
                let why =
                    format!("it needs {program}, which cannot be installed here (apt-get install {program})");
                self.skip(&format!("set-up of {reference}"), &why);
                return;
            }
        }
        let workspace = self.workspace;
        self.step(&format!("set-up of {reference}"), || {
            references::set_up(workspace, Target::Cpu, &[reference], reporter)
        });
    }

    fn formatting(&mut self) -> Result<()> {
        if output_of(command("rustfmt").arg("--version")).is_err() {
            self.skip("formatting", "rustfmt is not installed (rustup component add rustfmt)");
            return Ok(());
        }
        for manifest in cargo::MANIFESTS {
            let check = ["fmt", "--all", "--manifest-path", manifest];
            let formatted = succeeds(cargo(self.workspace).args(check).arg("--check"))?;
            let corrects = || anyhow!("`cargo {}` corrects it", check.join(" "));
            self.step(&format!("formatting of {manifest}"), || formatted.then_some(()).ok_or_else(corrects));
        }
        Ok(())
    }

    /// Compiles the tests and all programs of these packages in one invocation of cargo. Packages that do not build are a
    /// failure when they are tested.
    fn compile(&self, packages: &[Package], pieces: &[Provided]) -> Result<()> {
        for mut compile in cargo_tests(self.workspace, packages, pieces) {
            succeeds_watched(compile.arg("--no-run"))?;
        }
        Ok(())
    }

    /// Streams and counts the packages' tests.
    fn tests_of(&mut self, packages: &[Package], pieces: &[Provided], more: &[&str]) -> Result<()> {
        for mut test in cargo_tests(self.workspace, packages, pieces) {
            test.arg("--no-fail-fast").args(more).env("CARGO_TERM_COLOR", "never");
            let (tally, succeeded) = count(test)?;
            self.tally.add(tally);
            if !succeeded && tally.failed == 0 {
                self.step("tests", || Err(anyhow!("they did not build, or did not run to their end")));
            }
        }
        Ok(())
    }
}

/// Runs tests, shows what they print, and counts their results.
fn count(mut test: Command) -> Result<(Tally, bool)> {
    // One pipe for cargo's lines and those of the tests, so that their order is kept.
    let (reader, writer) = std::io::pipe().context("cannot make a pipe")?;
    let child = test.stdout(writer.try_clone()?).stderr(writer).spawn().context("cannot start cargo")?;
    // It holds ends of the pipe, which would stay open.
    drop(test);
    let (ended, watched) = mpsc::channel();
    let watch = std::thread::spawn(move || within_limit(child, &watched));
    let mut tally = Tally::default();
    let clock = xtask::Clock::new(std::io::stdout().is_terminal());
    xtask::copy(reader, &mut std::io::stdout(), clock, |line| {
        tally.add(result_of(&String::from_utf8_lossy(line)).unwrap_or_default());
        true
    })?;
    let _ = ended.send(());
    let succeeded = watch.join().map_err(|_| anyhow!("cargo could not be waited for"))??;
    Ok((tally, succeeded))
}

/// Waits until the output of the tests has ended. Tests that hang keep it open: then this program ends.
fn within_limit(mut cargo: Child, ended: &mpsc::Receiver<()>) -> Result<bool> {
    if ended.recv_timeout(LONGEST_RUN) == Err(RecvTimeoutError::Timeout) {
        let _ = cargo.kill();
        println!("failed: the tests did not end in {} minutes", LONGEST_RUN.as_secs() / 60);
        println!("{}", Tally { failed: 1, ..Tally::default() });
        std::process::exit(1);
    }
    Ok(cargo.wait()?.success())
}

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

/// `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.00s`
fn result_of(line: &str) -> Option<Tally> {
    let counts = line.trim().strip_prefix("test result: ")?;
    let count = |word: &str| {
        counts.split([';', '.']).find_map(|part| part.trim().strip_suffix(word)?.trim().parse::<usize>().ok())
    };
    Some(Tally { passed: count("passed")?, failed: count("failed")?, skipped: count("ignored")? })
}

/// The tests of these packages: one command for each workspace.
fn cargo_tests(workspace: &Workspace, packages: &[Package], pieces: &[Provided]) -> Vec<Command> {
    let mut tests = Vec::new();
    for manifest in cargo::MANIFESTS {
        let of_this = packages.iter().filter(|package| package.manifest == manifest);
        let names: Vec<&str> = of_this.map(|package| package.name.as_str()).collect();
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
        if names.contains(&"prepare") {
            // Its program for the Hugging Face hub is built only where it is named.
            test.args(["--features", "prepare/hub"]);
        }
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
    fn reason(self) -> &'static str {
        match self {
            Self::Quick => "they take a framework or the model",
            _ => "`cargo xtask test --all` has them",
        }
    }
}

#[derive(Clone)]
struct Package {
    name: String,
    /// That of its workspace.
    manifest: &'static str,
}

/// Every package, as cargo knows them.
fn packages(workspace: &Workspace) -> Result<Vec<Package>> {
    let mut packages = Vec::new();
    for manifest in cargo::MANIFESTS {
        let members = cargo::metadata(&workspace.root, manifest)?.packages;
        packages.extend(members.into_iter().map(|member| Package { name: member.name, manifest }));
    }
    packages.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(packages)
}

const COMPARING: &[&str] =
    &["driver", "prepare", "engine-mock", "engine-candle", "engine-ort", "engine-tch", "reference-openai"];

impl Package {
    fn scope(&self) -> Scope {
        match self.name.as_str() {
            _ if self.manifest != cargo::MANIFESTS[0] => Scope::All,
            // Its pages' worker needs numpy, which the readers' environment has.
            "driver" => Scope::Usual,
            // Their tests prepare models, which compiles candle.
            "conformance" | "onnx" | "prepare" => Scope::Usual,
            "engine-candle" | "engine-hybrid" | "engine-ort" | "engine-tch" => Scope::Usual,
            _ => Scope::Quick,
        }
    }

    /// Packages with programs that its tests start.
    fn starts(&self) -> &'static [&'static str] {
        match self.name.as_str() {
            "driver" | "fuzz" => COMPARING,
            "engine-hybrid" | "engine-ort" | "engine-tch" => &["prepare"],
            _ => &[],
        }
    }

    fn links_libtorch(&self) -> bool {
        ["engine-hybrid", "engine-tch"].contains(&self.name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use crate::build::Engines;
    use crate::workspace::Workspace;

    use super::*;

    #[test]
    fn a_step_counts_only_where_it_fails_or_is_left_out() {
        let workspace = Workspace::locate().unwrap();
        let mut findings = Findings::of(&workspace);
        findings.tally.add(Tally { passed: 7, failed: 0, skipped: 0 });
        findings.step("good", || Ok(()));
        findings.step("bad", || Err(anyhow!("because")));
        findings.skip("absent", "because");
        assert_eq!(findings.tally.to_string(), "7 passed, 1 failed, 1 skipped");
        assert_eq!(findings.failed, ["bad"]);
    }

    #[test]
    fn results_of_the_test_harness_are_read() {
        let ok =
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.00s";
        assert_eq!(result_of(ok), Some(Tally { passed: 3, failed: 0, skipped: 1 }));
        let failed = "test result: FAILED. 12 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.50s";
        assert_eq!(result_of(failed), Some(Tally { passed: 12, failed: 2, skipped: 0 }));
        assert_eq!(result_of("test tests::result ... ok"), None);
    }

    #[test]
    fn engines_that_need_a_native_library_are_no_part_of_a_quick_test() {
        let workspace = Workspace::locate().unwrap();
        let packages = packages(&workspace).unwrap();
        let engines = Engines::read(&workspace).unwrap();
        for engine in engines.all().iter().filter(|engine| !engine.native.is_empty()) {
            let package = packages.iter().find(|package| package.name == engine.worker);
            assert!(package.is_none_or(|package| package.scope() > Scope::Quick), "{}", engine.worker);
        }
    }
}

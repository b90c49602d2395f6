//! `cargo xtask test`: everything that must pass, counted.

use std::io::{BufRead, BufReader, Write};
use std::process::{ExitCode, Stdio};

use anyhow::{Context, Result, anyhow};
use setup::{Piece, Provided, Reference, Target};
use tooling::Reporter;
use tooling::process::{command, output_of, succeeds};

use crate::cargo::cargo;
use crate::workspace::Workspace;
use crate::{build, cuda, readers, references, rehearsal};

/// Packages whose tests are compiled together, so that what several of them rest on is compiled once. In this order: what
/// others rest on comes first, and the engines' tests come after those that run the engines as they were built.
const GROUPS: &[&[Package]] = &[
    &[
        Package::plain("bundle"),
        Package::plain("configs"),
        Package::plain("tooling"),
        Package::plain("tidy"),
        Package::plain("setup"),
        Package::plain("engine"),
        Package::plain("foreign"),
        Package::plain("gpu"),
        Package::plain("nvml-fake"),
        Package::plain("protocol"),
        Package::plain("profile"),
        Package::plain("history"),
        Package::plain("charts"),
        Package::plain("statistics"),
        Package::plain("xtask"),
    ],
    &[
        Package::plain("worker"),
        Package::plain("engine-mock"),
        Package::plain("calibrate"),
        Package::plain("plan"),
        Package::plain("judge"),
        Package::plain("claims"),
        Package::plain("measure"),
        Package::plain("render"),
        // Its page's worker needs numpy, which the readers' environment has.
        Package::native("worker-check"),
        Package::native("driver"),
    ],
    &[
        Package::plain("conformance"),
        Package::plain("prepare"),
        Package::plain("fuzz"),
        Package::plain("onnx"),
        Package::plain("engine-candle"),
        Package::native("engine-ort"),
        Package::native("engine-tch"),
        Package::native("engine-hybrid"),
        Package::plain("reference-gguf"),
        Package::plain("reference-burn"),
        Package::plain("reference-candle-transformers"),
        Package::plain("reference-rten"),
        Package::plain("reference-tract"),
    ],
];

/// References that install from the registry alone in a minute: crate `worker-check` tests them (`columns`). Those with
/// PyTorch take five gigabytes, and llama.cpp ten minutes to build: they are tested where they are set up.
const TESTED: [Reference; 3] = [Reference::Openvino, Reference::Jax, Reference::Tinygrad];

struct Package {
    name: &'static str,
    /// Its tests take a native library or the model.
    native: bool,
}

impl Package {
    const fn plain(name: &'static str) -> Self {
        Self { name, native: false }
    }

    const fn native(name: &'static str) -> Self {
        Self { name, native: true }
    }
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
}

pub(crate) fn run(workspace: &Workspace, quick: bool) -> Result<ExitCode> {
    let reporter = Reporter::new(false);
    let mut findings = Findings::default();
    findings.formatting(workspace)?;
    findings.step("tidy", tidy::run(&workspace.root));
    if quick {
        findings.skip("readers of results", "pandas, DuckDB and jq come over the network");
        findings.skip("the Kubernetes example", "its schema comes over the network");
        findings.skip("an installation at work", "it takes native libraries");
    } else {
        findings.step("readers of results", readers::check(workspace));
        findings.step("the Kubernetes example", readers::kubernetes(workspace));
    }
    let mut pieces = Vec::new();
    if !quick {
        let provision = workspace.provision(reporter)?;
        // A piece that is not to be had fails the packages that need it; the others are tested.
        for piece in Piece::ALL {
            let provided = provision.provide(piece).map(|provided| pieces.push(provided));
            findings.step(&format!("set-up of {piece}"), provided);
        }
        for reference in TESTED {
            findings.reference(workspace, reference, reporter);
        }
        findings.step("build", build::run(workspace, &[], reporter).map(drop));
        findings.step("an installation at work", rehearsal::check(workspace));
    }
    for group in GROUPS {
        let (left_out, tested): (Vec<_>, Vec<_>) =
            group.iter().partition(|package: &&Package| quick && package.native);
        for package in left_out {
            findings.skip(&format!("tests of {}", package.name), "they take a native library or the model");
        }
        let names: Vec<&str> = tested.iter().map(|package| package.name).collect();
        findings.tests_of(workspace, &names, &pieces)?;
    }
    findings.told()
}

/// What can be proved of the workers for a GPU on a machine without one: that they are built and linked, that each finds
/// its libraries but the driver's, and that ONNX Runtime's GPU library does all else that the CPU's does.
pub(crate) fn cuda_build(workspace: &Workspace) -> Result<ExitCode> {
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
        Some(library) => findings.tests_of(&shown, &["engine-ort"], &[library])?,
        None => findings.fail("tests of engine-ort"),
    }
    findings.told()
}

impl Findings {
    /// Says what failed, and how many tests passed.
    fn told(&self) -> Result<ExitCode> {
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

    fn fail(&mut self, name: &str) {
        self.tally.failed += 1;
        self.failed.push(name.to_owned());
    }

    fn skip(&mut self, name: &str, reason: &str) {
        println!("skipped: {name}: {reason}");
        self.tally.skipped += 1;
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
        self.step("formatting", if formatted { Ok(()) } else { Err(anyhow!("`cargo fmt --all` mends it")) });
        Ok(())
    }

    /// Streams the packages' tests and counts them. Packages that do not build are one failure.
    fn tests_of(&mut self, workspace: &Workspace, packages: &[&str], pieces: &[Provided]) -> Result<()> {
        let packages_named = packages.join(", ");
        println!("== {packages_named}");
        let mut child = cargo(workspace)
            .args(["test", "--release", "--locked", "--no-fail-fast"])
            .args(packages.iter().flat_map(|package| ["--package", package]))
            .envs(pieces.iter().map(|provided| (provided.piece.variable(), &provided.path)))
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start cargo")?;
        let mut tally = Tally::default();
        if let Some(stdout) = child.stdout.take() {
            let mut out = std::io::stdout().lock();
            for line in BufReader::new(stdout).split(b'\n') {
                let line = line?;
                out.write_all(&line)?;
                out.write_all(b"\n")?;
                out.flush()?;
                if let Some(result) = parse_result(&String::from_utf8_lossy(&line)) {
                    tally.add(result);
                }
            }
        }
        let status = child.wait()?;
        self.tally.add(tally);
        let name = format!("tests of {packages_named}");
        if tally.failed > 0 {
            self.failed.push(name);
        } else if !status.success() {
            self.step(&name, Err(anyhow!("they did not run to their end")));
        }
        Ok(())
    }
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
    use crate::catalog::Engines;

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
    fn a_step_counts_only_where_it_fails_or_is_left_out() {
        let mut findings = Findings::default();
        findings.tally.add(Tally { passed: 7, failed: 0, skipped: 0 });
        findings.step("good", Ok(()));
        findings.step("bad", Err(anyhow!("because")));
        findings.skip("absent", "because");
        assert_eq!(findings.tally.to_string(), "7 passed, 1 failed, 1 skipped");
        assert_eq!(findings.failed, ["bad"]);
    }

    fn packages() -> impl Iterator<Item = &'static Package> {
        GROUPS.iter().copied().flatten()
    }

    #[test]
    fn every_member_of_the_workspace_is_tested() {
        let workspace = Workspace::locate().unwrap();
        let crates = std::fs::read_dir(workspace.root.join("crates")).unwrap();
        for name in crates.map(|entry| entry.unwrap().file_name().into_string().unwrap()) {
            assert!(packages().any(|package| package.name == name), "{name} is in none of GROUPS");
        }
    }

    #[test]
    fn engines_that_need_a_piece_are_tested_with_it() {
        let workspace = Workspace::locate().unwrap();
        for engine in Engines::read(&workspace).unwrap().all().iter().filter(|engine| !engine.reference) {
            let package = packages().find(|package| package.name == engine.worker).unwrap();
            assert_eq!(package.native, !engine.native.is_empty(), "{}", engine.worker);
        }
    }
}

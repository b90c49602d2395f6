//! `cargo xtask doctor`: for each framework whether it can run here, with which library from where,
//! and the command that sets it up where it cannot. Nothing is downloaded or built.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use configs::Engine;
use protocol::Hello;
use setup::{Piece, Provision, Target};
use tooling::Reporter;
use tooling::process::{self, command, output_of, output_within};

use crate::cargo::cargo;
use crate::catalog::Engines;
use crate::references::{self, Reference};
use crate::workspace::Workspace;

/// What doctor is asked for, as typed.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Asked {
    /// Hash every file of the installed libraries again, which takes seconds
    #[arg(long)]
    deep: bool,
}

pub(crate) fn run(workspace: &Workspace, asked: &Asked) -> Result<ExitCode> {
    let engines = Engines::read(workspace)?;
    let provision = workspace.provision(Reporter::new(true))?;
    let mut frameworks: BTreeMap<&str, Vec<&Engine>> = BTreeMap::new();
    for engine in engines.all().iter().filter(|engine| !engine.reference) {
        frameworks.entry(&engine.framework).or_default().push(engine);
    }
    let mut all_can_run = true;
    for (framework, mut variants) in frameworks {
        // The engine of the framework's own name stands for its variants.
        variants.sort_by_key(|engine| engine.name != framework);
        all_can_run &= examine(workspace, &provision, framework, &variants)?;
    }
    list_references(workspace);
    println!("cache: {}", workspace.cache.display());
    println!("  {}", state_of(&provision, Piece::Model));
    toolchain(workspace);
    if asked.deep {
        all_can_run &= examine_files(&provision)?;
    }
    Ok(if all_can_run { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prints a framework's lines; whether it can run.
fn examine(
    workspace: &Workspace,
    provision: &Provision,
    framework: &str,
    variants: &[&Engine],
) -> Result<bool> {
    let Some(engine) = variants.first() else { return Ok(false) };
    let pieces = Piece::named(&engine.native)?;
    let missing = pieces.iter().any(|&piece| matches!(provision.find(piece), Ok(None)));
    let wrong = pieces.iter().any(|&piece| provision.find(piece).is_err());
    let hello = say_hello(workspace, provision, engine);
    match &hello {
        Ok(hello) => {
            println!("{framework}: can run");
            println!("  library: {}, through {}", hello.library, hello.binding);
            if let Some(path) = &hello.library_path {
                println!("  loaded from: {path}");
            }
            if let Some(capability) = &hello.cpu_capability {
                println!("  CPU: {capability}");
            }
            let build = &hello.build;
            match (&build.rustc, &build.toolchain) {
                (Some(rustc), _) => {
                    println!("  built by: {rustc} with {:?}", build.rustflags.as_deref().unwrap_or_default())
                }
                (None, Some(toolchain)) => println!("  run by: {toolchain}"),
                (None, None) => {}
            }
        }
        Err(error) => println!("{framework}: cannot run: {error:#}"),
    }
    for &piece in &pieces {
        println!("  {}", state_of(provision, piece));
    }
    if let [_, others @ ..] = variants
        && !others.is_empty()
    {
        let names: Vec<_> = others.iter().map(|engine| engine.name.as_str()).collect();
        println!("  variants: {}", names.join(", "));
    }
    if pieces.contains(&Piece::Libtorch) && hello.is_err() && process::cxx_compiler().is_none() {
        println!("  first: install a C++ compiler (on Debian and Ubuntu: apt-get install g++) or set CXX");
    }
    if (hello.is_err() || missing) && !wrong {
        println!("  to fix it: cargo xtask build --frameworks {}", engine.name);
    }
    Ok(hello.is_ok())
}

fn say_hello(workspace: &Workspace, provision: &Provision, engine: &Engine) -> Result<Hello> {
    let pieces = Piece::named(&engine.native)?.into_iter().map(|piece| provision.find(piece));
    let pieces =
        pieces.collect::<Result<Vec<_>>>().map_err(|_| anyhow!("the library named for it is wrong"))?;
    let binary = workspace.binary(&engine.worker);
    ensure!(binary.is_file(), "{} is not built", engine.worker);
    let mut worker = command(binary);
    worker.arg("--hello");
    worker.envs(workspace.environment(engine));
    // The user's own, made absolute and checked.
    let given = pieces.into_iter().flatten().filter(|found| found.given);
    worker.envs(given.map(|found| (found.piece.variable(), found.path)));
    let line = output_within(&mut worker, Duration::from_secs(60))?;
    let hello: Hello = serde_json::from_str(&line)
        .with_context(|| format!("`{} --hello` did not print its receipt", engine.worker))?;
    ensure!(
        hello.framework == engine.framework,
        "{} says it is {}, but configs/engines/{}.toml says {}",
        engine.worker,
        hello.framework,
        engine.name,
        engine.framework
    );
    Ok(hello)
}

fn state_of(provision: &Provision, piece: Piece) -> String {
    match provision.find(piece) {
        Ok(Some(found)) => found.to_string(),
        Err(error) => error.to_string(),
        Ok(None) => {
            let version = provision.pinned_version(piece);
            format!("{piece} {version}: not set up; cargo xtask setup --only {piece}")
        }
    }
}

/// Prints what the hashes of installed files say; whether all are as they were installed.
fn examine_files(provision: &Provision) -> Result<bool> {
    println!("files of the cache, by sha256:");
    let mut is_sound = true;
    for piece in Piece::ALL {
        if let Some(what) = provision.damage(piece)? {
            println!("  {piece}: {what}; cargo xtask setup --only {piece}");
            is_sound = false;
        } else if matches!(provision.find(piece), Ok(Some(found)) if !found.given) {
            println!("  {piece}: as installed");
        }
    }
    Ok(is_sound)
}

/// Optional: that they are not set up is nobody's failure.
fn list_references(workspace: &Workspace) {
    println!("references:");
    let references = references::all(workspace, Target::Cpu);
    for reference in Reference::ALL {
        match references.check(reference) {
            Ok(()) => println!("  {reference}: set up"),
            Err(error) => println!("  {error}"),
        }
    }
}

fn toolchain(workspace: &Workspace) {
    let first_line = |text: String| text.lines().next().unwrap_or_default().to_owned();
    let or_missing = |found: Result<String>, remedy: &str| match found {
        Ok(text) => first_line(text),
        Err(_) => format!("not found; {remedy}"),
    };
    println!("toolchain:");
    println!("  cargo: {}", or_missing(output_of(cargo(workspace).arg("--version")), "install Rust"));
    let compiler = process::cxx_compiler().context("no compiler");
    let compiler = compiler.and_then(|name| output_of(command(name).arg("--version")));
    println!("  C++ compiler: {}", or_missing(compiler, "install g++ or clang, or set CXX; tch needs it"));
    let pip = output_of(command("python3").args(["-m", "pip", "--version"]));
    println!("  pip: {}", or_missing(pip, "install python3-pip; set-up downloads with it"));
}

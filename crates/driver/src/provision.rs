//! Brings about what a run needs: built workers, native libraries, the prepared model. Everything is
//! done by the tools that people use by hand (`cargo xtask`, `prepare`), never a second time here.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bundle::{Bundle, Precision};
use serde::Deserialize;

use crate::configs::{self, Engine};
use crate::failure::{Failure, Result};
use crate::places::Places;

/// Set by `cargo xtask compare`, which has provisioned already.
const PROVISIONED: &str = "PHOTOFINISH_PROVISIONED";

/// Builds the workers of `engines`, with the native libraries they need, where this is a checkout.
/// An engine that cannot be built is not an error here: it will be a row with its reason.
pub(crate) fn workers(places: &Places, engines: &[Engine], quiet: bool) -> Result<()> {
    if std::env::var_os(PROVISIONED).is_some() {
        return Ok(());
    }
    // Started by `cargo run`, sources may have changed since the workers were built; started
    // directly, workers that are there are those that the user means.
    let by_cargo = std::env::var_os("CARGO_MANIFEST_DIR").is_some();
    let missing = engines.iter().any(|engine| !places.binary(&engine.worker).is_file());
    let tool_missing = !places.binary("prepare").is_file();
    if !(by_cargo || missing || tool_missing) {
        return Ok(());
    }
    let Some(checkout) = &places.checkout else { return Ok(()) };
    let names: Vec<_> = engines.iter().map(|engine| engine.name.as_str()).collect();
    match xtask(checkout, &["build", "--frameworks", &names.join(",")], quiet)? {
        // Bad input, a library of the wrong version say: it has said so.
        Some(2) => Err(Failure::Spoken(2)),
        _ => Ok(()),
    }
}

/// Opens the prepared model that `--model` means, preparing it if need be, and checks the hashes of the
/// weights that will be used.
pub(crate) fn model(places: &Places, model: &str, precisions: &[Precision], quiet: bool) -> Result<Bundle> {
    let (source, name) = source(places, model, quiet)?;
    let bundle = match &source {
        Source::Path(path) if path.join(bundle::MANIFEST).is_file() => open(path)?,
        Source::Path(path) => open(&prepare(places, &path.display().to_string(), name, precisions, quiet)?)?,
        Source::Hub(hub) => open(&prepare(places, hub, name, precisions, quiet)?)?,
    };
    for precision in precisions {
        bundle.weights_path(*precision).map_err(bundle_error)?;
        bundle.verify(&precision.file_name()).map_err(bundle_error)?;
        // Shapes against config.json: a sentence now rather than a failed row per framework later.
        bundle.weights(*precision).map_err(bundle_error)?;
    }
    Ok(bundle)
}

enum Source {
    Path(PathBuf),
    Hub(String),
}

/// Where a model comes from, and the name it has in configs/models.
fn source<'a>(places: &Places, model: &'a str, quiet: bool) -> Result<(Source, Option<&'a str>)> {
    if model.starts_with("hf:") {
        return Ok((Source::Hub(model.to_owned()), None));
    }
    let path = Path::new(model);
    let is_path = path.components().count() > 1 || model.ends_with(".gguf") || path.is_absolute();
    if path.exists() && (is_path || !places.configs.join(format!("models/{model}.toml")).is_file()) {
        return Ok((Source::Path(path.to_path_buf()), None));
    }
    if is_path {
        return Err(Failure::usage(format!("there is no model at {model}")));
    }
    let config = configs::model(&places.configs, model)?;
    let source = config.source.replace("{cache}", &places.cache.display().to_string());
    if source.starts_with("hf:") {
        return Ok((Source::Hub(source), Some(model)));
    }
    let path = PathBuf::from(&source);
    if !path.exists() && !config.native.is_empty() {
        let pieces = config.native.join(",");
        let command = format!("cargo xtask setup --only {pieces}");
        let Some(checkout) = &places.checkout else {
            return Err(Failure::usage(format!("{source} is not there; run `{command}` in a checkout")));
        };
        let status = xtask(checkout, &["setup", "--only", &pieces], quiet)?;
        if status != Some(0) || !path.exists() {
            let summary = &config.summary;
            return Err(Failure::failed(format!("{model} ({summary}) could not be set up; try `{command}`")));
        }
    }
    Ok((Source::Path(path), Some(model)))
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
    let binary = places.binary("prepare");
    if !binary.is_file() {
        let text = format!("{} is not built; run `cargo build --release -p prepare`", binary.display());
        return Err(Failure::failed(text));
    }
    let precisions: Vec<_> = precisions.iter().map(|precision| precision.name()).collect();
    let mut command = command(&binary);
    command.arg(source).arg("--precision").arg(precisions.join(",")).arg("--bundles").arg(places.bundles());
    if let Some(name) = name {
        command.args(["--name", name]);
    }
    if quiet {
        command.arg("--quiet");
    }
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let output = output.map_err(|e| Failure::failed(format!("cannot start {}: {e}", binary.display())))?;
    if crate::interrupt::requested() {
        return Err(Failure::Interrupted);
    }
    if !output.status.success() {
        return Err(Failure::Spoken(output.status.code().map_or(1, |code| code as u8)));
    }
    let prepared: Prepared = serde_json::from_slice(&output.stdout)
        .map_err(|e| Failure::failed(format!("prepare said something else than a bundle's path: {e}")))?;
    Ok(prepared.bundle)
}

fn open(directory: &Path) -> Result<Bundle> {
    Bundle::open(directory).map_err(bundle_error)
}

fn bundle_error(error: bundle::BundleError) -> Failure {
    Failure::usage(error.to_string())
}

/// Runs `cargo xtask`, its stdout turned to stderr: ours belongs to the result. Gives its exit code; it has
/// explained itself if that is not 0.
fn xtask(checkout: &Path, arguments: &[&str], quiet: bool) -> Result<Option<i32>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = command(Path::new(&cargo));
    command.arg("xtask").args(arguments).current_dir(checkout).stdin(Stdio::null());
    // What `cargo run` set for this driver is not meant for the cargo below.
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
    let status = command.status();
    let status =
        status.map_err(|e| Failure::failed(format!("cannot start {}: {e}", Path::new(&cargo).display())))?;
    if crate::interrupt::requested() {
        return Err(Failure::Interrupted);
    }
    Ok(status.code())
}

fn command(program: &Path) -> Command {
    #[expect(clippy::disallowed_methods, reason = "provisioning runs the tools that people run by hand")]
    Command::new(program)
}

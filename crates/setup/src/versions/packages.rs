//! Another release of a Python package, over those of a reference's environment.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use tooling::process::{command, output_of};
use tooling::{BadInput, Reporter};

use super::{Version, cause};

/// The parts kept of pip's installation report.
#[derive(Serialize, Deserialize)]
struct Report {
    install: Vec<Installed>,
}

#[derive(Serialize, Deserialize)]
struct Installed {
    metadata: Metadata,
    download_info: serde_json::Value,
}

#[derive(Serialize, Deserialize)]
struct Metadata {
    name: String,
    version: String,
}

/// The path of a package with this version and its dependencies, installed or not.
pub fn place_of_package(cache: &Path, package: &str, version: &Version) -> PathBuf {
    cache.join("versions/python").join(format!("{package}-{}", version.slug()))
}

/// Installs a package for an interpreter, unless that release is there already. Hashes of the downloads are
/// stored next to it.
///
/// # Errors
/// In one sentence: a release that does not exist, or sources that cannot be built.
pub fn install_package(
    cache: &Path,
    python: &Path,
    package: &str,
    version: &Version,
    reporter: Reporter,
) -> Result<PathBuf> {
    let place = place_of_package(cache, package, version);
    let receipt = PathBuf::from(format!("{}.json", place.display()));
    if version.release().is_some() && receipt.is_file() {
        return Ok(place);
    }
    let requirement = match version {
        Version::Release(release) => format!("{package}=={release}"),
        Version::Place(path) => std::path::absolute(path)?.display().to_string(),
        Version::Git { url, revision } => format!("{package} @ git+{url}@{revision}"),
        Version::Build(_) => {
            return Err(BadInput(format!("{package} is a Python package, which is not built here")).into());
        }
    };
    let parent = place.parent().context("it is below the cache")?;
    fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
    let staging = tempfile::Builder::new().prefix(".python-").tempdir_in(parent)?;
    let (new, report) = (staging.path().join("new"), staging.path().join("report.json"));
    reporter.note(&format!("installing {requirement}"));
    let mut pip = command(python);
    pip.args(["-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"]);
    if version.release().is_some() {
        pip.args(["--only-binary", ":all:"]);
    }
    pip.arg("--target").arg(&new).arg("--report").arg(&report).arg(&requirement);
    output_of(&mut pip)
        .map_err(|error| BadInput(format!("pip cannot install {requirement}: {}", cause(&error))))?;
    let text = fs::read_to_string(&report).context("pip wrote no report")?;
    let report: Report = serde_json::from_str(&text).context("cannot read pip's report")?;
    let _ = fs::remove_dir_all(&place);
    fs::rename(&new, &place).with_context(|| format!("cannot install {}", place.display()))?;
    fs::write(&receipt, serde_json::to_string_pretty(&report)? + "\n")
        .with_context(|| format!("cannot write {}", receipt.display()))?;
    Ok(place)
}

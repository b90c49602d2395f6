//! `cargo xtask dist`: an installation as a tar.gz that can be unpacked anywhere, and its checksum
//! (docs/how-to/install.md).

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use flate2::Compression;
use flate2::write::GzEncoder;
use setup::{BuildRecord, this_platform};
use tooling::Reporter;

use crate::catalog::Engines;
use crate::install::{self, Target, What};
use crate::workspace::Workspace;

/// Kernels for the machines of the last ten years, and not for the one that builds: AVX2, FMA, BMI2.
const TARGET_CPU: Option<&str> = if cfg!(target_arch = "x86_64") { Some("x86-64-v3") } else { None };

pub(crate) fn run(workspace: &Workspace, what: &What, quiet: bool) -> Result<ExitCode> {
    let reporter = Reporter::new(quiet);
    let place = workspace.binaries.with_file_name("dist");
    let workspace = workspace.shipped().built_with(place.join("build"), variables());
    let binaries = install::build(&workspace, what, reporter)?;
    complete(&workspace, what, &binaries)?;
    // Where it was built from a libtorch of the user's own, other machines do not have that one.
    let record = BuildRecord { libtorch: None, ..install::record(&workspace)? };
    if record.git_modified == Some(true) {
        reporter.warn("files of this checkout differ from its commit; build.json says so");
    }
    let name = format!("photofinish-{}-{}", record.version, this_platform());
    let staging = tempfile::Builder::new().prefix(".staging-").tempdir_in(&place)?;
    let root = staging.path().join(&name);
    install::put(&workspace, &binaries, &record, &Target::below(&root))?;
    let archive = place.join(format!("{name}.tar.gz"));
    pack(&root, &name, &archive).with_context(|| format!("cannot write {}", archive.display()))?;
    let checksum = write_checksum(&archive)?;
    println!("{}\n{}", archive.display(), checksum.display());
    Ok(ExitCode::SUCCESS)
}

/// One set of flags for driver and workers, on every build machine; each worker reports them (rule R10).
pub(crate) fn variables() -> Vec<(&'static str, String)> {
    let flags = TARGET_CPU.map(|cpu| format!("-C target-cpu={cpu}")).unwrap_or_default();
    vec![("RUSTFLAGS", flags), ("PHOTOFINISH_RELOCATABLE", "1".to_owned())]
}

/// An archive without one of the workers would look complete.
fn complete(workspace: &Workspace, what: &What, binaries: &[String]) -> Result<()> {
    let engines = Engines::read(workspace)?;
    let mut missing = install::names(&engines.select(&what.frameworks)?, what.hub);
    missing.retain(|name| !binaries.contains(name));
    ensure!(missing.is_empty(), "no archive is made: {} could not be built", missing.join(", "));
    Ok(())
}

/// Writes the directory as `name/`. Equal files give equal archives: order, times and owners are fixed.
fn pack(root: &Path, name: &str, archive: &Path) -> Result<()> {
    let mut tar = tar::Builder::new(GzEncoder::new(File::create(archive)?, Compression::default()));
    tar.mode(tar::HeaderMode::Deterministic);
    append(&mut tar, root, Path::new(name))?;
    tar.into_inner()?.finish()?;
    Ok(())
}

fn append(tar: &mut tar::Builder<impl std::io::Write>, directory: &Path, name: &Path) -> Result<()> {
    tar.append_dir(name, directory)?;
    let entries = std::fs::read_dir(directory)?.map(|entry| entry.map(|entry| entry.path()));
    let mut paths = entries.collect::<std::io::Result<Vec<_>>>()?;
    paths.sort();
    for path in paths {
        let name = name.join(path.file_name().context("an entry has a name")?);
        if path.is_dir() {
            append(tar, &path, &name)?;
        } else {
            tar.append_path_with_name(&path, &name)?;
        }
    }
    Ok(())
}

/// Writes the archive's sha256 next to it, in the form that `sha256sum --check` reads.
fn write_checksum(archive: &Path) -> Result<PathBuf> {
    let name = archive.file_name().context("an archive has a name")?.to_string_lossy();
    let file = archive.with_file_name(format!("{name}.sha256"));
    std::fs::write(&file, format!("{}  {name}\n", setup::sha256(archive)?))
        .with_context(|| format!("cannot write {}", file.display()))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use setup::DERIVE;

    use super::*;

    #[test]
    fn an_archive_is_the_same_whenever_it_is_made_and_its_checksum_fits() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("made-up");
        std::fs::create_dir_all(root.join("share/deep")).unwrap();
        for (file, text) in [("share/deep/b", "bb"), ("a", "a"), ("share/c", "ccc")] {
            std::fs::write(root.join(file), text).unwrap();
        }
        let archives = ["one.tar.gz", "two.tar.gz"].map(|name| directory.path().join(name));
        for archive in &archives {
            pack(&root, "photofinish-1", archive).unwrap();
        }
        let [one, two] = archives.map(|archive| (std::fs::read(&archive).unwrap(), archive));
        assert_eq!(one.0, two.0);
        let mut unpacked = tar::Archive::new(flate2::read::GzDecoder::new(one.0.as_slice()));
        let names =
            unpacked.entries().unwrap().map(|entry| entry.unwrap().path().unwrap().display().to_string());
        let expected = ["", "a", "share", "share/c", "share/deep", "share/deep/b"];
        let expected = expected.map(|name| format!("photofinish-1/{name}").trim_end_matches('/').to_owned());
        let names: Vec<_> = names.map(|name| name.trim_end_matches('/').to_owned()).collect();
        assert_eq!(names, expected);
        let checksum = std::fs::read_to_string(write_checksum(&one.1).unwrap()).unwrap();
        assert_eq!(checksum, format!("{}  one.tar.gz\n", setup::sha256(&one.1).unwrap()));
    }

    #[test]
    fn every_worker_that_was_asked_for_must_be_in_an_archive() {
        let workspace = Workspace::locate().unwrap().shipped();
        let what = What { frameworks: vec!["tch".into(), "rten".into(), "llamacpp".into()], hub: true };
        let mut all = ["prepare", "engine-tch", "reference-rten", DERIVE, "hub"].map(str::to_owned).to_vec();
        complete(&workspace, &what, &all).unwrap();
        all.retain(|name| name != "engine-tch");
        let error = complete(&workspace, &what, &all).unwrap_err().to_string();
        assert!(error.contains("engine-tch could not be built"), "{error}");
    }
}

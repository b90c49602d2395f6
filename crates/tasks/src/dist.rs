//! `cargo xtask dist`: an installation for other machines, as a tar.gz that can be unpacked anywhere and as a wheel that
//! pip installs, with a list of what is in them (docs/how-to/install.md).
//!
//! Programs are linked for glibc 2.28. Workers are built for x86-64-v3 and for each level of newer processors
//! (`setup::levels`). The same commit gives the same bytes: paths of the machine that builds are in no file.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use configs::Engine;
use flate2::Compression;
use flate2::write::GzEncoder;
use setup::levels::{BASE, LEVELS};
use setup::tooling::process::{cxx_compiler, file_name};
use setup::tooling::{BadInput, Reporter};
use setup::{BuildRecord, DERIVE, Layout, Piece, this_platform};

use crate::build::{self, Engines, Wanted};
use crate::install::{self, Target, What};
use crate::workspace::{Workspace, sorted};
use crate::{bill, cargo, wheel};

/// The oldest glibc that the programs run with: Debian 10, RHEL 8, Ubuntu 20.04.
pub(crate) const GLIBC: &str = "2.28";

pub(crate) fn run(workspace: &Workspace, what: &What, quiet: bool) -> Result<ExitCode> {
    let reporter = Reporter::new(quiet);
    let place = workspace.binaries.with_file_name("dist");
    fs::create_dir_all(&place).with_context(|| format!("cannot make {}", place.display()))?;
    let workspace = workspace.shipped();
    let portable = Portable::provide(&workspace, &place, reporter)?;
    let base = workspace.built_with(place.join("build"), portable.variables(BASE));
    // Neither can be had elsewhere without a compiler: models of the hub, and the tool behind llama.cpp's column.
    let what = &What { hub: true, ..what.clone() };
    let mut binaries = install::build(&base, what, reporter)?;
    if !binaries.iter().any(|name| name == DERIVE) {
        cargo::build(&base, &[DERIVE], None, reporter)?;
        binaries.push(DERIVE.to_owned());
    }
    complete(&base, what, &binaries)?;
    // Where it was built from a libtorch of the user's own, other machines do not have that one.
    let record = BuildRecord { libtorch: None, rustflags: Some(BASE.to_owned()), ..install::record(&base)? };
    if record.git_modified == Some(true) {
        reporter.warn("files of this checkout differ from its commit; build.json says so");
    }
    let name = format!("photofinish-{}-{}", record.version, this_platform());
    let staging = tempfile::Builder::new().prefix(".staging-").tempdir_in(&place)?;
    let root = staging.path().join(&name);
    install::put(&base, &binaries, &record, &Target::below(&root))?;
    let layout = Layout::below(&root);
    let engines = Engines::read(&workspace)?;
    let engines: Vec<&Engine> = engines.installed(&what.frameworks)?;
    for level in LEVELS {
        let target = place.join(format!("build-{}", level.name));
        let built = workspace.built_with(target, portable.variables(level.flags));
        put_level(&built, &engines, &layout.workers().join(level.name), reporter)?;
    }
    let bill = bill::list(&workspace, &binaries, &record)?;
    fs::write(layout.data().join(bill::FILE), &bill).context("cannot write the list of contents")?;
    let archive = place.join(format!("{name}.tar.gz"));
    pack(&root, &name, &archive).with_context(|| format!("cannot write {}", archive.display()))?;
    let checksum = write_checksum(&archive)?;
    println!("{}\n{}", archive.display(), checksum.display());
    let list = place.join(format!("{name}.cyclonedx.json"));
    fs::write(&list, &bill).with_context(|| format!("cannot write {}", list.display()))?;
    println!("{}", list.display());
    if cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        let tag = format!("manylinux_{}_x86_64", GLIBC.replace('.', "_"));
        println!("{}", wheel::write(&root, &record.version, &tag, &place)?.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// An archive without one of the workers would look complete.
fn complete(workspace: &Workspace, what: &What, binaries: &[String]) -> Result<()> {
    let engines = Engines::read(workspace)?;
    let mut missing = install::names(&engines.installed(&what.frameworks)?, what.hub);
    missing.retain(|name| !binaries.contains(name));
    ensure!(missing.is_empty(), "no archive is made: {} could not be built", missing.join(", "));
    Ok(())
}

/// Builds these engines' workers with the flags of one level, and puts them into its directory.
fn put_level(built: &Workspace, engines: &[&Engine], place: &Path, reporter: Reporter) -> Result<()> {
    let engines: Vec<&Engine> =
        engines.iter().copied().filter(|engine| engine.worker.starts_with("engine-")).collect();
    if engines.is_empty() {
        return Ok(());
    }
    build::together(built, &Wanted { engines: engines.clone(), ..Wanted::default() }, reporter)?;
    fs::create_dir_all(place).with_context(|| format!("cannot make {}", place.display()))?;
    for engine in engines {
        install::copy(&built.binary(&engine.worker), &place.join(file_name(&engine.worker)))?;
    }
    Ok(())
}

/// How programs are built so that they run elsewhere.
struct Portable {
    /// A program that links as a compiler does, for [`GLIBC`]. `None` on systems for which none is pinned.
    linker: Option<PathBuf>,
    /// Paths of this machine, and the words in their place in programs.
    paths: Vec<(PathBuf, &'static str)>,
}

impl Portable {
    fn provide(workspace: &Workspace, place: &Path, reporter: Reporter) -> Result<Self> {
        let provision = workspace.provision(reporter)?;
        let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
        let home = home.or_else(|| Some(std::env::home_dir()?.join(".cargo")));
        let mut paths =
            vec![(workspace.root.clone(), "photofinish"), (provision.place(Piece::Libtorch)?, "libtorch")];
        paths.extend(home.map(|home| (home, "cargo")));
        let linker = match cfg!(all(target_os = "linux", target_arch = "x86_64")) {
            true => Some(linker(&provision.provide(Piece::Zig)?.path, place)?),
            false => None,
        };
        Ok(Self { linker, paths })
    }

    /// One set of flags for driver and workers, on every build machine; each worker reports them (rule R10).
    fn variables(&self, flags: &str) -> Vec<(&'static str, String)> {
        let remapped = |option: &str| -> String {
            let words = self.paths.iter().map(|(path, word)| format!(" {option}={}={word}", path.display()));
            words.collect()
        };
        let prefix_map = remapped("-ffile-prefix-map");
        let mut variables = vec![
            ("RUSTFLAGS", format!("{flags}{}", remapped("--remap-path-prefix")).trim().to_owned()),
            ("PHOTOFINISH_RELOCATABLE", "1".to_owned()),
            ("CFLAGS", prefix_map.trim().to_owned()),
            // Templates of the standard library's streams are compiled in place: a newer compiler's library exports
            // more of them than older machines have.
            ("CXXFLAGS", format!("-D_GLIBCXX_EXTERN_TEMPLATE=0{prefix_map}")),
        ];
        if let Some(linker) = &self.linker {
            let linker = linker.display().to_string();
            variables.push(("CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_LINKER", linker.clone()));
            variables.push(("CC", linker));
            variables.push(("CXXSTDLIB", String::new()));
            // libtorch is built with GCC's C++ library, and Zig has another. Nothing else is in C++.
            variables.extend(cxx_compiler().map(|compiler| ("CXX", compiler)));
        }
        variables
    }
}

/// A script in `place` that calls Zig as a compiler for an old glibc. `zig`: the directory of the piece.
fn linker(zig: &Path, place: &Path) -> Result<PathBuf> {
    let script = place.join(format!("cc-glibc-{GLIBC}"));
    let text = format!(
        "#!/bin/sh\nexport CARGO_ZIGBUILD_ZIG_COMMAND='{}'\nexec '{}' zig cc -- -g -fno-sanitize=all -mcpu=x86_64_v3 \
         -target x86_64-linux-gnu.{GLIBC} \"$@\"\n",
        zig.join("zig/zig").display(),
        zig.join("bin/cargo-zigbuild").display(),
    );
    ensure!(
        !zig.to_string_lossy().contains('\''),
        BadInput(format!("the cache directory {} has a quotation mark in its name", zig.display()))
    );
    fs::write(&script, text).with_context(|| format!("cannot write {}", script.display()))?;
    #[cfg(unix)]
    fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    Ok(script)
}

/// Writes the directory as `name/`. Equal files give equal archives: order, times and owners are fixed.
fn pack(root: &Path, name: &str, archive: &Path) -> Result<()> {
    let mut tar = tar::Builder::new(GzEncoder::new(File::create(archive)?, Compression::best()));
    tar.mode(tar::HeaderMode::Deterministic);
    append(&mut tar, root, Path::new(name))?;
    tar.into_inner()?.finish()?;
    Ok(())
}

fn append(tar: &mut tar::Builder<impl std::io::Write>, directory: &Path, name: &Path) -> Result<()> {
    tar.append_dir(name, directory)?;
    for path in sorted(directory)? {
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
    fs::write(&file, format!("{}  {name}\n", setup::sha256(archive)?))
        .with_context(|| format!("cannot write {}", file.display()))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_is_the_same_whenever_it_is_made_and_its_checksum_fits() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("made-up");
        fs::create_dir_all(root.join("share/deep")).unwrap();
        for (file, text) in [("share/deep/b", "bb"), ("a", "a"), ("share/c", "ccc")] {
            fs::write(root.join(file), text).unwrap();
        }
        let archives = ["one.tar.gz", "two.tar.gz"].map(|name| directory.path().join(name));
        for archive in &archives {
            pack(&root, "photofinish-1", archive).unwrap();
        }
        let [one, two] = archives.map(|archive| (fs::read(&archive).unwrap(), archive));
        assert_eq!(one.0, two.0);
        let mut unpacked = tar::Archive::new(flate2::read::GzDecoder::new(one.0.as_slice()));
        let names =
            unpacked.entries().unwrap().map(|entry| entry.unwrap().path().unwrap().display().to_string());
        let expected = ["", "a", "share", "share/c", "share/deep", "share/deep/b"];
        let expected = expected.map(|name| format!("photofinish-1/{name}").trim_end_matches('/').to_owned());
        let names: Vec<_> = names.map(|name| name.trim_end_matches('/').to_owned()).collect();
        assert_eq!(names, expected);
        let checksum = fs::read_to_string(write_checksum(&one.1).unwrap()).unwrap();
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

//! `photofinish setup` and `cargo xtask setup`: native libraries, the model and references, into the cache
//! directory. Also the paths of an installed program and its parts.
//!
//! An installed piece is recognised by its receipt and used without any network. A missing one is staged next
//! to its place on the same file system, verified, and moved in; its receipt comes last, so that an
//! interrupted set-up is repeated and never leaves a half-installed piece in use.

mod download;
mod layout;
pub mod layouts;
pub mod levels;
mod own;
mod pins;
mod receipt;
mod references;

pub mod tooling;

pub mod versions;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::{fmt, fs};

use anyhow::{Context, Result};
use clap::ValueEnum;
pub use download::size_of_tree;
use download::{Downloads, Mirror};
use layout::Wanted;
pub use layout::{BuildRecord, Home, Layout, PROGRAM};
use pins::Pins;
pub use pins::{Wheel, this_platform};
pub use receipt::sha256;
pub use references::{DERIVE, Reference, References};
use serde::Deserialize;
use versions::Version;

use crate::tooling::{BadInput, Reporter};

#[derive(Debug, Clone, clap::Args)]
pub struct Asked {
    /// Plain lines on long work instead of progress bars, and nothing else
    #[arg(long)]
    pub quiet: bool,
    /// Only these pieces
    #[arg(long, value_delimiter = ',', value_name = "PIECE,…")]
    pub only: Vec<Piece>,
    /// cuda: what engines need on a GPU, instead: NVIDIA's libraries, libtorch and ONNX Runtime with CUDA, and nvcc
    /// if the system has none; with --references, those for a GPU (docs/how-to/gpu.md)
    #[arg(long, value_name = "DEVICE", default_value = "cpu", conflicts_with = "only")]
    pub device: Target,
    /// Download into this directory and set nothing up; PHOTOFINISH_MIRROR=DIR sets up from it, without a network
    #[arg(long, value_name = "DIR")]
    pub to: Option<PathBuf>,
    /// Set up references instead, all or those named: the frameworks' own implementations
    /// (docs/reference/frameworks.md)
    #[arg(long, value_delimiter = ',', value_name = "NAME,…", num_args = 0..)]
    pub references: Option<Vec<Reference>>,
}

impl Asked {
    /// The requested pieces; none means those of a CPU.
    pub fn pieces(&self) -> Vec<Piece> {
        match self.device {
            Target::Cpu => self.only.clone(),
            Target::Cuda => self.device.pieces(),
        }
    }
}

/// `setup --to`: downloads what `asked` names into the directory, under the files' own names, and sets nothing up.
pub fn download(provision: &Provision, references: &References, asked: &Asked, to: &Path) -> Result<()> {
    fs::create_dir_all(to).map_err(|error| BadInput(format!("cannot create {} ({error})", to.display())))?;
    match &asked.references {
        Some(named) => references.download(named, to, provision)?,
        None => provision.download(&asked.pieces(), to)?,
    }
    provision.reporter.note(&format!("to set up from it: {}={}", download::MIRROR, to.display()));
    Ok(())
}

/// One thing that can be set up by itself. The names are those of configs/native.toml.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Piece {
    Libtorch,
    Onnxruntime,
    /// llama.cpp's libraries, for a reference.
    Llamacpp,
    Model,
    /// NVIDIA's libraries, which both of the next load.
    Cuda,
    LibtorchCuda,
    OnnxruntimeCuda,
    /// NVIDIA's compiler, for candle's kernels.
    Nvcc,
    /// A linker for systems that are older than this one, for `cargo xtask dist`.
    Zig,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Target {
    #[default]
    Cpu,
    Cuda,
}

impl Target {
    /// The target of work on a device of this name: `cpu`, `cuda:0`.
    pub fn of_device(device: &str) -> Self {
        if device.starts_with("cuda") { Self::Cuda } else { Self::Cpu }
    }

    /// The pieces that it needs. If the system has a compiler, that one is used.
    pub fn pieces(self) -> Vec<Piece> {
        match self {
            Self::Cpu => Piece::ALL.to_vec(),
            Self::Cuda => {
                let own = [Piece::Cuda, Piece::LibtorchCuda, Piece::OnnxruntimeCuda, Piece::Model];
                own.into_iter().chain((!has_nvcc()).then_some(Piece::Nvcc)).collect()
            }
        }
    }
}

/// Directory of the workers that are built for a GPU, inside that of all others, `workers`.
pub fn gpu_workers(workers: &Path) -> PathBuf {
    workers.join("cuda")
}

pub fn has_nvcc() -> bool {
    tooling::process::output_of(tooling::process::command("nvcc").arg("--version")).is_ok()
}

impl Piece {
    pub const ALL: [Self; 3] = [Self::Libtorch, Self::Onnxruntime, Self::Model];

    /// The pieces listed as `native` in a file of configs/engines or configs/models.
    pub fn named(native: &[String]) -> Result<Vec<Self>> {
        let unknown = |name: &String| {
            let known = Self::ALL.map(|piece| piece.to_string()).join(", ");
            BadInput(format!("unknown piece {name:?}; there are {known}"))
        };
        let piece = |name: &String| Self::from_str(name, false).map_err(|_| unknown(name).into());
        native.iter().map(piece).collect()
    }

    /// The pieces that replace this one on `target`.
    pub fn on(self, target: Target) -> Vec<Self> {
        match (target, self) {
            (Target::Cuda, Self::Libtorch) => vec![Self::Cuda, Self::LibtorchCuda],
            (Target::Cuda, Self::Onnxruntime) => vec![Self::Cuda, Self::OnnxruntimeCuda],
            _ => vec![self],
        }
    }

    /// The environment variable with the piece's path for builds and tests.
    pub fn variable(self) -> &'static str {
        match self {
            Self::Libtorch | Self::LibtorchCuda => "LIBTORCH",
            Self::Onnxruntime | Self::OnnxruntimeCuda => "ORT_DYLIB_PATH",
            Self::Llamacpp => "PHOTOFINISH_LLAMACPP",
            Self::Model => "PHOTOFINISH_MODEL_GGUF",
            Self::Cuda => "PHOTOFINISH_CUDA",
            Self::Nvcc => "CUDA_HOME",
            Self::Zig => "PHOTOFINISH_ZIG",
        }
    }

    /// The alternative for people who cannot or do not want to download it.
    fn instead(self, version: &str) -> String {
        match self {
            Self::Libtorch => format!("set LIBTORCH to a directory of libtorch {version}"),
            // The oldest with the C API that ort's feature api-24 needs.
            Self::Onnxruntime => {
                format!(
                    "set ORT_DYLIB_PATH to the shared library of onnxruntime 1.24 or newer, such as {version}"
                )
            }
            Self::Llamacpp => {
                format!("set PHOTOFINISH_LLAMACPP to a directory with the libraries of llama.cpp {version}")
            }
            Self::Model => "name a model of your own with --model".into(),
            Self::Cuda | Self::LibtorchCuda | Self::OnnxruntimeCuda => "compare with --device cpu".into(),
            Self::Nvcc => format!("install NVIDIA's CUDA toolkit {version}"),
            Self::Zig => "run `cargo xtask dist` where there is a network".into(),
        }
    }
}

impl fmt::Display for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.to_possible_value().ok_or(fmt::Error)?.get_name())
    }
}

/// A piece that can be used: the value for [`Piece::variable`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Provided {
    pub piece: Piece,
    pub path: PathBuf,
    /// `None`: a library of the user's own that does not report its version.
    pub version: Option<String>,
    /// Whether the user's variable names it; otherwise set-up installed it.
    pub given: bool,
}

impl fmt::Display for Provided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = self.version.as_deref().unwrap_or("of unknown version");
        write!(f, "{} {version}: {}", self.piece, self.path.display())?;
        if self.given { write!(f, " (from {})", self.piece.variable()) } else { Ok(()) }
    }
}

/// A package that a piece is unpacked from.
pub struct Archive {
    pub piece: Piece,
    /// In pip's form; a package of npm's has `npm:` before its name.
    pub requirement: String,
    pub sha256: String,
    pub bytes: u64,
}

/// The pins, and what there is of them.
pub struct Provision {
    cache: PathBuf,
    reporter: Reporter,
    pins: Pins,
}

impl Provision {
    /// `configs` contains native.toml; `cache` need not exist.
    pub fn new(configs: &Path, cache: &Path, reporter: Reporter) -> Result<Self> {
        Ok(Self { cache: cache.to_owned(), reporter, pins: Pins::read(configs)? })
    }

    /// All archives that may be fetched on this platform, for the list of what an installation consists of.
    pub fn archives(&self) -> Vec<Archive> {
        let mut archives = Vec::new();
        for &piece in Piece::value_variants() {
            let Some((pin, _)) = self.pins.for_this_platform(piece) else { continue };
            archives.extend(pin.wheels.into_iter().map(|wheel| Archive {
                piece,
                requirement: wheel.requirement,
                sha256: wheel.sha256,
                bytes: wheel.bytes,
            }));
        }
        archives
    }

    fn given(&self, piece: Piece) -> std::result::Result<Option<Provided>, BadInput> {
        own::given(&self.pins, piece, |name| std::env::var_os(name))
    }

    /// Provides these pieces, all of them if none is named, and removes leftovers of interrupted set-ups.
    pub fn provide_all(&self, only: &[Piece]) -> Result<()> {
        receipt::sweep(&self.cache)?;
        let pieces = if only.is_empty() { &Piece::ALL } else { only };
        // Before anything is downloaded.
        pieces.iter().try_for_each(|&piece| self.check_given(piece))?;
        let mut failed = Ok(());
        for (_, provided) in self.provide_each(pieces)? {
            match provided {
                Ok(provided) => self.reporter.note(&provided.to_string()),
                // The others mostly have the same reason.
                Err(error) => failed = failed.and(Err(error)),
            }
        }
        failed
    }

    /// Checks the library that the user names for this piece, if any.
    pub fn check_given(&self, piece: Piece) -> Result<()> {
        self.given(piece)?;
        Ok(())
    }

    /// The piece, downloaded if necessary.
    pub fn provide(&self, piece: Piece) -> Result<Provided> {
        let provided = self.provide_each(&[piece])?.pop();
        provided.with_context(|| format!("{piece} is not provided"))?.1
    }

    /// The pieces, downloaded together if necessary. One that fails stops no other.
    pub fn provide_each(&self, pieces: &[Piece]) -> Result<Vec<(Piece, Result<Provided>)>> {
        let mut wanted = Vec::new();
        let mut provided = Vec::new();
        for &piece in pieces {
            let given = self.given(piece).map_err(anyhow::Error::from);
            let outcome = given.and_then(|given| match given {
                Some(given) => Ok(given),
                None => {
                    let is_known = wanted.iter().any(|known: &Wanted| known.name == piece.to_string());
                    wanted.extend((!is_known).then(|| self.pinned(piece)).transpose()?);
                    Ok(self.installed(piece))
                }
            });
            provided.push((piece, outcome));
        }
        let mut failures = self.install(&wanted)?;
        for (piece, outcome) in &mut provided {
            if let Some(error) = failures.remove(&piece.to_string()) {
                *outcome = Err(error);
            }
        }
        Ok(provided)
    }

    /// The piece by its pin for this platform.
    fn pinned(&self, piece: Piece) -> Result<Wanted> {
        let version = self.pinned_version(piece);
        let instead = piece.instead(version);
        let lacking = format!("{piece} {version} is not pinned for {}: {instead}", pins::this_platform());
        let (pin, tags) = self.pins.for_this_platform(piece).ok_or(BadInput(lacking))?;
        Ok(Wanted { name: piece.to_string(), pin, tags: tags.to_vec(), instead })
    }

    fn install(&self, wanted: &[Wanted]) -> Result<BTreeMap<String, anyhow::Error>> {
        let directory = download::directory(&self.cache);
        let fetch: layout::Fetch<'_> =
            &|wheels, scratch| Ok(self.downloads(&directory, scratch)?.all(wheels));
        layout::install(&self.cache, wanted, fetch, self.reporter)
    }

    fn downloads<'a>(&'a self, directory: &Path, scratch: &'a Path) -> Result<Downloads<'a>> {
        let mirror = Mirror::from_environment()?;
        let (directory, options) = (directory.to_owned(), &self.pins.pip);
        Ok(Downloads { options, mirror, directory, scratch, reporter: self.reporter })
    }

    /// Downloads the archives of these pieces, all of them if none is named, into a directory that is there: for
    /// PHOTOFINISH_MIRROR.
    fn download(&self, only: &[Piece], to: &Path) -> Result<()> {
        let pieces = if only.is_empty() { &Piece::ALL } else { only };
        let wanted: Vec<Wanted> = pieces.iter().map(|&piece| self.pinned(piece)).collect::<Result<_>>()?;
        let lock = receipt::lock(&self.cache, self.reporter)?;
        let scratch = receipt::directory(to, &lock)?;
        self.downloads(to, scratch.path())?.keep(&layout::wheels(wanted.iter()))
    }

    /// Unpacks a model's packages into this directory of the cache, unless they are there. Models of one directory have
    /// the same packages.
    pub fn provide_packages(&self, model: &str, directory: &str, wheels: Vec<Wheel>) -> Result<()> {
        let wrong = |error: anyhow::Error| BadInput(format!("configs/models/{model}.toml: {error:#}"));
        pins::check_packages(directory, &wheels).map_err(wrong)?;
        let pin = pins::packages(directory, wheels);
        let (name, tags) = ("packages".to_owned(), self.pins.tags_here());
        let instead = "name a model of your own with --model".to_owned();
        let found = self.install(&[Wanted { name, pin, tags, instead }])?.into_values().next();
        found.map_or(Ok(()), |error| Err(error.context(format!("the model {model}"))))
    }

    /// Bytes that providing the piece would download: none if it is there or if the user gives it.
    pub fn missing_bytes(&self, piece: Piece) -> u64 {
        let (Ok(None), Ok(wanted)) = (self.find(piece), self.pinned(piece)) else { return 0 };
        let directory = download::directory(&self.cache);
        wanted.pin.wheels.iter().map(|wheel| wheel.bytes - download::there(&directory, wheel)).sum()
    }

    /// The library of a piece at a version that a user names, whatever the environment says: a release,
    /// downloaded if necessary, or a file.
    pub fn provide_version(&self, piece: Piece, version: &Version) -> Result<Provided> {
        let like =
            format!("name a release, such as {}, or the path of a library", self.pins.piece(piece).version);
        let release = match version {
            Version::Release(release) => release,
            Version::Place(place) => {
                let checked = own::checked(piece, place, &self.pins.piece(piece).version);
                let refused = |problem| BadInput(format!("{} {problem}; {like}", place.display()));
                return Ok(checked.map_err(refused)?);
            }
            Version::Build(_) => return self.provide(piece),
            Version::Git { url, .. } => {
                return Err(BadInput(format!("{piece} is not built from {url} here; {like}")).into());
            }
        };
        let pinned = self.pins.piece(piece);
        if piece == Piece::Libtorch && pinned.version != *release {
            return Err(BadInput(format!(
                "the binding takes {piece} {} alone; name the path of such a library, which holds lib/ and include/",
                pinned.version
            ))
            .into());
        }
        let instead = "name the path of a library".to_owned();
        let lacking = format!("{piece} is not fetched for {}: {instead}", pins::this_platform());
        let (pin, tags) = self.pins.for_this_platform(piece).ok_or(BadInput(lacking))?;
        let wanted =
            Wanted { name: piece.to_string(), pin: pin.of_release(release), tags: tags.to_vec(), instead };
        if let Some(error) = self.install(&[wanted])?.remove(&piece.to_string()) {
            return Err(error);
        }
        let path = self.place_of_version(piece, version);
        Ok(Provided { piece, path, version: Some(release.clone()), given: pinned.version != *release })
    }

    /// The path of the library of that version, installed or not.
    pub fn place_of_version(&self, piece: Piece, version: &Version) -> PathBuf {
        let pinned = self.pins.piece(piece);
        match version {
            Version::Release(release) => self.cache.join(pinned.path.replace(&pinned.version, release)),
            Version::Place(file) => std::path::absolute(file).unwrap_or_else(|_| file.clone()),
            Version::Git { .. } => PathBuf::new(),
            Version::Build(_) => self.place(piece).unwrap_or_else(|_| self.cache.join(&pinned.path)),
        }
    }

    /// The piece as it is now, without downloading: `None` if it is missing.
    pub fn find(&self, piece: Piece) -> Result<Option<Provided>> {
        if let Some(given) = self.given(piece)? {
            return Ok(Some(given));
        }
        let Some((pin, _)) = self.pins.for_this_platform(piece) else { return Ok(None) };
        Ok(receipt::is_whole(&self.cache, &piece.to_string(), &pin).then(|| self.installed(piece)))
    }

    /// The damage to an installed piece, by the sha256 of all its files; `None` without damage, if it is not
    /// set up, and for a library of the user's own.
    pub fn damage(&self, piece: Piece) -> Result<Option<String>> {
        let Some((pin, _)) = self.pins.for_this_platform(piece) else { return Ok(None) };
        if self.given(piece)?.is_some() {
            return Ok(None);
        }
        Ok(match receipt::state(&self.cache, &piece.to_string(), &pin, receipt::Look::Deep) {
            receipt::State::Damaged(what) => Some(what),
            _ => None,
        })
    }

    /// The path of the piece, set up or not.
    pub fn place(&self, piece: Piece) -> Result<PathBuf> {
        let given = self.given(piece)?;
        Ok(given.map_or_else(|| self.cache.join(&self.pins.piece(piece).path), |given| given.path))
    }

    /// Directories of shared libraries in the piece, for the system's linker.
    pub fn library_directories(&self, piece: Piece) -> Result<Vec<PathBuf>> {
        let place = self.place(piece)?;
        Ok(match piece {
            // NVIDIA's packages, each in a directory of its own.
            Piece::Cuda => {
                let packages = std::fs::read_dir(&place).into_iter().flatten().flatten();
                let directories = packages.map(|package| package.path().join("lib"));
                let directories: BTreeSet<PathBuf> = directories.filter(|path| path.is_dir()).collect();
                directories.into_iter().collect()
            }
            Piece::Onnxruntime | Piece::OnnxruntimeCuda => {
                place.parent().map(Path::to_owned).into_iter().collect()
            }
            _ => vec![place.join("lib")],
        })
    }

    pub fn pinned_version(&self, piece: Piece) -> &str {
        &self.pins.piece(piece).version
    }

    fn installed(&self, piece: Piece) -> Provided {
        let pinned = self.pins.piece(piece);
        Provided {
            piece,
            path: self.cache.join(&pinned.path),
            version: Some(pinned.version.clone()),
            given: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_of_a_piece_has_come_is_not_missing() {
        let cache = tempfile::tempdir().unwrap();
        let configs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs");
        let provision = Provision::new(&configs, cache.path(), Reporter::new(true)).unwrap();
        let all = provision.missing_bytes(Piece::Model);
        assert!(all > 90_000_000);
        let sha256 = &provision.pinned(Piece::Model).unwrap().pin.wheels[0].sha256;
        let downloads = download::directory(cache.path());
        fs::create_dir(&downloads).unwrap();
        fs::write(downloads.join(format!("{sha256}.partial")), [0; 1000]).unwrap();
        assert_eq!(provision.missing_bytes(Piece::Model), all - 1000);
    }

    #[test]
    fn pieces_are_called_as_in_configurations() {
        let names = Piece::ALL.map(|piece| piece.to_string());
        assert_eq!(names, ["libtorch", "onnxruntime", "model"]);
        assert_eq!(Piece::named(&names).unwrap(), Piece::ALL);
        let error = Piece::named(&["lib".to_owned()]).unwrap_err();
        assert!(tooling::is_bad_input(&error));
        assert_eq!(error.to_string(), "unknown piece \"lib\"; there are libtorch, onnxruntime, model");
    }
}

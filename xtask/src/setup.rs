//! `cargo xtask setup`: native libraries and the model, into the cache directory.
//!
//! A piece that is there is recognised by its receipt and used without any network. One that is not
//! is staged beside its place on the same file system, verified, and moved in; its receipt comes
//! last, so that whatever was interrupted is done again and never used by halves.

mod extract;
mod given;
mod install;
mod pins;
mod pip;
mod receipt;
mod staging;

use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::ValueEnum;
use serde::Deserialize;

pub(crate) use given::Given;
pub(crate) use pins::Pins;
pub(crate) use staging::lock;

use crate::failure::BadInput;
use crate::report::Reporter;
use crate::workspace::Workspace;

/// One thing that can be set up by itself. The names are those of configs/native.toml.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Piece {
    Libtorch,
    Onnxruntime,
    Model,
}

impl Piece {
    pub(crate) const ALL: [Self; 3] = [Self::Libtorch, Self::Onnxruntime, Self::Model];

    /// The environment variable that tells builds and tests where the piece is.
    pub(crate) fn variable(self) -> &'static str {
        match self {
            Self::Libtorch => "LIBTORCH",
            Self::Onnxruntime => "ORT_DYLIB_PATH",
            Self::Model => "PHOTOFINISH_MODEL_GGUF",
        }
    }

    /// What people can do who cannot or will not download it.
    fn instead(self, version: &str) -> String {
        match self {
            Self::Libtorch => format!("set LIBTORCH to a directory of libtorch {version}"),
            // The oldest with the C API that ort's feature api-24 asks for.
            Self::Onnxruntime => {
                format!(
                    "set ORT_DYLIB_PATH to the shared library of onnxruntime 1.24 or newer, such as {version}"
                )
            }
            Self::Model => "name a model of your own with --model".into(),
        }
    }
}

impl fmt::Display for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Libtorch => "libtorch",
            Self::Onnxruntime => "onnxruntime",
            Self::Model => "model",
        })
    }
}

/// A piece that can be used: the value for [`Piece::variable`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Provided {
    pub(crate) piece: Piece,
    pub(crate) path: PathBuf,
    /// `None`: a library of the user's own that does not say.
    pub(crate) version: Option<String>,
    /// The user's variable names it, rather than set-up having installed it.
    pub(crate) given: bool,
}

impl fmt::Display for Provided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = self.version.as_deref().unwrap_or("of unknown version");
        write!(f, "{} {version}: {}", self.piece, self.path.display())?;
        if self.given { write!(f, " (from {})", self.piece.variable()) } else { Ok(()) }
    }
}

pub(crate) fn run(workspace: &Workspace, only: &[Piece], reporter: Reporter) -> Result<ExitCode> {
    let provision = Provision::new(workspace, reporter)?;
    staging::sweep(&workspace.cache)?;
    for &piece in if only.is_empty() { &Piece::ALL } else { only } {
        let provided = provision.provide(piece)?;
        reporter.note(&provided.to_string());
    }
    Ok(ExitCode::SUCCESS)
}

/// Pins and the user's own libraries, read and checked once.
pub(crate) struct Provision<'a> {
    workspace: &'a Workspace,
    reporter: Reporter,
    pins: Pins,
    given: Given,
}

impl<'a> Provision<'a> {
    pub(crate) fn new(workspace: &'a Workspace, reporter: Reporter) -> Result<Self> {
        let pins = Pins::read(workspace)?;
        let given = Given::from_environment(&pins);
        Ok(Self { workspace, reporter, pins, given })
    }

    /// Whether the library that the user names for this piece, if any, is what it should be.
    pub(crate) fn check_given(&self, piece: Piece) -> Result<()> {
        self.given.get(piece)?;
        Ok(())
    }

    /// The piece, downloaded if it must be.
    pub(crate) fn provide(&self, piece: Piece) -> Result<Provided> {
        if let Some(given) = self.given.get(piece)? {
            return Ok(given);
        }
        let pinned = self.pins.piece(piece);
        let Some((pin, tags)) = self.pins.for_this_platform(piece) else {
            return Err(BadInput(format!(
                "{piece} {} is not pinned for {}: {}",
                pinned.version,
                pins::this_platform(),
                piece.instead(&pinned.version)
            ))
            .into());
        };
        let pip = pip::Pip { options: &self.pins.pip, tags, instead: piece.instead(&pinned.version) };
        install::install(&self.workspace.cache, piece, &pin, &pip, self.reporter)?;
        Ok(self.installed(piece))
    }

    /// The piece as it is now, without downloading: `None` if it is not there.
    pub(crate) fn find(&self, piece: Piece) -> Result<Option<Provided>> {
        if let Some(given) = self.given.get(piece)? {
            return Ok(Some(given));
        }
        let Some((pin, _)) = self.pins.for_this_platform(piece) else { return Ok(None) };
        Ok(receipt::is_whole(&self.workspace.cache, piece, &pin).then(|| self.installed(piece)))
    }

    pub(crate) fn pins(&self) -> &Pins {
        &self.pins
    }

    fn installed(&self, piece: Piece) -> Provided {
        let pinned = self.pins.piece(piece);
        Provided {
            piece,
            path: self.workspace.cache.join(&pinned.path),
            version: Some(pinned.version.clone()),
            given: false,
        }
    }
}

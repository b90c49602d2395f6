//! A piece of set-up with a wheel made here, and a pip that has it: `photofinish setup` without any network.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use zip::write::{SimpleFileOptions, ZipWriter};

use crate::common::{Installation, Ran, photofinish};

/// Enough that unpacking takes a while.
const MEMBERS: usize = 200;
const MEMBER_BYTES: usize = 1 << 14;

/// The piece `model`, pinned in the installation's own configs.
pub(crate) struct Wheel {
    /// The programs that there are: python3.
    programs: PathBuf,
    configs: PathBuf,
    cache: PathBuf,
    sha256: String,
    bytes: u64,
}

impl Wheel {
    pub(crate) fn new(installation: &Installation) -> Wheel {
        let (programs, configs) = (installation.path("programs"), installation.path("configs"));
        let wheel = installation.path("piece-1-py3-none-any.whl");
        std::fs::write(&wheel, archive()).unwrap();
        installation.script("programs/python3", &pip(&wheel));
        let (sha256, bytes) = (bundle::sha256_of(&wheel).unwrap(), wheel.metadata().unwrap().len());
        let made = Wheel { programs, configs, cache: installation.path("cache"), sha256, bytes };
        made.pin(0);
        made
    }

    /// Pins the piece with a file that has this number. A piece with a changed pin is set up again in its
    /// place.
    pub(crate) fn pin(&self, edition: usize) {
        let pins = pins(&self.sha256, self.bytes, edition);
        std::fs::write(self.configs.join("native.toml"), pins).unwrap();
    }

    /// Sets the piece up, or finds it complete.
    pub(crate) fn set_up(&self) -> Command {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = photofinish("setup --only model --quiet --configs");
        command.arg(&self.configs);
        command.env("XDG_CACHE_HOME", &self.cache).env_remove("PHOTOFINISH_MODEL_GGUF");
        command.env("PATH", format!("{}:{path}", self.programs.display()));
        command
    }

    pub(crate) fn place(&self) -> PathBuf {
        self.cache.join("photofinish/piece-1")
    }

    /// Whether the piece has a receipt. If so, every byte of it must be there.
    pub(crate) fn is_whole(&self) -> bool {
        let receipt = std::fs::read_to_string(self.place().join("model.receipt.json"));
        let is_there = receipt.is_ok();
        if let Ok(receipt) = receipt {
            let receipt: serde_json::Value = serde_json::from_str(&receipt).expect("a receipt is whole");
            let edition = std::fs::read_to_string(self.place().join("edition")).unwrap();
            assert_eq!(receipt["pin"]["write"]["edition"], edition.as_str());
        }
        for number in (0..MEMBERS).filter(|_| is_there) {
            let file = self.place().join(format!("members/{number}"));
            let found = std::fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            assert!(found == member(number), "{} is not what the receipt promises", file.display());
        }
        is_there
    }

    /// Staging directories that were left.
    pub(crate) fn left_over(&self) -> usize {
        let entries = std::fs::read_dir(self.cache.join("photofinish")).unwrap().flatten();
        entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(".setup-")).count()
    }
}

fn member(number: usize) -> Vec<u8> {
    (0..MEMBER_BYTES).map(|place| (place * (number + 1) % 251) as u8).collect()
}

fn archive() -> Vec<u8> {
    let mut writer = ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for number in 0..MEMBERS {
        writer.start_file(format!("members/{number}"), SimpleFileOptions::default()).unwrap();
        writer.write_all(&member(number)).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

fn pins(sha256: &str, bytes: u64, edition: usize) -> String {
    let other = |name: &str| {
        format!("[{name}]\nversion = \"1\"\ndirectory = \"{name}\"\npath = \"{name}\"\non = {{}}\n")
    };
    format!(
        r#"[pip]
python-version = "3.11"
implementation = "cp"
tags = {{ any = ["any"] }}
{}
[model]
version = "1"
directory = "piece-1"
path = "piece-1/members/0"
[model.on.any]
write = {{ edition = "{edition}" }}
[[model.on.any.wheels]]
requirement = "piece==1"
sha256 = "{sha256}"
bytes = {bytes}
extract = {{ "members/" = "members/" }}
"#,
        ["libtorch", "onnxruntime", "llamacpp", "cuda", "libtorch-cuda", "onnxruntime-cuda", "nvcc", "zig"]
            .map(other)
            .concat()
    )
}

/// A program that answers as pip does, `-m pip --version` and `-m pip download … -d DIRECTORY …`, but runs no script.
fn pip(wheel: &Path) -> String {
    format!(
        "#!/bin/sh\n[ \"$1\" = -c ] && exit 1\n[ \"$3\" = --version ] && exit 0\nwhile [ \"$1\" != -d ]; do shift; done\nexec cp '{}' \"$2\"\n",
        wheel.display()
    )
}

#[test]
fn a_piece_is_set_up_once_and_again_when_it_was_damaged() {
    let installation = Installation::new();
    let wheel = Wheel::new(&installation);
    let run = || {
        Ran::output_of(&mut wheel.set_up()).exits(0);
        assert!(wheel.is_whole());
    };
    run();
    let receipt = wheel.place().join("model.receipt.json");
    let made = receipt.metadata().unwrap().modified().unwrap();
    run();
    assert_eq!(receipt.metadata().unwrap().modified().unwrap(), made, "nothing was done again");
    std::fs::write(wheel.place().join("members/7"), "").unwrap();
    run();
    assert_eq!(wheel.left_over(), 0);
}

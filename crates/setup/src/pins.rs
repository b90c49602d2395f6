//! configs/native.toml.

use std::collections::BTreeMap;
use std::path::{Component, Path};

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::Piece;

#[derive(Debug, Deserialize)]
pub(crate) struct Pins {
    pub(crate) pip: PipOptions,
    #[serde(flatten)]
    pieces: BTreeMap<Piece, Pinned>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct PipOptions {
    pub(crate) python_version: String,
    pub(crate) implementation: String,
    /// By platform.
    tags: BTreeMap<String, Vec<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Pinned {
    pub(crate) version: String,
    /// In the cache directory.
    directory: String,
    /// In the cache directory: the path for the rest of the repository.
    pub(crate) path: String,
    /// By platform; `any` for pieces that depend on none.
    on: BTreeMap<String, Contents>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Contents {
    wheels: Vec<Wheel>,
    /// Small files by name, with their text.
    #[serde(default)]
    write: BTreeMap<String, String>,
}

/// A package that is unpacked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wheel {
    /// In pip's form: `name==version`. A package of npm's has `npm:` before its name.
    pub requirement: String,
    pub sha256: String,
    pub bytes: u64,
    /// Member of the archive → file in the piece's directory; a name that ends in `/` is a directory.
    pub extract: BTreeMap<String, String>,
}

/// Everything that determines the contents of an installed piece. It is kept in the receipt: if the pin has
/// changed since, the piece is installed again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pin {
    pub(crate) version: String,
    pub(crate) directory: String,
    pub(crate) wheels: Vec<Wheel>,
    pub(crate) write: BTreeMap<String, String>,
}

impl Pin {
    /// Whether an installation by `other` satisfies this pin. For a release that a user named, the sha256 is
    /// that of the first wheel downloaded.
    pub(crate) fn is_that_of(&self, other: &Pin) -> bool {
        let mut known = self.clone();
        for (wheel, other) in known.wheels.iter_mut().zip(&other.wheels) {
            if wheel.sha256.is_empty() {
                wheel.sha256.clone_from(&other.sha256);
            }
        }
        known == *other
    }

    /// The pin of another release, without the hash of its wheel.
    pub(crate) fn of_release(&self, version: &str) -> Pin {
        if version == self.version {
            return self.clone();
        }
        let other = |text: &String| text.replace(&self.version, version);
        let wheel = |wheel: &Wheel| Wheel {
            requirement: other(&wheel.requirement),
            sha256: String::new(),
            bytes: wheel.bytes,
            extract: wheel.extract.iter().map(|(from, to)| (other(from), other(to))).collect(),
        };
        Pin {
            version: version.to_owned(),
            directory: other(&self.directory),
            wheels: self.wheels.iter().map(wheel).collect(),
            write: self.write.clone(),
        }
    }
}

impl Pins {
    pub(crate) fn read(configs: &Path) -> Result<Self> {
        let file = configs.join("native.toml");
        let text =
            std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        Self::parse(&text).context("configs/native.toml")
    }

    fn parse(text: &str) -> Result<Self> {
        let pins: Self = toml::from_str(text)?;
        for &piece in Piece::value_variants() {
            let pinned = pins.pieces.get(&piece).with_context(|| format!("lacks [{piece}]"))?;
            pinned.check().with_context(|| format!("[{piece}]"))?;
            for platform in pinned.on.keys() {
                ensure!(pins.pip.tags.contains_key(platform), "[pip.tags] lacks {platform}");
            }
        }
        Ok(pins)
    }

    pub(crate) fn piece(&self, piece: Piece) -> &Pinned {
        &self.pieces[&piece]
    }

    /// The tags that pip accepts on this platform, with those of packages for any.
    pub(crate) fn tags_here(&self) -> Vec<String> {
        let here = [this_platform().as_str(), "any"].map(|platform| self.pip.tags.get(platform).cloned());
        here.into_iter().flatten().flatten().collect()
    }

    /// The pin and the tags that pip accepts; `None` if nothing is pinned for this platform.
    pub(crate) fn for_this_platform(&self, piece: Piece) -> Option<(Pin, &[String])> {
        let pinned = self.piece(piece);
        [this_platform().as_str(), "any"].into_iter().find_map(|platform| {
            let contents = pinned.on.get(platform)?;
            let pin = Pin {
                version: pinned.version.clone(),
                directory: pinned.directory.clone(),
                wheels: contents.wheels.clone(),
                write: contents.write.clone(),
            };
            Some((pin, self.pip.tags.get(platform)?.as_slice()))
        })
    }
}

impl Pinned {
    fn check(&self) -> Result<()> {
        ensure!(is_inside(&self.directory), "directory {:?} leaves the cache directory", self.directory);
        ensure!(
            Path::new(&self.path).starts_with(&self.directory),
            "path {:?} is not in directory {:?}",
            self.path,
            self.directory
        );
        for contents in self.on.values() {
            for wheel in &contents.wheels {
                wheel.check().with_context(|| wheel.requirement.clone())?;
            }
            if let Some(name) = contents.write.keys().find(|name| !is_inside(name)) {
                bail!("{name:?} leaves the piece's directory");
            }
        }
        Ok(())
    }
}

impl Wheel {
    /// As npm names it, if it is a package of npm's.
    pub(crate) fn of_npm(&self) -> Option<String> {
        Some(self.requirement.strip_prefix("npm:")?.replace("==", "@"))
    }

    fn check(&self) -> Result<()> {
        ensure!(self.requirement.contains("=="), "no exact version");
        let is_hash = self.sha256.len() == 64
            && self.sha256.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
        ensure!(is_hash, "sha256 {:?} is not 64 lower-case hexadecimal digits", self.sha256);
        for (member, target) in &self.extract {
            ensure!(is_inside(target), "{target:?} leaves the piece's directory");
            ensure!(
                member.ends_with('/') == target.ends_with('/'),
                "{member:?} and {target:?} are not both files or both directories"
            );
        }
        Ok(())
    }
}

/// The pin of a model's packages.
pub(crate) fn packages(directory: &str, wheels: Vec<Wheel>) -> Pin {
    Pin { version: String::new(), directory: directory.to_owned(), wheels, write: BTreeMap::new() }
}

pub(crate) fn check_packages(directory: &str, wheels: &[Wheel]) -> Result<()> {
    ensure!(is_inside(directory), "directory {directory:?} leaves the cache directory");
    wheels.iter().try_for_each(|wheel| wheel.check().with_context(|| wheel.requirement.clone()))
}

/// Whether a relative path stays below its start.
pub(crate) fn is_inside(path: &str) -> bool {
    !path.is_empty() && Path::new(path).components().all(|part| matches!(part, Component::Normal(_)))
}

/// The platform's name in configs/native.toml.
pub fn this_platform() -> String {
    format!("{}-{}", std::env::consts::OS, std::env::consts::ARCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHIPPED: &str = include_str!("../../../configs/native.toml");

    #[test]
    fn the_shipped_pins_are_sound() {
        let pins = Pins::parse(SHIPPED).unwrap();
        for piece in Piece::ALL {
            assert!(!pins.piece(piece).on.is_empty(), "{piece}");
        }
    }

    /// Every `{cache}` path in configs/ must be one that set-up provides.
    #[test]
    fn configurations_point_at_what_is_installed() {
        let pins = Pins::parse(SHIPPED).unwrap();
        let path = |piece| format!("{{cache}}/{}\"", pins.piece(piece).path);
        assert!(include_str!("../../../configs/engines/ort.toml").contains(&path(Piece::Onnxruntime)));
        for engine in [
            include_str!("../../../configs/engines/llamacpp.toml"),
            include_str!("../../../configs/engines/llamacpp-avx2.toml"),
        ] {
            assert!(engine.contains(&path(Piece::Llamacpp)));
        }
        assert!(include_str!("../../../configs/models/smollm2-135m.toml").contains(&path(Piece::Model)));
    }

    #[test]
    fn the_path_of_a_file_is_among_those_extracted() {
        let pins = Pins::parse(SHIPPED).unwrap();
        for piece in [Piece::Onnxruntime, Piece::Model] {
            let pinned = pins.piece(piece);
            let contents = pinned.on.values().next().unwrap();
            let targets = contents.wheels.iter().flat_map(|wheel| wheel.extract.values());
            let paths: Vec<_> = targets.map(|target| format!("{}/{target}", pinned.directory)).collect();
            assert!(paths.contains(&pinned.path), "{piece}: {paths:?}");
        }
    }

    #[test]
    fn another_release_has_a_place_and_a_wheel_of_its_own() {
        let pins = Pins::parse(SHIPPED).unwrap();
        let Some((pin, _)) = pins.for_this_platform(Piece::Onnxruntime) else { return };
        let other = pin.of_release("1.24.4");
        assert_eq!((other.directory.as_str(), other.version.as_str()), ("onnxruntime-1.24.4", "1.24.4"));
        assert_eq!(other.wheels[0].requirement, "onnxruntime==1.24.4");
        assert!(other.wheels[0].extract.values().all(|file| file.ends_with("libonnxruntime.so.1.24.4")));
        let mut came = other.clone();
        came.wheels[0].sha256 = "ab".into();
        assert!(other.is_that_of(&came) && !pin.is_that_of(&came) && pin.of_release(&pin.version) == pin);
    }

    #[test]
    fn unsound_pins_are_refused() {
        let refusal = |from: &str, to: &str| {
            assert!(SHIPPED.contains(from), "{from}");
            format!("{:#}", Pins::parse(&SHIPPED.replace(from, to)).unwrap_err())
        };
        assert!(refusal("sha256 = \"7aa2", "sha256 = \"7AA2").contains("torch==2.11.0: sha256"));
        assert!(refusal("torch==2.11.0", "torch>=2.11.0").contains("no exact version"));
        assert!(refusal("= \"lib/libc10.so\"", "= \"../libc10.so\"").contains("leaves"));
        assert!(refusal("= \"include/\"", "= \"include\"").contains("not both"));
        assert!(refusal("any = [\"any\"]", "").contains("[pip.tags] lacks any"));
        assert!(refusal("directory = \"models\"", "directory = \"other\"").contains("is not in directory"));
        assert!(refusal("bytes =", "size =").contains("size"));
    }
}

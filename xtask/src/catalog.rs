//! What exists, as data: configs/engines/*.toml and configs/models/*.toml.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::failure::BadInput;
use crate::setup::Piece;
use crate::workspace::Workspace;

/// The part of an engine's description that building and running it takes; the driver reads the rest.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Engine {
    /// File name without `.toml`: what `--frameworks` takes.
    #[serde(skip)]
    pub(crate) name: String,
    pub(crate) framework: String,
    /// Package and binary; below `{root}`, the checkout, what cargo does not build.
    pub(crate) worker: String,
    /// A framework's own implementation, set up and compared when asked for: docs/references.md.
    #[serde(default)]
    pub(crate) reference: bool,
    #[serde(default)]
    pub(crate) native: Vec<Piece>,
    #[serde(default)]
    pub(crate) env: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
struct Model {
    #[serde(default)]
    native: Vec<Piece>,
}

pub(crate) struct Engines(Vec<Engine>);

impl Engines {
    pub(crate) fn read(workspace: &Workspace) -> Result<Self> {
        let described: BTreeMap<String, Engine> = read_all(&workspace.root.join("configs/engines"))?;
        Ok(Self(described.into_iter().map(|(name, engine)| Engine { name, ..engine }).collect()))
    }

    /// In the order of the names; every engine that is no reference where there are none.
    pub(crate) fn select(&self, names: &[String]) -> Result<Vec<&Engine>> {
        if names.is_empty() {
            return Ok(self.0.iter().filter(|engine| !engine.reference).collect());
        }
        names.iter().map(|name| self.find(name)).collect()
    }

    fn find(&self, name: &str) -> Result<&Engine> {
        self.0.iter().find(|engine| engine.name == name).ok_or_else(|| {
            let names: Vec<_> = self.0.iter().map(|engine| engine.name.as_str()).collect();
            BadInput(format!("unknown framework {name:?}; configs/engines has: {}", names.join(", "))).into()
        })
    }

    pub(crate) fn all(&self) -> &[Engine] {
        &self.0
    }
}

/// Pieces that `--model` asks for. A path or a source with a scheme (`hf:owner/name`) needs none, and
/// whether it exists is for the driver to say.
pub(crate) fn pieces_of_model(workspace: &Workspace, name: &str) -> Result<Vec<Piece>> {
    let models: BTreeMap<String, Model> = read_all(&workspace.root.join("configs/models"))?;
    if let Some(model) = models.get(name) {
        return Ok(model.native.clone());
    }
    let is_bare_word = !name.contains(['/', '\\', ':', '.']);
    if is_bare_word && !Path::new(name).exists() {
        // Said here rather than after minutes of building.
        let names: Vec<_> = models.keys().map(String::as_str).collect();
        return Err(BadInput(format!(
            "unknown model {name:?}; configs/models has: {}; a directory, a .gguf file or hf:owner/name also \
             names one",
            names.join(", ")
        ))
        .into());
    }
    Ok(Vec::new())
}

/// Every `*.toml` of a directory, by its name without the extension.
fn read_all<T: DeserializeOwned>(directory: &Path) -> Result<BTreeMap<String, T>> {
    let mut found = BTreeMap::new();
    let entries =
        std::fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
    for entry in entries {
        let path = entry?.path();
        let Some(name) = path.file_stem().and_then(|stem| stem.to_str()) else { continue };
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let value =
            toml::from_str(&text).map_err(|error| BadInput(format!("{}: {error}", path.display())))?;
        found.insert(name.to_owned(), value);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::is_bad_input;

    fn workspace() -> Workspace {
        Workspace::locate().unwrap()
    }

    fn names(engines: Vec<&Engine>) -> Vec<&str> {
        engines.into_iter().map(|engine| engine.name.as_str()).collect()
    }

    #[test]
    fn engines_are_selected_by_file_name() {
        let engines = Engines::read(&workspace()).unwrap();
        let asked = ["tch-base".to_owned(), "candle".to_owned()];
        let selected = engines.select(&asked).unwrap();
        assert_eq!(selected[0].framework, "tch");
        assert_eq!(selected[0].native, [Piece::Libtorch]);
        assert_eq!(names(selected), ["tch-base", "candle"]);
        let unnamed = names(engines.select(&[]).unwrap());
        assert!(
            unnamed.contains(&"ort") && !unnamed.contains(&"genai"),
            "references are asked for: {unnamed:?}"
        );
    }

    #[test]
    fn an_unknown_engine_is_answered_with_those_that_exist() {
        let engines = Engines::read(&workspace()).unwrap();
        let error = engines.select(&["candel".into()]).unwrap_err();
        assert!(is_bad_input(&error));
        let error = error.to_string();
        assert!(
            ["candel", "candle", "ort", "tch", "tch-base"].iter().all(|name| error.contains(name)),
            "{error}"
        );
    }

    #[test]
    fn a_model_by_name_asks_for_its_piece_and_a_path_for_none() {
        let workspace = workspace();
        assert_eq!(pieces_of_model(&workspace, "smollm2-135m").unwrap(), [Piece::Model]);
        assert_eq!(pieces_of_model(&workspace, "hf:owner/name").unwrap(), []);
        assert_eq!(pieces_of_model(&workspace, "./no/such.gguf").unwrap(), []);
        let error = pieces_of_model(&workspace, "smollm3").unwrap_err();
        assert!(is_bad_input(&error) && error.to_string().contains("smollm2-135m"), "{error}");
    }
}

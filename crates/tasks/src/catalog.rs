//! The files that define engines and models: configs/engines/*.toml and configs/models/*.toml.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};
use configs::{ConfigError, Engine};
use setup::Piece;
use tooling::BadInput;

use crate::workspace::Workspace;

pub(crate) struct Engines(Vec<Engine>);

impl Engines {
    pub(crate) fn read(workspace: &Workspace) -> Result<Self> {
        let read = if workspace.is_apart() { configs::engines_of_another_version } else { configs::engines };
        let engines = read(&workspace.layers()).map_err(bad_input)?;
        for engine in &engines {
            Piece::named(&engine.native).with_context(|| format!("configs/engines/{}.toml", engine.name))?;
        }
        Ok(Self(engines))
    }

    /// Packages of all workers that are built from this repository, references among them.
    pub(crate) fn packages(&self) -> BTreeSet<&str> {
        self.0.iter().map(|engine| engine.worker.as_str()).filter(|worker| !worker.contains('/')).collect()
    }

    /// In the order of the names; the three frameworks that this project tunes where there are none.
    pub(crate) fn select(&self, names: &[String]) -> Result<Vec<&Engine>> {
        let selected = configs::selection::selected(&self.0, names).map_err(bad_input)?;
        let find = |name: &str| self.0.iter().find(|engine| engine.name == name);
        Ok(selected.iter().filter_map(|engine| find(engine.base())).collect())
    }

    #[cfg(test)]
    pub(crate) fn all(&self) -> &[Engine] {
        &self.0
    }
}

/// Pieces that `--model` needs. A path or a source with a scheme (`hf:owner/name`) needs none, and the driver
/// checks whether it exists.
pub(crate) fn pieces_of_model(workspace: &Workspace, name: &str) -> Result<Vec<Piece>> {
    let models = configs::models(&workspace.layers()).map_err(bad_input)?;
    if models.iter().any(|known| known == name) {
        return Piece::named(&configs::model(&workspace.layers(), name).map_err(bad_input)?.native);
    }
    let is_bare_word = !name.contains(['/', '\\', ':', '.']);
    if is_bare_word && !Path::new(name).exists() {
        // Said here rather than after minutes of building.
        return Err(BadInput(format!(
            "unknown model {name:?}; configs/models has: {}; a directory, a .gguf file or hf:owner/name also \
             names one",
            models.join(", ")
        ))
        .into());
    }
    Ok(Vec::new())
}

/// Whether `--model` names a model that is downloaded from Hugging Face's hub.
pub(crate) fn is_of_hub(workspace: &Workspace, name: &str) -> Result<bool> {
    let models = configs::models(&workspace.layers()).map_err(bad_input)?;
    if !models.iter().any(|known| known == name) {
        return Ok(name.starts_with("hf:"));
    }
    let model = configs::model(&workspace.layers(), name).map_err(bad_input)?;
    Ok(model.source.starts_with("hf:"))
}

fn bad_input(error: ConfigError) -> BadInput {
    BadInput(error.to_string())
}

#[cfg(test)]
mod tests {
    use tooling::is_bad_input;

    use super::*;

    fn workspace() -> Workspace {
        Workspace::locate().unwrap().shipped()
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
        assert_eq!(Piece::named(&selected[0].native).unwrap(), [Piece::Libtorch]);
        assert_eq!(names(selected), ["tch-base", "candle"]);
        let unnamed = names(engines.select(&[]).unwrap());
        assert_eq!(
            unnamed,
            ["candle", "tch", "ort"],
            "hybrids and references are built where they are named"
        );
    }

    #[test]
    fn an_unknown_engine_is_answered_with_those_that_exist() {
        let engines = Engines::read(&workspace()).unwrap();
        let error = engines.select(&["xyz".into()]).unwrap_err();
        assert!(is_bad_input(&error));
        let error = error.to_string();
        assert!(
            ["xyz", "candle", "ort", "tch", "tch-base"].iter().all(|name| error.contains(name)),
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

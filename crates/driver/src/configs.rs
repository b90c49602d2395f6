//! Configuration as data: `configs/engines`, `configs/models`, `configs/suites`.

use std::collections::BTreeMap;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Result};

/// One column of a comparison: a framework, or a variant of it. The file's name is the column's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Engine {
    #[serde(skip_deserializing)]
    pub(crate) name: String,
    /// What the worker must say it is.
    pub(crate) framework: String,
    /// Package and binary; a path below `{root}`, the checkout, for one that cargo does not build.
    pub(crate) worker: String,
    pub(crate) summary: String,
    /// Whether this is a framework's own implementation, set beside the engines so that they can be held against
    /// it: it is compared when asked for, and its own ways are noted rather than struck.
    #[serde(default)]
    pub(crate) reference: bool,
    /// Pieces of `cargo xtask setup` that it needs.
    #[serde(default)]
    pub(crate) native: Vec<String>,
    #[serde(default)]
    pub(crate) settings: EngineSettings,
    /// Passed to the engine as they are.
    #[serde(default)]
    pub(crate) options: BTreeMap<String, String>,
    /// Set for the worker. A variable that the user has set wins.
    #[serde(default)]
    pub(crate) env: BTreeMap<String, String>,
}

/// What a variant fixes, whatever is asked.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EngineSettings {
    pub(crate) precision: Option<bundle::Precision>,
    pub(crate) jit: Option<bool>,
    /// Another thread budget than everyone's, for controls; rule R5 notices.
    pub(crate) threads: Option<usize>,
    /// A positive control: every step is made to last longer by this share of its own time.
    #[serde(default)]
    pub(crate) slowdown: f64,
}

impl Engine {
    /// Whether this is the framework itself and not a variant of it.
    pub(crate) fn is_plain(&self) -> bool {
        self.name == self.framework
    }
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Model {
    pub(crate) summary: String,
    /// What `prepare` takes: a directory, a .gguf file, hf:owner/name. `{cache}` is the cache directory.
    pub(crate) source: String,
    #[serde(default)]
    pub(crate) native: Vec<String>,
}

/// Prompts and settings that belong together, with what they are for.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Suite {
    #[serde(default)]
    pub(crate) summary: String,
    /// What this suite shows and what it does not, for the report.
    #[serde(default)]
    pub(crate) analysis: String,
    pub(crate) new_tokens: Option<u32>,
    pub(crate) rounds: Option<u32>,
    pub(crate) iterations: Option<u32>,
    #[serde(default)]
    pub(crate) prompts: Vec<SuitePrompt>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SuitePrompt {
    pub(crate) name: Option<String>,
    pub(crate) text: Option<String>,
    /// Token ids in place of a text.
    pub(crate) tokens: Option<Vec<u32>>,
}

pub(crate) fn engine(configs: &Path, name: &str) -> Result<Engine> {
    let mut engine: Engine = by_name(&configs.join("engines"), name, "framework")?;
    engine.name = name.to_owned();
    Ok(engine)
}

/// The frameworks that are compared when none is named: those of `configs/engines` that are neither
/// variants nor references, `candle`, `tch`, `ort` first.
pub(crate) fn default_engines(configs: &Path) -> Result<Vec<Engine>> {
    let names = names(&configs.join("engines"))?;
    let mut engines = Vec::new();
    for name in names {
        engines.push(engine(configs, &name)?);
    }
    engines.retain(|engine| engine.is_plain() && !engine.reference);
    let usual = ["candle", "tch", "ort"];
    engines.sort_by_key(|engine| usual.iter().position(|name| *name == engine.name).unwrap_or(usual.len()));
    Ok(engines)
}

pub(crate) fn model(configs: &Path, name: &str) -> Result<Model> {
    by_name(&configs.join("models"), name, "model")
}

pub(crate) fn suite(configs: &Path, name: &str) -> Result<Suite> {
    by_name(&configs.join("suites"), name, "suite")
}

pub(crate) fn parse<T: DeserializeOwned>(path: &Path, text: &str) -> Result<T> {
    toml::from_str(text).map_err(|error| {
        let place =
            error.span().map(|span| 1 + text.bytes().take(span.start).filter(|&byte| byte == b'\n').count());
        let line = place.map_or(String::new(), |line| format!(", line {line}"));
        Failure::usage(format!("{}{line}: {}", path.display(), error.message().replace('\n', ", ")))
    })
}

fn by_name<T: DeserializeOwned>(directory: &Path, name: &str, kind: &str) -> Result<T> {
    let names = names(directory)?;
    if !names.iter().any(|known| known == name) {
        let hint = match kind {
            "model" => ", or give a directory, a .gguf file, hf:owner/name or synthetic:NAME",
            _ => "",
        };
        return Err(Failure::usage(format!("unknown {kind} {name:?}; there are {}{hint}", names.join(", "))));
    }
    let path = directory.join(format!("{name}.toml"));
    let text = std::fs::read_to_string(&path)
        .map_err(|e| Failure::usage(format!("cannot read {}: {e}", path.display())))?;
    parse(&path, &text)
}

fn names(directory: &Path) -> Result<Vec<String>> {
    let entries = std::fs::read_dir(directory)
        .map_err(|e| Failure::usage(format!("cannot read {}: {e}", directory.display())))?;
    let mut names: Vec<String> = entries
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let is_toml = path.extension().is_some_and(|extension| extension == "toml");
            is_toml.then(|| path.file_stem().unwrap_or_default().to_string_lossy().into_owned())
        })
        .collect();
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_name_is_answered_with_those_there_are() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("engines")).unwrap();
        std::fs::write(directory.path().join("engines/quick.toml"), "").unwrap();
        let error = engine(directory.path(), "slow").unwrap_err().to_string();
        assert_eq!(error, "unknown framework \"slow\"; there are quick");
    }

    #[test]
    fn references_and_variants_are_compared_only_when_named() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("engines")).unwrap();
        for (name, more) in [("plain", ""), ("variant", ""), ("known", "reference = true")] {
            let framework = if name == "variant" { "plain" } else { name };
            let text = format!("framework = {framework:?}\nworker = \"w\"\nsummary = \"\"\n{more}");
            std::fs::write(directory.path().join(format!("engines/{name}.toml")), text).unwrap();
        }
        let names = default_engines(directory.path()).unwrap().into_iter().map(|engine| engine.name);
        assert_eq!(names.collect::<Vec<_>>(), ["plain"]);
        assert!(engine(directory.path(), "known").unwrap().reference);
    }

    #[test]
    fn a_mistake_in_a_file_is_placed() {
        let error =
            parse::<Suite>(Path::new("x.toml"), "new_tokens = 3\nrouns = 4\n").unwrap_err().to_string();
        assert!(error.starts_with("x.toml, line 2: unknown field `rouns`"), "{error}");
    }
}

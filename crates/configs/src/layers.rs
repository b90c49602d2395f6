//! Directories of configuration in layers: a user's own files override the shipped ones.

use std::path::{Path, PathBuf};

use crate::{Result, unreadable};

/// Directories that each hold `engines`, `models` and `suites`. A file of the user's directory hides the one of the same
/// name in the base.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layers {
    base: PathBuf,
    /// Any of its directories may be missing, and so may it.
    user: Option<PathBuf>,
}

impl Layers {
    pub fn single(base: impl Into<PathBuf>) -> Layers {
        Layers { base: base.into(), user: None }
    }

    /// With the user's own directory over it.
    pub fn under(self, user: Option<PathBuf>) -> Layers {
        Layers { user, ..self }
    }

    pub fn base(&self) -> &Path {
        &self.base
    }

    /// Whether the file of this name is the user's.
    pub(crate) fn is_users(&self, kind: &str, name: &str) -> bool {
        self.user.as_ref().is_some_and(|user| file(user, kind, name).is_file())
    }

    /// The user's file of this name, if it hides one of the base. `kind` is `engines`, `models` or `suites`.
    pub fn hiding(&self, kind: &str, name: &str) -> Option<PathBuf> {
        let own = file(self.user.as_ref()?, kind, name);
        (own.is_file() && file(&self.base, kind, name).is_file()).then_some(own)
    }

    /// The file of this name: the user's, if there is one.
    pub fn file(&self, kind: &str, name: &str) -> PathBuf {
        let own = self.user.as_ref().map(|user| file(user, kind, name));
        own.filter(|own| own.is_file()).unwrap_or_else(|| file(&self.base, kind, name))
    }

    pub(crate) fn names(&self, kind: &str) -> Result<Vec<String>> {
        let mut names = names(&self.base.join(kind))?;
        let own = self.user.as_ref().map(|user| user.join(kind)).filter(|own| own.is_dir());
        if let Some(own) = own {
            names.extend(self::names(&own)?);
        }
        names.sort();
        names.dedup();
        Ok(names)
    }
}

fn file(directory: &Path, kind: &str, name: &str) -> PathBuf {
    directory.join(kind).join(format!("{name}.toml"))
}

fn names(directory: &Path) -> Result<Vec<String>> {
    let entries = std::fs::read_dir(directory).map_err(|error| unreadable(directory, &error))?;
    let names = entries.filter_map(|entry| {
        let path = entry.ok()?.path();
        let is_toml = path.extension().is_some_and(|extension| extension == "toml");
        is_toml.then(|| path.file_stem().unwrap_or_default().to_string_lossy().into_owned())
    });
    Ok(names.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(names: &[&str]) -> tempfile::TempDir {
        let engines: Vec<(&str, &str)> = names.iter().map(|name| (*name, "")).collect();
        crate::tests::directory(&engines)
    }

    #[test]
    fn the_users_files_hide_and_extend_those_of_the_base() {
        let (base, user) = (directory(&["ort", "tch"]), directory(&["mine", "ort"]));
        let layers = Layers::single(base.path()).under(Some(user.path().to_owned()));
        assert_eq!(layers.names("engines").unwrap(), ["mine", "ort", "tch"]);
        assert!(layers.file("engines", "ort").starts_with(user.path()));
        assert!(layers.file("engines", "tch").starts_with(base.path()));
        assert_eq!(layers.hiding("engines", "ort"), Some(file(user.path(), "engines", "ort")));
        assert_eq!((layers.hiding("engines", "mine"), layers.hiding("engines", "tch")), (None, None));
    }

    #[test]
    fn the_base_must_be_there_and_the_users_directory_need_not() {
        let base = directory(&["ort"]);
        let absent = base.path().join("absent");
        let layers = Layers::single(base.path()).under(Some(absent.clone()));
        assert_eq!(layers.names("engines").unwrap(), ["ort"]);
        let error = Layers::single(&absent).names("engines").unwrap_err().to_string();
        assert!(error.contains("cannot read") && error.contains("absent"), "{error}");
    }
}

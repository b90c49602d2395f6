//! The directories of a user, by the XDG Base Directory Specification.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::layout::PROGRAM;

/// The user's directories according to the environment. None of them need exist.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Home {
    home: Option<PathBuf>,
    cache: Option<PathBuf>,
    data: Option<PathBuf>,
    config: Option<PathBuf>,
}

impl Home {
    pub fn from_environment() -> Self {
        let mut found = Self::from_variables(|name| std::env::var_os(name));
        // Without HOME, the system's user database still has it.
        found.home = found.home.or_else(|| std::env::home_dir().filter(|home| home.is_absolute()));
        found
    }

    /// A relative path counts as not set, as the specification requires.
    pub fn from_variables(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let path = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
        Self {
            home: path("HOME"),
            cache: path("XDG_CACHE_HOME"),
            data: path("XDG_DATA_HOME"),
            config: path("XDG_CONFIG_HOME"),
        }
    }

    /// `${XDG_CACHE_HOME:-~/.cache}/photofinish`: libraries, models, references.
    pub fn cache(&self) -> Option<PathBuf> {
        self.ours(&self.cache, ".cache")
    }

    /// `${XDG_DATA_HOME:-~/.local/share}/photofinish`: files of `cargo xtask install`.
    pub fn data(&self) -> Option<PathBuf> {
        self.ours(&self.data, ".local/share")
    }

    /// `${XDG_CONFIG_HOME:-~/.config}/photofinish`: the user's own engines, models and suites.
    pub fn config(&self) -> Option<PathBuf> {
        self.ours(&self.config, ".config")
    }

    /// `~/.local/bin`, the user's programs. The specification has no variable for it.
    pub fn programs(&self) -> Option<PathBuf> {
        Some(self.home.as_ref()?.join(".local/bin"))
    }

    fn ours(&self, named: &Option<PathBuf>, usual: &str) -> Option<PathBuf> {
        let base = named.clone().or_else(|| Some(self.home.as_ref()?.join(usual)))?;
        Some(base.join(PROGRAM))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn home(variables: &[(&str, &str)]) -> Home {
        Home::from_variables(|asked| {
            variables.iter().find(|(name, _)| *name == asked).map(|(_, value)| value.into())
        })
    }

    fn path(text: &str) -> Option<PathBuf> {
        Some(PathBuf::from(text))
    }

    #[test]
    fn directories_lie_below_home_unless_xdg_names_others() {
        let plain = home(&[("HOME", "/h")]);
        assert_eq!(plain.cache(), path("/h/.cache/photofinish"));
        assert_eq!(plain.data(), path("/h/.local/share/photofinish"));
        assert_eq!(plain.config(), path("/h/.config/photofinish"));
        assert_eq!(plain.programs(), path("/h/.local/bin"));
        let named = home(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x"), ("XDG_DATA_HOME", "/d")]);
        assert_eq!((named.cache(), named.data()), (path("/x/photofinish"), path("/d/photofinish")));
        assert_eq!(named.config(), path("/h/.config/photofinish"));
    }

    #[test]
    fn a_relative_path_counts_as_not_set() {
        let relative = home(&[("HOME", "/h"), ("XDG_CONFIG_HOME", "mine"), ("XDG_CACHE_HOME", "")]);
        assert_eq!(relative.config(), path("/h/.config/photofinish"));
        assert_eq!(relative.cache(), path("/h/.cache/photofinish"));
        assert_eq!(home(&[]).cache(), None);
    }
}

//! The text after the `@` of a column.

use std::path::{Path, PathBuf};

use anyhow::Result;
use sha2::{Digest, Sha256};
use tooling::BadInput;

/// A version of a framework.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Version {
    /// `1.24.4`.
    Release(String),
    /// A directory or a file.
    Place(PathBuf),
    /// `git:URL#REVISION`: a commit, a tag or a branch of a repository.
    Git { url: String, revision: String },
    /// `build:debug`: the pinned version, with the worker built in another way.
    Build(Build),
}

/// Another way to build a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Build {
    /// Without optimisation, like `cargo build`.
    Debug,
    /// For any processor of its kind: without the extra instructions of this one.
    Generic,
}

impl Build {
    const ALL: [(&'static str, Build); 2] = [("debug", Build::Debug), ("generic", Build::Generic)];

    fn name(self) -> &'static str {
        Build::ALL.into_iter().find(|(_, build)| *build == self).map_or("", |(name, _)| name)
    }
}

impl Version {
    /// # Errors
    /// A repository without a revision, or an unknown way to build.
    pub fn parse(text: &str) -> Result<Version> {
        if let Some(repository) = text.strip_prefix("git:") {
            let Some((url, revision)) = repository.rsplit_once('#').filter(|(_, name)| !name.is_empty())
            else {
                return Err(BadInput(format!(
                    "{text} names no revision; write git:URL#REVISION, with a commit, a tag or a branch"
                ))
                .into());
            };
            return Ok(Version::Git { url: url.to_owned(), revision: revision.to_owned() });
        }
        if let Some(named) = text.strip_prefix("build:") {
            let found = Build::ALL.into_iter().find(|(name, _)| *name == named);
            let unknown =
                || BadInput(format!("{text} is no way to build; there are build:debug and build:generic"));
            return Ok(Version::Build(found.ok_or_else(unknown)?.1));
        }
        Ok(match is_release(text) {
            true => Version::Release(text.to_owned()),
            false => Version::Place(PathBuf::from(text)),
        })
    }

    /// The release, if it is one.
    pub fn release(&self) -> Option<&str> {
        match self {
            Version::Release(release) => Some(release),
            _ => None,
        }
    }

    /// A directory name that no other version has. Whatever a path or a URL contains, it is one component.
    pub(super) fn slug(&self) -> String {
        match self {
            Version::Release(release) => release.clone(),
            Version::Place(path) => {
                let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                slug(&name, &path.to_string_lossy())
            }
            Version::Git { url, revision } => {
                let name = Path::new(url).file_stem().unwrap_or_default().to_string_lossy();
                slug(&format!("{name}-{revision}"), &format!("{url}#{revision}"))
            }
            Version::Build(build) => format!("build-{}", build.name()),
        }
    }
}

/// One path component: a readable name, and digits that no other whole text has.
pub(super) fn slug(name: &str, whole: &str) -> String {
    let plain = |byte: char| if byte.is_ascii_alphanumeric() { byte } else { '-' };
    let name: String = name.chars().map(plain).take(40).collect();
    let digits: String =
        Sha256::digest(whole.as_bytes()).iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    format!("{name}-{digits}")
}

/// Whether a text is a release number: `1.24.4`.
fn is_release(text: &str) -> bool {
    let number = text.split(['-', '+']).next().unwrap_or_default();
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-+".contains(&byte);
    number.contains('.') && number.split('.').all(is_number) && text.bytes().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_numbers_and_all_else_is_a_path_or_a_repository() {
        for release in ["1.24.4", "2.0", "0.12.0-alpha.1"] {
            assert_eq!(Version::parse(release).unwrap().release(), Some(release));
        }
        for place in ["", "1", "1.", "../1.2", "lib.so.1.24", "v1.2", "1.2/x"] {
            assert_eq!(Version::parse(place).unwrap(), Version::Place(place.into()));
        }
        let git = Version::parse("git:https://host/candle.git#refs/pull/1/head").unwrap();
        let (url, revision) = ("https://host/candle.git".to_owned(), "refs/pull/1/head".to_owned());
        assert_eq!(git, Version::Git { url, revision });
        assert_eq!(Version::parse("build:debug").unwrap(), Version::Build(Build::Debug));
        let unknown = Version::parse("build:fast").unwrap_err().to_string();
        assert!(unknown.contains("there are build:debug and build:generic"), "{unknown}");
        let refusal = Version::parse("git:https://host/candle").unwrap_err();
        assert!(tooling::is_bad_input(&refusal) && refusal.to_string().contains("#REVISION"));
    }

    #[test]
    fn every_version_has_a_directory_of_its_own() {
        let slug = |text: &str| Version::parse(text).unwrap().slug();
        assert_eq!(slug("0.10.2"), "0.10.2");
        let others =
            ["/a/candle", "/b/candle", "git:https://host/candle.git#main", "git:https://host/candle.git#v1"];
        let slugs: std::collections::BTreeSet<String> = others.iter().map(|text| slug(text)).collect();
        assert_eq!(slugs.len(), others.len());
        assert!(slugs.iter().all(|slug| !slug.contains('/')), "{slugs:?}");
    }
}

//! Extracts members of a wheel into files, once its hash is known to be the pinned one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest, Sha256};
use zip::ZipArchive;

use crate::pins::{self, Wheel};

/// Rejects a wheel that is not the pinned one. Returns its sha256, which is not known before for a release
/// that a user names.
pub(crate) fn verify(file: &Path, wheel: &Wheel) -> Result<String> {
    let found = sha256(file).with_context(|| format!("cannot read {}", file.display()))?;
    ensure!(
        wheel.sha256.is_empty() || found == wheel.sha256,
        "{}: the wheel that came has sha256 {found}, pinned in configs/native.toml is {}; check which index \
         pip is configured to use",
        wheel.requirement,
        wheel.sha256
    );
    Ok(found)
}

/// Unpacks the members that the pin names into `directory`, and adds each file's name to `files`.
pub(crate) fn extract(
    file: &Path,
    wheel: &Wheel,
    directory: &Path,
    files: &mut BTreeSet<String>,
) -> Result<()> {
    let mut archive = ZipArchive::new(BufReader::new(File::open(file)?))?;
    let mut missing: BTreeSet<&str> = wheel.extract.keys().map(String::as_str).collect();
    for index in 0..archive.len() {
        let mut member = archive.by_index(index)?;
        let name = member.name()?.into_owned();
        let Some((rule, target)) = target_of(&name, &wheel.extract) else { continue };
        if member.is_dir() {
            continue;
        }
        ensure!(pins::is_inside(&target), "member {name:?} leaves the directory it is unpacked into");
        missing.remove(rule);
        let path = directory.join(&target);
        std::fs::create_dir_all(path.parent().unwrap_or(directory))?;
        File::create(&path)
            .and_then(|mut file| std::io::copy(&mut member, &mut file))
            .with_context(|| format!("cannot unpack {name} to {}", path.display()))?;
        make_executable(&path, member.unix_mode())?;
        files.insert(target);
    }
    if let Some(name) = missing.first() {
        bail!("holds no {name}");
    }
    Ok(())
}

/// Makes a program executable: zip archives store that permission separately.
fn make_executable(path: &Path, mode: Option<u32>) -> Result<()> {
    #[cfg(unix)]
    if mode.is_some_and(|mode| mode & 0o100 != 0) {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))
            .with_context(|| format!("cannot make {} a program", path.display()))?;
    }
    #[cfg(not(unix))]
    let _ = (path, mode);
    Ok(())
}

/// The rule that a member matches, and the file it becomes.
fn target_of<'a>(name: &str, rules: &'a BTreeMap<String, String>) -> Option<(&'a str, String)> {
    rules.iter().find_map(|(rule, target)| {
        let rest = name.strip_prefix(rule.as_str())?;
        let applies = rest.is_empty() || rule.ends_with('/');
        applies.then(|| (rule.as_str(), format!("{target}{rest}")))
    })
}

/// The sha256 of a file, in lower-case hexadecimal digits.
pub fn sha256(file: &Path) -> std::io::Result<String> {
    let mut file = File::open(file)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let count = file.read(&mut buffer)?;
        if count == 0 {
            break;
        }
        hasher.update(&buffer[..count]);
    }
    Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_rule_takes_that_file_and_a_directory_rule_what_is_below() {
        let rules = BTreeMap::from([
            ("t/lib/a.so".to_owned(), "lib/a.so".to_owned()),
            ("t/include/".to_owned(), "include/".to_owned()),
        ]);
        let target = |name| target_of(name, &rules).map(|(_, target)| target);
        assert_eq!(target("t/lib/a.so").as_deref(), Some("lib/a.so"));
        assert_eq!(target("t/include/x/y.h").as_deref(), Some("include/x/y.h"));
        assert_eq!(target("t/lib/a.so.1"), None);
        assert_eq!(target("t/include.h"), None);
    }
}

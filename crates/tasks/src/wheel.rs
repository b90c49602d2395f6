//! The wheel `photofinish-bench`: an installation that pip, pipx and uv put into an environment. Its format is that of
//! the packaging specification ("Binary distribution format"): the program is a script, all else is data.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};
use zip::write::{SimpleFileOptions, ZipWriter};

use crate::bill;
use crate::workspace::{PHOTOFINISH, sorted};

/// On the index; `photofinish` is taken there.
const NAME: &str = "photofinish-bench";

/// Packs the installation at `root` for systems of this tag; the wheel's path in `place`. Equal files give equal bytes.
pub(crate) fn write(root: &Path, version: &str, tag: &str, place: &Path) -> Result<PathBuf> {
    let distribution = format!("{}-{version}", NAME.replace('-', "_"));
    let path = place.join(format!("{distribution}-py3-none-{tag}.whl"));
    let staged = tempfile::NamedTempFile::new_in(place)?;
    let mut wheel = Wheel { zip: ZipWriter::new(staged.as_file().try_clone()?), record: String::new() };
    let info = format!("{distribution}.dist-info");
    let program = root.join("bin").join(PHOTOFINISH);
    wheel.file(&program, &format!("{distribution}.data/scripts/{PHOTOFINISH}"))?;
    wheel.tree(&root.join("share"), &format!("{distribution}.data/data/share"))?;
    let data = root.join("share").join(PHOTOFINISH);
    for license in ["LICENSE-APACHE", "LICENSE-MIT"] {
        wheel.file(&data.join(license), &format!("{info}/licenses/{license}"))?;
    }
    wheel.file(&data.join(bill::FILE), &format!("{info}/sboms/{PHOTOFINISH}.cyclonedx.json"))?;
    wheel.add(&format!("{info}/METADATA"), metadata(version).as_bytes(), 0o644)?;
    let about = format!(
        "Wheel-Version: 1.0\nGenerator: {PHOTOFINISH} {version}\nRoot-Is-Purelib: false\nTag: py3-none-{tag}\n"
    );
    wheel.add(&format!("{info}/WHEEL"), about.as_bytes(), 0o644)?;
    wheel.finish(&format!("{info}/RECORD"))?;
    staged
        .persist(&path)
        .map_err(|error| error.error)
        .with_context(|| format!("cannot write {}", path.display()))?;
    #[cfg(unix)]
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o644))?;
    Ok(path)
}

fn metadata(version: &str) -> String {
    // pip downloads the frameworks' libraries; environments that uv makes have none unless it is asked for.
    format!(
        "Metadata-Version: 2.4\nName: {NAME}\nVersion: {version}\n\
         Summary: Which inference framework is faster for your model on your machine, and is the difference real?\n\
         License-Expression: MIT OR Apache-2.0\nLicense-File: LICENSE-APACHE\nLicense-File: LICENSE-MIT\n\
         Requires-Python: >=3.7\nRequires-Dist: pip>=20.3\nDescription-Content-Type: text/markdown\n\n\
         `{PHOTOFINISH} --quick` compares candle and ONNX Runtime on a small model in a minute; \
         `{PHOTOFINISH} --frameworks candle,tch,ort` adds libtorch (531 MB). Libraries and models are downloaded where \
         they are used, with pip, and checked by sha256.\n"
    )
}

struct Wheel {
    zip: ZipWriter<File>,
    /// The lines of RECORD.
    record: String,
}

impl Wheel {
    fn tree(&mut self, directory: &Path, name: &str) -> Result<()> {
        for path in sorted(directory)? {
            let file = path.file_name().context("an entry has a name")?.to_string_lossy();
            let name = format!("{name}/{file}");
            if path.is_dir() { self.tree(&path, &name)? } else { self.file(&path, &name)? }
        }
        Ok(())
    }

    fn file(&mut self, path: &Path, name: &str) -> Result<()> {
        let contents = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        #[cfg(unix)]
        let is_program =
            std::os::unix::fs::PermissionsExt::mode(&fs::metadata(path)?.permissions()) & 0o100 != 0;
        #[cfg(not(unix))]
        let is_program = true;
        self.add(name, &contents, if is_program { 0o755 } else { 0o644 })
    }

    fn add(&mut self, name: &str, contents: &[u8], mode: u32) -> Result<()> {
        // Without a time, the earliest that an archive can name.
        let options = SimpleFileOptions::default().compression_level(Some(9)).unix_permissions(mode);
        self.zip.start_file(name, options.last_modified_time(zip::DateTime::default()))?;
        self.zip.write_all(contents)?;
        let hash = URL_SAFE_NO_PAD.encode(Sha256::digest(contents));
        self.record.push_str(&format!("{name},sha256={hash},{}\n", contents.len()));
        Ok(())
    }

    /// Writes the list of all files, with itself without a hash.
    fn finish(mut self, name: &str) -> Result<()> {
        let record = format!("{}{name},,\n", self.record);
        self.add(name, record.as_bytes(), 0o644)?;
        self.zip.finish()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn a_wheel_lists_its_files_keeps_what_can_be_run_and_is_the_same_each_time() {
        let scratch = tempfile::tempdir().unwrap();
        let root = scratch.path().join("root");
        for file in ["bin/photofinish", "share/photofinish/workers/engine-a"] {
            program(&root.join(file));
        }
        for file in ["LICENSE-APACHE", "LICENSE-MIT", bill::FILE, "configs/engines/a.toml"] {
            let file = root.join("share/photofinish").join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "text").unwrap();
        }
        let places = ["one", "two"].map(|name| scratch.path().join(name));
        let [one, two] = places.map(|place| {
            fs::create_dir(&place).unwrap();
            write(&root, "1.2.3", "manylinux_2_28_x86_64", &place).unwrap()
        });
        assert_eq!(one.file_name().unwrap(), "photofinish_bench-1.2.3-py3-none-manylinux_2_28_x86_64.whl");
        assert_eq!(fs::read(&one).unwrap(), fs::read(two).unwrap());
        let mut archive = zip::ZipArchive::new(File::open(one).unwrap()).unwrap();
        let mut record = String::new();
        archive
            .by_name("photofinish_bench-1.2.3.dist-info/RECORD")
            .unwrap()
            .read_to_string(&mut record)
            .unwrap();
        // The text's own digest, as `printf text | openssl dgst -sha256 -binary | basenc --base64url` gives it.
        let configured = "photofinish_bench-1.2.3.data/data/share/photofinish/configs/engines/a.toml";
        let digest = "sha256=mC2ePrmW9VnmM_TRlN7zdh2Qn1o7ZH0ahR_q1nwyydE";
        assert!(record.contains(&format!("{configured},{digest},4\n")), "{record}");
        assert_eq!(record.lines().count(), archive.len());
        for (name, mode) in [
            ("photofinish_bench-1.2.3.data/scripts/photofinish", 0o755),
            ("photofinish_bench-1.2.3.data/data/share/photofinish/workers/engine-a", 0o755),
            (configured, 0o644),
        ] {
            assert_eq!(archive.by_name(name).unwrap().unix_mode().unwrap() & 0o777, mode, "{name}");
        }
    }

    fn program(file: &Path) {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, "program").unwrap();
        fs::set_permissions(file, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }
}

//! Signatures of archives, by OpenSSH's `ssh-keygen -Y`: `ARCHIVE.sig` is beside the archive. Whose key it is, is for
//! the reader to know: a file of public keys says which are accepted.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use comparison::plan::{Failure, Result};
use protocol::untrusted;

use super::{of_sums, unpack};
use crate::measure::results;
use crate::output::{print, shown};

/// What the signatures are for: one for another purpose is refused.
const NAMESPACE: &str = "photofinish";

/// The name that all accepted keys have, since only the key counts.
const IDENTITY: &str = "signer";

/// Signs an archive, and returns the file of the signature.
pub(crate) fn sign(archive: &Path, key: &Path) -> Result<PathBuf> {
    let arguments = ["-Y", "sign", "-n", NAMESPACE, "-f"];
    let made = keygen(archive, &|command| command.args(arguments).arg(key))?;
    if !made.status.success() {
        let (archive, key) = (archive.display(), key.display());
        return Err(Failure::usage(format!("cannot sign {archive} with {key}: {}", said(&made))));
    }
    let signature = beside(archive);
    let cannot = |error| Failure::failed(format!("cannot write {}: {error}", signature.display()));
    std::fs::write(&signature, &made.stdout).map_err(cannot)?;
    results::readable_by_all(&signature);
    Ok(signature)
}

/// Checks that one of the keys in `signers` signed the archive as it is, and that each file in it has the sha256 that
/// the archive names.
pub(crate) fn verify(archive: &Path, signers: &Path) -> Result<u8> {
    let keys = untrusted::file::read_text(signers, untrusted::file::INPUT)
        .map_err(|error| Failure::usage(format!("cannot read {}: {error}", signers.display())))?;
    let place = tempfile::tempdir().map_err(|error| Failure::failed(error.to_string()))?;
    let allowed = place.path().join("allowed");
    let keys = keys.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    let lines: String = keys.map(|key| format!("{IDENTITY} {key}\n")).collect();
    std::fs::write(&allowed, lines).map_err(|error| Failure::failed(error.to_string()))?;
    let signature = beside(archive);
    if !signature.is_file() {
        return Err(Failure::usage(format!(
            "{} is not there: {} has no signature",
            signature.display(),
            archive.display()
        )));
    }
    let found = keygen(archive, &|command| {
        let command = command.args(["-Y", "verify", "-n", NAMESPACE, "-I", IDENTITY, "-f"]).arg(&allowed);
        command.arg("-s").arg(&signature)
    })?;
    if !found.status.success() {
        return Err(Failure::failed(format!(
            "{}: no key of {} signed it as it is: it was changed after it was signed, or another key signed it ({})",
            archive.display(),
            signers.display(),
            said(&found)
        )));
    }
    let files = place.path().join("files");
    std::fs::create_dir(&files).map_err(|error| Failure::failed(error.to_string()))?;
    unpack(archive, &files)?;
    if let Some(fault) = of_sums(&files).first() {
        return Err(Failure::failed(format!("{}: {}", archive.display(), untrusted::line(fault))));
    }
    print(&format!(
        "{}: signed by a key of {}, and each file has its sha256\n",
        shown(archive),
        shown(signers)
    ))?;
    Ok(0)
}

/// `ARCHIVE.sig`.
fn beside(archive: &Path) -> PathBuf {
    let mut name = archive.as_os_str().to_owned();
    name.push(".sig");
    PathBuf::from(name)
}

/// Runs `ssh-keygen` with the archive as its input.
fn keygen(archive: &Path, with: &dyn Fn(&mut Command) -> &mut Command) -> Result<Output> {
    let input = untrusted::file::open(archive)
        .map_err(|error| Failure::usage(format!("cannot read {}: {error}", archive.display())))?;
    #[expect(clippy::disallowed_methods, reason = "OpenSSH's own program makes and checks its signatures")]
    let mut command = Command::new("ssh-keygen");
    let made = with(&mut command).stdin(input).stderr(Stdio::piped()).stdout(Stdio::piped()).output();
    made.map_err(|error| match error.kind() {
        ErrorKind::NotFound => Failure::failed(
            "ssh-keygen is not installed, and signatures need it: on Debian and Ubuntu `apt-get install openssh-client`",
        ),
        _ => Failure::failed(format!("cannot run ssh-keygen: {error}")),
    })
}

/// The last line that the program printed.
fn said(output: &Output) -> String {
    let text = [output.stdout.as_slice(), &output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it gave no reason");
    untrusted::shortened(last.trim(), untrusted::SENTENCE)
}

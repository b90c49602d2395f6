//! Harm that a hostile worker does to the machine around it: children that outlive it, files that are none.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use engine::{Bundle, EngineError, Precision};

use crate::script::Fault;

/// Starts a child that lives for an hour. An orphan holds the worker's stdout and stderr; one that is detached is in a
/// session of its own and holds neither; one that vanishes has not even the worker's environment, and another parent.
pub(crate) fn leave_child(fault: Fault) -> io::Result<()> {
    let words: &[&str] = match fault {
        Fault::Vanish => &["env", "-i", "setsid", "--fork", "sleep", "3600"],
        Fault::Detach => &["setsid", "sleep", "3600"],
        _ => &["sleep", "3600"],
    };
    #[expect(clippy::disallowed_methods, reason = "a child that its worker does not wait for")]
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).stdin(Stdio::null());
    match fault {
        Fault::Orphan => drop(command.stdout(protocol_pipe()?)),
        _ => drop(command.stdout(Stdio::null()).stderr(Stdio::null())),
    }
    let mut child = command.spawn()?;
    if fault == Fault::Vanish {
        child.wait()?;
    }
    Ok(())
}

/// The pipe to the driver once more. The worker's own stdout was pointed at stderr.
fn protocol_pipe() -> io::Result<File> {
    let target = |path: &Path| std::fs::read_link(path).ok();
    let known = ["/proc/self/fd/0", "/proc/self/fd/2"].map(|path| target(Path::new(path)));
    let is_it = |path: &PathBuf| {
        let own = target(path);
        own.as_ref().is_some_and(|to| to.to_string_lossy().starts_with("pipe:")) && !known.contains(&own)
    };
    let mut files = std::fs::read_dir("/proc/self/fd")?.flatten().map(|entry| entry.path());
    let pipe = files.find(is_it);
    File::options().write(true).open(pipe.ok_or(io::ErrorKind::NotFound)?)
}

/// Maps a copy of the weights as engines map them, and reads it after its file was cut off: the system ends a process for
/// that, and no program can turn it into an error.
pub(crate) fn read_what_is_cut_off(bundle: &Bundle, precision: Precision) -> Result<(), EngineError> {
    let copy = std::env::temp_dir().join(format!("photofinish-mock-{}", std::process::id()));
    let failed = |error: io::Error| EngineError::Framework(format!("{}: {error}", copy.display()));
    std::fs::copy(bundle.weights_path(precision)?, &copy).map_err(failed)?;
    let stored = bundle.config().stored(precision)?;
    let weights = bundle::Weights::map(&copy, precision, &stored)?;
    let file = File::options().write(true).open(&copy).map_err(failed)?;
    // The process dies below, so that it cannot be removed afterwards.
    std::fs::remove_file(&copy).map_err(failed)?;
    file.set_len(0).map_err(failed)?;
    let tensor = weights.tensor(&stored[0].name)?;
    std::hint::black_box(tensor.bytes.iter().map(|&byte| u64::from(byte)).sum::<u64>());
    Ok(())
}

/// Replaces the file that a parity event names by something else.
pub(crate) fn replace_parity_file(fault: Fault, line: &[u8]) -> io::Result<()> {
    let event: serde_json::Value = serde_json::from_slice(line)?;
    let file = Path::new(event["file"].as_str().unwrap_or_default());
    std::fs::remove_file(file)?;
    match fault {
        Fault::ParityLink => {
            #[cfg(unix)]
            std::os::unix::fs::symlink("/dev/zero", file)?;
            Ok(())
        }
        // A hole of a terabyte, which needs no room on the disk.
        Fault::ParityHuge => File::create(file)?.set_len(1 << 40),
        _ => {
            #[expect(clippy::disallowed_methods, reason = "a named pipe in place of a file")]
            let made = Command::new("mkfifo").arg(file).status()?;
            if made.success() { Ok(()) } else { Err(io::ErrorKind::Other.into()) }
        }
    }
}

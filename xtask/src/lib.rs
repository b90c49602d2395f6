//! Starting other programs, and the progress of one that works for minutes, such as cargo: its lines as they come, and the
//! time where none comes.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, IsTerminal, Read, Write};
use std::process::{Child, Command, ExitCode};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// The longest time without a sign that a program still works.
const LONGEST_SILENCE: Duration = Duration::from_secs(4);
/// On a terminal a clock runs: it overwrites itself.
const TICK: Duration = Duration::from_secs(1);

#[expect(clippy::disallowed_methods, reason = "the one place of the repository's tools that makes processes")]
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    // `cargo run` describes the package xtask in the environment. Build scripts that watch these
    // variables would run again each time a build alternates between here and a shell.
    for (name, _) in std::env::vars_os() {
        let describes_xtask = name.to_str().is_some_and(|name| {
            ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_"].iter().any(|prefix| name.starts_with(prefix))
        });
        if describes_xtask {
            command.env_remove(name);
        }
    }
    command
}

/// Runs a program in the place of this one: signals reach it, and its exit code is this program's.
#[cfg(unix)]
pub fn replace_this_process(program: &mut Command) -> std::io::Result<ExitCode> {
    use std::os::unix::process::CommandExt;
    Err(program.exec())
}

#[cfg(not(unix))]
pub fn replace_this_process(program: &mut Command) -> std::io::Result<ExitCode> {
    let status = program.status()?;
    Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
}

/// Copies a child's standard error, which must be a pipe, to this program's until the child closes it.
pub fn watch(child: &mut Child) -> std::io::Result<()> {
    let Some(lines) = child.stderr.take() else { return Ok(()) };
    // Cargo's only line where it builds nothing, and no part of the task's output.
    let shown = |line: &[u8]| !String::from_utf8_lossy(line).contains("Finished");
    copy(lines, &mut std::io::stderr(), Clock::new(std::io::stderr().is_terminal()), shown)
}

/// What cargo needs to print colours through a pipe, as it would on the terminal.
pub fn colours() -> Option<(&'static str, &'static str)> {
    let asked = std::env::var_os("CARGO_TERM_COLOR").is_some() || std::env::var_os("NO_COLOR").is_some();
    (std::io::stderr().is_terminal() && !asked).then_some(("CARGO_TERM_COLOR", "always"))
}

#[derive(Clone, Copy)]
pub struct Clock {
    patience: Duration,
    /// Whether it overwrites itself, as on a terminal.
    overwrites: bool,
}

impl Clock {
    pub fn new(terminal: bool) -> Self {
        Self { patience: if terminal { TICK } else { LONGEST_SILENCE }, overwrites: terminal }
    }
}

/// Copies lines for which `shown` is true until their end, and the time where none comes.
pub fn copy(
    lines: impl Read + Send + 'static,
    out: &mut impl Write,
    clock: Clock,
    mut shown: impl FnMut(&[u8]) -> bool,
) -> std::io::Result<()> {
    let (sender, receiver) = mpsc::channel();
    // Detached: it ends with the lines, and nothing waits for it.
    std::thread::Builder::new().spawn(move || {
        for line in BufReader::new(lines).split(b'\n') {
            if sender.send(line).is_err() {
                return;
            }
        }
    })?;
    #[expect(clippy::disallowed_methods, reason = "how long a program has been silent is shown")]
    let begun = Instant::now();
    loop {
        match receiver.recv_timeout(clock.patience) {
            Ok(line) => {
                let line = line?;
                if shown(&line) {
                    out.write_all(&line)?;
                    out.write_all(b"\n")?;
                }
            }
            Err(RecvTimeoutError::Timeout) => {
                let seconds = begun.elapsed().as_secs();
                // Whatever comes next begins at the start of the line and is longer.
                let end = if clock.overwrites { '\r' } else { '\n' };
                write!(out, "   working, {}:{:02}{end}", seconds / 60, seconds % 60)?;
            }
            Err(RecvTimeoutError::Disconnected) => return out.flush(),
        }
        out.flush()?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One line, then silence until the other end of the channel is dropped.
    struct Pausing(Option<&'static [u8]>, mpsc::Receiver<()>);

    impl Read for Pausing {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            if let Some(text) = self.0.take() {
                buffer[..text.len()].copy_from_slice(text);
                return Ok(text.len());
            }
            let _ = self.1.recv();
            Ok(0)
        }
    }

    /// Ends the silence once the clock was shown behind the line. The line's thread may be slower than the clock.
    struct Shown(Vec<u8>, Option<mpsc::Sender<()>>);

    impl Write for Shown {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.extend(bytes);
            if String::from_utf8_lossy(&self.0).contains("bundle\n   working") {
                self.1 = None;
            }
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_are_copied_and_a_silence_is_answered_with_the_time() {
        for (terminal, end) in [(true, '\r'), (false, '\n')] {
            let (sender, receiver) = mpsc::channel();
            let mut shown = Shown(Vec::new(), Some(sender));
            let lines = Pausing(Some(b"Compiling bundle\n"), receiver);
            let clock = Clock { patience: Duration::from_millis(1), overwrites: terminal };
            copy(lines, &mut shown, clock, |_| true).unwrap();
            let text = String::from_utf8(shown.0).unwrap();
            assert!(text.contains("Compiling bundle\n   working, 0:0"), "{text}");
            assert!(text.ends_with(end), "{text}");
        }
    }
}

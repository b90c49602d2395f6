//! Errors of a worker, in words.

use untrusted::Foreign;

pub(crate) fn check_version(theirs: u32) -> Result<(), String> {
    if theirs == protocol::VERSION {
        return Ok(());
    }
    let ours = protocol::VERSION;
    Err(format!(
        "it speaks protocol {theirs}, this driver {ours} (docs/reference/protocol.md): \
         build both from the same checkout"
    ))
}

pub(crate) fn nonsense(line: &str) -> String {
    let start: String = line.chars().take(80).collect();
    format!("it sent a line that is not a valid event: {start:?}")
}

/// How a process ended, in words.
pub fn describe(status: std::process::ExitStatus) -> String {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        let name = match signal {
            4 => " (SIGILL)",
            6 => " (SIGABRT)",
            7 => " (SIGBUS)",
            9 => " (SIGKILL: killed from outside, for example for lack of memory)",
            11 => " (SIGSEGV)",
            15 => " (SIGTERM)",
            _ => "",
        };
        return format!("it was ended by signal {signal}{name}");
    }
    match status.code() {
        Some(code) => format!("it ended with exit code {code}"),
        None => "it ended without an exit code".into(),
    }
}

/// Whether a signal from another process ended the process: for faults the system sends other signals.
pub fn came_from_outside(status: std::process::ExitStatus) -> bool {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        use rustix::process::Signal;
        let sent = [Signal::HUP, Signal::INT, Signal::QUIT, Signal::KILL, Signal::TERM];
        return sent.iter().any(|sent| sent.as_raw() == signal);
    }
    false
}

/// The last line of a text that is not empty, trimmed.
pub fn last_line(text: &str) -> Option<Foreign> {
    text.lines().rev().find(|line| !line.trim().is_empty()).map(|line| line.trim().into())
}

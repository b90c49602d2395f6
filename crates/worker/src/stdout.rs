//! stdout belongs to the protocol: native libraries that print there would break it.

use std::fs::File;
use std::io;

/// Takes file descriptor 1 for the protocol and redirects all other output on stdout to stderr.
#[cfg(unix)]
pub(crate) fn claim() -> io::Result<File> {
    let protocol = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)?;
    rustix::stdio::dup2_stdout(rustix::stdio::stderr())?;
    Ok(File::from(protocol))
}

/// Elsewhere stdout is shared; the driver ignores lines that are not events.
#[cfg(not(unix))]
pub(crate) fn claim() -> io::Result<io::Stdout> {
    Ok(io::stdout())
}

//! Serves one [`InferenceEngine`] over the protocol. The common parts of all engines are here: the only
//! clock, memory and CPU readings, the order of the phases, the timed loop.
//!
//! A worker binary is three lines:
//! ```text
//! fn main() -> std::process::ExitCode {
//!     worker::main::<MyEngine>()
//! }
//! ```

mod clock;
mod energy;
pub mod engine;
mod logits;
mod measure;
mod memory;
mod probe;
mod sampling;
mod serve;
mod serving;
mod turns;
mod work;

use std::fs::File;
use std::io::{self, BufRead, IsTerminal, Write};
use std::process::ExitCode;

pub use clock::{advance_clock, stop_clock};
use protocol::Event;
use serde_json::to_string;
pub use serve::serve;

use crate::engine::{EngineError, InferenceEngine};

/// Entry point of a worker binary. `--hello` prints the receipt; otherwise one Job is read from stdin, and for a
/// measurement its turns.
pub fn main<E: InferenceEngine>() -> ExitCode {
    main_through::<E>(|_, output| output)
}

/// As [`main`], with the output to the driver passed through `wrap` (job, output): the mock engine uses it to
/// break the protocol on purpose.
pub fn main_through<E: InferenceEngine>(
    wrap: impl FnOnce(&str, Box<dyn Write>) -> Box<dyn Write>,
) -> ExitCode {
    memory::insist();
    let start_ns = clock::now_ns();
    std::panic::set_hook(Box::new(|panic| {
        // One line, no backtrace: the driver shows the last line of stderr as the cause.
        let message = panic.payload_as_str().unwrap_or("unknown cause");
        let place = panic.location().map_or(String::new(), |l| format!(" ({}:{})", l.file(), l.line()));
        eprintln!("worker panicked: {}{place}", message.replace('\n', " "));
    }));
    die_with_the_driver();
    let mut output = match claim() {
        Ok(output) => output,
        Err(error) => return fail(&format!("cannot claim stdout for the protocol: {error}")),
    };
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    match arguments.iter().map(|word| word.to_str().unwrap_or_default()).collect::<Vec<_>>().as_slice() {
        ["--hello"] => match serve::hello::<E>() {
            Ok(hello) => {
                let line = to_line(&hello);
                if output.write_all(line.as_bytes()).and_then(|()| output.flush()).is_err() {
                    return ExitCode::FAILURE;
                }
                ExitCode::SUCCESS
            }
            Err(error) => fail(&error.to_string()),
        },
        [] if std::io::stdin().is_terminal() => fail(
            "a worker is started by the driver: give one Job as JSON on stdin (docs/reference/protocol.md), or --hello",
        ),
        [] => {
            let mut input = std::io::stdin().lock();
            let mut job = String::new();
            if let Err(error) = input.read_line(&mut job) {
                return fail(&format!("cannot read the job from stdin: {error}"));
            }
            let mut output = wrap(&job, Box::new(output));
            let served = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                serve::<E>(&job, &mut input, start_ns, &mut output)
            }));
            match served {
                Ok(Ok(())) => ExitCode::SUCCESS,
                Ok(Err(error)) => fail(&error.to_string()),
                Err(_) => ExitCode::FAILURE, // the hook has spoken
            }
        }
        other => fail(&format!("unknown arguments {other:?}; there is --hello, or a Job on stdin")),
    }
}

fn fail(reason: &str) -> ExitCode {
    eprintln!("{}", reason.replace('\n', " "));
    ExitCode::FAILURE
}

/// A killed driver must leave no process behind, so the kernel is asked to end this one with it.
fn die_with_the_driver() {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{Signal, set_parent_process_death_signal};
        // Failure leaves only this convenience out; a driver that ends normally reaps its workers.
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
    }
}

// Why a job is not done.

/// Why a worker ends with exit code 1.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The engine failed: reported to the driver as a `failed` event, and to people on stderr.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The job cannot be understood; the caller may not speak this protocol.
    #[error("{0}")]
    Job(String),
    #[error("{0}")]
    File(String),
    /// The driver no longer listens.
    #[error("cannot write to the driver: {0}")]
    Pipe(std::io::Error),
}

// Messages to the driver: JSON, a line each.

fn to_line(value: &impl serde::Serialize) -> String {
    let mut line = to_string(value).expect("protocol types have string keys and no failing serialiser");
    line.push('\n');
    line
}

/// Where events go: one line each, flushed.
struct Events<'a>(pub(crate) &'a mut dyn Write);

impl Events<'_> {
    pub(crate) fn send(&mut self, event: Event) -> Result<(), ServeError> {
        let line = to_line(&event);
        if line.len() as u64 > protocol::MAX_LINE {
            let (bytes, most) = (line.len(), protocol::MAX_LINE >> 20);
            return Err(ServeError::Engine(EngineError::Unsupported(format!(
                "its outputs are {bytes} bytes as text, and at most {most} MiB can be handed over: take a smaller batch, \
                 smaller inputs, or a model with smaller outputs"
            ))));
        }
        self.0.write_all(line.as_bytes()).and_then(|()| self.0.flush()).map_err(ServeError::Pipe)
    }
}

// stdout belongs to the protocol: native libraries that print there would break it.

/// Takes file descriptor 1 for the protocol and redirects all other output on stdout to stderr.
#[cfg(unix)]
fn claim() -> io::Result<File> {
    let protocol = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)?;
    rustix::stdio::dup2_stdout(rustix::stdio::stderr())?;
    Ok(File::from(protocol))
}

/// Elsewhere stdout is shared; the driver ignores lines that are not events.
#[cfg(not(unix))]
fn claim() -> io::Result<io::Stdout> {
    Ok(io::stdout())
}

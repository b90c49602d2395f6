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
mod engine_io;
mod error;
mod events;
mod gpu;
mod huge_pages;
mod logits;
mod measure;
mod memory;
mod pace;
mod page_cache;
mod probe;
mod sampling;
mod score;
mod serve;
mod serving;
mod stdout;
mod threads;
mod trace;
mod turns;
mod warmup;
mod work;

use std::io::{BufRead, IsTerminal, Write};
use std::process::ExitCode;

use engine::InferenceEngine;

pub use clock::{advance_clock, stop_clock};
pub use error::ServeError;
pub use serve::serve;

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
    huge_pages::insist();
    let start_ns = clock::now_ns();
    std::panic::set_hook(Box::new(|panic| {
        // One line, no backtrace: the driver shows the last line of stderr as the cause.
        let message = panic.payload_as_str().unwrap_or("unknown cause");
        let place = panic.location().map_or(String::new(), |l| format!(" ({}:{})", l.file(), l.line()));
        eprintln!("worker panicked: {}{place}", message.replace('\n', " "));
    }));
    die_with_the_driver();
    let mut output = match stdout::claim() {
        Ok(output) => output,
        Err(error) => return fail(&format!("cannot claim stdout for the protocol: {error}")),
    };
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["--hello"] => match serve::hello::<E>() {
            Ok(hello) => {
                let line = events::to_line(&hello);
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

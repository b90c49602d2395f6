//! Handles Ctrl-C: it is recorded, and handled where there is something to save or to end.

use std::sync::atomic::{AtomicBool, Ordering};

use plan::{Failure, Result};
use tooling::interrupt;

/// Whether something was measured that may not be saved yet.
static MEASURING: AtomicBool = AtomicBool::new(false);

/// Turns SIGINT, SIGTERM and SIGHUP into requests to save the results so far and end. A second signal ends this program
/// at once.
pub fn listen() -> Result<()> {
    interrupt::listen().map_err(|error| Failure::failed(error.to_string()))
}

pub fn requested() -> bool {
    interrupt::requested()
}

/// From here on there may be something to save.
pub(crate) fn measuring_begins() {
    MEASURING.store(true, Ordering::SeqCst);
}

/// Runs work that saves nothing and may take long, such as hashing. Until something was measured, a signal
/// ends this program at once; afterwards it is handled when this work is done.
pub(crate) fn with_nothing_to_save<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    let expendable = (!MEASURING.load(Ordering::SeqCst)).then(interrupt::expendable);
    if requested() {
        return Err(Failure::Interrupted);
    }
    let done = work()?;
    drop(expendable);
    if requested() { Err(Failure::Interrupted) } else { Ok(done) }
}

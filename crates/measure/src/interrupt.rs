//! Handles Ctrl-C: it is noted here, and acted upon where there is something to save or to end.

use std::sync::atomic::{AtomicBool, Ordering};

use plan::{Failure, Result};

static REQUESTED: AtomicBool = AtomicBool::new(false);
static LISTENING: AtomicBool = AtomicBool::new(false);

/// Turns SIGINT, SIGTERM and SIGHUP into requests to save the results so far and end.
pub fn listen() -> Result<()> {
    // A study that a suite names begins inside another command.
    if LISTENING.swap(true, Ordering::SeqCst) {
        return Ok(());
    }
    ctrlc::set_handler(|| REQUESTED.store(true, Ordering::SeqCst))
        .map_err(|e| Failure::failed(format!("cannot listen for Ctrl-C: {e}")))
}

pub fn requested() -> bool {
    REQUESTED.load(Ordering::SeqCst)
}

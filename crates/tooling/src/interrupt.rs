//! Ctrl-C and SIGTERM for tasks that have something to clean up: they end the running program, and this one
//! continues to its own end.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};

use crate::Interrupted;

static LISTENING: AtomicBool = AtomicBool::new(false);
static REQUESTED: AtomicBool = AtomicBool::new(false);
/// The programs that run now.
static RUNNING: Mutex<Vec<u32>> = Mutex::new(Vec::new());
/// Whether an end at once would lose nothing.
static EXPENDABLE: AtomicBool = AtomicBool::new(false);

/// Turns SIGINT, SIGTERM and SIGHUP into an end in good order. A second signal ends this program at once.
pub fn listen() -> Result<()> {
    if LISTENING.swap(true, Ordering::SeqCst) {
        return Ok(());
    }
    ctrlc::set_handler(|| {
        let is_second = REQUESTED.swap(true, Ordering::SeqCst);
        let running = running().clone();
        if is_second || (running.is_empty() && EXPENDABLE.load(Ordering::SeqCst)) {
            eprintln!("error: interrupted");
            std::process::exit(i32::from(Interrupted::CODE));
        }
        running.into_iter().for_each(terminate);
    })
    .context("cannot listen for Ctrl-C")
}

/// Whether the user has interrupted.
pub fn requested() -> bool {
    REQUESTED.load(Ordering::SeqCst)
}

/// The error [`Interrupted`] if the user has interrupted.
pub fn check() -> Result<()> {
    if requested() { Err(Interrupted.into()) } else { Ok(()) }
}

/// Says that there is nothing to save or to tidy up, until the returned value is dropped: a signal ends this program at
/// once, unless it waits for another.
pub fn expendable() -> Expendable {
    EXPENDABLE.store(true, Ordering::SeqCst);
    Expendable
}

pub struct Expendable;

impl Drop for Expendable {
    fn drop(&mut self) {
        EXPENDABLE.store(false, Ordering::SeqCst);
    }
}

/// Forwards signals to a program, until the returned value is dropped.
pub(crate) fn pass_on(id: u32) -> PassOn {
    running().push(id);
    if REQUESTED.load(Ordering::SeqCst) {
        // The signal arrived between the start and here.
        terminate(id);
    }
    PassOn(id)
}

pub(crate) struct PassOn(u32);

impl Drop for PassOn {
    fn drop(&mut self) {
        running().retain(|id| *id != self.0);
    }
}

fn running() -> std::sync::MutexGuard<'static, Vec<u32>> {
    RUNNING.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Asks a program to end. A signal from a terminal has reached it already; a second one does no harm.
pub(crate) fn terminate(id: u32) {
    #[cfg(unix)]
    if let Some(id) = i32::try_from(id).ok().and_then(rustix::process::Pid::from_raw) {
        // An error means that the program has just ended.
        let _ = rustix::process::kill_process(id, rustix::process::Signal::TERM);
    }
    #[cfg(not(unix))]
    let _ = id;
}

#[cfg(all(test, unix))]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::Stdio;
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::process::{command, succeeds};

    /// Says to the process below that it is the one that is interrupted.
    const ROLE: &str = "PHOTOFINISH_TEST_INTERRUPTED";
    const NAME: &str = "interrupt::tests::a_signal_ends_what_runs_and_is_an_error_here";

    #[test]
    fn a_signal_ends_what_runs_and_is_an_error_here() {
        if std::env::var_os(ROLE).is_some() {
            listen().unwrap();
            let error = succeeds(command("sh").args(["-c", "echo runs; exec sleep 60"])).unwrap_err();
            assert!(error.downcast_ref::<Interrupted>().is_some(), "{error}");
            return;
        }
        let begun = SystemTime::now();
        let mut again = command(std::env::current_exe().unwrap());
        again.args(["--exact", NAME, "--nocapture"]).env(ROLE, "1").stdout(Stdio::piped());
        let mut child = again.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().ends_with("runs")), "it started the program");
        terminate(child.id());
        assert!(lines.count() > 0 && child.wait().unwrap().success());
        assert!(begun.elapsed().unwrap() < Duration::from_secs(50), "the signal was passed on");
    }
}

//! Progress on stderr: one line on a terminal, a line every few seconds elsewhere, nothing with `--quiet`.

use std::io::IsTerminal;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use comparison::plan::{Failure, Result};
use indicatif::{ProgressBar, ProgressStyle};
use protocol::untrusted;
use setup::tooling;

use crate::measure::process::now;
use crate::measure::session::Round;

pub struct Progress {
    bar: ProgressBar,
    quiet: bool,
    /// The most there may be.
    rounds: usize,
    /// The interval of the leading pair after the last round.
    leading: String,
    /// When the comparison is expected to end, with a word before the remaining time.
    end: Option<(Instant, String)>,
    /// Columns of a line; `None` if they are not known.
    width: Option<NonZeroUsize>,
    /// Without a terminal: prints the last message every few seconds.
    lines: Option<Lines>,
}

/// Prints a message from time to time until it is dropped.
struct Lines {
    message: Arc<Mutex<String>>,
    /// Dropping this end of the channel ends the thread.
    _running: mpsc::Sender<()>,
}

/// Interval of lines without a terminal.
const LONGEST_SILENCE: Duration = Duration::from_secs(4);

impl Progress {
    /// `limit_s`: seconds in which the comparison ends, if they are limited.
    pub fn new(rounds: usize, limit_s: Option<f64>, quiet: bool) -> Progress {
        let shown = !quiet && std::io::stderr().is_terminal();
        let bar = if shown { ProgressBar::new(rounds as u64) } else { ProgressBar::hidden() };
        // `wide_msg` is cut to the terminal's width, so that the line stays one line.
        let style = ProgressStyle::with_template("{elapsed} {wide_msg}");
        bar.set_style(style.expect("the template is valid"));
        if shown {
            // The bar is redrawn rarely: an animation would disturb the measured worker.
            bar.enable_steady_tick(Duration::from_secs(1));
        }
        // The thread sleeps between lines, like the bar's.
        let lines = (!shown && !quiet).then(|| Lines::printed_by_a_thread(bar.clone()));
        let end = limit_s.map(|seconds| (now() + Duration::from_secs_f64(seconds), "at most ".to_owned()));
        Progress { bar, quiet, rounds, leading: String::new(), end, width: width(), lines }
    }

    pub(crate) fn running(&self, round: Round, what: &str) {
        let (number, rounds) = (round.number + 1, self.rounds);
        self.message(&format!("round {number} of up to {rounds}: {what}{}", self.leading));
    }

    /// A turn in a block, counted from 0.
    pub(crate) fn turn(&self, round: Round, block: usize, label: &str) {
        self.running(round, &format!("block {} of {}, {label}", block + 1, round.blocks));
    }

    /// Stores values known after a round: the width of the leading pair's interval, and the seconds left with
    /// a word before them.
    pub(crate) fn round_done(&mut self, leading: Option<String>, left: Option<(f64, &str)>) {
        self.leading = leading.map_or_else(String::new, |text| format!(" · {text}"));
        // More than a year is too long for a bar to count down.
        let wait = |seconds: f64| Duration::from_secs_f64(seconds.clamp(0.0, 3e7));
        if let Some((seconds, word)) = left {
            self.end = Some((now() + wait(seconds), word.to_owned()));
        }
    }

    pub fn message(&self, text: &str) {
        let left = self.end.as_ref().map_or_else(String::new, |(end, word)| left(*end, word, now()));
        let text = &format!("{left}{text}");
        if let Some(lines) = &self.lines {
            *lines.message.lock().unwrap_or_else(PoisonError::into_inner) = text.to_owned();
            return;
        }
        self.bar.set_message(self.width.map_or_else(|| text.to_owned(), |width| cut(text, width)));
    }

    pub fn step(&self) {
        self.bar.inc(1);
    }

    /// Prints a line that stays, even without a bar. Errors are not progress, so they are printed even with `--quiet`.
    pub fn say(&self, text: &str) {
        let text = &*untrusted::line(text);
        let text = &self.width.map_or_else(|| text.to_owned(), |width| textwrap::fill(text, width.get()));
        if self.bar.is_hidden() { protocol::say!("{text}") } else { self.bar.println(text) }
    }

    pub fn done(&self) {
        if !self.quiet {
            self.bar.finish_and_clear();
        }
    }
}

impl Lines {
    /// `bar` has the time since the start.
    fn printed_by_a_thread(bar: ProgressBar) -> Lines {
        let message = Arc::new(Mutex::new(String::from("starting")));
        let (running, ended) = mpsc::channel::<()>();
        let shown = Arc::clone(&message);
        // Where the system refuses a thread, the lines are missing, and nothing else.
        let _ = std::thread::Builder::new().spawn(move || {
            while ended.recv_timeout(LONGEST_SILENCE) == Err(mpsc::RecvTimeoutError::Timeout) {
                let seconds = bar.elapsed().as_secs();
                let text = shown.lock().unwrap_or_else(PoisonError::into_inner).clone();
                protocol::say!("{}:{:02} {text}", seconds / 60, seconds % 60);
            }
        });
        Lines { message, _running: running }
    }
}

/// The time left until `end`, at the start of a line: the rest may be cut off.
fn left(end: Instant, word: &str, now: Instant) -> String {
    let seconds = end.saturating_duration_since(now).as_secs_f64().round() as u64;
    format!("{word}{}:{:02} left · ", seconds / 60, seconds % 60)
}

/// The width set by the user as `COLUMNS`, or that of the terminal.
fn width() -> Option<NonZeroUsize> {
    let columns = std::env::var("COLUMNS").ok().and_then(|columns| columns.trim().parse().ok());
    let of_terminal = || {
        let (terminal_size::Width(columns), _) = terminal_size::terminal_size_of(std::io::stderr())?;
        NonZeroUsize::new(columns.into())
    };
    columns.or_else(of_terminal)
}

/// Length of the part before the message on the line: "00:01:23 ".
const ELAPSED: usize = 9;

/// The message, short enough for the line to stay one line.
fn cut(text: &str, width: NonZeroUsize) -> String {
    let room = width.get().saturating_sub(ELAPSED);
    if text.chars().count() <= room {
        return text.to_owned();
    }
    let kept: String = text.chars().take(room.saturating_sub(1)).collect();
    format!("{}…", kept.trim_end())
}

// Handles Ctrl-C: it is recorded, and handled where there is something to save or to end.

/// Whether something was measured that may not be saved yet.
static MEASURING: AtomicBool = AtomicBool::new(false);

/// Turns SIGINT, SIGTERM and SIGHUP into requests to save the results so far and end. A second signal ends this program
/// at once.
pub fn listen() -> Result<()> {
    tooling::listen().map_err(|error| Failure::failed(error.to_string()))
}

pub fn requested() -> bool {
    tooling::requested()
}

/// From here on there may be something to save.
pub(crate) fn measuring_begins() {
    MEASURING.store(true, Ordering::SeqCst);
}

/// Runs work that saves nothing and may take long, such as hashing. Until something was measured, a signal
/// ends this program at once; afterwards it is handled when this work is done.
pub(crate) fn with_nothing_to_save<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    let expendable = (!MEASURING.load(Ordering::SeqCst)).then(tooling::expendable);
    if requested() {
        return Err(Failure::Interrupted);
    }
    let done = work()?;
    drop(expendable);
    if requested() { Err(Failure::Interrupted) } else { Ok(done) }
}

/// The command that started this program, as it is stored with results.
pub fn typed() -> Vec<String> {
    untrusted::secrets::command(std::env::args_os().map(|word| word.to_string_lossy().into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_progress_is_no_wider_than_the_terminal() {
        let text = "at most 2:31 left · round 12 of up to 30: block 4 of 16, transformers-compile · rten and openvino: 12 % \
                    (9–15 %)";
        for columns in [60, 80, 100, 120] {
            let told = cut(text, NonZeroUsize::new(columns).unwrap());
            assert!(ELAPSED + told.chars().count() <= columns, "{told}");
            assert_eq!(told.ends_with('…'), ELAPSED + text.chars().count() > columns, "{told}");
        }
        assert_eq!(cut("round 1", NonZeroUsize::new(80).unwrap()), "round 1");
    }

    #[test]
    fn the_time_left_shrinks_to_nothing() {
        let begun = now();
        let end = begun + Duration::from_secs(151);
        let at = |seconds| left(end, "at most ", begun + Duration::from_secs(seconds));
        assert_eq!(
            [at(0), at(31), at(200)],
            ["at most 2:31 left · ", "at most 2:00 left · ", "at most 0:00 left · "]
        );
    }
}

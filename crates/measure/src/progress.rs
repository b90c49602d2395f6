//! Progress on stderr: a bar on a terminal, nothing with `--quiet` or without a terminal.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

pub struct Progress {
    bar: ProgressBar,
    quiet: bool,
}

impl Progress {
    pub fn new(steps: usize, quiet: bool) -> Progress {
        let shown = !quiet && std::io::stderr().is_terminal();
        let bar = if shown { ProgressBar::new(steps as u64) } else { ProgressBar::hidden() };
        let style =
            ProgressStyle::with_template("{bar:30} {pos}/{len}  {msg}  [{elapsed} elapsed, {eta} left]");
        bar.set_style(style.expect("the template is valid"));
        if shown {
            // The bar is redrawn rarely: an animation would compute beside the worker that is measured.
            bar.enable_steady_tick(Duration::from_secs(1));
        }
        Progress { bar, quiet }
    }

    pub fn running(&self, round: usize, rounds: usize, label: &str) {
        self.message(&format!("round {} of up to {rounds}: {label}", round + 1));
    }

    pub fn message(&self, text: &str) {
        self.bar.set_message(text.to_owned());
    }

    pub fn step(&self, runs: usize) {
        self.bar.inc(runs as u64);
    }

    /// Prints a line that stays, even without a bar. Errors are not progress, so they are printed even with `--quiet`.
    pub fn say(&self, text: &str) {
        if self.bar.is_hidden() { eprintln!("{text}") } else { self.bar.println(text) }
    }

    pub fn done(&self) {
        if !self.quiet {
            self.bar.finish_and_clear();
        }
    }
}

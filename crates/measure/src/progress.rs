//! Progress on stderr: one line on a terminal, nothing with `--quiet` or without a terminal.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::work::Round;

pub struct Progress {
    bar: ProgressBar,
    quiet: bool,
    /// The interval of the leading pair, and the time left, as they were after the last round.
    known: String,
}

impl Progress {
    /// `rounds`: the most there may be.
    pub fn new(rounds: usize, quiet: bool) -> Progress {
        let shown = !quiet && std::io::stderr().is_terminal();
        let bar = if shown { ProgressBar::new(rounds as u64) } else { ProgressBar::hidden() };
        // `wide_msg` is cut to the terminal's width, so that the line stays one line.
        let style = ProgressStyle::with_template("{elapsed} {wide_msg}");
        bar.set_style(style.expect("the template is valid"));
        if shown {
            // The bar is redrawn rarely: an animation would compute beside the worker that is measured.
            bar.enable_steady_tick(Duration::from_secs(1));
        }
        Progress { bar, quiet, known: String::new() }
    }

    pub(crate) fn running(&self, round: Round, rounds: usize, what: &str) {
        self.message(&format!("round {} of up to {rounds}: {what}{}", round.number + 1, self.known));
    }

    /// A turn in a block, counted from 0.
    pub(crate) fn turn(&self, round: Round, rounds: usize, block: usize, label: &str) {
        self.running(round, rounds, &format!("block {} of {}, {label}", block + 1, round.blocks));
    }

    /// Notes what is known after a round: how wide the leading pair's interval is, and the seconds left with a word
    /// before them.
    pub(crate) fn round_done(&mut self, leading: Option<String>, left: Option<(f64, &str)>) {
        let left = left.map(|(seconds, word)| {
            let seconds = seconds.max(0.0).round() as u64;
            format!("{word}{}:{:02} left", seconds / 60, seconds % 60)
        });
        let known = leading.into_iter().chain(left).map(|text| format!(" · {text}"));
        self.known = known.collect();
    }

    pub fn message(&self, text: &str) {
        self.bar.set_message(text.to_owned());
    }

    pub fn step(&self) {
        self.bar.inc(1);
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

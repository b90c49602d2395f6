//! The display of long work: bars on a terminal, plain lines elsewhere, always on stderr.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

#[derive(Clone, Copy)]
pub struct Reporter {
    quiet: bool,
    bars: bool,
}

impl Reporter {
    pub fn new(quiet: bool) -> Self {
        Self { quiet, bars: !quiet && std::io::stderr().is_terminal() }
    }

    /// For work that runs at the same time as other work with bars.
    pub fn without_bars(self) -> Self {
        Self { bars: false, ..self }
    }

    pub fn is_quiet(self) -> bool {
        self.quiet
    }

    /// A useful message that `--quiet` hides.
    pub fn note(self, text: &str) {
        if !self.quiet {
            eprintln!("{text}");
        }
    }

    /// Something that must be known.
    pub fn warn(self, text: &str) {
        eprintln!("warning: {text}");
    }

    /// The start of long work of unknown length.
    pub fn begin(self, what: &str) {
        eprintln!("{what}");
    }

    /// Long work on this many bytes: shown as a bar until the returned value is dropped.
    pub fn transfer(self, what: &str, bytes: u64) -> Transfer {
        if !self.bars {
            eprintln!("{what} ({} MB)", megabytes(bytes));
            return Transfer(None);
        }
        let style = ProgressStyle::with_template("{msg} {wide_bar} {decimal_bytes}/{decimal_total_bytes}");
        let bar = ProgressBar::new(bytes).with_message(what.to_owned());
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.enable_steady_tick(Duration::from_millis(100));
        Transfer(Some(bar))
    }
}

pub struct Transfer(Option<ProgressBar>);

impl Transfer {
    pub fn at(&self, bytes: u64) {
        if let Some(bar) = &self.0 {
            // A file that is being moved is counted twice for a moment.
            bar.set_position(bytes.min(bar.length().unwrap_or(bytes)));
        }
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

pub fn megabytes(bytes: u64) -> u64 {
    bytes.div_ceil(1_000_000)
}

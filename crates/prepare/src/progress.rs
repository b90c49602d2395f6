//! The display while a bundle is made.

use indicatif::{ProgressBar, ProgressStyle};

/// Whether to show progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Nothing but errors, and those are returned.
    Silent,
    /// Bars and warnings on stderr. Bars are drawn only where stderr is a terminal.
    Bar,
}

pub(crate) struct Reporter {
    progress: Progress,
    bar: ProgressBar,
}

impl Reporter {
    pub(crate) fn new(progress: Progress) -> Reporter {
        Reporter { progress, bar: ProgressBar::hidden() }
    }

    /// Begins a stretch of work over `bytes` bytes.
    pub(crate) fn start(&mut self, what: String, bytes: u64) {
        if self.progress == Progress::Silent {
            return;
        }
        let style = "{msg} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec}, {eta} left";
        let style = ProgressStyle::with_template(style).expect("a constant template");
        self.bar = ProgressBar::new(bytes).with_style(style).with_message(what);
    }

    pub(crate) fn advance(&self, bytes: u64) {
        self.bar.inc(bytes);
    }

    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }

    /// One line on stderr.
    pub(crate) fn note(&self, text: &str) {
        if self.progress == Progress::Bar {
            self.bar.suspend(|| untrusted::say!("{text}"));
        }
    }
}

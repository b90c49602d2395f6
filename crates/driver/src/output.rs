//! Output to stdout.

use std::io::{IsTerminal, Write};
use std::sync::OnceLock;

use clap::ColorChoice;
use plan::{Failure, Result};
use render::screen::Screen;

use crate::cli::ScreenArgs;

/// Columns where the width of the reader's terminal is not known.
const UNKNOWN_WIDTH: usize = 120;
/// Columns below which no table can be laid out.
const LEAST_WIDTH: usize = 60;

/// What stdout shows on. There is one stdout, so there is one of these.
static SCREEN: OnceLock<Screen> = OnceLock::new();

/// Notes what was asked of stdout. Before that it is plain.
pub(crate) fn set_screen(asked: &ScreenArgs) {
    let is_terminal = std::io::stdout().is_terminal();
    let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let colour = match asked.color {
        ColorChoice::Always => true,
        ColorChoice::Never => false,
        ColorChoice::Auto => is_terminal && !no_colour,
    };
    // `COLUMNS` is what people set, and what scripts hand on; else the terminal says it.
    let columns = std::env::var("COLUMNS").ok().and_then(|columns| columns.trim().parse().ok());
    let width = columns.or_else(|| terminal_size::terminal_size().map(|(width, _)| usize::from(width.0)));
    let width = width.unwrap_or(UNKNOWN_WIDTH).max(LEAST_WIDTH);
    let _ = SCREEN.set(Screen { width, colour, verbose: asked.verbose });
}

/// What stdout shows on.
pub(crate) fn screen() -> Screen {
    SCREEN.get().copied().unwrap_or_else(|| Screen::plain(UNKNOWN_WIDTH))
}

/// Prints a result on stdout. A closed reader (`| head`) is not an error.
pub(crate) fn print(text: &str) -> Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::failed(format!("cannot write to stdout: {e}")))
        }
        _ => Ok(()),
    }
}

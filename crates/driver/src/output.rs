//! Output to stdout, or to a file instead.

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};

use clap::ColorChoice;
use comparison::plan::{Failure, Result};
use protocol::untrusted;
use render::table::Screen;

use crate::cli::ScreenArgs;
use crate::measure::results::write_whole;

/// Columns where the width of the reader's terminal is not known.
const UNKNOWN_WIDTH: usize = 120;
/// Columns below which no table can be laid out.
const LEAST_WIDTH: usize = 60;

/// The properties of stdout. There is one stdout, so that there is one of these.
static SCREEN: OnceLock<Screen> = OnceLock::new();

/// Sets them from the flags for stdout, or for the file that replaces it. Before that, output is plain.
pub(crate) fn set_screen(asked: &ScreenArgs, is_file: bool) {
    let is_terminal = !is_file && std::io::stdout().is_terminal();
    let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let colour = match asked.color {
        ColorChoice::Always => true,
        ColorChoice::Never => false,
        ColorChoice::Auto => is_terminal && !no_colour,
    };
    // `COLUMNS` is set by people and passed on by scripts; without it the terminal is asked.
    let columns = std::env::var("COLUMNS").ok().and_then(|columns| columns.trim().parse().ok());
    let width = columns.or_else(|| terminal_size::terminal_size().map(|(width, _)| usize::from(width.0)));
    let width = width.unwrap_or(UNKNOWN_WIDTH).max(LEAST_WIDTH);
    let _ = SCREEN.set(Screen { width, colour, verbose: asked.verbose });
}

pub(crate) fn screen() -> Screen {
    SCREEN.get().copied().unwrap_or_else(|| Screen::plain(UNKNOWN_WIDTH))
}

/// The text printed while a file replaces stdout.
static KEPT: Mutex<Option<String>> = Mutex::new(None);

/// Does `work`, and writes its output to `file`, if one is named: whole, or not at all. Output before a
/// failure is written, too.
pub(crate) fn into_file(file: Option<&Path>, work: impl FnOnce() -> Result<u8>) -> Result<u8> {
    let Some(file) = file else { return work() };
    let cannot =
        |error: &dyn std::fmt::Display| Failure::usage(format!("cannot write {}: {error}", file.display()));
    let directory = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !directory.is_dir() {
        return Err(cannot(&format!("there is no directory {}", directory.display())));
    }
    let Some(name) = file.file_name().filter(|_| !file.is_dir()) else {
        return Err(cannot(&"it is a directory; name a file, or use --results-dir"));
    };
    *KEPT.lock().unwrap_or_else(PoisonError::into_inner) = Some(String::new());
    let done = work();
    let text = KEPT.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default();
    if text.is_empty() {
        return done;
    }
    if let Err(error) = write_whole(directory, name, text.as_bytes()) {
        // Nothing that was measured is lost.
        print(&text)?;
        return Err(cannot(&error));
    }
    protocol::say!("written to {}", file.display());
    done
}

/// A path for stdout: as it is for a program, and without control characters for a terminal.
pub(crate) fn shown(path: &Path) -> String {
    let path = path.display().to_string();
    if std::io::stdout().is_terminal() { untrusted::line(&path).into_owned() } else { path }
}

/// Prints a result on stdout. A closed reader (`| head`) is not an error.
pub(crate) fn print(text: &str) -> Result<()> {
    if let Some(kept) = KEPT.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
        kept.push_str(text);
        return Ok(());
    }
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::failed(format!("cannot write to stdout: {e}")))
        }
        _ => Ok(()),
    }
}

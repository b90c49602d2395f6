//! `photofinish`: the commands that people type. It links no framework and loads no weights, so a broken engine can break
//! neither its build nor its run.

mod cli;
mod commands;
pub mod history_file;
pub mod measure;
mod output;
pub mod worker_check;

use std::ffi::OsString;
use std::process::ExitCode;

use comparison::plan::Failure;
use protocol::untrusted;

use crate::cli::{help, spelling};

/// Runs `photofinish`.
pub fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    if let [_, command, topic] = words.as_slice()
        && command == "help"
        && let Some(text) = topic.to_str().and_then(help::topic)
    {
        // A reader that has closed is no failure.
        let _ = output::print(&text);
        return ExitCode::SUCCESS;
    }
    for flag in
        spelling::flags_as_variables(std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()))
    {
        let name = flag[2..].to_uppercase().replace('-', "_");
        protocol::say!("warning: PHOTOFINISH_{name} is not read: give {flag}");
    }
    let typed = spelling::Typed::new(words);
    if let Some(hint) = &typed.hint {
        protocol::say!("hint: {hint}");
    }
    let cli = typed.parse().unwrap_or_else(|error| error.exit());
    output::set_screen(&cli.screen, cli.output().is_some());
    let outcome = output::into_file(cli.output(), || commands::run(&cli));
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            if !matches!(failure, Failure::Spoken(_)) {
                let said = failure.to_string();
                protocol::say!("error: {}", untrusted::line(&untrusted::secrets::without_credentials(&said)));
            }
            ExitCode::from(failure.exit_code())
        }
    }
}

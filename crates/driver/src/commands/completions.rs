//! `photofinish completions` and `photofinish man`: what packages install beside the program.

use clap::CommandFactory;
use plan::{Failure, Result};

use crate::cli::Cli;
use crate::output::print;

pub(crate) fn completions(shell: clap_complete::Shell) -> Result<u8> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "photofinish", &mut text);
    print(&String::from_utf8_lossy(&text)).map(|()| 0)
}

pub(crate) fn man() -> Result<u8> {
    let mut text = Vec::new();
    clap_mangen::Man::new(Cli::command())
        .render(&mut text)
        .map_err(|error| Failure::failed(format!("cannot lay out the man page: {error}")))?;
    print(&String::from_utf8_lossy(&text)).map(|()| 0)
}

//! `photofinish completions` and `photofinish man`: files that packages install with the program.

use clap::CommandFactory;
use clap::builder::{PossibleValue, PossibleValuesParser};
use plan::{Failure, Result};

use crate::cli::{Cli, Places};
use crate::output::print;

pub(crate) fn completions(shell: clap_complete::Shell, places: &Places) -> Result<u8> {
    let configs = places.find()?.configs;
    let frameworks: Vec<String> = configs::engines(&configs)?.into_iter().map(|engine| engine.name).collect();
    let named = [
        ("framework", frameworks.clone()),
        ("frameworks", frameworks),
        ("model", configs::models(&configs)?),
        ("suite", configs::suites(&configs)?),
    ];
    let mut command =
        named.iter().fold(Cli::command(), |command, (flag, names)| naming(command, flag, names));
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command, "photofinish", &mut text);
    print(&String::from_utf8_lossy(&text)).map(|()| 0)
}

/// The command, and all below it, with these names after this flag.
fn naming(command: clap::Command, flag: &str, names: &[String]) -> clap::Command {
    let has_flag = command.get_arguments().any(|known| known.get_id() == flag && known.get_long().is_some());
    // Texts of a command live as long as the program.
    let values = || names.iter().map(|name| PossibleValue::new(&*name.clone().leak()));
    let command = match has_flag {
        true => command.mut_arg(flag, |known| known.value_parser(PossibleValuesParser::new(values()))),
        false => command,
    };
    command.mut_subcommands(|below| naming(below, flag, names))
}

pub(crate) fn man() -> Result<u8> {
    let mut text = Vec::new();
    clap_mangen::Man::new(Cli::command())
        .render(&mut text)
        .map_err(|error| Failure::failed(format!("cannot write the man page: {error}")))?;
    print(&String::from_utf8_lossy(&text)).map(|()| 0)
}

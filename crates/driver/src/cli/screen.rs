//! How much is shown, and in what colours. These flags may follow every command.

use clap::{Args, ColorChoice};

use super::OUTPUT;

#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct ScreenArgs {
    /// Show everything: figures by prompt, spreads, memory by part, every warning
    #[arg(short, long, global = true, help_heading = OUTPUT)]
    pub(crate) verbose: bool,
    /// Colours in tables and sentences; auto: on a terminal, unless NO_COLOR is set
    #[arg(long, global = true, value_name = "auto|always|never", default_value_t = ColorChoice::Auto,
          hide_default_value = true, hide_possible_values = true, help_heading = OUTPUT)]
    pub(crate) color: ColorChoice,
}

//! Repository automation, `cargo xtask`: one file a task, dispatch only. Of the workspace's crates it depends on
//! small ones alone, so that an engine or a driver that does not compile takes no command with it.

mod bill;
mod build;
mod cargo;
mod compare;
mod cuda;
mod dist;
#[cfg(test)]
mod features;
mod gate;
mod install;
#[cfg(test)]
mod pages;
mod programs;
mod readers;
mod references;
mod rehearsal;
mod splice;
mod test;
mod tidy;
mod wheel;
mod workspace;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Command, CommandFactory, FromArgMatches, Parser, Subcommand};
use setup::tooling;
use setup::tooling::Reporter;
use setup::{Asked, Target};

use crate::workspace::Workspace;

#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", about = "Set up, build, compare, test")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

// Arguments of the program that does the task.
#[derive(clap::Args)]
struct PassedOn {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

#[derive(Subcommand)]
enum Task {
    /// Download what the frameworks need into the cache directory, unless it is there
    ///
    /// The cache directory is ${XDG_CACHE_HOME:-~/.cache}/photofinish. LIBTORCH and ORT_DYLIB_PATH,
    /// if set, are used instead of a download.
    Setup(Asked),
    /// Set up, then build the driver and one worker for each framework
    Build {
        /// Names of configs/engines, or `all`; candle, tch and ort, unless given
        #[arg(long, value_delimiter = ',', value_name = "NAME,…")]
        frameworks: Vec<String>,
        /// The program that downloads models named `hf:owner/name`, too
        #[arg(long, conflicts_with = "device")]
        hub: bool,
        /// cuda: the engines' workers for a GPU, apart from the others (docs/how-to/gpu.md)
        #[arg(long, value_name = "DEVICE", default_value = "cpu")]
        device: Target,
        /// Plain lines on long work instead of progress bars, and nothing else
        #[arg(long)]
        quiet: bool,
    },
    /// Build what compares and install it, so that `photofinish` works without this checkout (docs/how-to/install.md)
    Install(install::Args),
    /// Build what compares for other machines: a tar.gz, a wheel and a list of their contents, in target/dist
    Dist {
        #[command(flatten)]
        what: install::What,
        /// Plain lines on long work instead of progress bars, and nothing else
        #[arg(long)]
        quiet: bool,
    },
    /// Set up, build, and compare the frameworks: every argument goes to the driver
    #[command(disable_help_flag = true)]
    Compare(PassedOn),
    /// Build another commit and measure it against this checkout, interleaved: the gate of CI
    ///
    /// Exit code: that of `photofinish check` (docs/how-to/gate-ci.md).
    Gate(gate::Args),
    /// Compare the verdicts with simulated comparisons and write docs/evidence/calibration.md
    #[command(disable_help_flag = true)]
    Calibrate(PassedOn),
    /// Test published claims and write docs/evidence/claims.md from what was measured
    #[command(disable_help_flag = true)]
    Claims(PassedOn),
    /// Everything that must pass, set-up included; ends in the line `N passed, N failed, N skipped`
    Test(test::Args),
    /// Build `photofinish` and run its `doctor`: what can run here, and what to do for the rest
    #[command(disable_help_flag = true)]
    Doctor(PassedOn),
    /// Check the rules of the architecture
    Tidy,
    /// Build `photofinish` and run its `profile`: which part of a framework its CPU time goes to
    #[command(disable_help_flag = true)]
    Profile(PassedOn),
    /// Put the table of a results directory, or of a profile, between the markers of a block of a page
    Splice {
        /// With report.md or profile.md; the newest comparison under results/, unless given
        #[arg(long, value_name = "DIR")]
        results: Option<PathBuf>,
        #[arg(long, value_name = "FILE", default_value = "README.md")]
        page: PathBuf,
        /// NAME of the page's lines `<!-- NAME: begin -->` and `<!-- NAME: end -->`
        #[arg(long, value_name = "NAME", default_value = "table")]
        block: String,
        /// The answer and the table alone (summary.md)
        #[arg(long)]
        short: bool,
    },
}

/// Tasks that write this repository's pages or test it in ways that a user does not need: under a heading of their own.
const MAINTAINERS: [&str; 4] = ["calibrate", "claims", "splice", "tidy"];

fn command() -> Command {
    let command = Cli::command();
    let of_maintainers = |task: &&Command| MAINTAINERS.contains(&task.get_name());
    let line = |task: &Command| {
        format!(
            "\n  {:<9}  {}",
            task.get_name(),
            task.get_about().map(ToString::to_string).unwrap_or_default()
        )
    };
    let listed: String = command.get_subcommands().filter(of_maintainers).map(line).collect();
    let hidden = MAINTAINERS
        .iter()
        .fold(command, |command, task| command.mut_subcommand(task, |task| task.hide(true)));
    hidden.after_help(format!("For maintainers:{listed}"))
}

fn main() -> ExitCode {
    let cli = Cli::from_arg_matches(&command().get_matches()).unwrap_or_else(|error| error.exit());
    run(cli.task).unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        tooling::exit_code(&error)
    })
}

fn run(task: Task) -> anyhow::Result<ExitCode> {
    let workspace = Workspace::locate()?;
    match task {
        Task::Setup(ref asked @ Asked { to: Some(ref to), .. }) => {
            let provision = workspace.provision(Reporter::new(asked.quiet))?;
            done(setup::download(&provision, &references::all(&workspace, asked.device), asked, to))
        }
        Task::Setup(Asked { quiet, device, references: Some(named), .. }) => {
            done(references::set_up(&workspace, device, &named, Reporter::new(quiet)))
        }
        Task::Setup(asked) => {
            done(workspace.provision(Reporter::new(asked.quiet))?.provide_all(&asked.pieces()))
        }
        Task::Build { frameworks, device: Target::Cpu, hub, quiet } => {
            build::run(&workspace, &frameworks, hub, Reporter::new(quiet))
        }
        Task::Build { frameworks, device: Target::Cuda, quiet, .. } => {
            done(cuda::build(&workspace, &frameworks, Reporter::new(quiet)))
        }
        Task::Install(args) => install::run(&workspace, &args),
        Task::Dist { what, quiet } => dist::run(&workspace, &what, quiet),
        Task::Compare(PassedOn { args }) => compare::run(&workspace, &args),
        Task::Gate(args) => gate::run(&workspace, &args),
        Task::Calibrate(PassedOn { args }) => programs::calibrate(&workspace, &args),
        Task::Claims(PassedOn { args }) => programs::claims(&workspace, &args),
        Task::Test(args) => test::run(&workspace, &args),
        Task::Doctor(PassedOn { args }) => programs::run(&workspace, "doctor", &args),
        Task::Tidy => done(tidy::run(&workspace.root)),
        Task::Profile(PassedOn { args }) => programs::run(&workspace, "profile", &args),
        Task::Splice { results, page, block, short } => {
            splice::run(&workspace, results.as_deref(), &page, &block, short)
        }
    }
}

fn done(outcome: anyhow::Result<()>) -> anyhow::Result<ExitCode> {
    outcome.map(|()| ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maintainers_tasks_are_listed_apart() {
        let help = command().render_help().to_string();
        let (tasks, apart) = help.split_once("For maintainers:").unwrap();
        for task in MAINTAINERS {
            let line = format!("\n  {task} ");
            assert!(!tasks.contains(&line) && apart.contains(&line), "{task}");
        }
    }
}

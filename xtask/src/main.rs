//! `cargo xtask`: says what will happen, builds the package `tasks` and runs it in this program's place.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};

/// Processor minutes of first builds, of tests with their run: estimates, rounded up from runs on two cores.
const TASKS: f64 = 2.0;
const COMPARE: f64 = 10.0;
const TEST: f64 = 30.0;

fn main() -> ExitCode {
    run().unwrap_or_else(|message| {
        eprintln!("error: {message}");
        ExitCode::FAILURE
    })
}

fn run() -> Result<ExitCode, String> {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    let tasks = sibling("tasks")?;
    if !tasks.is_file() {
        let task = args.first().map(|task| task.to_string_lossy().into_owned());
        eprintln!("{}", announcement(task.as_deref().unwrap_or_default(), cores()));
    }
    build()?;
    xtask::replace_this_process(xtask::command(&tasks).args(args))
        .map_err(|error| format!("cannot start tasks: {error}"))
}

/// What a first run says before anything else.
fn announcement(task: &str, cores: f64) -> String {
    // A chain of crates that need each other does not become shorter with more cores.
    let minutes = |work: f64| (work / cores).max(work / 4.0).ceil().max(2.0);
    let first = "The first run builds its parts, and shows the progress.";
    match task {
        "compare" => format!(
            "{first} Photofinish and three frameworks take about {} minutes, and the comparison three more.",
            minutes(COMPARE)
        ),
        "build" | "install" | "dist" => format!("{first} It takes about {} minutes.", minutes(COMPARE)),
        "test" => format!("{first} With all tests it takes about {} minutes.", minutes(TEST)),
        _ => format!("{first} It takes about {} minutes.", minutes(TASKS)),
    }
}

fn build() -> Result<(), String> {
    let cannot = |error| format!("cannot run cargo: {error}");
    let mut cargo = xtask::command(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root()).args(["build", "--release", "--locked", "--package", "tasks"]);
    cargo.envs(xtask::colours()).stderr(Stdio::piped());
    let mut child = cargo.spawn().map_err(cannot)?;
    xtask::watch(&mut child).map_err(cannot)?;
    if child.wait().map_err(cannot)?.success() {
        return Ok(());
    }
    Err("cargo xtask does not build; the lines above say why".to_owned())
}

/// The program beside this one: cargo puts all of them into one directory, wherever that is.
fn sibling(name: &str) -> Result<PathBuf, String> {
    let own =
        std::env::current_exe().map_err(|error| format!("cannot find this program's directory: {error}"))?;
    Ok(own.with_file_name(format!("{name}{}", std::env::consts::EXE_SUFFIX)))
}

fn root() -> &'static Path {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own)
}

fn cores() -> f64 {
    std::thread::available_parallelism().map_or(1.0, |cores| cores.get() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_cores_build_sooner_up_to_the_longest_chain() {
        let minutes =
            |cores| announcement("compare", cores).matches(|c: char| c.is_ascii_digit()).collect::<String>();
        assert_eq!([1.0, 2.0, 4.0, 64.0].map(minutes), ["10", "5", "3", "3"]);
    }
}

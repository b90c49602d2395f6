//! Starting other programs: their descriptions in messages, their output, and how they are interrupted.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Output, Stdio};
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};

use crate::tooling;

/// A program that ends when this one does, in whatever way.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = xtask::command(program);
    end_with_parent(&mut command);
    command
}

/// Has a program end when this one does, even by a signal that cannot be caught: on Linux, the kernel kills it
/// (`PR_SET_PDEATHSIG`, prctl(2)). The thread that starts it counts as its parent, so it must wait for the program, or be
/// the one that runs `main`. On other systems a program ends at the end of its stdin, if that is a pipe.
pub fn end_with_parent(command: &mut Command) {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};
        let parent = getpid();
        let tie = move || {
            // This very process, which another program replaces.
            if getpid() == parent {
                return Ok(());
            }
            set_parent_process_death_signal(Some(Signal::KILL))?;
            // It may have ended before.
            if getppid() == Some(parent) { Ok(()) } else { Err(std::io::ErrorKind::NotFound.into()) }
        };
        // SAFETY: between fork and exec it makes three system calls: it takes no memory and no lock.
        #[allow(unsafe_code)]
        unsafe {
            std::os::unix::process::CommandExt::pre_exec(command, tie);
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = command;
}

/// The python3 that has pip: the one beside this program, as in a virtual environment that pip installed it into, or
/// the first on PATH.
pub fn python() -> Command {
    static BESIDE: OnceLock<Option<PathBuf>> = OnceLock::new();
    let beside = BESIDE.get_or_init(|| python_beside(&std::env::current_exe().ok()?));
    command(beside.as_deref().unwrap_or(Path::new("python3")))
}

fn python_beside(program: &Path) -> Option<PathBuf> {
    let python = program.with_file_name("python3");
    let has_pip = || output_of(command(&python).args(["-m", "pip", "--version"])).is_ok();
    (python.is_file() && has_pip()).then_some(python)
}

/// The name of a program's file.
pub fn file_name(program: &str) -> String {
    format!("{program}{}", std::env::consts::EXE_SUFFIX)
}

/// The exit code of a program that ran in the place of this one.
pub fn exit_code(status: ExitStatus) -> ExitCode {
    ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

/// The cargo that runs this program, in the checkout at `root`.
pub fn cargo(root: &Path) -> Command {
    let mut command = command(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root);
    command
}

/// Standard output of a command that ends by itself.
pub fn output_of(command: &mut Command) -> Result<String> {
    let what = describe(command);
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot start {what}"))?;
    if !output.status.success() {
        let cause = cause(&output.stderr).unwrap_or_else(|| output.status.to_string());
        bail!("{what} failed: {cause}");
    }
    String::from_utf8(output.stdout).with_context(|| format!("{what} printed something that is not UTF-8"))
}

/// Runs a command and shows its output as it is printed; whether it succeeded. The error is
/// [`Interrupted`](crate::tooling::Interrupted) if the user interrupted meanwhile, and [`tooling::listen`] was
/// called before.
pub fn succeeds(command: &mut Command) -> Result<bool> {
    Ok(status_of(command)?.success())
}

/// As [`succeeds`], for cargo: its progress is shown, and the time where it says nothing for long.
pub fn succeeds_watched(command: &mut Command) -> Result<bool> {
    let watched = |mut child: Child| xtask::watch(&mut child).and_then(|()| child.wait());
    Ok(run(command.envs(xtask::colours()).stderr(Stdio::piped()), watched)?.success())
}

/// As [`succeeds`], for a command with a stderr that only matters if it fails: `Err` has all of it. `seen` is
/// called with each line as it is printed.
pub fn succeeds_logged(
    command: &mut Command,
    mut seen: impl FnMut(&str),
) -> Result<std::result::Result<(), String>> {
    let mut log = String::new();
    let read = |mut child: Child| {
        for line in child.stderr.take().into_iter().flat_map(|stderr| BufReader::new(stderr).split(b'\n')) {
            let line = line?;
            let line = String::from_utf8_lossy(&line);
            seen(&line);
            log += &line;
            log.push('\n');
        }
        child.wait()
    };
    let status = run(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()), read)?;
    Ok(if status.success() { Ok(()) } else { Err(log) })
}

/// As [`succeeds`], for a command with a meaningful exit code.
pub fn status_of(command: &mut Command) -> Result<ExitStatus> {
    run(command, |mut child| child.wait())
}

/// The output of a command; stderr is shown as it is printed. Errors are those of [`succeeds`].
pub fn output_shown(command: &mut Command) -> Result<Output> {
    run(command.stdout(Stdio::piped()).stderr(Stdio::inherit()), Child::wait_with_output)
}

/// The output of a command that may take long, whatever its exit code. Errors are those of [`succeeds`].
pub fn output(command: &mut Command) -> Result<Output> {
    run(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()), Child::wait_with_output)
}

/// Starts a command and waits for it; meanwhile it gets the signals of this program.
fn run<T>(command: &mut Command, wait: impl FnOnce(Child) -> std::io::Result<T>) -> Result<T> {
    let what = describe(command);
    let child = command.spawn().with_context(|| format!("cannot start {what}"))?;
    let id = child.id();
    tooling::pass_on(id);
    let outcome = wait(child).with_context(|| format!("cannot wait for {what}"));
    tooling::has_ended(id);
    let outcome = outcome?;
    tooling::check()?;
    Ok(outcome)
}

/// Name of the program that compiles C++ here, if there is one: the one that the `cc` crate would use.
pub fn cxx_compiler() -> Option<String> {
    let name = std::env::var("CXX").ok().filter(|name| !name.is_empty()).unwrap_or_else(|| "c++".into());
    output_of(command(&name).arg("--version")).is_ok().then_some(name)
}

/// The last line that calls itself an error, as pip's, cargo's and git's do, which advice may follow; the last
/// line of all if there is none.
pub fn cause(stderr: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(stderr);
    let begins = |line: &str, word: &str| line.get(..6).is_some_and(|start| start.eq_ignore_ascii_case(word));
    let is_error = |line: &&str| ["error:", "fatal:"].iter().any(|word| begins(line, word));
    let last = || text.lines().map(str::trim).rfind(|line| !line.is_empty());
    text.lines().rfind(is_error).or_else(last).map(str::to_owned)
}

fn describe(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let program = program.file_name().unwrap_or(command.get_program());
    let mut words = vec![program.to_string_lossy()];
    words.extend(command.get_args().map(OsStr::to_string_lossy));
    format!("`{}`", words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_carries_the_last_line_of_stderr() {
        let script = "echo first >&2; echo the cause >&2; echo >&2; exit 3";
        let error = output_of(command("sh").args(["-c", script])).unwrap_err();
        assert!(error.to_string().ends_with("failed: the cause"), "{error}");
    }

    #[test]
    fn the_cause_is_the_last_line_that_calls_itself_an_error() {
        assert_eq!(cause(b"ERROR: first\nerror: second\nhelp: advice\n").as_deref(), Some("error: second"));
        assert_eq!(cause(b"one\ntwo\n\n").as_deref(), Some("two"));
        assert_eq!(cause(b""), None);
    }

    #[cfg(unix)]
    #[test]
    fn a_python_beside_the_program_counts_if_it_has_pip() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let (program, python) = (directory.path().join("photofinish"), directory.path().join("python3"));
        assert_eq!(python_beside(&program), None);
        for (code, found) in [(1, None), (0, Some(&python))] {
            std::fs::write(&python, format!("#!/bin/sh\nexit {code}\n")).unwrap();
            std::fs::set_permissions(&python, PermissionsExt::from_mode(0o755)).unwrap();
            assert_eq!(python_beside(&program).as_ref(), found);
        }
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let error = output_of(&mut command("photofinish-no-such-program")).unwrap_err();
        assert!(error.to_string().contains("photofinish-no-such-program"), "{error}");
    }
}

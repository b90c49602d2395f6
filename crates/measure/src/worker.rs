//! Workers: started with a scrubbed environment, greeted, and given jobs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use judge::run::Outcome;
use protocol::{Hello, Job, Turn};

use crate::clock::now;
use crate::command::is_secret;
use crate::live::Live;
use crate::machine::Watched;
use crate::process::{Heard, Process, Reaped};
use crate::protest::{check_version, describe, last_line, nonsense};

/// Longest wait for the answer to `--hello`.
const HELLO: Duration = Duration::from_secs(60);

/// A worker that can be started again and again.
#[derive(Debug, Clone)]
pub struct Worker {
    pub binary: PathBuf,
    /// The whole environment of the process.
    pub environment: BTreeMap<String, String>,
    /// The CPUs it may use; all of them if there is no list.
    pub cpus: Option<Vec<usize>>,
    /// The longest that a process may take for its job, waiting for its turns not included.
    pub timeout: Duration,
}

impl Worker {
    /// Asks the worker what it is. `Err` has its last words, or the reason of the failure.
    pub fn hello(&self) -> Result<Hello, String> {
        if !self.binary.is_file() {
            return Err(format!("there is no worker at {}", self.binary.display()));
        }
        let mut process = self.spawn(&["--hello"])?;
        process.close_input();
        let limit = self.timeout.min(HELLO);
        let until = now() + limit;
        let mut line = None;
        let stopped = loop {
            match process.hear(until, limit) {
                Heard::Line(text) => line = Some(text),
                Heard::End => break None,
                Heard::Killed(reason) => break Some(reason),
            }
        };
        let Reaped { status, stderr, .. } = process.reap();
        let last_words = last_line(&stderr);
        let cause = |reason: String| last_words.clone().map_or(reason, String::from);
        match (stopped, line) {
            (Some(reason), _) => Err(reason),
            (None, _) if !status.success() => Err(cause(describe(status))),
            (None, None) => Err(cause("it printed nothing for --hello".into())),
            (None, Some(line)) => {
                let hello: Hello = serde_json::from_str(&line).map_err(|_| nonsense(&line))?;
                check_version(hello.protocol)?;
                Ok(hello)
            }
        }
    }

    /// Runs a job that takes no turns to its end.
    pub fn run(&self, job: &Job) -> Outcome {
        let mut live = self.start(job);
        live.finish();
        live.end()
    }

    /// Starts a job.
    pub(crate) fn start(&self, job: &Job) -> Live {
        // Opened before the worker starts: NVML takes tens of milliseconds, which would fall into its load.
        let gpus = Watched::new(&job.settings.device);
        Live::start(self.spawn(&[]), self.timeout, job, gpus)
    }

    fn spawn(&self, arguments: &[&str]) -> Result<Process, String> {
        Process::spawn(&self.binary, arguments, &self.environment, self.cpus.as_deref())
            .map_err(|error| format!("cannot start {}: {error}", self.binary.display()))
    }

    /// The shell line that repeats a job kept in `file`.
    pub(crate) fn shell_line(&self, file: &Path) -> String {
        // It is kept with the results: whoever repeats it knows their own secrets.
        let variables = self.environment.iter().map(|(name, value)| {
            let value = if is_secret(name) { "***" } else { value };
            format!("{name}={}", quoted(value))
        });
        let variables = variables.collect::<Vec<_>>().join(" ");
        let (binary, file) = (self.binary.display().to_string(), file.display().to_string());
        format!("env -i {variables} {} < {}", quoted(&binary), quoted(&file))
    }
}

/// The lines that repeat a job and the turns that were taken. The repetition always finishes.
pub(crate) fn lines(job: &Job, turns: &[Turn]) -> String {
    let mut text = to_line(job);
    for turn in turns {
        text += &to_line(turn);
    }
    if !matches!(turns.last(), Some(Turn::Finish(_))) {
        text += &to_line(&Turn::Finish(protocol::Finish::default()));
    }
    text
}

fn to_line(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("protocol types have string keys and no failing serialiser") + "\n"
}

/// Quotes a word for a shell.
fn quoted(text: &str) -> String {
    shlex::try_quote(text).map_or_else(|_| text.to_owned(), std::borrow::Cow::into_owned)
}

//! The process that runs a model's tokenizer and template: this program again, with limits on memory and
//! time.

use std::collections::BTreeMap;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bundle::Bundle;
use comparison::plan;
use comparison::plan::chat::{self, Chat};
use comparison::plan::chat::{Answer, Apart, Asked, Question};
use comparison::plan::prompts::Text;
use comparison::plan::{Failure, Result};

use crate::measure::machine::cpu_time;
use crate::measure::process::describe;
use crate::measure::process::now;
use crate::measure::process::{Process, Reaped, Received};

/// The hidden command that answers questions about a bundle.
pub const COMMAND: &str = "text-process";
/// Most memory of such a process, in bytes.
const MEMORY: u64 = 950_000_000;
/// The tokenizer library's variable for its number of threads.
const THREADS: &str = "RAYON_NUM_THREADS";
/// Longest CPU time for an answer, and the bytes of a tokenizer for which a second is added: large ones need a
/// second to read.
const TIME: Duration = Duration::from_secs(2);
const BYTES_EACH_S: u64 = 8 << 20;
/// How many times longer an answer may take by the clock: other processes may have most of the CPUs.
const SLOWED: u32 = 10;
/// Interval of reading the CPU time.
const LOOK: Duration = Duration::from_millis(100);

pub fn text(bundle: &Bundle) -> Result<Text> {
    match bundle.tokenizer() {
        None => Text::open(bundle),
        Some(_) => Ok(Text::Apart(asked(bundle, Client::default()))),
    }
}

pub fn chat(bundle: &Bundle) -> Result<Chat> {
    chat::file(bundle).map(|_| Chat::Apart(asked(bundle, Client::default())))
}

/// A model's tokenizer on so many threads, and on these CPUs.
pub(crate) fn on_threads(bundle: &Bundle, threads: usize, cpus: Option<Vec<usize>>) -> Text {
    let environment = BTreeMap::from([(THREADS.to_owned(), threads.to_string())]);
    Text::Apart(asked(bundle, Client { environment, cpus, ..Client::default() }))
}

fn asked(bundle: &Bundle, client: Client) -> Asked {
    let bytes =
        bundle.tokenizer().and_then(|path| std::fs::metadata(path).ok()).map_or(0, |found| found.len());
    let limit = TIME + Duration::from_secs(bytes / BYTES_EACH_S);
    let (directory, model) = (bundle.directory().to_path_buf(), bundle.manifest().name.clone());
    Asked(Arc::new(Client { directory, model, limit, ..client }))
}

/// Answers questions on stdin, within the limits. For the hidden command.
pub fn serve(directory: &Path) -> Result<()> {
    limit();
    let bundle = Bundle::open(directory).map_err(|error| Failure::usage(error.to_string()))?;
    let (input, output) = (BufReader::new(std::io::stdin().lock()), std::io::stdout().lock());
    plan::chat::serve(&bundle, input, output, now).map_err(|error| Failure::failed(error.to_string()))
}

/// Bounds this process's memory, and prevents a core file.
fn limit() {
    #[cfg(target_os = "linux")]
    for (resource, most) in [(rustix::process::Resource::Data, MEMORY), (rustix::process::Resource::Core, 0)]
    {
        let limits = rustix::process::Rlimit { current: Some(most), maximum: Some(most) };
        // A lower limit of the user's stays.
        let _ = rustix::process::setrlimit(resource, limits);
    }
}

/// Has the kernel end a process whose next answer takes twice this CPU time, should this program not do it: it may be
/// stopped, or have ended.
fn bound(pid: u32, limit: Duration) {
    #[cfg(target_os = "linux")]
    if let Some(pid) = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw) {
        use rustix::process::{Resource, Rlimit, getrlimit, prlimit};
        let used = cpu_time(pid.as_raw_nonzero().get() as u32).unwrap_or(0.0);
        let most = used.ceil() as u64 + 2 * limit.as_secs();
        let inherited = getrlimit(Resource::Cpu);
        let current = inherited.current.map_or(most, |current| current.min(most));
        let _ =
            prlimit(Some(pid), Resource::Cpu, Rlimit { current: Some(current), maximum: inherited.maximum });
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (pid, limit);
}

#[derive(Default)]
struct Client {
    directory: PathBuf,
    model: String,
    limit: Duration,
    environment: BTreeMap<String, String>,
    cpus: Option<Vec<usize>>,
    /// The process, once it was asked a question and while it is alive.
    process: Mutex<Option<Process>>,
}

impl Apart for Client {
    fn ask(&self, question: &Question) -> Result<Answer> {
        let mut held = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        let mut process = match held.take() {
            Some(process) => process,
            None => self.start()?,
        };
        bound(process.id(), self.limit);
        process.send(question);
        match self.recv(&mut process) {
            Ok(Some(line)) => {
                *held = Some(process);
                serde_json::from_str(&line).map_err(|error| Failure::failed(error.to_string()))
            }
            Err(_) => Err(self.ended(question, process, true)),
            Ok(None) => Err(self.ended(question, process, false)),
        }
    }
}

impl Client {
    fn recv(&self, process: &mut Process) -> std::result::Result<Option<String>, String> {
        let (begun, before) = (now(), cpu_time(process.id()));
        let has_time = |process: &Process| {
            let used = before.zip(cpu_time(process.id())).map(|(before, after)| after - before);
            let used = used.map_or(begun.elapsed(), |used| Duration::from_secs_f64(used.max(0.0)));
            used < self.limit && begun.elapsed() < self.limit * SLOWED
        };
        loop {
            match process.try_recv(now() + LOOK) {
                Received::Line(line) => return Ok(Some(line)),
                Received::TimedOut if has_time(process) => {}
                // Its end is awaited, or it is killed.
                Received::Closed => return process.recv(now() + self.limit, self.limit),
                _ => return process.recv(now(), self.limit),
            }
        }
    }

    fn start(&self) -> Result<Process> {
        let failed = |error: std::io::Error| {
            Failure::failed(format!("cannot start the process of the tokenizer: {error}"))
        };
        let program = std::env::current_exe().map_err(failed)?;
        let directory = self.directory.display().to_string();
        Process::spawn(&program, &[COMMAND, &directory], &self.environment, self.cpus.as_deref())
            .map_err(failed)
    }

    /// The error for a process that gave no answer.
    fn ended(&self, question: &Question, process: Process, was_late: bool) -> Failure {
        if crate::measure::progress::requested() {
            return Failure::Interrupted;
        }
        let Reaped { status, stderr, .. } = process.reap();
        let why = if was_late {
            format!("takes longer than {} s", self.limit.as_secs())
        } else if stderr.contains("memory allocation") {
            format!("takes more than {:.2} GB of memory", MEMORY as f64 / 1e9)
        } else if stderr.contains("overflowed its stack") {
            "takes more than the stack".to_owned()
        } else {
            format!("ended its process: {}", describe(status))
        };
        let (what, remedy) = match question {
            Question::Render { .. } => ("chat template", "leave out --chat"),
            _ => ("tokenizer", "give token ids, or take another model"),
        };
        Failure::usage(format!("the {what} of {} {why}: {remedy}", self.model))
    }
}

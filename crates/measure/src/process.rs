//! Worker processes: started with a scrubbed environment, given one job, read within limits, and always reaped. A
//! worker may die, hang, flood its output or send nonsense; the driver goes on.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use judge::run::{Ending, Outcome};
use protocol::{Event, Hello, Job};

use crate::interrupt;
use crate::machine::{Confinement, Pinned};

/// Longest line that a worker may send, in bytes: many times the samples of a long measurement.
const MAX_LINE: u64 = 64 << 20;
/// Bytes of a worker's stderr that are kept as its last words.
const STDERR_TAIL: usize = 16 << 10;

/// A worker that can be started again and again.
#[derive(Debug, Clone)]
pub struct Worker {
    pub binary: PathBuf,
    /// The whole environment of the process.
    pub environment: BTreeMap<String, String>,
    /// The CPUs it may use; all of them if there is no list.
    pub cpus: Option<Vec<usize>>,
    pub timeout: Duration,
}

impl Worker {
    /// Asks the worker what it is. `Err` has its last words, or the reason of the failure.
    pub fn hello(&self) -> Result<Hello, String> {
        if !self.binary.is_file() {
            return Err(format!("{} is not built", self.binary.display()));
        }
        let mut process = Process::spawn(self, &["--hello"], "").map_err(|e| self.cannot_start(&e))?;
        let mut line = None;
        let stopped = process.listen(self.timeout.min(Duration::from_secs(60)), |text| {
            line = Some(text.to_owned());
            None
        });
        let (status, stderr) = process.reap();
        let last_words = last_line(&stderr);
        let cause = |reason: String| last_words.clone().unwrap_or(reason);
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

    /// Runs one job to its end.
    pub fn run(&self, job: &Job) -> Outcome {
        let mut job = job.clone();
        let mut confinement = Confinement::new(&job.settings.device);
        job.spawned_at_ns = monotonic_ns();
        let text = serde_json::to_string(&job).expect("a job has string keys and no failing serialiser");
        let mut process = match Process::spawn(self, &[], &text) {
            Ok(process) => process,
            Err(error) => {
                let ending = Ending::Broken { reason: self.cannot_start(&error), last_words: None };
                return Outcome { pid: 0, events: Vec::new(), ending };
            }
        };
        let pid = process.child.id();
        confinement.apply(pid);
        let mut events = Vec::new();
        let stopped = process.listen(self.timeout, |line| {
            let Ok(event) = serde_json::from_str::<Event>(line) else { return Some(nonsense(line)) };
            if let Event::Hello(hello) = &event
                && let Err(reason) = check_version(hello.protocol)
            {
                return Some(reason);
            }
            events.push(event);
            None
        });
        let (status, stderr) = process.reap();
        let last_words = last_line(&stderr);
        let out_of_memory = |words: &str| confinement.out_of_memory(status, words);
        let ending = match (stopped, events.last()) {
            _ if interrupt::requested() => Ending::Interrupted,
            (Some(reason), _) => Ending::Broken { reason, last_words },
            (None, Some(Event::Failed(failed))) => match out_of_memory(&failed.reason) {
                Some(reason) if failed.kind == protocol::FailureKind::Failed => {
                    Ending::OutOfMemory { reason }
                }
                _ => Ending::Reported(failed.clone()),
            },
            (None, Some(Event::Done)) if status.success() => Ending::Done,
            (None, _) if status.success() => {
                Ending::Broken { reason: "it ended before its job was done".into(), last_words }
            }
            (None, _) => match out_of_memory(&stderr) {
                Some(reason) => Ending::OutOfMemory { reason },
                None => Ending::Broken { reason: describe(status), last_words },
            },
        };
        Outcome { pid, events, ending }
    }

    /// The shell line that repeats a job kept in `file`.
    pub fn shell_line(&self, file: &Path) -> String {
        let variables = self.environment.iter().map(|(name, value)| format!("{name}={}", quoted(value)));
        let variables = variables.collect::<Vec<_>>().join(" ");
        let (binary, file) = (self.binary.display().to_string(), file.display().to_string());
        format!("env -i {variables} {} < {}", quoted(&binary), quoted(&file))
    }

    fn cannot_start(&self, error: &std::io::Error) -> String {
        format!("cannot start {}: {error}", self.binary.display())
    }
}

fn check_version(theirs: u32) -> Result<(), String> {
    if theirs == protocol::VERSION {
        return Ok(());
    }
    let ours = protocol::VERSION;
    Err(format!("it speaks protocol {theirs}, this driver {ours}: build both from the same checkout"))
}

fn nonsense(line: &str) -> String {
    let start: String = line.chars().take(80).collect();
    format!("it sent a line that is not a valid event: {start:?}")
}

fn describe(status: ExitStatus) -> String {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        let name = match signal {
            4 => " (SIGILL)",
            6 => " (SIGABRT)",
            7 => " (SIGBUS)",
            9 => " (SIGKILL: killed from outside, for example for lack of memory)",
            11 => " (SIGSEGV)",
            15 => " (SIGTERM)",
            _ => "",
        };
        return format!("it was ended by signal {signal}{name}");
    }
    match status.code() {
        Some(code) => format!("it ended with exit code {code}"),
        None => "it ended without an exit code".into(),
    }
}

fn last_line(text: &str) -> Option<String> {
    text.lines().rev().find(|line| !line.trim().is_empty()).map(|line| line.trim().to_owned())
}

/// Quotes a word for a shell.
fn quoted(text: &str) -> String {
    shlex::try_quote(text).map_or_else(|_| text.to_owned(), std::borrow::Cow::into_owned)
}

/// The clock that the worker compares its own readings with.
fn monotonic_ns() -> Option<u64> {
    #[cfg(unix)]
    {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        Some(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
    }
    #[cfg(not(unix))]
    None
}

/// A running worker with the threads that empty its pipes, so that neither side can block the other.
struct Process {
    child: Child,
    lines: Option<Receiver<Line>>,
    readers: Vec<JoinHandle<()>>,
    stderr: Arc<Mutex<Vec<u8>>>,
}

enum Line {
    Text(String),
    /// A line that is longer than any event.
    TooLong,
    End,
}

impl Process {
    fn spawn(worker: &Worker, arguments: &[&str], job: &str) -> std::io::Result<Process> {
        #[expect(clippy::disallowed_methods, reason = "the one place where workers are started")]
        let mut command = Command::new(&worker.binary);
        command.args(arguments).env_clear().envs(&worker.environment);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = {
            let _pinned = worker.cpus.as_deref().map(Pinned::to);
            command.spawn()?
        };
        // The channel is bounded, so that a flood fills the pipe and not this program's memory.
        let (sender, lines) = sync_channel(64);
        let stdout = child.stdout.take().expect("piped");
        let mut pipe = child.stderr.take().expect("piped");
        let mut stdin = child.stdin.take().expect("piped");
        let stderr = Arc::new(Mutex::new(Vec::new()));
        let tail = Arc::clone(&stderr);
        let job = job.as_bytes().to_vec();
        let readers = vec![
            std::thread::spawn(move || read_lines(stdout, &sender)),
            std::thread::spawn(move || {
                let mut buffer = [0u8; 4096];
                while let Ok(n @ 1..) = pipe.read(&mut buffer) {
                    let mut tail = tail.lock().expect("no reader panics");
                    tail.extend_from_slice(&buffer[..n]);
                    let excess = tail.len().saturating_sub(STDERR_TAIL);
                    tail.drain(..excess);
                }
            }),
            // A worker that dies early breaks this pipe; its exit tells more than the write error.
            std::thread::spawn(move || drop(stdin.write_all(&job))),
        ];
        Ok(Process { child, lines: Some(lines), readers, stderr })
    }

    /// Passes each line to `each` until the worker closes its stdout. Stops the worker, and returns the reason, when
    /// `each` objects, when the time is up, or when the user interrupts.
    fn listen(&mut self, limit: Duration, mut each: impl FnMut(&str) -> Option<String>) -> Option<String> {
        #[expect(clippy::disallowed_methods, reason = "a deadline, not a measurement")]
        let start = Instant::now();
        let reason = loop {
            if interrupt::requested() {
                break "the user interrupted".to_owned();
            }
            if start.elapsed() >= limit {
                break format!("it was not done after {} s (--timeout)", limit.as_secs());
            }
            let lines = self.lines.as_ref().expect("taken by reap alone");
            match lines.recv_timeout(Duration::from_millis(50)) {
                Ok(Line::Text(line)) => {
                    if let Some(reason) = each(&line) {
                        break reason;
                    }
                }
                Ok(Line::TooLong) => {
                    break format!("it flooded stdout: a line of over {} MiB", MAX_LINE >> 20);
                }
                Ok(Line::End) | Err(RecvTimeoutError::Disconnected) => {
                    return self.await_exit(start, limit);
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        };
        self.kill();
        Some(reason)
    }

    /// Waits for the end after stdout was closed; a worker that still lives at the limit is killed.
    fn await_exit(&mut self, start: Instant, limit: Duration) -> Option<String> {
        while matches!(self.child.try_wait(), Ok(None)) {
            if start.elapsed() >= limit || interrupt::requested() {
                self.kill();
                return Some(format!("it was not done after {} s (--timeout)", limit.as_secs()));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        None
    }

    fn kill(&mut self) {
        // An error means that it has already ended; `reap` finds out how.
        let _ = self.child.kill();
    }

    /// How the worker ended, and the end of its stderr.
    fn reap(mut self) -> (ExitStatus, String) {
        let status = self.child.wait().expect("a child of ours can be waited for");
        drop(self.lines.take()); // a reader that waits for room in the channel gives up
        for reader in std::mem::take(&mut self.readers) {
            let _ = reader.join();
        }
        let stderr = self.stderr.lock().expect("no reader panics");
        (status, String::from_utf8_lossy(&stderr).into_owned())
    }
}

/// Kills and reaps the worker, so that none stays behind whatever happens to this program.
impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        let _ = self.child.wait();
    }
}

fn read_lines(stdout: impl Read, lines: &SyncSender<Line>) {
    let mut reader = BufReader::new(stdout);
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = reader.by_ref().take(MAX_LINE).read_until(b'\n', &mut line);
        let complete = line.ends_with(b"\n");
        let message = match read {
            Ok(0) | Err(_) => Line::End,
            Ok(n) if n as u64 == MAX_LINE && !complete => Line::TooLong,
            Ok(_) => Line::Text(String::from_utf8_lossy(&line).trim_end().to_owned()),
        };
        let last = !matches!(message, Line::Text(_));
        if lines.send(message).is_err() || last {
            break;
        }
    }
}

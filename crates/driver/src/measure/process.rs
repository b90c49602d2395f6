//! A process of a worker with its pipes: its lines are read within limits, it is stopped and continued by
//! signal, and it is always reaped. A worker may die, hang, flood its output or send nonsense; the driver
//! goes on.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use protocol::untrusted::{self, Foreign, secrets};
use protocol::{FileIdentity, MAX_LINE};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, waitid};
use serde::Serialize;
use setup::size_of_tree;
use setup::tooling::Scratch;
use setup::tooling::process::end_with_parent;

use crate::measure::machine::{Family, MARK, Pinned, Reading};
use crate::measure::progress;

/// Interval of checking whether the worker has ended, while its pipes stay open.
const LOOK: Duration = Duration::from_millis(200);

/// Longest wait for a line before everything else is looked at again.
const LISTEN: Duration = Duration::from_millis(50);

/// Between two looks more time passes only where this program was stopped (^Z, `docker pause`), or the machine slept.
const STOPPED: Duration = Duration::from_secs(1);

/// Time for which its pipes are still read, once it has ended and all other holders were killed.
const LAST_WORDS: Duration = Duration::from_millis(200);

pub struct Process {
    child: Child,
    /// The file that was started.
    pub(crate) program: Option<FileIdentity>,
    /// The clock just before it was started, as the worker can read it.
    pub spawned_at_ns: u64,
    pipes: Pipes,
    family: Family,
    /// The processes that it left behind, by number and name; all were killed.
    left_behind: Vec<String>,
    /// When it was last checked whether it has ended.
    looked: Instant,
    /// When it was found to have ended, with its remaining processes.
    ended: Option<Instant>,
    is_reaped: bool,
    /// When the last line came.
    pub(crate) came: Instant,
    /// Time of the last wait for a line in which this program did not run: it is not the worker's.
    pub(crate) lost: Duration,
    /// Its own caches of compiled kernels. They are deleted when it has ended.
    caches: Option<Scratch>,
}

pub struct Reaped {
    pub status: ExitStatus,
    pub stderr: String,
    /// Processes that outlived it and were killed, each by number and name.
    pub left_behind: Vec<String>,
}

/// The result of waiting for a line.
pub enum Received {
    Line(String),
    /// It closed its stdout.
    Closed,
    /// It sent a line that is longer than any event.
    TooLong,
    TimedOut,
    /// By the user.
    Interrupted,
}

impl Process {
    /// Starts a program, on these CPUs and with exactly this environment, in a process group of its own.
    pub fn spawn(
        binary: &Path,
        arguments: &[&str],
        environment: &BTreeMap<String, String>,
        cpus: Option<&[usize]>,
    ) -> std::io::Result<Process> {
        #[expect(clippy::disallowed_methods, reason = "the one place where workers are started")]
        let mut command = Command::new(binary);
        let mark = mark();
        command.args(arguments).env_clear().envs(environment).env(MARK, &mark);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.process_group(0);
        end_with_parent(&mut command);
        has_a_form(binary)?;
        let (mut child, spawned_at_ns) = {
            let _pinned = cpus.map(Pinned::to);
            let before = monotonic_ns();
            (crate::measure::machine::start(&mark, || command.spawn())?, before)
        };
        let (pipes, inodes) = Pipes::new(&mut child, secrets::of_variables(environment))?;
        let family = Family::new(child.id(), inodes);
        Ok(Process {
            program: std::fs::metadata(binary).ok().as_ref().and_then(FileIdentity::new),
            child,
            spawned_at_ns,
            pipes,
            family,
            left_behind: Vec::new(),
            looked: now(),
            ended: None,
            is_reaped: false,
            came: now(),
            lost: Duration::ZERO,
            caches: None,
        })
    }

    /// Gives it ownership of the directory with its caches of compiled kernels.
    pub(crate) fn with_caches(mut self, caches: Option<Scratch>) -> Process {
        self.caches = caches;
        self
    }

    /// Bytes that it has written into caches of its own; `None` if it was given none. The lock file of a scratch directory
    /// is empty.
    pub(crate) fn cached_bytes(&self) -> Option<u64> {
        Some(size_of_tree(self.caches.as_ref()?.path()))
    }

    /// What it and all processes that it started have used. Their orphans are adopted.
    pub(crate) fn read(&self) -> Reading {
        self.family.read()
    }

    /// The highest memory of one of them, and that of all now, if there are several, in bytes.
    pub(crate) fn memory(&self) -> (Option<u64>, Option<u64>) {
        self.family.memory()
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a line of JSON.
    pub fn send(&self, value: &impl Serialize) {
        let line = serde_json::to_string(value).expect("jobs, turns and questions have string keys");
        self.pipes.send(line);
    }

    /// Closes its stdin, after all lines that were sent.
    pub fn close_input(&mut self) {
        self.pipes.close_input();
    }

    /// A line that came before it was asked for.
    pub(crate) fn unasked(&self) -> Option<String> {
        match self.pipes.waiting() {
            Some(Line::Text(line, _)) => Some(line),
            _ => None,
        }
    }

    /// Waits for the next line until the time is up, without affecting the worker. The end of the worker ends
    /// the wait, whichever process still holds its pipes.
    pub fn try_recv(&mut self, until: Instant) -> Received {
        let mut looked = now();
        self.lost = Duration::ZERO;
        loop {
            let since = looked.elapsed();
            looked = now();
            if since > STOPPED {
                self.lost += since;
            }
            if progress::requested() {
                return Received::Interrupted;
            }
            if self.looked.elapsed() >= LOOK && has_ended(&self.child) {
                self.end_family();
            }
            // The pipe comes before the clock: this program itself may have been stopped meanwhile, and a line that is
            // there is in time. Its reader may not have run since, either.
            match self.pipes.next(LISTEN) {
                Some(Line::Text(line, at)) => {
                    self.came = at;
                    return Received::Line(line);
                }
                Some(Line::TooLong) => return Received::TooLong,
                Some(Line::End) => return Received::Closed,
                None if looked >= until + self.lost => return Received::TimedOut,
                None if self.ended.is_some_and(|at| at.elapsed() >= LAST_WORDS) => return Received::Closed,
                None => {}
            }
        }
    }

    /// Waits for the next line; `None` once the worker has ended. When the time is up, or when the user interrupts, the
    /// worker is killed: `Err` has the reason.
    pub(crate) fn recv(&mut self, until: Instant, limit: Duration) -> Result<Option<String>, String> {
        let reason = match self.try_recv(until) {
            Received::Line(line) => return Ok(Some(line)),
            Received::Closed if self.has_ended(until) => return Ok(None),
            Received::Closed | Received::TimedOut => not_done(limit),
            Received::TooLong => format!("it flooded stdout: a line of over {} MiB", MAX_LINE >> 20),
            Received::Interrupted => "the user interrupted".to_owned(),
        };
        self.kill();
        Err(reason)
    }

    /// Whether the worker has ended. A worker that is still alive when the time is up, or when the user
    /// interrupts, has not.
    pub fn has_ended(&mut self, until: Instant) -> bool {
        while !has_ended(&self.child) {
            if now() >= until || progress::requested() {
                return false;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        true
    }

    /// Ends the whole process group at once. A stopped process dies of this signal, too.
    pub fn kill(&mut self) {
        signal_group(self.id(), Signal::KILL);
        // An error means that it has already ended; `reap` finds out how.
        let _ = self.child.kill();
    }

    /// Stops the process group and all that have left it.
    pub(crate) fn stop(&mut self) -> Reading {
        signal_group(self.id(), Signal::STOP);
        self.family.rest()
    }

    pub(crate) fn go_on(&mut self) {
        signal_group(self.id(), Signal::CONT);
        self.family.go_on();
    }

    /// Waits for the end of the worker, and ends all processes that it left behind.
    pub fn reap(mut self) -> Reaped {
        self.close_input();
        let status = self.wait().expect("a child of ours can be waited for");
        let stderr = self.pipes.last_words(now() + LAST_WORDS);
        Reaped { status, stderr, left_behind: std::mem::take(&mut self.left_behind) }
    }

    fn wait(&mut self) -> std::io::Result<ExitStatus> {
        while !has_ended(&self.child) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.end_family();
        self.is_reaped = true;
        self.child.wait()
    }

    /// Ends the processes that the worker left behind. It must have ended.
    fn end_family(&mut self) {
        if self.ended.is_none() {
            self.left_behind = self.family.end();
            self.ended = Some(now());
        }
        self.looked = now();
    }
}

/// Kills and reaps the worker, so that none is left whatever happens to this program.
impl Drop for Process {
    fn drop(&mut self) {
        if !self.is_reaped {
            self.kill();
            let _ = self.wait();
        }
    }
}

/// Whether a child has ended. It is not waited for, so that no other process gets its number or its group's.
fn has_ended(child: &Child) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    pid.is_none_or(|pid| !matches!(waitid(WaitId::Pid(pid), options), Ok(None)))
}

/// A word that no other worker of any driver has.
fn mark() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(1);
    format!("{}.{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Refuses a text without a first line that names its interpreter. The standard library starts a child with a signal for
/// its parent's end by execvp(3), which gives such a text to the shell.
fn has_a_form(program: &Path) -> std::io::Result<()> {
    let mut first = [0; 2];
    // What cannot be read, or may not be run, is refused by the start.
    let Ok(mut file) = untrusted::file::open(program) else { return Ok(()) };
    let mode = file.metadata()?.permissions().mode();
    let is_read = mode & 0o111 != 0 && file.read(&mut first)? == first.len();
    let is_text = |byte: &u8| byte.is_ascii_graphic() || byte.is_ascii_whitespace();
    if is_read && first.iter().all(is_text) && &first != b"#!" {
        return Err(rustix::io::Errno::NOEXEC.into());
    }
    Ok(())
}

fn signal_group(leader: u32, signal: Signal) {
    if let Some(leader) = i32::try_from(leader).ok().and_then(Pid::from_raw) {
        // Without such a group, the process has ended.
        let _ = rustix::process::kill_process_group(leader, signal);
    }
}

// The pipes of a worker, each served by a thread, so that neither side can block the other.

const LINES_AHEAD: usize = 2;

/// Bytes kept of the end of a worker's stderr.
const STDERR_TAIL: usize = 16 << 10;

pub(crate) struct Pipes {
    /// Lines for stdin; `None` once that is closed.
    input: Option<Sender<String>>,
    lines: Option<Receiver<Line>>,
    threads: Vec<JoinHandle<()>>,
    stderr: Arc<Mutex<Vec<u8>>>,
    /// What it was given and must not say.
    secrets: Vec<String>,
}

pub(crate) enum Line {
    /// With the time at which it was read: the thread that waits for it may be busy.
    Text(String, Instant),
    /// A line that is longer than any event.
    TooLong,
    /// No process holds the pipe any more.
    End,
}

impl Pipes {
    /// Takes the pipes of a child, whose words lose these secrets. Also returns the inodes of the pipes, by which other
    /// holders can be found. Without threads for them, the child is ended.
    pub(crate) fn new(child: &mut Child, secrets: Vec<String>) -> std::io::Result<(Pipes, Vec<u64>)> {
        // Bounded, so that a flood of long lines fills the pipe, not this program's memory.
        let (sender, lines) = sync_channel(LINES_AHEAD);
        let (input, to_write) = channel::<String>();
        let stdout = child.stdout.take().expect("piped");
        let mut pipe = child.stderr.take().expect("piped");
        let mut stdin = child.stdin.take().expect("piped");
        let inodes = [inode(&stdout), inode(&pipe), inode(&stdin)].into_iter().flatten().collect();
        let stderr = Arc::new(Mutex::new(Vec::new()));
        let tail = Arc::clone(&stderr);
        let threads = [
            thread(move || read_lines(stdout, &sender)),
            thread(move || {
                let mut buffer = [0u8; 4096];
                while let Ok(n @ 1..) = pipe.read(&mut buffer) {
                    let mut tail = tail.lock().expect("no reader panics");
                    tail.extend_from_slice(&buffer[..n]);
                    let excess = tail.len().saturating_sub(STDERR_TAIL);
                    tail.drain(..excess);
                }
            }),
            // A worker that dies early breaks this pipe; its exit says more than the write error.
            thread(move || {
                for line in to_write {
                    if stdin.write_all(line.as_bytes()).and_then(|()| stdin.flush()).is_err() {
                        break;
                    }
                }
            }),
        ];
        let threads = threads.into_iter().collect::<std::io::Result<_>>();
        let threads = threads.inspect_err(|_| {
            let _ = child.kill().and_then(|()| child.wait());
        })?;
        Ok((Pipes { input: Some(input), lines: Some(lines), threads, stderr, secrets }, inodes))
    }

    fn without_secrets(&self, line: Line) -> Line {
        match line {
            Line::Text(text, at) => Line::Text(secrets::without(text, &self.secrets), at),
            other => other,
        }
    }

    pub(crate) fn send(&self, line: String) {
        if let Some(input) = &self.input {
            // The thread has ended if the worker no longer reads; the worker's end has the reason.
            let _ = input.send(line + "\n");
        }
    }

    /// Closes stdin, after all lines that were sent.
    pub(crate) fn close_input(&mut self) {
        self.input = None;
    }

    /// A line that has already arrived.
    pub(crate) fn waiting(&self) -> Option<Line> {
        let line = self.lines.as_ref()?.try_recv().ok()?;
        Some(self.without_secrets(line))
    }

    /// The next line; `None` if none arrives in this time.
    pub(crate) fn next(&self, time: Duration) -> Option<Line> {
        match self.lines.as_ref().map(|lines| lines.recv_timeout(time)) {
            Some(Ok(line)) => Some(self.without_secrets(line)),
            Some(Err(RecvTimeoutError::Timeout)) => None,
            Some(Err(RecvTimeoutError::Disconnected)) | None => Some(Line::End),
        }
    }

    /// The end of stderr. A process that still holds a pipe when the time is up only keeps a thread waiting.
    pub(crate) fn last_words(&mut self, until: Instant) -> String {
        self.close_input();
        drop(self.lines.take()); // a reader that waits for room in the channel then ends
        while self.threads.iter().any(|thread| !thread.is_finished()) && now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        let text = String::from_utf8_lossy(&self.stderr.lock().expect("no reader panics")).into_owned();
        secrets::without(text, &self.secrets)
    }
}

/// A thread, which the system may refuse: the standard library's `spawn` would panic.
fn thread(work: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().spawn(work)
}

fn inode(pipe: &impl std::os::fd::AsFd) -> Option<u64> {
    rustix::fs::fstat(pipe).ok().map(|stat| stat.st_ino)
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
            Ok(_) => {
                let at = now();
                Line::Text(String::from_utf8_lossy(&line).trim_end().to_owned(), at)
            }
        };
        let last = !matches!(message, Line::Text(..));
        if lines.send(message).is_err() || last {
            break;
        }
    }
}

// Errors of a worker, in words.

/// It took longer than any process may.
pub(crate) fn not_done(limit: Duration) -> String {
    format!("it was not done after {} s (--timeout)", limit.as_secs())
}

pub(crate) fn check_version(theirs: u32) -> Result<(), String> {
    if theirs == protocol::VERSION {
        return Ok(());
    }
    let ours = protocol::VERSION;
    Err(format!(
        "it speaks protocol {theirs}, this driver {ours} (docs/reference/protocol.md): \
         build both from the same checkout"
    ))
}

pub(crate) fn nonsense(line: &str) -> String {
    let start: String = line.chars().take(80).collect();
    format!("it sent a line that is not a valid event: {start:?}")
}

/// How a process ended, in words.
pub fn describe(status: ExitStatus) -> String {
    if let Some(signal) = status.signal() {
        let name = match signal {
            4 => " (SIGILL)",
            6 => " (SIGABRT)",
            7 => " (SIGBUS)",
            9 => " (SIGKILL: killed from outside, for example for lack of memory)",
            11 => " (SIGSEGV)",
            15 => " (SIGTERM)",
            24 => " (SIGXCPU: its CPU time was limited)",
            _ => "",
        };
        return format!("it was ended by signal {signal}{name}");
    }
    match status.code() {
        Some(code) => format!("it ended with exit code {code}"),
        None => "it ended without an exit code".into(),
    }
}

/// Whether a signal from another process ended the process: for faults the system sends other signals.
pub fn came_from_outside(status: ExitStatus) -> bool {
    let sent = [Signal::HUP, Signal::INT, Signal::QUIT, Signal::KILL, Signal::TERM];
    status.signal().is_some_and(|signal| sent.iter().any(|sent| sent.as_raw() == signal))
}

/// The last line of a text that is not empty, trimmed.
pub fn last_line(text: &str) -> Option<Foreign> {
    text.lines().rev().find(|line| !line.trim().is_empty()).map(|line| line.trim().into())
}

// The driver's clocks.

/// The clock of deadlines.
#[expect(clippy::disallowed_methods, reason = "a deadline, not a measurement")]
pub fn now() -> Instant {
    Instant::now()
}

/// The clock that the worker compares its own readings with.
pub(crate) fn monotonic_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    fn sh(script: &str) -> Process {
        let environment = [("PATH", "/usr/bin:/bin"), ("MY_TOKEN", "swordfish-1")];
        let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned()));
        Process::spawn("/bin/sh".as_ref(), &["-c", script], &environment.into(), None).unwrap()
    }

    #[test]
    fn a_line_that_is_there_is_in_time_and_without_the_process_s_secrets() {
        let mut process = sh("echo \"I have $MY_TOKEN\"; echo \"$MY_TOKEN is wrong\" >&2");
        let long_ago = now();
        // As if this program had been stopped.
        std::thread::sleep(Duration::from_millis(300));
        let line = process.recv(long_ago, Duration::from_secs(1)).unwrap();
        assert_eq!(line.as_deref(), Some("I have ***"));
        assert_eq!(process.reap().stderr.trim(), "*** is wrong");
        let mut silent = sh("sleep 60");
        let reason = silent.recv(now(), Duration::from_secs(7)).unwrap_err();
        assert_eq!(reason, "it was not done after 7 s (--timeout)");
    }
}

//! A process of a worker with its pipes: its lines are read within limits, it is stopped and continued by signal, and it
//! is always reaped. A worker may die, hang, flood its output or send nonsense; the driver goes on.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::interrupt;
use crate::machine::Pinned;

/// Longest line that a worker may send, in bytes: many times the samples of a long measurement.
const MAX_LINE: u64 = 64 << 20;
/// Lines that are read before they are asked for.
const LINES_AHEAD: usize = 2;
/// Bytes of a worker's stderr that are kept as its last words.
const STDERR_TAIL: usize = 16 << 10;

/// A running worker with the threads that serve its pipes, so that neither side can block the other.
pub struct Process {
    child: Child,
    /// The clock just before it was started, as the worker can read it.
    pub spawned_at_ns: Option<u64>,
    /// Lines for its stdin; `None` once that is closed.
    input: Option<Sender<String>>,
    lines: Option<Receiver<Line>>,
    threads: Vec<JoinHandle<()>>,
    stderr: Arc<Mutex<Vec<u8>>>,
}

enum Line {
    Text(String),
    /// A line that is longer than any event.
    TooLong,
    End,
}

/// What came of waiting for a line.
pub(crate) enum Heard {
    Line(String),
    /// The worker closed its stdout and has ended.
    End,
    /// It was killed, for this reason.
    Killed(String),
}

/// What a worker has said when a wait is over, with the worker left as it is.
pub enum Said {
    Line(String),
    /// It closed its stdout.
    Closed,
    /// It sent a line that is longer than any event.
    TooLong,
    /// Nothing, until the time was up.
    Nothing,
    /// Nothing, until the user interrupted.
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
        command.args(arguments).env_clear().envs(environment);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let (mut child, spawned_at_ns) = {
            let _pinned = cpus.map(Pinned::to);
            let before = monotonic_ns();
            (command.spawn()?, before)
        };
        // Bounded, so that a flood of long lines fills the pipe and not this program's memory.
        let (sender, lines) = sync_channel(LINES_AHEAD);
        let (input, to_write) = channel::<String>();
        let stdout = child.stdout.take().expect("piped");
        let mut pipe = child.stderr.take().expect("piped");
        let mut stdin = child.stdin.take().expect("piped");
        let stderr = Arc::new(Mutex::new(Vec::new()));
        let tail = Arc::clone(&stderr);
        let threads = vec![
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
            std::thread::spawn(move || {
                for line in to_write {
                    if stdin.write_all(line.as_bytes()).and_then(|()| stdin.flush()).is_err() {
                        break;
                    }
                }
            }),
        ];
        Ok(Process { child, spawned_at_ns, input: Some(input), lines: Some(lines), threads, stderr })
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a line.
    pub fn send(&self, line: String) {
        if let Some(input) = &self.input {
            // The thread is gone if the worker no longer reads; its end says why.
            let _ = input.send(line + "\n");
        }
    }

    /// Closes its stdin, behind all lines that were sent.
    pub fn close_input(&mut self) {
        self.input = None;
    }

    /// A line that came before it was asked for.
    pub(crate) fn unasked(&self) -> Option<String> {
        match self.lines.as_ref()?.try_recv() {
            Ok(Line::Text(line)) => Some(line),
            _ => None,
        }
    }

    /// Waits for the next line until the time is up, and leaves the worker as it is.
    pub fn listen(&mut self, until: Instant) -> Said {
        loop {
            if interrupt::requested() {
                return Said::Interrupted;
            }
            if now() >= until {
                return Said::Nothing;
            }
            let lines = self.lines.as_ref().expect("taken by reap alone");
            match lines.recv_timeout(Duration::from_millis(50)) {
                Ok(Line::Text(line)) => return Said::Line(line),
                Ok(Line::TooLong) => return Said::TooLong,
                Ok(Line::End) | Err(RecvTimeoutError::Disconnected) => return Said::Closed,
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Waits for the next line. Kills the worker when the time is up, or when the user interrupts.
    pub(crate) fn hear(&mut self, until: Instant, limit: Duration) -> Heard {
        let reason = match self.listen(until) {
            Said::Line(line) => return Heard::Line(line),
            Said::Closed => return self.await_exit(until, limit),
            Said::TooLong => format!("it flooded stdout: a line of over {} MiB", MAX_LINE >> 20),
            Said::Nothing => too_late(limit),
            Said::Interrupted => "the user interrupted".to_owned(),
        };
        self.kill();
        Heard::Killed(reason)
    }

    /// Whether the worker has ended. A worker that still lives when the time is up, or that the user interrupts, has
    /// not.
    pub fn has_ended(&mut self, until: Instant) -> bool {
        while matches!(self.child.try_wait(), Ok(None)) {
            if now() >= until || interrupt::requested() {
                return false;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        true
    }

    /// Waits for the end after stdout was closed; a worker that still lives at the limit is killed.
    fn await_exit(&mut self, until: Instant, limit: Duration) -> Heard {
        if !self.has_ended(until) {
            self.kill();
            return Heard::Killed(too_late(limit));
        }
        Heard::End
    }

    /// Ends the whole process group at once. A stopped process dies of this signal, too.
    pub fn kill(&mut self) {
        #[cfg(unix)]
        signal_group(self.id(), rustix::process::Signal::KILL);
        // An error means that it has already ended; `reap` finds out how.
        let _ = self.child.kill();
    }

    /// Stops the process group. Returns whether the process has stopped.
    pub fn stop(&self) -> bool {
        #[cfg(target_os = "linux")]
        {
            signal_group(self.id(), rustix::process::Signal::STOP);
            // A signal arrives a moment later.
            for _ in 0..200 {
                match state(self.id()) {
                    Some('T' | 't') => return true,
                    Some('Z' | 'X') | None => return false,
                    Some(_) => std::thread::sleep(Duration::from_micros(100)),
                }
            }
        }
        false
    }

    pub fn go_on(&self) {
        #[cfg(unix)]
        signal_group(self.id(), rustix::process::Signal::CONT);
    }

    /// How the worker ended, and the end of its stderr.
    pub fn reap(mut self) -> (ExitStatus, String) {
        self.close_input();
        let status = self.child.wait().expect("a child of ours can be waited for");
        // A helper of the worker's that lives on would keep the pipes open.
        #[cfg(unix)]
        signal_group(self.id(), rustix::process::Signal::KILL);
        drop(self.lines.take()); // a reader that waits for room in the channel gives up
        for thread in std::mem::take(&mut self.threads) {
            let _ = thread.join();
        }
        let stderr = self.stderr.lock().expect("no reader panics");
        (status, String::from_utf8_lossy(&stderr).into_owned())
    }
}

/// Kills and reaps the worker, so that none stays behind whatever happens to this program.
impl Drop for Process {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.kill();
            let _ = self.child.wait();
        }
    }
}

fn too_late(limit: Duration) -> String {
    format!("it was not done after {} s (--timeout)", limit.as_secs())
}

/// The clock of deadlines.
#[expect(clippy::disallowed_methods, reason = "a deadline, not a measurement")]
pub fn now() -> Instant {
    Instant::now()
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

#[cfg(unix)]
fn signal_group(leader: u32, signal: rustix::process::Signal) {
    let leader = i32::try_from(leader).ok().and_then(rustix::process::Pid::from_raw);
    if let Some(leader) = leader {
        // Without such a group, the process has ended.
        let _ = rustix::process::kill_process_group(leader, signal);
    }
}

/// State of a process as `/proc/PID/stat` has it, behind the name in parentheses.
#[cfg(target_os = "linux")]
fn state(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.trim_start().chars().next()
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

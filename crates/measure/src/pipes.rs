//! The pipes of a worker, each served by a thread, so that neither side can block the other.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::Child;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::clock::now;

/// Longest line that a worker may send, in bytes: many times the samples of a long measurement.
pub(crate) const MAX_LINE: u64 = 64 << 20;
/// Number of lines that are read ahead.
const LINES_AHEAD: usize = 2;
/// Bytes kept of the end of a worker's stderr.
const STDERR_TAIL: usize = 16 << 10;

pub(crate) struct Pipes {
    /// Lines for stdin; `None` once that is closed.
    input: Option<Sender<String>>,
    lines: Option<Receiver<Line>>,
    threads: Vec<JoinHandle<()>>,
    stderr: Arc<Mutex<Vec<u8>>>,
}

pub(crate) enum Line {
    Text(String),
    /// A line that is longer than any event.
    TooLong,
    /// No process holds the pipe any more.
    End,
}

impl Pipes {
    /// Takes the pipes of a child. Also returns their inodes, by which other holders can be found.
    pub(crate) fn new(child: &mut Child) -> (Pipes, Vec<u64>) {
        // Bounded, so that a flood of long lines fills the pipe, not this program's memory.
        let (sender, lines) = sync_channel(LINES_AHEAD);
        let (input, to_write) = channel::<String>();
        let stdout = child.stdout.take().expect("piped");
        let mut pipe = child.stderr.take().expect("piped");
        let mut stdin = child.stdin.take().expect("piped");
        let inodes = [inode(&stdout), inode(&pipe), inode(&stdin)].into_iter().flatten().collect();
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
            // A worker that dies early breaks this pipe; its exit says more than the write error.
            std::thread::spawn(move || {
                for line in to_write {
                    if stdin.write_all(line.as_bytes()).and_then(|()| stdin.flush()).is_err() {
                        break;
                    }
                }
            }),
        ];
        (Pipes { input: Some(input), lines: Some(lines), threads, stderr }, inodes)
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
        self.lines.as_ref()?.try_recv().ok()
    }

    /// The next line; `None` if none arrives in this time.
    pub(crate) fn next(&self, time: Duration) -> Option<Line> {
        match self.lines.as_ref().map(|lines| lines.recv_timeout(time)) {
            Some(Ok(line)) => Some(line),
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
        String::from_utf8_lossy(&self.stderr.lock().expect("no reader panics")).into_owned()
    }
}

#[cfg(unix)]
fn inode(pipe: &impl std::os::fd::AsFd) -> Option<u64> {
    rustix::fs::fstat(pipe).ok().map(|stat| stat.st_ino)
}

#[cfg(not(unix))]
fn inode<T>(_: &T) -> Option<u64> {
    None
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

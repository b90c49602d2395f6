//! A worker at work on one job: its lines, whether each is an event, and whether it is the expected one.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use comparison::facts::impossible;
use comparison::facts::run::RunFailure;
use comparison::judge::parity::Logits;
use protocol::{Case, Event, Failed, FailureKind, Hello, Job, Kept, Score, Settings, Task};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::measure::Scratch;
use crate::measure::logits::{self, Shape};
use crate::measure::process::{Process, Reaped, Received, describe, last_line, now};
use crate::worker_check::{Problem, Subject, rules};

/// Problems of one phase, after which the wait for an event ends.
const MAX_PROBLEMS: usize = 20;
/// Longest wait for a worker's last output and its end, once its stdin is closed.
const GRACE: Duration = Duration::from_secs(3);
/// Wait for an unexpected answer.
const UNASKED: Duration = Duration::from_millis(50);
/// Two programs read the clock one after the other.
const SLACK: Duration = Duration::from_millis(1);

/// Why a phase ends early.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The worker broke a rule, which is noted, and the conversation cannot continue.
    Broken,
    /// It said that it cannot do this, for this reason, in a valid `failed`.
    Declined(String),
    /// The user interrupted.
    Interrupted,
}

pub(crate) struct Talk<'a> {
    pub(crate) subject: &'a Subject<'a>,
    pub(crate) job: Job,
    /// The requests of its work; none for other tasks.
    pub(crate) cases: Vec<Case>,
    scratch: Scratch,
    /// `None` before it is started, and once it has been reaped.
    process: Option<Process>,
    begun: Instant,
    asked_at: Instant,
    problems: Vec<Problem>,
    lacks: Vec<Problem>,
    /// The number of the latest line, and its event.
    line: usize,
    event: String,
    /// The line's time since the worker was started.
    pub(crate) since_start: Duration,
    /// Its time since the last line was sent to the worker.
    pub(crate) since_asked: Duration,
}

impl<'a> Talk<'a> {
    pub(crate) fn new(subject: &'a Subject<'a>, scratch: Scratch) -> Talk<'a> {
        let job = Job {
            protocol: protocol::VERSION,
            bundle: subject.bundle.directory().display().to_string(),
            model: subject.bundle.config().described(),
            settings: Settings {
                device: subject.device.into(),
                jit: subject.jit,
                options: subject.options.clone(),
                ..Settings::on_cpu(subject.precision, subject.threads)
            },
            spawned_at_ns: None,
            evict: false,
            task: Task::Load,
        };
        let begun = now();
        Talk {
            subject,
            job,
            cases: Vec::new(),
            scratch,
            process: None,
            begun,
            asked_at: begun,
            problems: Vec::new(),
            lacks: Vec::new(),
            line: 0,
            event: String::new(),
            since_start: Duration::ZERO,
            since_asked: Duration::ZERO,
        }
    }

    pub(crate) fn vocabulary(&self) -> usize {
        self.subject.bundle.config().vocab_size
    }

    /// Its events, in their order.
    fn order(&self) -> &'static str {
        match self.job.task {
            Task::Measure(_) => {
                "hello, started, loaded, cold_start, warmup, a sample and logits for each turn, usage, parity, done"
            }
            Task::Load => "hello, started, loaded, done",
            Task::Answer(_) => "hello, started, loaded, parity, answered, done",
            Task::Score(_) => "hello, started, loaded, scored, done",
            Task::Probe(_) => "probed, done",
            Task::Trace(_) => "hello, started, loaded, traced, done",
        }
    }

    /// Notes a problem of a field of the latest line, if there is one.
    pub(crate) fn wrong(&mut self, is_wrong: bool, field: &str, text: impl Into<String>) {
        if is_wrong {
            self.problems.push(self.problem(field, text));
        }
    }

    /// Notes what a comparison misses in a field of the latest line, if it does.
    pub(crate) fn lacking(&mut self, is_lacking: bool, field: &str, text: impl Into<String>) {
        if is_lacking {
            self.lacks.push(self.problem(field, text));
        }
    }

    fn problem(&self, field: &str, text: impl Into<String>) -> Problem {
        Problem { line: self.line, event: self.event.clone(), field: field.to_owned(), text: text.into() }
    }

    /// Notes a duration in nanoseconds that exceeds the time that the driver measured.
    pub(crate) fn time(&mut self, field: &str, ns: u64, at_most: Duration) {
        let text = format!(
            "{:.1} ms is impossible: the driver saw {:.1} ms pass in all; send nanoseconds of a monotonic clock, without \
             the time spent waiting",
            ns as f64 / 1e6,
            at_most.as_secs_f64() * 1e3
        );
        self.wrong(Duration::from_nanos(ns) > at_most + SLACK, field, text);
    }

    /// Notes a problem of the latest line, after which the conversation cannot continue.
    fn broken(&mut self, text: impl Into<String>) -> Stop {
        self.wrong(true, "", text);
        Stop::Broken
    }

    /// Notes a problem of no line, after which the conversation cannot continue.
    fn broken_off(&mut self, text: impl Into<String>) -> Stop {
        self.problems.push(Problem::new(text));
        Stop::Broken
    }

    /// The path of a file for the worker to write, which is deleted after the phase.
    pub(crate) fn file(&self, name: &str) -> String {
        self.scratch.path().join(name).display().to_string()
    }

    /// The reference's logits of the last positions of these cases, if there is a reference and it computes them.
    pub(crate) fn referred(&self, cases: &[Case], shapes: &[Shape]) -> Option<Vec<Logits>> {
        let (reference, file) = (self.subject.reference?, self.file("reference.safetensors"));
        let settings = Settings::on_cpu(self.subject.precision, self.subject.threads);
        let of_case = |(case, shape): (&Case, &Shape)| {
            let whole = |(prefix, trace): (Vec<u32>, &Vec<u32>)| [prefix, trace.clone()].concat();
            let sequences: Vec<Vec<u32>> = case.prefixes().into_iter().zip(&case.trace).map(whole).collect();
            let from = sequences.iter().map(|row| row.len() - shape[1]).collect();
            let kept = Some(Kept { from, count: shape[1] });
            let task = Task::Score(Score {
                sequences,
                types: Vec::new(),
                audio: Vec::new(),
                piece: 0,
                kept,
                file: file.clone(),
            });
            let ran =
                reference.run(&Job { settings: settings.clone(), evict: false, task, ..self.job.clone() });
            RunFailure::from_ending(ran.ending).is_none().then_some(())?;
            logits::read_score(Path::new(&file), *shape).ok()
        };
        cases.iter().zip(shapes).map(of_case).collect()
    }

    /// `length` token ids of the vocabulary, others for another `seed`.
    pub(crate) fn ids(&self, length: usize, seed: usize) -> Vec<u32> {
        let vocabulary = self.vocabulary();
        (0..length).map(|at| ((seed * 5 + at * 3 + 1) % vocabulary) as u32).collect()
    }

    pub(crate) fn start(&mut self, arguments: &[&str]) -> Result<(), Stop> {
        let worker = self.subject.worker;
        self.line = 0;
        self.event.clear();
        self.begun = now();
        self.asked_at = self.begun;
        match Process::spawn(&worker.binary, arguments, &worker.environment, worker.cpus.as_deref()) {
            Ok(process) => self.process = Some(process),
            Err(error) => return Err(self.broken_off(cannot_start(&worker.binary, &error))),
        }
        Ok(())
    }

    /// Starts the worker and sends it a job.
    pub(crate) fn send_job(&mut self, job: Job) -> Result<(), Stop> {
        self.start(&[])?;
        let spawned_at_ns = self.process.as_ref().map(|process| process.spawned_at_ns);
        self.job = Job { spawned_at_ns, ..job };
        self.send(&self.job.clone());
        Ok(())
    }

    /// Gives the worker a task, and hears the events that every task but the probe begins with. Returns whether
    /// the worker can pause within a request.
    pub(crate) fn begin(&mut self, task: Task) -> Result<bool, Stop> {
        self.send_job(Job { task, ..self.job.clone() })?;
        let hello = self.event("hello", rules::hello)?;
        self.event("started", rules::started)?;
        self.event("loaded", rules::loaded)?;
        Ok(hello.is_some_and(|hello| hello.slices == Some(true)))
    }

    pub(crate) fn send(&mut self, value: &impl Serialize) {
        // Read before the line is sent: the worker may be quicker than the next lines.
        self.asked_at = now();
        if let Some(process) = &self.process {
            process.send(value);
        }
    }

    pub(crate) fn close_input(&mut self) {
        if let Some(process) = &mut self.process {
            process.close_input();
        }
    }

    /// Stops the worker for a moment as the driver does while others have their turns.
    pub(crate) fn pause(&mut self) {
        if let Some(process) = &mut self.process {
            process.stop();
            std::thread::sleep(UNASKED);
            process.go_on();
        }
    }

    pub(crate) fn hello(&mut self) -> Result<Option<Hello>, Stop> {
        let object = self.object("the answer to --hello")?;
        Ok(self.read("hello", object, rules::hello))
    }

    /// Waits for an event, and notes the rules that it breaks; `None` if its fields are not those of the event.
    /// Another event, or none, ends the conversation.
    pub(crate) fn event<T: DeserializeOwned>(
        &mut self,
        awaited: &str,
        rules: impl FnOnce(&T, &mut Self),
    ) -> Result<Option<T>, Stop> {
        let mut object = self.object(&format!("`{awaited}`"))?;
        let order = self.order();
        match object.remove("event") {
            Some(Value::String(name)) if name == awaited => Ok(self.read(&name, object, rules)),
            Some(Value::String(name)) if name == "failed" => Err(self.failed(object, awaited)),
            Some(found) => Err(self.broken(format!(
                "`{}` came where `{awaited}` must come, or `{awaited}` is missing; the order is {order}",
                found.as_str().unwrap_or("event")
            ))),
            None => Err(self.broken(format!(
                "`event` is missing: here must come {{\"event\": {awaited:?}, …}}; the order is {order}"
            ))),
        }
    }

    /// Waits for `failed`, the answer to a job that cannot be done.
    pub(crate) fn refusal(&mut self, what: &str) -> Result<(), Stop> {
        loop {
            let mut object = self.object(&format!("`failed`, the answer to {what},"))?;
            match object.remove("event").as_ref().and_then(Value::as_str) {
                Some("failed") => {
                    self.read("failed", object, |_: &Failed, _| {});
                    return self.end("`failed`", false);
                }
                // It may find out after it has begun.
                Some("hello" | "started") => {}
                found => {
                    return Err(self.broken(format!(
                        "{} in answer to {what}; send {{\"event\": \"failed\", \"kind\": \"input\", \"reason\": …}} \
                         and exit with 1",
                        found.map_or("a line that is no event".to_owned(), |name| format!("`{name}`"))
                    )));
                }
            }
        }
    }

    /// A `failed` in the place of another event.
    fn failed(&mut self, object: Map<String, Value>, awaited: &str) -> Stop {
        let Some(failed) = self.read("failed", object, |_: &Failed, _| {}) else { return Stop::Broken };
        if failed.kind != FailureKind::Unsupported {
            let text = format!("it failed where `{awaited}` must come: {}", failed.reason);
            return self.broken(text);
        }
        match self.end("`failed`", false) {
            Err(Stop::Interrupted) => Stop::Interrupted,
            _ => Stop::Declined(failed.reason.into()),
        }
    }

    /// Reads the fields of an event, and notes the rules that they break.
    fn read<T: DeserializeOwned>(
        &mut self,
        name: &str,
        object: Map<String, Value>,
        rules: impl FnOnce(&T, &mut Self),
    ) -> Option<T> {
        self.event = name.to_owned();
        let mut line = object.clone();
        line.insert("event".to_owned(), name.into());
        if let Ok(event) = serde_json::from_value::<Event>(line.into()) {
            for impossible::Impossible { field, value, possible } in impossible::readings(&event) {
                let text = format!("{value} is impossible; {}", remedy(&field, &possible));
                self.wrong(true, &field, text);
            }
        }
        match serde_path_to_error::deserialize(Value::Object(object)) {
            Ok(event) => {
                rules(&event, self);
                Some(event)
            }
            Err(error) => {
                let (path, error) = (error.path().to_string(), error.inner());
                let field = if path == "." { "" } else { &path };
                let text =
                    format!("{error}; {}", remedy(field, "the type that docs/reference/protocol.md says"));
                self.wrong(true, field, text);
                None
            }
        }
    }

    /// Waits for a line of JSON with fields.
    fn object(&mut self, awaited: &str) -> Result<Map<String, Value>, Stop> {
        loop {
            let Some(process) = &mut self.process else { return Err(Stop::Broken) };
            let line = match process.try_recv(now() + self.subject.worker.timeout) {
                Received::Line(line) => line,
                Received::TimedOut => return Err(self.silent(awaited)),
                Received::Closed => return Err(self.left(awaited)),
                Received::TooLong => {
                    let text = "it sent a line without end; end every event with \\n";
                    return Err(self.broken_off(text));
                }
                Received::Interrupted => return Err(Stop::Interrupted),
            };
            let at = now();
            (self.since_start, self.since_asked) = (at - self.begun, at - self.asked_at);
            self.line += 1;
            self.event.clear();
            if let Ok(Value::Object(object)) = serde_json::from_str(&line) {
                return Ok(object);
            }
            let text = format!(
                "not a JSON object: {}; stdout belongs to the protocol, print everything else to stderr",
                quoted(&line)
            );
            self.wrong(true, "", text);
            if self.problems.len() > MAX_PROBLEMS {
                return Err(Stop::Broken);
            }
        }
    }

    /// Checks that no answer comes unasked.
    pub(crate) fn expect_silence(&mut self, what: &str) -> Result<(), Stop> {
        let Some(process) = &mut self.process else { return Ok(()) };
        let Received::Line(line) = process.try_recv(now() + UNASKED) else { return Ok(()) };
        self.line += 1;
        let text = format!(
            "{what}: {}; send exactly one `sample` for a turn, then wait for the next one",
            quoted(&line)
        );
        Err(self.broken(text))
    }

    /// No line arrived in time.
    fn silent(&mut self, awaited: &str) -> Stop {
        let seconds = self.subject.worker.timeout.as_secs_f64();
        self.close_input();
        let Some(process) = &mut self.process else { return Stop::Broken };
        // Lines in a buffer are flushed when the worker ends, and it ends when its stdin does.
        let is_late = matches!(process.try_recv(now() + GRACE), Received::Line(_));
        process.kill();
        self.broken_off(if is_late {
            format!(
                "{awaited} did not come within {seconds} s, only when stdin was closed: the lines were in a buffer; \
                 flush stdout after every line (Python: print(…, flush=True))"
            )
        } else {
            format!(
                "{awaited} did not come within {seconds} s, and the worker still ran; send it before you read on \
                 from stdin, and flush stdout after every line"
            )
        })
    }

    /// The worker closed its stdout although an event was missing.
    fn left(&mut self, awaited: &str) -> Stop {
        let Some(mut process) = self.process.take() else { return Stop::Broken };
        if !process.has_ended(now() + GRACE) {
            process.kill();
            return self.broken_off(format!("it closed stdout before {awaited}; keep it open until `done`"));
        }
        let Reaped { status, stderr, .. } = process.reap();
        let words = last_line(&stderr).map_or_else(String::new, |line| format!("; its last words: {line}"));
        // --hello has no such event: it exits with 1 and says why on stderr.
        let remedy = match status.success() || !awaited.starts_with('`') {
            true => "",
            false => "; send {\"event\": \"failed\", \"kind\": …, \"reason\": …} before you exit with 1",
        };
        self.broken_off(format!("{awaited} did not come: {}{words}{remedy}", describe(status)))
    }

    /// The event `done`, and the end of the process.
    pub(crate) fn finish(&mut self) -> Result<(), Stop> {
        self.event("done", |_: &Value, _| {})?;
        self.end("`done`", true)
    }

    /// Waits for the end after the last line. `is_success`: what its exit code must say.
    pub(crate) fn end(&mut self, last: &str, is_success: bool) -> Result<(), Stop> {
        let limit = self.subject.worker.timeout;
        self.close_input();
        let Some(mut process) = self.process.take() else { return Err(Stop::Broken) };
        match process.try_recv(now() + limit) {
            Received::Line(line) => {
                self.line += 1;
                let text = format!("a line after {last}, which is the last: {}", quoted(&line));
                self.wrong(true, "", text);
            }
            Received::Interrupted => return Err(Stop::Interrupted),
            _ => {}
        }
        if !process.has_ended(now() + limit) {
            process.kill();
            let text = format!("it still ran {} s after {last}; exit then", limit.as_secs_f64());
            return Err(self.broken_off(text));
        }
        let Reaped { status, left_behind, .. } = process.reap();
        let text =
            format!("processes that it started outlived it: {}; end them first", left_behind.join(", "));
        if !left_behind.is_empty() {
            self.broken_off(text);
        }
        let (expected, why) = if is_success { (0, "success") } else { (1, "a failure") };
        let text = format!("{} after {last}; exit with {expected}, which means {why}", describe(status));
        if status.success() != is_success {
            self.broken_off(text);
        }
        Ok(())
    }

    /// The problems, and what a comparison misses; the worker is ended.
    pub(crate) fn into_problems(self) -> (Vec<Problem>, Vec<Problem>) {
        (self.problems, self.lacks)
    }
}

/// The start of a line that was not expected.
fn quoted(line: &str) -> String {
    format!("{:?}", line.chars().take(60).collect::<String>())
}

/// What to send in a field with another value.
fn remedy(field: &str, possible: &str) -> String {
    if field.ends_with("_ns") || field.contains("_ns[") {
        "read a monotonic clock in nanoseconds before and after (Python: time.monotonic_ns())".to_owned()
    } else if field.ends_with("bytes") {
        format!("send {possible}, or null where the system does not report")
    } else {
        format!("send {possible}")
    }
}

/// A program that the system does not start.
fn cannot_start(path: &Path, error: &io::Error) -> String {
    let path = path.display();
    let remedy = match error.kind() {
        io::ErrorKind::PermissionDenied => format!("; make it executable: chmod +x {path}"),
        io::ErrorKind::NotFound => {
            "; a script's first line must name a program that is there, as in #!/usr/bin/env python3"
                .to_owned()
        }
        _ if error.raw_os_error() == Some(8) => {
            "; a script's first line must name its language, as in #!/usr/bin/env python3".to_owned()
        }
        _ => String::new(),
    };
    format!("cannot start {path}: {error}{remedy}")
}

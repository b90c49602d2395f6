//! A worker at work on one job: its lines, whether each is an event, and whether it is the expected one.

use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::measure::process::now;
use crate::measure::process::{Process, Reaped, Received};
use crate::measure::process::{describe, last_line};
use crate::measure::worker::Worker;
use crate::worker_check::events;
use crate::worker_check::events::{EVENTS, fields};
use crate::worker_check::{Problem, cannot_start};

/// Lines that are not events, after which the wait for an event ends.
const MOST_CHATTER: usize = 20;
/// Longest wait for a worker's last output and its end, once its stdin is closed.
const GRACE: Duration = Duration::from_secs(3);
/// Wait for an unexpected answer.
const UNASKED: Duration = Duration::from_millis(50);

/// Why a conversation ends early.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The worker broke a rule, which is noted, and the conversation cannot continue.
    Broken,
    /// It said that it cannot do this, for this reason, in a valid `failed`.
    Refused(String),
    /// The user interrupted.
    Interrupted,
}

/// An event at the expected time.
pub(crate) struct Heard<T> {
    pub(crate) line: usize,
    /// The time since the worker was started.
    pub(crate) since_start: Duration,
    /// The time since the last line was sent to it.
    pub(crate) since_asked: Duration,
    /// `None` if its fields are not those of the event, which is noted.
    pub(crate) event: Option<T>,
}

pub(crate) struct Talk {
    /// `None` once it has been reaped.
    process: Option<Process>,
    begun: Instant,
    asked: Instant,
    limit: Duration,
    line: usize,
    /// The event on that line.
    on_line: Option<String>,
    chatter: usize,
    /// The events of this task, in their order.
    order: &'static [&'static str],
    problems: Vec<Problem>,
}

impl Talk {
    /// Starts the worker. `order` are the possible events, in their order.
    pub(crate) fn start(
        worker: &Worker,
        arguments: &[&str],
        order: &'static [&'static str],
    ) -> Result<Talk, Problem> {
        let begun = now();
        let spawned = Process::spawn(&worker.binary, arguments, &worker.environment, worker.cpus.as_deref());
        let process = spawned.map_err(|error| cannot_start(&worker.binary, &error))?;
        Ok(Talk {
            process: Some(process),
            begun,
            asked: begun,
            limit: worker.timeout,
            line: 0,
            on_line: None,
            chatter: 0,
            order,
            problems: Vec::new(),
        })
    }

    pub(crate) fn spawned_at_ns(&self) -> Option<u64> {
        self.process.as_ref()?.spawned_at_ns
    }

    /// The number of the latest line.
    pub(crate) fn line(&self) -> usize {
        self.line
    }

    pub(crate) fn note(&mut self, problem: Problem) {
        self.problems.push(problem);
    }

    /// Notes problems of a line.
    pub(crate) fn note_all(&mut self, line: usize, problems: Vec<Problem>) {
        let event = self.on_line.as_deref();
        self.problems.extend(problems.into_iter().map(|problem| problem.on(line, event)));
    }

    /// Notes a problem of the latest line.
    fn note_here(&mut self, problem: Problem) {
        self.note_all(self.line, vec![problem]);
    }

    pub(crate) fn send(&mut self, value: &impl Serialize) {
        // Read before the job is sent: the worker may be quicker than the next lines.
        self.asked = now();
        if let Some(process) = &self.process {
            process.send(serde_json::to_string(value).expect("jobs and turns have string keys"));
        }
    }

    pub(crate) fn close_input(&mut self) {
        if let Some(process) = &mut self.process {
            process.close_input();
        }
    }

    /// Stops the worker for a moment as the driver does while others have their turns.
    pub(crate) fn pause(&mut self) {
        if let Some(process) = &self.process {
            process.stop();
            std::thread::sleep(UNASKED);
            process.go_on();
        }
    }

    /// Waits for the answer to `--hello`.
    pub(crate) fn hello(&mut self) -> Result<Map<String, Value>, Stop> {
        let object = self.object("the answer to --hello")?;
        self.on_line = Some("hello".to_owned());
        Ok(object)
    }

    /// Waits for a line of JSON with fields.
    pub(crate) fn object(&mut self, awaited: &str) -> Result<Map<String, Value>, Stop> {
        loop {
            let Some(process) = &mut self.process else { return Err(Stop::Broken) };
            let line = match process.try_recv(now() + self.limit) {
                Received::Line(line) => line,
                Received::TimedOut => return Err(self.silent(awaited)),
                Received::Closed => return Err(self.left(awaited)),
                Received::TooLong => {
                    return Err(self.broken("it sent a line without end; end every event with \\n"));
                }
                Received::Interrupted => return Err(Stop::Interrupted),
            };
            self.line += 1;
            self.on_line = None;
            match serde_json::from_str(&line) {
                Ok(Value::Object(object)) => return Ok(object),
                _ => self.chat(&line)?,
            }
        }
    }

    /// Notes a line that is not an object.
    fn chat(&mut self, line: &str) -> Result<(), Stop> {
        let start: String = line.chars().take(60).collect();
        let text = format!(
            "not a JSON object: {start:?}; stdout belongs to the protocol, print everything else to stderr"
        );
        self.note_here(Problem::new(text));
        self.chatter += 1;
        if self.chatter > MOST_CHATTER { Err(Stop::Broken) } else { Ok(()) }
    }

    /// Waits for the event `awaited`. Another event, or none, ends the conversation.
    pub(crate) fn event<T: DeserializeOwned>(&mut self, awaited: &'static str) -> Result<Heard<T>, Stop> {
        let (name, object) = self.any_event(awaited)?;
        if name != awaited {
            return Err(match name.as_str() {
                "failed" => self.failed(&object, awaited),
                _ => self.out_of_order(&name, awaited),
            });
        }
        let event = self.read(&name, object);
        let at = now();
        let (since_start, since_asked) = (at - self.begun, at - self.asked);
        Ok(Heard { line: self.line, since_start, since_asked, event })
    }

    /// Waits for any event of the protocol.
    fn any_event(&mut self, awaited: &str) -> Result<(String, Map<String, Value>), Stop> {
        let object = self.object(&format!("`{awaited}`"))?;
        match object.get("event").and_then(Value::as_str) {
            Some(name) if fields(name).is_some() => {
                self.on_line = Some(name.to_owned());
                Ok((name.to_owned(), object))
            }
            found => {
                let names: Vec<&str> = EVENTS.iter().map(|(name, _)| *name).collect();
                let found = found.map_or("missing".to_owned(), |found| format!("{found:?} is no event"));
                let text = format!(
                    "{found}: here must come {{\"event\": {awaited:?}, …}}; the events are {}",
                    names.join(", ")
                );
                self.note_here(Problem::at("event", text));
                Err(Stop::Broken)
            }
        }
    }

    /// Reads an event's fields, and notes their problems.
    pub(crate) fn read<T: DeserializeOwned>(&mut self, name: &str, object: Map<String, Value>) -> Option<T> {
        let found = events::problems(fields(name)?, &object);
        let is_sound = found.is_empty();
        self.note_all(self.line, found);
        self.note_all(self.line, Problem::of_readings(&object));
        match serde_json::from_value(object.into()) {
            Ok(event) => Some(event),
            // The driver also refuses an event that the table accepts and that does not parse.
            Err(error) if is_sound => {
                self.note_here(Problem::new(format!("`{name}` is not valid: {error}")));
                None
            }
            Err(_) => None,
        }
    }

    /// A `failed` in the place of another event.
    fn failed(&mut self, object: &Map<String, Value>, awaited: &str) -> Stop {
        let failed: Option<protocol::Failed> = self.read("failed", object.clone());
        let Some(failed) = failed else { return Stop::Broken };
        if failed.kind == protocol::FailureKind::Unsupported {
            return Stop::Refused(failed.reason.into());
        }
        self.note_here(Problem::new(format!("it failed where `{awaited}` must come: {}", failed.reason)));
        Stop::Broken
    }

    fn out_of_order(&mut self, name: &str, awaited: &str) -> Stop {
        let place = |name: &str| self.order.iter().position(|other| *other == name);
        let order = self.order.join(", ");
        let text = match (place(name), place(awaited)) {
            (Some(found), Some(due)) if found > due => {
                format!(
                    "`{name}` comes before `{awaited}`, or `{awaited}` is missing; send them in this order: {order}"
                )
            }
            (Some(_), _) => {
                format!("`{name}` a second time, where `{awaited}` must come; the order is {order}")
            }
            (None, _) => format!(
                "`{name}` does not belong to this task; here must come `{awaited}`, and the order is {order}"
            ),
        };
        self.note_here(Problem::new(text));
        Stop::Broken
    }

    /// Checks that no answer comes unasked.
    pub(crate) fn unasked(&mut self, what: &str) -> Result<(), Stop> {
        let Some(process) = &mut self.process else { return Ok(()) };
        let Received::Line(line) = process.try_recv(now() + UNASKED) else { return Ok(()) };
        self.line += 1;
        self.on_line = None;
        let start: String = line.chars().take(60).collect();
        let text =
            format!("{what}: {start:?}; send exactly one `sample` for a turn, then wait for the next one");
        self.note_here(Problem::new(text));
        Err(Stop::Broken)
    }

    /// No line arrived in time.
    fn silent(&mut self, awaited: &str) -> Stop {
        let seconds = self.limit.as_secs_f64();
        self.close_input();
        let Some(process) = &mut self.process else { return Stop::Broken };
        // Lines in a buffer are flushed when the worker ends, and it ends when its stdin does.
        let is_late = matches!(process.try_recv(now() + GRACE), Received::Line(_));
        process.kill();
        self.broken(if is_late {
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
            return self.broken(format!("it closed stdout before {awaited}; keep it open until `done`"));
        }
        let Reaped { status, stderr, .. } = process.reap();
        let words = last_line(&stderr).map_or_else(String::new, |line| format!("; its last words: {line}"));
        // --hello has no such event: it exits with 1 and says why on stderr.
        let remedy = match status.success() || !awaited.starts_with('`') {
            true => "",
            false => "; send {\"event\": \"failed\", \"kind\": …, \"reason\": …} before you exit with 1",
        };
        self.broken(format!("{awaited} did not come: {}{words}{remedy}", describe(status)))
    }

    fn broken(&mut self, text: impl Into<String>) -> Stop {
        self.note(Problem::new(text));
        Stop::Broken
    }

    /// Waits for the end after the last line. `is_failure` says whether the worker has failed, which its exit code
    /// must say, too.
    pub(crate) fn end(&mut self, last: &str, is_failure: bool) -> Result<(), Stop> {
        self.close_input();
        let Some(mut process) = self.process.take() else { return Err(Stop::Broken) };
        match process.try_recv(now() + self.limit) {
            Received::Line(line) => {
                self.line += 1;
                self.on_line = None;
                let start: String = line.chars().take(60).collect();
                let text = format!("a line after {last}, which is the last: {start:?}");
                self.note_here(Problem::new(text));
            }
            Received::Interrupted => return Err(Stop::Interrupted),
            _ => {}
        }
        if !process.has_ended(now() + self.limit) {
            process.kill();
            let text = format!("it still ran {} s after {last}; exit then", self.limit.as_secs_f64());
            return Err(self.broken(text));
        }
        let Reaped { status, left_behind, .. } = process.reap();
        if !left_behind.is_empty() {
            let text =
                format!("processes that it started outlived it: {}; end them first", left_behind.join(", "));
            self.note(Problem::new(text));
        }
        if status.success() == is_failure {
            let (expected, why) = if is_failure { (1, "a failure") } else { (0, "success") };
            let text = format!("{} after {last}; exit with {expected}, which means {why}", describe(status));
            self.note(Problem::new(text));
        }
        Ok(())
    }

    /// The problems; the worker is ended.
    pub(crate) fn into_problems(mut self) -> Vec<Problem> {
        std::mem::take(&mut self.problems)
    }
}

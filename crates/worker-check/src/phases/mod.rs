//! The phases of a check: `--hello`, and each task that the driver gives.

mod failures;
mod hello;
mod measure;
mod traced;
mod untimed;

use std::time::Duration;

use ::measure::Scratch;
use protocol::{Hello, Job, Loaded, Started};

use crate::problem::Problem;
use crate::rules;
use crate::talk::{Stop, Talk};
use crate::{Interrupted, Outcome, Subject};

type Run = fn(&Subject<'_>) -> Result<Ran, Interrupted>;

/// Every phase, in the order in which a new worker is written.
pub(crate) const ALL: [(&str, Run); 10] = [
    ("--hello", hello::hello),
    ("load", untimed::load),
    ("measure", measure::measure),
    ("batch", measure::batch),
    ("no cache", measure::without_cache),
    ("answer", untimed::answer),
    ("score", untimed::score),
    ("probe", untimed::probe),
    ("trace", traced::trace),
    ("failures", failures::failures),
];

/// The result of a phase.
pub(crate) struct Ran {
    pub(crate) outcome: Outcome,
    /// Whether the worker could be talked to until the end.
    pub(crate) goes_on: bool,
}

/// Whether a worker may decline a phase as unsupported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    Must,
    May,
}

/// Starts the worker and holds a conversation. `hold` returns a description of it.
fn conversation(
    subject: &Subject<'_>,
    arguments: &[&str],
    (order, need): (&'static [&'static str], Need),
    hold: impl FnOnce(&mut Talk) -> Result<String, Stop>,
) -> Result<Ran, Interrupted> {
    let mut talk = match Talk::start(subject.worker, arguments, order) {
        Ok(talk) => talk,
        Err(problem) => return Ok(Ran { outcome: Outcome::Broken(vec![problem]), goes_on: false }),
    };
    let mut goes_on = true;
    let mut declined = None;
    let mut done = String::new();
    match hold(&mut talk) {
        Ok(words) => done = words,
        Err(Stop::Interrupted) => return Err(Interrupted),
        Err(Stop::Broken) => goes_on = false,
        Err(Stop::Refused(reason)) => {
            if let Err(Stop::Interrupted) = talk.end("`failed`", true) {
                return Err(Interrupted);
            }
            match need {
                Need::May => declined = Some(reason),
                Need::Must => {
                    goes_on = false;
                    talk.note(Problem::new(format!("it declines what every worker must do: {reason}")));
                }
            }
        }
    }
    let problems = talk.into_problems();
    let outcome = match (problems.is_empty(), declined) {
        (false, _) => Outcome::Broken(problems),
        (true, Some(reason)) => Outcome::Declined(reason),
        (true, None) => Outcome::Holds(done),
    };
    Ok(Ran { outcome, goes_on })
}

/// Sends a job to the worker.
fn send_job(talk: &mut Talk, job: &Job) {
    let job = Job { spawned_at_ns: talk.spawned_at_ns(), ..job.clone() };
    talk.send(&job);
}

/// The events that every task but the probe begins with: `hello`, `started`, `loaded`. Returns whether the worker can
/// pause within a request.
fn begin(talk: &mut Talk, job: &Job) -> Result<bool, Stop> {
    send_job(talk, job);
    let hello = talk.event::<Hello>("hello")?;
    if let Some(event) = &hello.event {
        talk.note_all(hello.line, hello::version(event.protocol).into_iter().collect());
    }
    let started = talk.event::<Started>("started")?;
    if let Some(event) = &started.event {
        talk.note_all(started.line, rules::started(event, started.since_start));
    }
    let loaded = talk.event::<Loaded>("loaded")?;
    if let Some(event) = &loaded.event {
        talk.note_all(loaded.line, rules::loaded(event, job, loaded.since_start));
    }
    Ok(hello.event.is_some_and(|hello| hello.slices == Some(true)))
}

/// The event `done`, and the end of the process.
fn finish(talk: &mut Talk) -> Result<(), Stop> {
    talk.event::<serde_json::Value>("done")?;
    talk.end("`done`", false)
}

/// `length` token ids of the vocabulary, others for another `seed`.
fn ids(subject: &Subject<'_>, length: usize, seed: usize) -> Vec<u32> {
    let vocabulary = subject.vocabulary();
    (0..length).map(|at| ((seed * 5 + at * 3 + 1) % vocabulary) as u32).collect()
}

/// A file in a directory that is deleted with this value.
fn scratch() -> Result<Scratch, Problem> {
    Scratch::new().map_err(|error| Problem::new(format!("{error:#}")))
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

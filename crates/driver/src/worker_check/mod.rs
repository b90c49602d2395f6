//! Checks a worker, in any language, against `docs/reference/protocol.md`: it is started as the driver starts
//! it, phase by phase, and every line, field and file of its answers is checked.
//!
//! Its results are not judged here. `photofinish compare` does that (rule R11).

mod events;
mod phases;
mod rules;
mod talk;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::time::Duration;

use bundle::{Bundle, Precision};
use comparison::facts::impossible::{self, Impossible};
use comparison::judge::parity::{Logits, argmax, is_choice};
use protocol::{Case, Job, Settings, Task, untrusted};
use serde_json::{Map, Value};

use crate::measure::logits;
use crate::measure::worker::Worker;
use crate::worker_check::events::Kind::{List, Number, Object, Text, Whole};
use crate::worker_check::events::{Field, may, must};

/// The worker to check, and its model and settings.
pub struct Subject<'a> {
    /// Its `timeout` is the longest wait for one line.
    pub worker: &'a Worker,
    pub bundle: &'a Bundle,
    pub precision: Precision,
    /// `cpu` or `cuda:N`.
    pub device: &'a str,
    pub threads: usize,
    pub jit: bool,
    /// Options of the engine's variant.
    pub options: BTreeMap<String, String>,
}

/// The outcome of a phase of the protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Phase {
    pub name: &'static str,
    pub outcome: Outcome,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The worker follows the protocol, and did this.
    Holds(String),
    /// It said properly that it cannot do this, which it need not, and why; "as above" if it said so before.
    Declined(String),
    /// The rules it breaks. Problems of an earlier phase are left out, so that the list may be empty.
    Broken(Vec<Problem>),
    /// An earlier phase broke off.
    NotTried,
}

/// How many phases hold, do not hold, and were not tried.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Held {
    pub holds: usize,
    pub declined: usize,
    pub broken: usize,
    pub not_tried: usize,
}

impl Held {
    /// Whether no phase is broken. A worker need not do a phase that it may decline.
    pub fn all(self) -> bool {
        self.broken == 0
    }
}

/// The user interrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interrupted;

/// Checks a worker phase by phase, and passes each phase to `tell` when it is over.
pub fn check(subject: &Subject<'_>, mut tell: impl FnMut(&Phase)) -> Result<Held, Interrupted> {
    let mut known = BTreeSet::new();
    let (mut held, mut goes_on) = (Held::default(), true);
    for (name, phase) in phases::ALL {
        let outcome = if goes_on {
            let ran = phase(subject)?;
            goes_on = ran.goes_on;
            without_known(ran.outcome, &mut known)
        } else {
            Outcome::NotTried
        };
        match outcome {
            Outcome::Holds(_) => held.holds += 1,
            Outcome::Declined(_) => held.declined += 1,
            Outcome::Broken(_) => held.broken += 1,
            Outcome::NotTried => held.not_tried += 1,
        }
        tell(&Phase { name, outcome });
    }
    Ok(held)
}

/// Drops duplicates of problems that were already reported.
fn without_known(outcome: Outcome, known: &mut BTreeSet<String>) -> Outcome {
    match outcome {
        Outcome::Broken(mut problems) => {
            problems.retain(|problem| known.insert(problem.mistake()));
            Outcome::Broken(problems)
        }
        Outcome::Declined(reason) if !known.insert(reason.clone()) => Outcome::Declined("as above".into()),
        other => other,
    }
}

/// The result in one sentence.
pub fn conclusion(held: Held) -> String {
    let Held { holds, declined, broken, not_tried } = held;
    if held.all() {
        let rest =
            if declined == 0 { String::new() } else { format!("; it declines {declined}, which it may") };
        return format!("The worker holds protocol {}: {holds} phases{rest}.", protocol::VERSION);
    }
    let rest =
        if not_tried == 0 { String::new() } else { format!("; {not_tried} were not tried; fix these first") };
    format!(
        "The worker does not hold protocol {}: {broken} of {} phases{rest}.",
        protocol::VERSION,
        phases::ALL.len()
    )
}

/// Width of a phase's name.
const NAMES: usize = 10;

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:NAMES$}", self.name)?;
        match &self.outcome {
            Outcome::Holds(done) => write!(f, "holds: {done}"),
            Outcome::Declined(reason) => write!(f, "declined, which it may: {reason}"),
            Outcome::NotTried => f.write_str("not tried"),
            Outcome::Broken(problems) if problems.is_empty() => f.write_str("does not hold: as above"),
            Outcome::Broken(problems) => {
                f.write_str("does not hold:")?;
                problems.iter().try_for_each(|problem| write!(f, "\n{:NAMES$}{problem}", ""))
            }
        }
    }
}

impl Subject<'_> {
    fn job(&self, task: Task) -> Job {
        Job {
            protocol: protocol::VERSION,
            bundle: self.bundle.directory().display().to_string(),
            model: self.bundle.config().described(),
            settings: Settings {
                decoder: Default::default(),
                precision: self.precision,
                device: self.device.into(),
                threads: self.threads,
                shards: 1,
                jit: self.jit,
                hidden_states: false,
                dequantised: false,
                options: self.options.clone(),
                slowdown: 0.0,
                anew: false,
                serve: Default::default(),
            },
            spawned_at_ns: None,
            evict: false,
            task,
        }
    }

    fn vocabulary(&self) -> usize {
        self.bundle.config().vocab_size
    }
}

// A rule that a worker breaks, and what to do instead.

/// A sentence on one line of a worker's answer, or on one field of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The line on stdout, from 1; `None` for a problem of no line.
    pub line: Option<usize>,
    /// The event on that line.
    pub event: Option<String>,
    /// The field, as in `iterations[0].cases[0].marks_ns`.
    pub field: Option<String>,
    /// The expectation, the finding, and the remedy.
    pub text: String,
}

impl Problem {
    pub(crate) fn new(text: impl Into<String>) -> Problem {
        Problem { line: None, event: None, field: None, text: text.into() }
    }

    /// With a field.
    pub(crate) fn at(field: &str, text: impl Into<String>) -> Problem {
        Problem { field: Some(field.to_owned()), ..Problem::new(text) }
    }

    /// The event's readings that the driver accepts from no worker.
    pub(crate) fn of_readings(event: &Map<String, Value>) -> Vec<Problem> {
        let event = serde_json::from_value(event.clone().into());
        event.map_or_else(
            |_| Vec::new(),
            |event| impossible::readings(&event).into_iter().map(Problem::impossible).collect(),
        )
    }

    fn impossible(reading: Impossible) -> Problem {
        let Impossible { field, value, possible } = reading;
        let (unit, remedy) = if field.ends_with("_ns") {
            let clock =
                "read a monotonic clock in nanoseconds before and after (Python: time.monotonic_ns())";
            (" ns", clock.to_owned())
        } else if field.ends_with("bytes") {
            (" bytes", format!("send {possible}, or null where the system does not report"))
        } else {
            ("", format!("send {possible}"))
        };
        Problem::at(&field, format!("{value}{unit} is impossible; {remedy}"))
    }

    /// With a line, and the event on it.
    pub(crate) fn on(self, line: usize, event: Option<&str>) -> Problem {
        Problem { line: Some(line), event: event.map(str::to_owned), ..self }
    }

    /// A key that is the same for the same mistake in another line, another element of a list, or with
    /// another value.
    pub(crate) fn mistake(&self) -> String {
        let rule = self.text.split(", found ").next().unwrap_or_default();
        let text = format!(
            "{} {} {rule}",
            self.event.as_deref().unwrap_or_default(),
            self.field.as_deref().unwrap_or_default()
        );
        text.split(|c: char| c.is_ascii_digit()).filter(|part| !part.is_empty()).collect::<Vec<_>>().join("#")
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Both may quote the worker.
        let (text, field) = (untrusted::line(&self.text), self.field.as_deref().map(untrusted::line));
        match (self.line, field) {
            (Some(line), Some(field)) => write!(f, "line {line}, `{field}`: {text}"),
            (Some(line), None) => write!(f, "line {line}: {text}"),
            (None, Some(field)) => write!(f, "`{field}`: {text}"),
            (None, None) => f.write_str(&text),
        }
    }
}

/// A program that the system does not start.
fn cannot_start(path: &Path, error: &std::io::Error) -> Problem {
    let path = path.display();
    let remedy = match error.kind() {
        std::io::ErrorKind::PermissionDenied => format!("; make it executable: chmod +x {path}"),
        std::io::ErrorKind::NotFound => {
            "; a script's first line must name a program that is there, as in #!/usr/bin/env python3"
                .to_owned()
        }
        _ if error.raw_os_error() == Some(8) => {
            "; a script's first line must name its language, as in #!/usr/bin/env python3".to_owned()
        }
        _ => String::new(),
    };
    Problem::new(format!("cannot start {path}: {error}{remedy}"))
}

/// Two programs read the clock one after the other.
const SLACK: Duration = Duration::from_millis(1);

fn wrong(is_wrong: bool, field: &str, text: impl Into<String>) -> Option<Problem> {
    is_wrong.then(|| Problem::at(field, text))
}

/// A duration in nanoseconds that must not exceed the time that the driver measured.
fn time(field: &str, ns: u64, at_most: Duration) -> Option<Problem> {
    let text = format!(
        "{:.1} ms is impossible: the driver saw {:.1} ms pass in all; send nanoseconds of a monotonic clock, without \
         the time spent waiting",
        ns as f64 / 1e6,
        at_most.as_secs_f64() * 1e3
    );
    wrong(Duration::from_nanos(ns) > at_most + SLACK, field, text)
}

// The fields of a worker's readings of its process, of the machine and of the GPU.

const GPU: &[Field] = &[must("bytes", Whole(1 << 30)), must("method", Text("NVML, compute processes"))];

const GPU_ALLOCATOR: &[Field] = &[must("in_use_bytes", Whole(1 << 29)), must("peak_bytes", Whole(1 << 29))];

const MEMORY: &[Field] = &[
    may("peak_bytes", Whole(5_836_800)),
    may("resident_bytes", Whole(5_836_800)),
    may("anonymous_bytes", Whole(1_060_864)),
    may("file_bytes", Whole(4_775_936)),
    may("pss_bytes", Whole(3_948_544)),
    may("huge_bytes", Whole(2_097_152)),
    may("method", Text("VmHWM of the process so far")),
    may("gpu", Object(GPU)),
    may("gpu_allocator", Object(GPU_ALLOCATOR)),
];

const ENERGY: &[Field] = &[must("joules", Number(1.5)), must("method", Text("RAPL, package"))];

const GPU_WORK: &[Field] = &[
    may("slowest_mhz", Whole(1_410)),
    may("fastest_mhz", Whole(1_980)),
    may("most_mhz", Whole(1_980)),
    may("celsius", Whole(61)),
    may("held_mean_bytes", Whole(1 << 30)),
    may("held_most_bytes", Whole(1 << 30)),
    must("held_back", List(&Text("its power limit"))),
    must("remarks", List(&Text("the GPU's energy is not available: this GPU does not report it"))),
];

// The files of logits that a worker writes: their shapes, and whether they agree with the tokens that it sent.

/// The expected contents of a parity file for a case.
struct Expected<'a> {
    pub(crate) case: &'a Case,
    pub(crate) vocabulary: usize,
    /// Whether it keeps only the last position of context and prompt.
    pub(crate) prompt_last_only: bool,
    /// Tokens that the worker chose: `[request][batch][new tokens]`.
    pub(crate) chosen: Vec<Vec<Vec<u32>>>,
    /// How far apart two logits may be to count as equal.
    pub(crate) tie: f32,
}

impl Expected<'_> {
    /// Positions of context and prompt in the file.
    fn prefix(&self) -> usize {
        let all = self.case.prefixes().first().map_or(0, Vec::len);
        if self.prompt_last_only { 1 } else { all }
    }

    fn positions(&self) -> usize {
        self.prefix() + self.case.trace.first().map_or(0, Vec::len)
    }

    fn shape(&self) -> logits::Shape {
        [self.case.prompts.len(), self.positions(), self.vocabulary]
    }
}

/// Checks the file of a parity task.
fn parity(file: &Path, expected: &[Expected<'_>]) -> Vec<Problem> {
    if !file.is_file() {
        return vec![missing(file)];
    }
    let shapes: Vec<logits::Shape> = expected.iter().map(Expected::shape).collect();
    let found = match logits::read_parity(file, &shapes) {
        Ok(found) => found,
        Err(reason) => return vec![unreadable(file, &reason)],
    };
    if found.len() != expected.len() {
        let names: Vec<String> = (0..expected.len()).map(|case| format!("case.{case}")).collect();
        let text = format!("{} tensors of cases in {}; write {}", found.len(), name(file), names.join(", "));
        return vec![Problem::at("file", text)];
    }
    let pairs = found.iter().zip(expected).enumerate();
    pairs.filter_map(|(index, (logits, expected))| case(index, logits, expected)).collect()
}

fn case(index: usize, logits: &Logits, expected: &Expected<'_>) -> Option<Problem> {
    let [batch, positions, _] = expected.shape();
    let what = format!("case.{index} in the file");
    if let Some(problem) = shape(&what, logits, expected.shape()) {
        let kept = match expected.prompt_last_only {
            true => "the last position of context and prompt, then one for each token of the trace",
            false => "one position for each token of context, prompt and trace",
        };
        return Some(Problem { text: format!("{} ({kept})", problem.text), ..problem });
    }
    // The logits after the last token of the prompt choose the first new token.
    let first = expected.prefix() - 1;
    for (request, sequences) in expected.chosen.iter().enumerate() {
        for (sequence, tokens) in sequences.iter().enumerate().take(batch) {
            let steps = tokens.iter().enumerate().take(positions - first);
            let mut other = steps.filter(|(step, token)| {
                !is_choice(logits.row(sequence, first + step), **token as usize, expected.tie)
            });
            if let Some((step, token)) = other.next() {
                let best = argmax(logits.row(sequence, first + step));
                let text = format!(
                    "its logits choose token {best} at step {step} of {what}, but request {request} answered {token}; \
                     send the most likely token of each step, computed from the same tokens fed"
                );
                return Some(Problem::at("file", text));
            }
        }
    }
    None
}

/// Checks the file of a score.
fn score(file: &Path, shape_asked: [usize; 3]) -> Vec<Problem> {
    if !file.is_file() {
        return vec![missing(file)];
    }
    match logits::read_score(file, shape_asked) {
        Ok(logits) => shape("logits in the file", &logits, shape_asked).into_iter().collect(),
        Err(reason) => vec![unreadable(file, &reason)],
    }
}

fn shape(what: &str, logits: &Logits, expected: [usize; 3]) -> Option<Problem> {
    let found = [logits.batch, logits.positions, logits.vocabulary];
    if found != expected {
        let text = format!(
            "{what} has shape {found:?}; write f32 [batch, positions, vocabulary], here {expected:?}"
        );
        return Some(Problem::at("file", text));
    }
    let odd = logits.values.iter().filter(|value| !value.is_finite()).count();
    (odd > 0).then(|| {
        Problem::at(
            "file",
            format!("{odd} numbers of {what} are not finite; write the logits as computed, in f32"),
        )
    })
}

fn missing(file: &Path) -> Problem {
    Problem::at("file", format!("{} is not there; write it, and close it, before this event", name(file)))
}

fn unreadable(file: &Path, reason: &str) -> Problem {
    let text =
        format!("{} is not what was asked for: {reason}; write safetensors with F32 tensors", name(file));
    Problem::at("file", text)
}

fn name(file: &Path) -> String {
    file.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_is_the_same_in_another_line_and_with_another_value() {
        let problem = |field: &str, found: &str, line| {
            Problem::at(field, format!("expected a list, found {found}; send [1]")).on(line, Some("sample"))
        };
        let first = problem("marks_ns[0]", "the number 0.5", 6);
        assert_eq!(first.mistake(), problem("marks_ns[12]", "the number 6e-6", 7).mistake());
        assert_ne!(first.mistake(), problem("tokens[0]", "the number 0.5", 6).mistake());
        assert_ne!(first.mistake(), Problem { event: Some("warmup".into()), ..first.clone() }.mistake());
    }
}

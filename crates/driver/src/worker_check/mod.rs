//! Checks a worker, in any language, against `docs/reference/protocol.md`: it is started as for a measurement,
//! its lines are read as the protocol's own types, and their values are compared with the job.
//!
//! A comparison also strikes or leaves out what the protocol allows: that is named beside the phase ([`Phase::lacks`]).

mod phases;
mod rules;
mod talk;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use bundle::{Bundle, Precision};
use comparison::plan::{Failure, Result};
use protocol::untrusted;

use crate::measure::Scratch;
use crate::measure::worker::Worker;
use crate::worker_check::talk::{Stop, Talk};

/// The worker to check, and its model and settings.
pub struct Subject<'a> {
    /// Its `timeout` is the longest wait for one line.
    pub worker: &'a Worker,
    /// An engine whose logits are compared with its own, if there is one.
    pub reference: Option<&'a Worker>,
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
    /// Within the protocol, but a comparison strikes it or has no figure for it.
    pub lacks: Vec<Problem>,
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
    /// Findings that only a comparison minds.
    pub lacks: usize,
}

impl Held {
    /// Whether no phase is broken. A worker need not do a phase that it may decline.
    pub fn all(self) -> bool {
        self.broken == 0
    }
}

/// Checks a worker phase by phase, and passes each phase to `tell` when it is over.
pub fn check(subject: &Subject<'_>, mut tell: impl FnMut(&Phase) -> Result<()>) -> Result<Held> {
    let mut known = BTreeSet::new();
    let (mut held, mut goes_on) = (Held::default(), true);
    for &(name, is_required, phase) in phases::ALL {
        if !goes_on {
            held.not_tried += 1;
            tell(&Phase { name, outcome: Outcome::NotTried, lacks: Vec::new() })?;
            continue;
        }
        let scratch = Scratch::new().map_err(|error| Failure::failed(format!("{error:#}")))?;
        let mut talk = Talk::new(subject, scratch);
        let ran = phase(&mut talk);
        let (mut problems, mut lacks) = talk.into_problems();
        lacks.retain(|lack| known.insert(lack.mistake()));
        held.lacks += lacks.len();
        if let (Err(Stop::Declined(reason)), true) = (&ran, is_required) {
            problems.push(Problem::new(format!("it declines what every worker must do: {reason}")));
        }
        let outcome = match ran {
            Err(Stop::Interrupted) => return Err(Failure::Interrupted),
            ran if !problems.is_empty() => {
                goes_on = ran.is_ok() || (matches!(ran, Err(Stop::Declined(_))) && !is_required);
                problems.retain(|problem| known.insert(problem.mistake()));
                Outcome::Broken(problems)
            }
            Ok(done) => Outcome::Holds(done),
            Err(Stop::Declined(reason)) if known.insert(reason.clone()) => Outcome::Declined(reason),
            Err(Stop::Declined(_)) => Outcome::Declined("as above".into()),
            // The process is gone, which an earlier problem of this run says.
            Err(Stop::Broken) => {
                goes_on = false;
                Outcome::Broken(Vec::new())
            }
        };
        match outcome {
            Outcome::Holds(_) => held.holds += 1,
            Outcome::Declined(_) => held.declined += 1,
            Outcome::Broken(_) => held.broken += 1,
            Outcome::NotTried => {}
        }
        tell(&Phase { name, outcome, lacks })?;
    }
    Ok(held)
}

/// The result in one sentence.
pub fn conclusion(held: Held) -> String {
    let Held { holds, declined, broken, not_tried, lacks } = held;
    let version = protocol::VERSION;
    if held.all() {
        let lacks = if lacks == 0 { "" } else { " A comparison needs more: see above." };
        let rest =
            if declined == 0 { String::new() } else { format!("; it declines {declined}, which it may") };
        return format!("The worker holds protocol {version}: {holds} phases{rest}.{lacks}");
    }
    let rest =
        if not_tried == 0 { String::new() } else { format!("; {not_tried} were not tried; fix these first") };
    format!("The worker does not hold protocol {version}: {broken} of {} phases{rest}.", phases::ALL.len())
}

/// Width of a phase's name.
const NAMES: usize = 10;

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:NAMES$}", self.name)?;
        match &self.outcome {
            Outcome::Holds(done) => write!(f, "holds: {done}")?,
            Outcome::Declined(reason) => write!(f, "declined, which it may: {reason}")?,
            Outcome::NotTried => f.write_str("not tried")?,
            Outcome::Broken(problems) if problems.is_empty() => f.write_str("does not hold: as above")?,
            Outcome::Broken(problems) => {
                f.write_str("does not hold:")?;
                problems.iter().try_for_each(|problem| write!(f, "\n{:NAMES$}{problem}", ""))?;
            }
        }
        self.lacks.iter().try_for_each(|lack| write!(f, "\n{:NAMES$}in a comparison: {lack}", ""))
    }
}

/// A rule that a worker breaks, and what to do instead.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Problem {
    /// The line on stdout, from 1; 0 for a problem of no line.
    pub line: usize,
    /// The event on that line.
    pub event: String,
    /// The field, as in `iterations[0].cases[0].marks_ns`; empty for a problem of the whole line.
    pub field: String,
    /// The finding, the expectation, and the remedy.
    pub text: String,
}

impl Problem {
    fn new(text: impl Into<String>) -> Problem {
        Problem { text: text.into(), ..Problem::default() }
    }

    /// A key that is the same for the same mistake in another line, another element of a list, or with
    /// another number.
    fn mistake(&self) -> String {
        let text = format!("{} {} {}", self.event, self.field, self.text);
        text.split(|c: char| c.is_ascii_digit()).filter(|part| !part.is_empty()).collect::<Vec<_>>().join("#")
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line > 0 {
            write!(f, "line {}", self.line)?;
            if !self.field.is_empty() {
                write!(f, ", `{}`", untrusted::line(&self.field))?;
            }
            f.write_str(": ")?;
        }
        // It may quote the worker.
        f.write_str(&untrusted::line(&self.text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_is_the_same_in_another_line_and_with_another_number() {
        let problem = |field: &str, found: &str, line| Problem {
            line,
            event: "sample".into(),
            field: field.into(),
            text: format!("expected a list, found {found}; send [1]"),
        };
        let first = problem("marks_ns[0]", "the number 0.5", 6);
        assert_eq!(first.mistake(), problem("marks_ns[12]", "the number 6.25", 7).mistake());
        assert_ne!(first.mistake(), problem("tokens[0]", "the number 0.5", 6).mistake());
        assert_ne!(first.mistake(), Problem { event: "warmup".into(), ..first.clone() }.mistake());
    }
}

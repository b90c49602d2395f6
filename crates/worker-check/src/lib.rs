//! Checks a worker, in any language, against `docs/reference/protocol.md`: it is started as the driver starts
//! it, phase by phase, and every line, field and file of its answers is checked.
//!
//! Its results are not judged here. `photofinish compare` does that (rule R11).

mod events;
mod outputs;
mod phases;
mod problem;
mod readings;
mod rules;
mod shape;
mod talk;
mod work;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use bundle::{Bundle, Precision};
use measure::worker::Worker;
use protocol::{Job, Settings, Task};

pub use events::nullable_markdown;
pub use problem::Problem;

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
                precision: self.precision.name().into(),
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

//! What one process yielded: the unit of evidence, kept whole.

use protocol::{ColdStart, Event, Hello, Iteration, Loaded, Started, Usage, WarmupDone};
use serde::Serialize;

use crate::judge::parity::Agreement;
use crate::machine::Noise;
use crate::process::{Ending, Outcome};

/// What a process was for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Purpose {
    /// The measurement of a round.
    Measure,
    /// A load from a page cache that the weights were dropped from.
    ColdLoad,
}

/// One process of one contender in one round.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Run {
    pub(crate) purpose: Purpose,
    pub(crate) round: usize,
    /// A round on a noisy machine is done again: counts from 0, and the last one stands.
    pub(crate) attempt: usize,
    /// Place within the round's order, from 0.
    pub(crate) position: usize,
    pub(crate) framework: String,
    pub(crate) pid: u32,
    /// `None` when the job was done.
    pub(crate) failure: Option<RunFailure>,
    /// Every event as the worker sent it.
    pub(crate) events: Vec<Event>,
    pub(crate) agreement: Option<Agreement>,
    /// What else the machine did meanwhile.
    pub(crate) noise: Option<Noise>,
}

/// When a process ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) round: usize,
    pub(crate) attempt: usize,
    pub(crate) position: usize,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct RunFailure {
    pub(crate) kind: FailureKind,
    pub(crate) reason: String,
    /// The last line of the worker's stderr, where it ended without reporting.
    pub(crate) last_words: Option<String>,
    /// The shell line that repeats it.
    pub(crate) repeat: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FailureKind {
    Unsupported,
    OutOfMemory,
    Failed,
    Interrupted,
}

impl RunFailure {
    /// One sentence.
    pub(crate) fn sentence(&self) -> String {
        match &self.last_words {
            Some(words) if !self.reason.contains(words.as_str()) => {
                format!("{}; its last words: {words}", self.reason)
            }
            _ => self.reason.clone(),
        }
    }

    pub(crate) fn of(ending: Ending) -> Option<RunFailure> {
        let (kind, reason, last_words) = match ending {
            Ending::Done => return None,
            Ending::Interrupted => (FailureKind::Interrupted, "interrupted".to_owned(), None),
            Ending::OutOfMemory { reason } => (FailureKind::OutOfMemory, reason, None),
            Ending::Broken { reason, last_words } => (FailureKind::Failed, reason, last_words),
            Ending::Reported(failed) => {
                let kind = match failed.kind {
                    protocol::FailureKind::Unsupported => FailureKind::Unsupported,
                    protocol::FailureKind::Input | protocol::FailureKind::Failed => FailureKind::Failed,
                };
                let reason = failed.reason.trim_start_matches("unsupported: ").to_owned();
                (kind, reason, None)
            }
        };
        Some(RunFailure { kind, reason, last_words, repeat: None })
    }
}

/// The first event of one kind.
macro_rules! event {
    ($name:ident, $variant:ident, $type:ty) => {
        pub(crate) fn $name(&self) -> Option<&$type> {
            self.events.iter().find_map(|event| match event {
                Event::$variant(inner) => Some(inner),
                _ => None,
            })
        }
    };
}

impl Run {
    pub(crate) fn new(purpose: Purpose, place: Place, framework: &str, outcome: Outcome) -> Run {
        let Place { round, attempt, position } = place;
        Run {
            purpose,
            round,
            attempt,
            position,
            framework: framework.to_owned(),
            pid: outcome.pid,
            failure: RunFailure::of(outcome.ending),
            events: outcome.events,
            agreement: None,
            noise: None,
        }
    }

    event!(hello, Hello, Hello);
    event!(started, Started, Started);
    event!(loaded, Loaded, Loaded);
    event!(cold_start, ColdStart, ColdStart);
    event!(warmup, Warmup, WarmupDone);
    event!(usage, Usage, Usage);

    pub(crate) fn iterations(&self) -> impl Iterator<Item = &Iteration> {
        self.events.iter().filter_map(|event| match event {
            Event::Iteration(iteration) => Some(iteration),
            _ => None,
        })
    }

    /// Whether the whole measurement is there.
    pub(crate) fn is_complete(&self) -> bool {
        self.failure.is_none()
    }
}

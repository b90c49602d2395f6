//! Common parts of several callers' requests, for all kinds of work.

use protocol::{Arrivals, Load, Sample};

use super::WorkKind;

/// The kind of work of requests that several callers make.
pub(super) fn kind(load: Load) -> WorkKind {
    match load {
        Load { search: Some(_), .. } => WorkKind::Goodput,
        Load { arrivals: Some(_), .. } => WorkKind::Arrivals,
        _ => WorkKind::Callers,
    }
}

/// How requests come, for people: "8 callers, turns of 64 requests".
pub(super) fn words(load: Load) -> String {
    let come = match load {
        Load { search: Some(_), .. } => "the highest rate at which answers come in time".to_owned(),
        Load { arrivals: Some(Arrivals { rate, .. }), .. } => format!("{rate} requests a second at random"),
        Load { callers, .. } => format!("{callers} callers"),
    };
    format!("{come}, turns of {} requests", load.requests)
}

/// Whether a turn has all its requests.
pub(super) fn has_all(load: Option<Load>, sample: &Sample) -> bool {
    match load {
        None => true,
        // The search decides how many requests it makes.
        Some(Load { search: Some(_), .. }) => !sample.calls.is_empty(),
        Some(load) => sample.calls.len() == load.requests,
    }
}

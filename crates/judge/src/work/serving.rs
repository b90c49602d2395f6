//! Requests of several callers, of any kind of work: their metrics, and their fields in a record.

use history::Case;
use plan::WorkKind;
use protocol::Load;
use serde_json::{Value, json};

use super::Selection;
use crate::metric::Metric::*;

const NAME: &str = "load";

/// Callers that make a request when their last is answered: throughput decides.
pub(super) const CALLERS: Selection = Selection {
    replaced: &[
        (Latency, CallLatency),
        (Throughput, RequestThroughput),
        (FirstToken, CallLatency),
        (PrefillThroughput, RequestThroughput),
        (Total, CallLatency),
    ],
    replaces_in_tables: true,
    follows: &[],
};

/// The search for the highest rate: that rate decides.
pub(super) const GOODPUT: Selection = Selection {
    replaced: &[
        (Latency, CallLatency),
        (Throughput, Goodput),
        (FirstToken, CallLatency),
        (PrefillThroughput, Goodput),
        (Total, CallLatency),
    ],
    replaces_in_tables: true,
    follows: &[(CallLatency, Goodput)],
};

/// Requests that come at random: throughput is the requested rate, as long as it is kept up with.
pub(super) const ARRIVALS: Selection = Selection {
    replaced: &[
        (Latency, CallLatency),
        (Throughput, CallLatency),
        (FirstToken, CallLatency),
        (PrefillThroughput, CallLatency),
        (Total, CallLatency),
    ],
    replaces_in_tables: true,
    follows: &[],
};

/// The fields of a record, without the seed of arrivals, which is the run's.
pub(super) fn case(load: Load) -> (String, Value) {
    let Load { callers, arrivals, search, .. } = load;
    let value = match (arrivals, search) {
        (_, Some(search)) => json!({ "callers": callers, "limit_ms": search.limit_ns as f64 / 1e6 }),
        (None, None) => json!({ "callers": callers }),
        (Some(arrivals), None) => json!({ "callers": callers, "arrivals": arrivals.rate }),
    };
    (NAME.to_owned(), value)
}

/// The kind of work of a record, if several callers made its requests.
pub(super) fn kind(case: &Case) -> Option<WorkKind> {
    let load = case.other.get(NAME)?;
    Some(match load {
        load if load.get("limit_ms").is_some() => WorkKind::Goodput,
        load if load.get("arrivals").is_some() => WorkKind::Arrivals,
        _ => WorkKind::Callers,
    })
}

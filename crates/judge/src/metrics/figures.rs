//! Figures of single requests and processes, from which metrics are computed.

use facts::run::Run;

use super::work::Request;

/// A count per second of a request.
pub(super) fn a_second(request: &Request<'_>, count: usize) -> Option<f64> {
    let ns = request.sample.marks_ns.end() as f64;
    (ns > 0.0).then(|| count as f64 * 1e9 / ns)
}

/// The rate at which the requests were due.
pub(super) fn goodput(request: &Request<'_>) -> Option<f64> {
    let due_ns = request.sample.calls.iter().map(|call| call.asked_ns).max()? as f64;
    (due_ns > 0.0).then(|| request.sample.calls.len() as f64 * 1e9 / due_ns)
}

/// The rate of answers as a share of the rate of requests: the time in which they were due ÷ the time until
/// the last answer.
pub(super) fn kept_up(request: &Request<'_>) -> Option<f64> {
    let due = request.sample.calls.iter().map(|call| call.asked_ns).max()? as f64;
    let done = request.sample.marks_ns.end() as f64;
    (done > 0.0).then(|| 100.0 * due / done)
}

/// Seconds to the last mark of the first request; its first mark came after so many nanoseconds. `None` if
/// the worker did not time as many marks as in its turns.
pub(super) fn whole_s(run: &Run, first_ns: u64) -> Option<f64> {
    let marks = &run.cold_start()?.marks_ns;
    let is_whole = marks.len() == run.turns.first()?.sample.marks_ns.len();
    is_whole.then(|| (first_ns + marks.after_first()) as f64 / 1e9)
}

pub(super) fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

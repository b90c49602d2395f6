//! Figures of requests that go token by token.

use super::Request;

/// Tokens of all sequences together per second of decoding.
pub(in super::super) fn decoded_a_second(request: &Request<'_>) -> Option<f64> {
    Some(request.size.batch as f64 * 1e9 / request.mean_gap_ns()?)
}

//! What requests that encode texts are made of.

use protocol::Output;

use super::Request;

/// Share of the positions that a request computed which hold no token, in percent.
pub(in super::super) fn padding(request: &Request<'_>) -> Option<f64> {
    let Output::Vectors(output) = &request.sample.output else { return None };
    let (tokens, positions) = (request.size.prompt_tokens as f64, output.positions as f64);
    // A worker that computes fewer positions than there are tokens does not tell the truth about them.
    (positions > 0.0 && positions >= tokens).then(|| 100.0 * (1.0 - tokens / positions))
}

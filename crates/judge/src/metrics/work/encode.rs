//! Figures of requests that encode texts.

use protocol::Output;

use super::Request;

/// Share of a request's computed positions without a token, in percent.
pub(in super::super) fn padding(request: &Request<'_>) -> Option<f64> {
    let Output::Vectors(output) = &request.sample.output else { return None };
    let (tokens, positions) = (request.size.prompt_tokens as f64, output.positions as f64);
    // A worker that reports fewer positions than tokens is not believed.
    (positions > 0.0 && positions >= tokens).then(|| 100.0 * (1.0 - tokens / positions))
}

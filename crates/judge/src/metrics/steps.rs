//! What requests of masked diffusion are made of.

use super::Request;

/// A request of masked diffusion.
pub(super) struct Steps {
    pub(super) ns: f64,
    pub(super) sampler_ns: f64,
    pub(super) count: f64,
    /// New tokens of all sequences.
    pub(super) tokens: f64,
}

impl Steps {
    /// `None` where requests go token by token.
    pub(super) fn new(request: &Request<'_>) -> Option<Steps> {
        let sampler_ns = &request.sample.sampler_ns;
        (!sampler_ns.is_empty()).then(|| Steps {
            ns: request.sample.request_ns() as f64,
            sampler_ns: sampler_ns.iter().sum::<u64>() as f64,
            count: sampler_ns.len() as f64,
            tokens: request.sample.tokens.iter().map(Vec::len).sum::<usize>() as f64,
        })
    }
}

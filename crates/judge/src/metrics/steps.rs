//! What requests of masked diffusion are made of.

use protocol::CaseSample;

use super::Samples;

/// Requests of masked diffusion, together.
pub(super) struct Steps {
    pub(super) ns: f64,
    pub(super) sampler_ns: f64,
    pub(super) count: f64,
    /// New tokens of all sequences.
    pub(super) tokens: f64,
}

impl Steps {
    /// `None` where requests go token by token.
    pub(super) fn new(samples: &Samples<'_>) -> Option<Steps> {
        let sum =
            |each: fn(&CaseSample) -> u64| samples.cases.iter().map(|case| each(case)).sum::<u64>() as f64;
        let count = sum(|case| case.sampler_ns.len() as u64);
        (count > 0.0).then(|| Steps {
            ns: sum(|case| case.first_token_ns + case.gaps_ns.iter().sum::<u64>()),
            sampler_ns: sum(|case| case.sampler_ns.iter().sum()),
            count,
            tokens: sum(|case| case.tokens.iter().map(|row| row.len() as u64).sum()),
        })
    }
}

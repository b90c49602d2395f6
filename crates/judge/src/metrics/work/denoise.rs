//! Figures of masked-diffusion requests.

use protocol::Output;

use super::Request;
use crate::metrics::phrases::Phrases;

/// A request of masked diffusion. All its steps are assumed to last as long as those that count: those just
/// after a pause do not count, and for a slice only its own do.
pub(in super::super) struct Steps {
    pub(in super::super) ns: f64,
    pub(in super::super) sampler_ns: f64,
    pub(in super::super) count: f64,
    /// New tokens of all sequences.
    pub(in super::super) tokens: f64,
}

impl Steps {
    /// The words for its speed.
    pub(in super::super) const TOLD: Phrases = Phrases {
        verb: "denoises",
        comparative: "faster",
        superlative: "denoises fastest",
        equal: "denoise equally fast",
    };

    /// `None` if requests go token by token.
    pub(in super::super) fn new(request: &Request<'_>) -> Option<Steps> {
        let Output::Steps(steps) = &request.sample.output else { return None };
        let marks = &request.sample.marks_ns;
        if steps.passes_ns.len() != marks.len() {
            return None;
        }
        let starts = [0].into_iter().chain(marks.0.iter().copied());
        let all = starts.zip(&steps.passes_ns).zip(&marks.0).enumerate();
        // A gap begins after the first step, which is part of the first slice.
        let is_timed =
            |place: usize| place.checked_sub(1).map_or(request.gaps.start == 0, |gap| request.times(gap));
        let (mut ns, mut sampler_ns, mut timed) = (0, 0, 0);
        for (_, ((start, pass), mark)) in all.filter(|(place, _)| is_timed(*place)) {
            ns += mark.saturating_sub(start);
            sampler_ns += mark.saturating_sub(*pass);
            timed += 1;
        }
        let scale = marks.len() as f64 / f64::from(timed);
        (timed > 0).then(|| Steps {
            ns: ns as f64 * scale,
            sampler_ns: sampler_ns as f64 * scale,
            count: marks.len() as f64,
            tokens: steps.tokens.iter().map(Vec::len).sum::<usize>() as f64,
        })
    }
}

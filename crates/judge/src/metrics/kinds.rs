//! The kinds of work that have a metric.

use plan::WorkKind;

/// Kinds of work with requests that go token by token.
pub(super) const TOKENS: &[WorkKind] = &[WorkKind::TokenByToken, WorkKind::OneToken];
/// Kinds of work with latencies: times between tokens, of single texts, or of runs.
pub(super) const LATENCIES: &[WorkKind] = &[
    WorkKind::TokenByToken,
    WorkKind::OneToken,
    WorkKind::Encoding,
    WorkKind::SingleText,
    WorkKind::Graph,
    WorkKind::Callers,
    WorkKind::Arrivals,
    WorkKind::Goodput,
];
pub(super) const STEPS: &[WorkKind] = &[WorkKind::Denoising];
pub(super) const TEXTS: &[WorkKind] = &[WorkKind::Encoding, WorkKind::ManyTexts, WorkKind::SingleText];
pub(super) const MANY_TEXTS: &[WorkKind] = &[WorkKind::Encoding, WorkKind::ManyTexts];
pub(super) const CALLERS: &[WorkKind] = &[WorkKind::Callers, WorkKind::Arrivals, WorkKind::Goodput];
pub(super) const GOODPUT: &[WorkKind] = &[WorkKind::Goodput];
pub(super) const ARRIVALS: &[WorkKind] = &[WorkKind::Arrivals];
pub(super) const RUNS: &[WorkKind] = &[WorkKind::Graph];
pub(super) const SINGLE_TEXTS: &[WorkKind] = &[WorkKind::Encoding, WorkKind::SingleText];
/// Callers with a given number or rate.
pub(super) const GIVEN: &[WorkKind] = &[WorkKind::Callers, WorkKind::Arrivals];

//! Continuation, token by token.

use super::Kind;
use crate::metrics::Metric::{self, *};

const OF_STEPS: &[Metric] = &[StepTime, DenoisingThroughput, StepsPerSecond, SamplerShare];

pub(super) const TOKENS: Kind =
    Kind { replaced: &[], replaces_in_tables: true, absent: OF_STEPS, follows: &[(Latency, Throughput)] };

/// Requests for one token, which decode nothing.
pub(super) const ONE_TOKEN: Kind = Kind {
    replaced: &[(Latency, FirstToken), (Throughput, PrefillThroughput)],
    replaces_in_tables: false,
    absent: OF_STEPS,
    follows: &[(FirstToken, PrefillThroughput), (Total, PrefillThroughput)],
};

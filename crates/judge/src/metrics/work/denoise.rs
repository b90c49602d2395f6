//! Masked diffusion: steps in the place of tokens.

use super::Kind;
use crate::metrics::Metric::*;

pub(super) const STEPS: Kind = Kind {
    replaced: &[
        (Latency, StepTime),
        (Throughput, DenoisingThroughput),
        (FirstToken, Total),
        (PrefillThroughput, StepsPerSecond),
    ],
    replaces_in_tables: true,
    absent: &[
        Latency,
        Throughput,
        FirstToken,
        PrefillThroughput,
        LatencyP50,
        LatencyP90,
        LatencyP95,
        LatencyP99,
        PeakThroughput,
        Efficiency,
    ],
    follows: &[(StepTime, DenoisingThroughput), (Total, DenoisingThroughput)],
};

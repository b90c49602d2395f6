//! Impossible results: each is flagged in the report, whatever the rules decide. Either the measurement or
//! our understanding of it is wrong.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use statistics::median;

use crate::metrics::{Metric, by_round};
use crate::report::work::limit::{self, Limit};
use facts::evidence::Evidence;
use facts::run::Run;
use plan::Plan;

/// An impossible result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Flag {
    pub framework: String,
    pub kind: Kind,
    pub finding: String,
}

/// The reason why a result is impossible.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Weights were read faster than the machine can read.
    AboveBandwidth,
    /// More bytes in less time.
    WiderIsFaster,
    /// Samples that do not add up to the time they took.
    SamplesDisagree,
    /// Less memory than the weights need.
    BelowWeights,
}

impl Flag {
    /// Whether figures of this metric cannot be believed either. A format of half the bytes may have slower
    /// kernels.
    pub fn spoils(&self, metric: Metric) -> bool {
        match self.kind {
            Kind::AboveBandwidth => metric.depends_on_speed(),
            Kind::SamplesDisagree => metric.is_of_requests(),
            Kind::BelowWeights => metric == Metric::PeakMemory,
            Kind::WiderIsFaster => false,
        }
    }
}

/// Two sweeps of the same buffer differ by a few percent, and by more if huge pages are only sometimes
/// available; an impossible rate must exceed that.
const BANDWIDTH_SLACK: f64 = 1.25;
/// A whole iteration is its samples, a few microseconds for each case, and a moment off the CPU now and then.
const SAMPLE_SLACK: f64 = 0.05;

/// Every impossible result.
pub fn flags(plan: &Plan, evidence: &Evidence, limits: &BTreeMap<String, Limit>) -> Vec<Flag> {
    let mut flags = Vec::new();
    for contender in &plan.contenders {
        let label = contender.label.as_str();
        let runs: Vec<&Run> =
            evidence.runs.iter().filter(|run| run.framework == label && run.is_complete()).collect();
        let mut flag = |kind: Kind, finding: Option<String>| {
            flags.extend(finding.map(|finding| Flag { framework: label.to_owned(), kind, finding }));
        };
        let limit = limits.get(label);
        flag(Kind::AboveBandwidth, limit.and_then(|limit| above_bandwidth(plan, evidence, label, limit)));
        flag(Kind::SamplesDisagree, runs.iter().find_map(|run| samples_disagree(plan, run)));
        flag(Kind::BelowWeights, runs.iter().find_map(|run| below_weights(run, limit?.weights)));
    }
    flags.extend(wider_is_faster(plan, evidence));
    flags
}

/// A decode step of a dense model reads every weight once, for all sequences of the batch.
fn above_bandwidth(plan: &Plan, evidence: &Evidence, label: &str, limit: &Limit) -> Option<String> {
    let best = limit::probes(plan, evidence).map(|probe| probe.best_read_bandwidth).reduce(f64::max)?;
    let bytes = limit.weights;
    let rates = by_round(Metric::Throughput, plan, evidence, label).into_iter().flatten();
    let steps = rates.reduce(f64::max)? / plan.work.batch() as f64;
    let needed = steps * bytes;
    (needed > BANDWIDTH_SLACK * best).then(|| {
        format!(
            "{steps:.1} steps a second over {:.0} MB of weights are {:.1} GB/s, but {} was measured to read {:.1} GB/s",
            bytes / 1e6,
            needed / 1e9,
            if plan.device == "cpu" { "the machine" } else { plan.device.as_str() },
            best / 1e9
        )
    })
}

/// The gaps give one throughput; the time of whole iterations, less the first tokens, another. Gaps that are longer than
/// the whole are a slow moment that it missed, if the driver's clock saw as much time.
fn samples_disagree(plan: &Plan, run: &Run) -> Option<String> {
    let wall = run.usage()?.wall_ns as f64;
    // All requests, including those of repeated blocks: the wall time includes them.
    let cases = run.all_requests();
    let first: u64 = cases.iter().map(|case| case.marks_ns.first()).sum();
    let gaps: Vec<u64> = cases.iter().flat_map(|case| case.marks_ns.gaps()).collect();
    let mean_gap = gaps.iter().sum::<u64>() as f64 / gaps.len() as f64;
    let by_wall = (wall - first as f64) / gaps.len() as f64;
    let (by_gaps, by_wall) =
        (plan.work.batch() as f64 * 1e9 / mean_gap, plan.work.batch() as f64 * 1e9 / by_wall);
    let claimed: u64 = cases.iter().map(|case| case.marks_ns.end()).sum();
    let seen: u64 = run.turns.iter().flat_map(|turn| &turn.seen_ns).sum();
    let agrees = (by_gaps / by_wall - 1.0).abs() <= SAMPLE_SLACK || by_gaps < by_wall && seen >= claimed;
    (!gaps.is_empty() && !agrees).then(|| {
        format!(
            "a mean gap of {:.3} ms means {by_gaps:.1} tok/s, but whole iterations took as long as {by_wall:.1} tok/s",
            mean_gap / 1e6
        )
    })
}

/// `weights`: bytes of those that every step reads. For a mapped table used for lookup, few pages need be
/// resident.
fn below_weights(run: &Run, weights: f64) -> Option<String> {
    let peak = run.peak_bytes()? as f64;
    (peak < weights).then(|| {
        format!(
            "its peak memory of {:.1} MB is below the {:.1} MB of weights that every step reads",
            peak / 1e6,
            weights / 1e6
        )
    })
}

/// The same framework in f32 and in half the bytes, where decoding is bound by reading them.
fn wider_is_faster(plan: &Plan, evidence: &Evidence) -> Vec<Flag> {
    let rate = |label: &str| {
        median(&by_round(Metric::Throughput, plan, evidence, label).into_iter().flatten().collect::<Vec<_>>())
    };
    let mut flags = Vec::new();
    for wide in plan.contenders.iter().filter(|c| c.precision == bundle::Precision::F32) {
        let narrow = plan.contenders.iter().filter(|c| {
            c.precision != bundle::Precision::F32
                && c.engine.framework == wide.engine.framework
                && c.engine.options == wide.engine.options
        });
        for narrow in narrow {
            if let (Some(of_wide), Some(of_narrow)) = (rate(&wide.label), rate(&narrow.label))
                && of_wide > of_narrow
            {
                flags.push(Flag {
                    framework: narrow.label.clone(),
                    kind: Kind::WiderIsFaster,
                    finding: format!(
                        "{of_narrow:.1} tok/s in {}, but {of_wide:.1} in f32, which reads more bytes",
                        narrow.precision.name()
                    ),
                });
            }
        }
    }
    flags
}

#[cfg(test)]
mod tests {
    use protocol::{Event, Marks, Sample};

    use super::*;
    use crate::report::verdicts::Unmeasurable;
    use facts::testing::{self, loaded, usage};

    /// One process: two gaps of 10 ms after a first token of 5 ms, in `wall_ms`.
    fn evidence(wall_ms: u64, peak_bytes: u64, bandwidth: f64) -> Evidence {
        let case = Sample { marks_ns: Marks::new(5_000_000, [10_000_000; 2]), ..Sample::default() };
        let mut usage = usage();
        (usage.wall_ns, usage.peak_bytes) = (wall_ms * 1_000_000, Some(peak_bytes));
        let events = vec![Event::Loaded(loaded(1_000_000)), Event::Usage(usage)];
        Evidence {
            runs: vec![testing::measured("a", 0, events, vec![vec![case]])],
            probes: vec![testing::probe(bandwidth, 1.0)],
            rounds: 1,
            ..Evidence::default()
        }
    }

    /// One megabyte of weights.
    fn limits() -> BTreeMap<String, Limit> {
        let limit = Limit {
            weights: 1e6,
            kv_cache: 0.0,
            operations: 0.0,
            decode: None,
            prefill: None,
            encoding: None,
        };
        BTreeMap::from([("a".to_owned(), limit)])
    }

    fn kinds(evidence: &Evidence) -> Vec<Kind> {
        flags(&testing::plan(&["a"]), evidence, &limits()).into_iter().map(|flag| flag.kind).collect()
    }

    #[test]
    fn a_result_that_can_be_has_no_flag() {
        assert_eq!(kinds(&evidence(25, 2_000_000, 1e9)), []);
    }

    #[test]
    fn impossible_results_are_flagged() {
        // A hundred steps a second over 1 MB of weights need 100 MB/s.
        assert_eq!(kinds(&evidence(25, 2_000_000, 60e6)), [Kind::AboveBandwidth]);
        assert_eq!(kinds(&evidence(50, 2_000_000, 1e9)), [Kind::SamplesDisagree]);
        assert_eq!(kinds(&evidence(25, 900_000, 1e9)), [Kind::BelowWeights]);
    }

    #[test]
    fn what_depends_on_an_impossible_result_has_no_verdict() {
        let spoilt = |kind| {
            let flag = Flag { framework: "a".into(), kind, finding: "it cannot be".into() };
            [Metric::Throughput, Metric::Total, Metric::PeakMemory].map(|metric| flag.spoils(metric))
        };
        assert_eq!(spoilt(Kind::AboveBandwidth), [true, true, false]);
        assert_eq!(spoilt(Kind::BelowWeights), [false, false, true]);
        let plan = testing::plan(&["a", "b"]);
        let mut slower = evidence(25, 2_000_000, 1e9);
        slower.runs[0].framework = "b".into();
        let mut both = evidence(25, 2_000_000, 1e9);
        both.runs.extend(slower.runs);
        let compared = crate::report::verdicts::compare(&plan, &both, vec!["a".into(), "b".into()], None);
        let flag = Flag { framework: "b".into(), kind: Kind::BelowWeights, finding: "it cannot be".into() };
        let judged = crate::report::verdicts::without_impossible(compared, &[flag]);
        let reasons = judged.iter().filter(|one| matches!(one.reason, Some(Unmeasurable::Impossible { .. })));
        assert_eq!(reasons.map(|one| one.metric).collect::<Vec<_>>(), [Metric::PeakMemory]);
    }

    #[test]
    fn f32_faster_than_half_the_bytes_is_flagged() {
        let mut evidence = evidence(25, 2_000_000, 1e9);
        let mut slower = evidence.runs[0].clone();
        slower.framework = "b".into();
        slower.turns[0].sample.marks_ns = Marks::new(5_000_000, [12_000_000, 8_500_000]);
        evidence.runs.push(slower);
        let mut plan = testing::plan(&["a", "b"]);
        plan.contenders[1].precision = bundle::Precision::F16;
        plan.contenders[1].engine.framework = "a".into();
        let found: Vec<_> =
            flags(&plan, &evidence, &limits()).into_iter().map(|f| (f.framework, f.kind)).collect();
        assert_eq!(found, [("b".to_owned(), Kind::WiderIsFaster)]);
    }
}

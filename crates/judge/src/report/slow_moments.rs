//! Slow moments that a contender causes itself: collecting garbage, growing a cache, compiling again. What is tested
//! leaves out the slowest moments of each process, because most are the machine's. A contender that has more of them
//! than the others causes them, and then its averages are tested.

use plan::Plan;
use serde::{Deserialize, Serialize};
use statistics::median;

use crate::metrics::{self, Metric};
use facts::evidence::Evidence;
use facts::run::Run;

/// Share by which an average has to differ from the typical value, beyond that of the others.
const LEAST: f64 = 0.02;
/// A moment is slow if it takes as many times as long as the median of its request.
const SLOW: f64 = 1.5;

/// The slow moments of one contender.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SlowMoments {
    pub contender: String,
    /// The metric that they change most.
    pub metric: Metric,
    /// How much worse its average is than its typical value, as a share.
    pub share: f64,
    /// Their number, and that of the requests that had them.
    pub count: usize,
    pub requests: usize,
    /// Median of the time beyond that of an ordinary moment, in milliseconds.
    pub length_ms: f64,
}

/// The values of one contender that verdicts compare: the typical ones, or its averages if it has slow moments of its
/// own.
pub(crate) fn to_compare(metric: Metric, plan: &Plan, evidence: &Evidence, label: &str) -> Vec<Option<f64>> {
    let averages = metrics::by_round(metric, plan, evidence, label);
    if !metric.is_of_requests() || excess(metric, plan, evidence, label).is_some() {
        return averages;
    }
    metrics::typical(metric, 0..plan.work.cases(), plan, evidence, label)
}

/// How much worse the average of a contender is than its typical value, as a share: `None` if it is not by more than
/// the least share, or not by that much more than for the others.
pub(crate) fn excess(metric: Metric, plan: &Plan, evidence: &Evidence, label: &str) -> Option<f64> {
    let own = parting(metric, plan, evidence, label)?;
    let others: Vec<f64> = plan
        .contenders
        .iter()
        .filter(|other| other.label != label)
        .filter_map(|other| parting(metric, plan, evidence, &other.label))
        .collect();
    let machine = median(&others).unwrap_or(0.0).max(0.0);
    (own - machine > LEAST.ln_1p()).then(|| own.exp_m1())
}

/// The median over rounds of the logarithm of average ÷ typical value, in time: positive if the average is slower. The
/// median, because a moment that recurs is the contender's own.
fn parting(metric: Metric, plan: &Plan, evidence: &Evidence, label: &str) -> Option<f64> {
    if !metric.is_of_requests() {
        return None;
    }
    let averages = metrics::by_round(metric, plan, evidence, label);
    let typical = metrics::typical(metric, 0..plan.work.cases(), plan, evidence, label);
    let mut all = Vec::new();
    for (average, typical) in averages.into_iter().zip(typical) {
        let (Some(average), Some(typical)) = (average, typical) else { continue };
        let log = if metric.higher_is_better() { typical / average } else { average / typical };
        all.push(log.ln());
    }
    median(&all).filter(|log| log.is_finite())
}

/// The contenders that have slow moments of their own in a question of the answer.
pub(super) fn slow_moments(plan: &Plan, evidence: &Evidence) -> Vec<SlowMoments> {
    let mut found = Vec::new();
    for contender in &plan.contenders {
        let label = &contender.label;
        let mut worst: Option<(Metric, f64)> = None;
        for metric in Metric::questions(plan.work.kind()) {
            if let Some(share) = excess(metric, plan, evidence, label)
                && worst.is_none_or(|(_, most)| share > most)
            {
                worst = Some((metric, share));
            }
        }
        let Some((metric, share)) = worst else { continue };
        let runs: Vec<&Run> = evidence.complete(label).collect();
        let (lengths, requests) = lengths_ms(&runs);
        let Some(length_ms) = median(&lengths) else { continue };
        found.push(SlowMoments {
            contender: label.clone(),
            metric,
            share,
            count: lengths.len(),
            requests,
            length_ms,
        });
    }
    found
}

/// How much longer each slow moment took than an ordinary one, and the number of requests that had any: gaps between
/// tokens or steps, or whole requests without such gaps.
fn lengths_ms(runs: &[&Run]) -> (Vec<f64>, usize) {
    let (mut lengths, mut with_any) = (Vec::new(), 0);
    for run in runs {
        let by_request: Vec<Vec<u64>> =
            run.requests().map(|(_, sample)| sample.timed_gaps().collect()).collect();
        let whole: Vec<u64> = run.requests().map(|(_, sample)| sample.marks_ns.end()).collect();
        let groups = if by_request.iter().any(|gaps| gaps.len() > 1) { by_request } else { vec![whole] };
        for group in groups {
            let times: Vec<f64> = group.iter().map(|ns| *ns as f64 / 1e6).collect();
            let Some(ordinary) = median(&times) else { continue };
            let before = lengths.len();
            lengths.extend(times.iter().filter(|ms| **ms > SLOW * ordinary).map(|ms| ms - ordinary));
            with_any += usize::from(lengths.len() > before);
        }
    }
    (lengths, with_any)
}

#[cfg(test)]
mod tests {
    use protocol::{Marks, Sample};

    use super::*;
    use facts::testing;
    use plan::Schedule;

    /// Six rounds of requests of 40 tokens in slices of 4; `stall_ms` once in each request of the first contender.
    fn evidence(stall_ms: u64, of_both: bool) -> Evidence {
        let mut runs = Vec::new();
        for round in 0..6 {
            for label in ["a", "b", "c"] {
                let stalls = label == "a" || of_both;
                let gap =
                    |place: usize| 10_000_000 + if place == 17 && stalls { stall_ms * 1_000_000 } else { 0 };
                let marks_ns = Marks::new(30_000_000, (0..40).map(gap));
                let sample = Sample { marks_ns, lead_in: (0..40).step_by(5).collect(), ..Sample::default() };
                runs.push(testing::measured(label, round, Vec::new(), vec![vec![sample]]));
            }
        }
        Evidence { runs, rounds: 6, ..Evidence::default() }
    }

    fn found(stall_ms: u64, of_both: bool) -> Vec<SlowMoments> {
        let plan = Plan { schedule: Schedule::Interleaved, ..testing::plan(&["a", "b", "c"]) };
        slow_moments(&plan, &evidence(stall_ms, of_both))
    }

    #[test]
    fn a_stall_of_its_own_is_counted_timed_and_tested() {
        let [slow] = &found(28, false)[..] else { panic!("{:?}", found(28, false)) };
        assert_eq!((slow.contender.as_str(), slow.count, slow.requests), ("a", 6, 6));
        assert!((slow.length_ms - 28.0).abs() < 1e-9 && (slow.share - 28.0 / 320.0).abs() < 0.01, "{slow:?}");
        let plan = Plan { schedule: Schedule::Interleaved, ..testing::plan(&["a", "b", "c"]) };
        let tested = to_compare(Metric::Latency, &plan, &evidence(28, false), "a")[0].unwrap();
        assert!((tested - (10.0 + 28.0 / 32.0)).abs() < 1e-9, "{tested}");
    }

    #[test]
    fn what_all_have_or_what_is_short_is_not_its_own() {
        assert_eq!(found(28, true), []);
        assert_eq!(found(5, false), []);
    }
}

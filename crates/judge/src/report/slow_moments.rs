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

/// The figures of one metric, of every contender of the plan in its order, by round.
pub(crate) struct Figures {
    pub(crate) average: Vec<Vec<Option<f64>>>,
    /// Without the slowest and the fastest moments; the averages for a metric that is not of requests.
    pub(crate) typical: Vec<Vec<Option<f64>>>,
    /// By how much averages are worse than typical values, as a share, for contenders with slow moments of their own.
    excess: Vec<Option<f64>>,
}

impl Figures {
    pub(crate) fn new(metric: Metric, plan: &Plan, evidence: &Evidence) -> Figures {
        let labels = || plan.contenders.iter().map(|contender| contender.label.as_str());
        let average: Vec<_> =
            labels().map(|label| metrics::by_round(metric, plan, evidence, label)).collect();
        if !metric.is_of_requests() {
            let excess = vec![None; average.len()];
            return Figures { typical: average.clone(), average, excess };
        }
        let cases = || 0..plan.work.cases();
        let typical: Vec<_> =
            labels().map(|label| metrics::typical(metric, cases(), plan, evidence, label)).collect();
        let parting: Vec<Option<f64>> = average
            .iter()
            .zip(&typical)
            .map(|(average, typical)| parting(average, typical, metric.higher_is_better()))
            .collect();
        let excess = (0..parting.len()).map(|place| excess(&parting, place)).collect();
        Figures { average, typical, excess }
    }

    /// Whether the contender at this place has slow moments of its own.
    pub(crate) fn is_slow(&self, place: usize) -> bool {
        self.excess[place].is_some()
    }

    /// The values that verdicts compare: the typical ones, or averages where there are slow moments of its own.
    pub(crate) fn compared(&self, place: usize) -> &[Option<f64>] {
        if self.is_slow(place) { &self.average[place] } else { &self.typical[place] }
    }
}

/// How much worse one average is than the typical value, as a share: `None` if it is not by more than the least share, or
/// not by that much more than for the others.
fn excess(parting: &[Option<f64>], place: usize) -> Option<f64> {
    let own = parting[place]?;
    let others = parting.iter().enumerate().filter(|(other, _)| *other != place);
    let others: Vec<f64> = others.filter_map(|(_, parting)| *parting).collect();
    let machine = median(&others).unwrap_or(0.0).max(0.0);
    (own - machine > LEAST.ln_1p()).then(|| own.exp_m1())
}

/// The median over rounds of the logarithm of average ÷ typical value, in time: positive if the average is slower. The
/// median, because a moment that recurs is the contender's own.
fn parting(average: &[Option<f64>], typical: &[Option<f64>], is_rate: bool) -> Option<f64> {
    let mut all = Vec::new();
    for (average, typical) in average.iter().zip(typical) {
        let (Some(average), Some(typical)) = (average, typical) else { continue };
        all.push(if is_rate { typical / average } else { average / typical }.ln());
    }
    median(&all).filter(|log| log.is_finite())
}

/// The contenders that have slow moments of their own in a question of the answer. `figures`: of those questions.
pub(super) fn slow_moments<'a>(
    figures: impl Iterator<Item = (Metric, &'a Figures)>,
    plan: &Plan,
    evidence: &Evidence,
) -> Vec<SlowMoments> {
    let mut worst: Vec<Option<(Metric, f64)>> = vec![None; plan.contenders.len()];
    for (metric, figures) in figures {
        for (worst, excess) in worst.iter_mut().zip(&figures.excess) {
            if let Some(share) = *excess
                && worst.is_none_or(|(_, most)| share > most)
            {
                *worst = Some((metric, share));
            }
        }
    }
    let mut found = Vec::new();
    for (contender, worst) in plan.contenders.iter().zip(worst) {
        let Some((metric, share)) = worst else { continue };
        let runs: Vec<&Run> = evidence.complete(&contender.label).collect();
        let (lengths, requests) = lengths_ms(&runs);
        let Some(length_ms) = median(&lengths) else { continue };
        let (contender, count) = (contender.label.clone(), lengths.len());
        found.push(SlowMoments { contender, metric, share, count, requests, length_ms });
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
        let evidence = evidence(stall_ms, of_both);
        let questions = Metric::questions(plan.work.kind());
        let all: Vec<_> =
            questions.into_iter().map(|metric| (metric, Figures::new(metric, &plan, &evidence))).collect();
        slow_moments(all.iter().map(|(metric, figures)| (*metric, figures)), &plan, &evidence)
    }

    #[test]
    fn a_stall_of_its_own_is_counted_timed_and_tested() {
        let [slow] = &found(28, false)[..] else { panic!("{:?}", found(28, false)) };
        assert_eq!((slow.contender.as_str(), slow.count, slow.requests), ("a", 6, 6));
        assert!((slow.length_ms - 28.0).abs() < 1e-9 && (slow.share - 28.0 / 320.0).abs() < 0.01, "{slow:?}");
        let plan = Plan { schedule: Schedule::Interleaved, ..testing::plan(&["a", "b", "c"]) };
        let tested = Figures::new(Metric::Latency, &plan, &evidence(28, false)).compared(0)[0].unwrap();
        assert!((tested - (10.0 + 28.0 / 32.0)).abs() < 1e-9, "{tested}");
    }

    #[test]
    fn what_all_have_or_what_is_short_is_not_its_own() {
        assert_eq!(found(28, true), []);
        assert_eq!(found(5, false), []);
    }
}

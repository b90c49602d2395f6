//! How a pair's ratio depends on the state of the machine. Frameworks use memory in different ways: one that
//! reads at full bandwidth gains more than another from higher bandwidth. The state of a round is the speed
//! of the other contenders in it: their noise is independent of the pair's own.

use plan::{Plan, Schedule};
use serde::{Deserialize, Serialize};
use untrusted::Foreign;

use crate::metrics::{self, Metric};
use facts::evidence::Evidence;

/// Error rate of all pairs together.
const LEVEL: f64 = 0.01;

/// A pair whose ratio depends on the state of the machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Dependence {
    /// The metric of the ratio. Its speed is the figure, or the reciprocal if less is better.
    pub metric: Metric,
    pub a: String,
    pub b: String,
    /// Contenders whose speed shows the state.
    pub others: Vec<Foreign>,
    /// Change of the logarithm of a ÷ b, in speed, per unit of the mean logarithm of the others' speed, and its interval.
    pub slope: f64,
    pub interval: [f64; 2],
    /// a ÷ b in speed when the others were slowest, and when they were fastest.
    pub ratios: [f64; 2],
    /// The others' speed and a ÷ b of each round, by speed.
    pub points: Vec<[f64; 2]>,
}

/// The pairs of `labels` that depend on it in a metric of requests, if a third contender shows the state:
/// only if all take turns.
pub fn dependences(plan: &Plan, evidence: &Evidence, labels: &[String]) -> Vec<Dependence> {
    if plan.schedule != Schedule::Interleaved {
        return Vec::new();
    }
    let kind = plan.work.kind();
    let deciding = Metric::deciding(kind);
    let is_other = |metric: &Metric| *metric != deciding && metric.follows(kind).is_none();
    let others = Metric::tested(kind).into_iter().filter(is_other);
    let metrics: Vec<Metric> =
        [deciding].into_iter().chain(others.filter(|metric| metric.is_of_requests())).collect();
    let level = LEVEL / (metrics.len() * labels.len() * labels.len().saturating_sub(1) / 2).max(1) as f64;
    metrics.into_iter().flat_map(|metric| of_metric(metric, plan, evidence, labels, level)).collect()
}

fn of_metric(
    metric: Metric,
    plan: &Plan,
    evidence: &Evidence,
    labels: &[String],
    level: f64,
) -> Vec<Dependence> {
    let speed = |figure: f64| if metric.higher_is_better() { figure } else { 1.0 / figure };
    let by_round = |label: &String| {
        let figures = metrics::by_round(metric, plan, evidence, label);
        figures.into_iter().map(|figure| figure.map(speed)).collect()
    };
    let figures: Vec<Vec<Option<f64>>> = labels.iter().map(by_round).collect();
    let mut found = Vec::new();
    for a in 0..labels.len() {
        for b in a + 1..labels.len() {
            let others: Vec<usize> = (0..labels.len()).filter(|other| *other != a && *other != b).collect();
            let state = statistics::state(&figures, a, b);
            let points = points(&state, &figures[a], &figures[b]);
            let (x, y): (Vec<f64>, Vec<f64>) = points.into_iter().unzip();
            let Some(line) = statistics::slope(&x, &y, level) else { continue };
            if x.len() < statistics::MIN_ROUNDS || line.p >= level {
                continue;
            }
            let slowest = x.iter().copied().fold(f64::INFINITY, f64::min);
            let fastest = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            found.push(Dependence {
                metric,
                a: labels[a].clone(),
                b: labels[b].clone(),
                others: others.iter().map(|&other| Foreign::new(&labels[other])).collect(),
                slope: line.slope,
                interval: [line.interval.0, line.interval.1],
                ratios: [line.at(slowest).exp(), line.at(fastest).exp()],
                points: sorted(x.iter().zip(&y).map(|(x, y)| [x.exp(), y.exp()]).collect()),
            });
        }
    }
    found
}

/// The state of each round and the pair's log ratio in it. Empty without others.
fn points(state: &[Option<f64>], a: &[Option<f64>], b: &[Option<f64>]) -> Vec<(f64, f64)> {
    let ratio =
        |(a, b): (&Option<f64>, &Option<f64>)| Some(((*a)? / (*b)?).ln()).filter(|log| log.is_finite());
    let pairs = a.iter().zip(b).map(ratio);
    let points = state.iter().zip(pairs).filter_map(|(state, ratio)| Some(((*state)?, ratio?)));
    points.collect()
}

fn sorted(mut points: Vec<[f64; 2]>) -> Vec<[f64; 2]> {
    points.sort_by(|a, b| a[0].total_cmp(&b[0]));
    points
}

#[cfg(test)]
mod tests {
    use protocol::{Marks, Sample};

    use super::*;
    use facts::testing;

    /// The result for rounds of three contenders with so many microseconds for a token.
    fn found(rounds: &[[u64; 3]]) -> Vec<Dependence> {
        let labels = ["a", "b", "c"];
        let mut evidence = Evidence { rounds: rounds.len(), ..Evidence::default() };
        for (round, each) in rounds.iter().enumerate() {
            for (label, us) in labels.iter().zip(each) {
                let sample = Sample { marks_ns: Marks::new(1, [us * 1000; 3]), ..Sample::default() };
                evidence.runs.push(testing::measured(label, round, Vec::new(), vec![vec![sample]]));
            }
        }
        let plan = Plan { schedule: Schedule::Interleaved, ..testing::plan(&labels) };
        let found = dependences(&plan, &evidence, &labels.map(str::to_owned));
        let deciding = Metric::deciding(plan.work.kind());
        found.into_iter().filter(|found| found.metric == deciding).collect()
    }

    #[test]
    fn a_pair_that_gains_differently_is_named_with_both_ends() {
        // b and c need half as long again when memory is slow, a needs twice as long.
        let fast = [[1000, 1000, 1001], [1001, 1000, 1000], [1000, 1002, 1000], [1002, 1001, 1000]];
        let slow = [[2000, 1500, 1501], [2001, 1500, 1500], [2000, 1503, 1500], [2004, 1500, 1502]];
        let all: Vec<[u64; 3]> = fast.into_iter().chain(slow).collect();
        let dependent = found(&all);
        let pairs: Vec<(&str, &str)> = dependent.iter().map(|it| (it.a.as_str(), it.b.as_str())).collect();
        assert_eq!(pairs, [("a", "b"), ("a", "c")]);
        let [slow, fast] = dependent[0].ratios;
        assert!((slow - 0.75).abs() < 0.01 && (fast - 1.0).abs() < 0.01, "{slow} {fast}");
        assert_eq!(dependent[0].others, [Foreign::new("c")]);
        assert!(found(&all[2..7]).is_empty(), "too few rounds");
    }
}

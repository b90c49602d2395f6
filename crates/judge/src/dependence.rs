//! How a pair's ratio depends on the state of the machine. Frameworks use memory in different ways: one that reads at full
//! bandwidth gains more than another when there is more of it. The state of a round is how fast the other contenders
//! were in it: their noise is no part of the pair's own.

use foreign::Foreign;
use plan::Plan;
use serde::{Deserialize, Serialize};

use crate::metrics::{self, Metric};
use facts::evidence::Evidence;

/// Error rate of all pairs together.
const LEVEL: f64 = 0.01;
/// What is rounded to no difference.
const LEAST_PERCENT: f64 = 0.5;

/// A pair whose ratio depends on the state of the machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Dependence {
    pub a: String,
    pub b: String,
    /// Those whose speed shows the state.
    pub others: Vec<Foreign>,
    /// Change of the logarithm of a ÷ b for one of the logarithm of the others' throughput, and its interval.
    pub slope: f64,
    pub interval: [f64; 2],
    /// a ÷ b in throughput where the others were slowest, and where they were fastest.
    pub ratios: [f64; 2],
    /// The others' throughput and a ÷ b of each round, by throughput.
    pub points: Vec<[f64; 2]>,
}

/// The pairs of `labels` that depend on it, as far as a third contender shows its state.
pub fn dependences(plan: &Plan, evidence: &Evidence, labels: &[String]) -> Vec<Dependence> {
    let metric = Metric::deciding(plan.generation());
    let by_round = |label: &String| metrics::by_round(metric, plan, evidence, label);
    let figures: Vec<Vec<Option<f64>>> = labels.iter().map(by_round).collect();
    let pairs = labels.len() * labels.len().saturating_sub(1) / 2;
    let mut found = Vec::new();
    for a in 0..labels.len() {
        for b in a + 1..labels.len() {
            let others: Vec<usize> = (0..labels.len()).filter(|other| *other != a && *other != b).collect();
            let state = statistics::state(&figures, a, b);
            let points = points(&state, &figures[a], &figures[b]);
            let (x, y): (Vec<f64>, Vec<f64>) = points.into_iter().unzip();
            let Some(line) = statistics::slope(&x, &y, LEVEL / pairs as f64) else { continue };
            if x.len() < statistics::MIN_ROUNDS || line.p >= LEVEL / pairs as f64 {
                continue;
            }
            let slowest = x.iter().copied().fold(f64::INFINITY, f64::min);
            let fastest = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            found.push(Dependence {
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

/// The state of each round and the pair's log ratio in it. None without others.
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

impl Dependence {
    /// The ratio at both ends: "candle decodes 5 to 22 % faster than ort".
    pub fn clause(&self) -> String {
        let [slow, fast] = self.ratios;
        let is_none = |ratio: f64| 100.0 * (ratio.ln().abs().exp() - 1.0) < LEAST_PERCENT;
        if (slow >= 1.0) != (fast >= 1.0) && !is_none(slow) && !is_none(fast) {
            return format!("{} or {}", self.at(slow), self.at(fast));
        }
        let (ahead, behind) = if slow * fast >= 1.0 { (&self.a, &self.b) } else { (&self.b, &self.a) };
        let mut percents = [slow, fast].map(|ratio| 100.0 * (ratio.ln().abs().exp() - 1.0));
        percents.sort_by(f64::total_cmp);
        format!("{ahead} decodes {:.0} to {:.0} % faster than {behind}", percents[0], percents[1])
    }

    fn at(&self, ratio: f64) -> String {
        let Dependence { a, b, .. } = self;
        let (ahead, behind, times) = if ratio >= 1.0 { (a, b, ratio) } else { (b, a, 1.0 / ratio) };
        match 100.0 * (times - 1.0) {
            percent if percent < LEAST_PERCENT => format!("{a} and {b} decode equally fast"),
            percent => format!("{ahead} decodes {percent:.0} % faster than {behind}"),
        }
    }

    /// Those whose speed shows the state.
    pub fn others(&self) -> String {
        let names: Vec<&str> = self.others.iter().map(Foreign::as_str).collect();
        names.join(" and ")
    }

    /// One sentence.
    pub fn sentence(&self) -> String {
        let Dependence { a, b, others, ratios: [slow, fast], .. } = self;
        let names = self.others();
        let verb = if others.len() == 1 { "was" } else { "were" };
        format!(
            "the ratio of {a} and {b} depends on the state of the machine: in rounds in which {names} {verb} slowest, {}; \
             in those in which {names} {verb} fastest, {}",
            self.at(*slow),
            self.at(*fast)
        )
    }
}

#[cfg(test)]
mod tests {
    use protocol::CaseSample;

    use super::*;
    use facts::testing;

    /// Rounds whose gaps are, in microseconds, of three contenders.
    fn found(gaps_us: &[[u64; 3]]) -> Vec<Dependence> {
        let labels = ["a", "b", "c"];
        let mut evidence = Evidence { rounds: gaps_us.len(), ..Evidence::default() };
        for (round, gaps) in gaps_us.iter().enumerate() {
            for (label, us) in labels.iter().zip(gaps) {
                let sample =
                    CaseSample { first_token_ns: 1, gaps_ns: vec![us * 1000; 3], ..CaseSample::default() };
                evidence.runs.push(testing::measured(label, round, Vec::new(), vec![vec![sample]]));
            }
        }
        dependences(&testing::plan(&labels), &evidence, &labels.map(str::to_owned))
    }

    #[test]
    fn a_pair_that_gains_differently_is_named_with_both_ends() {
        // b and c take half as long again where memory is slow, a twice as long.
        let fast = [[1000, 1000, 1001], [1001, 1000, 1000], [1000, 1002, 1000], [1002, 1001, 1000]];
        let slow = [[2000, 1500, 1501], [2001, 1500, 1500], [2000, 1503, 1500], [2004, 1500, 1502]];
        let all: Vec<[u64; 3]> = fast.into_iter().chain(slow).collect();
        let dependent = found(&all);
        let pairs: Vec<(&str, &str)> = dependent.iter().map(|it| (it.a.as_str(), it.b.as_str())).collect();
        assert_eq!(pairs, [("a", "b"), ("a", "c")]);
        let sentence = dependent[0].sentence();
        assert!(sentence.contains("c was slowest, b decodes 33 % faster than a"), "{sentence}");
        assert!(sentence.ends_with("c was fastest, a and b decode equally fast"), "{sentence}");
        assert_eq!(dependent[0].clause(), "b decodes 0 to 33 % faster than a");
        let both = Dependence { ratios: [0.8, 0.9], ..dependent[0].clone() };
        assert_eq!(both.clause(), "b decodes 11 to 25 % faster than a");
        assert!(found(&all[..4]).is_empty(), "too few rounds");
    }
}

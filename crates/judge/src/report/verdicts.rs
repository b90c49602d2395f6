//! Turns figures into verdicts. The statistics are in the crate of that name.

mod comparison;

use plan::{Plan, Schedule};
use statistics::{Decision, Series, Settings};

use crate::metrics::{self, Metric};
use crate::report::work::sanity::Flag;
use comparison::inverted;
use facts::evidence::Evidence;

pub use comparison::{Comparison, Unmeasurable, Verdict};

/// The figures of the compared contenders: `[label]`, and for each metric `[contender][round]`.
struct Table {
    labels: Vec<String>,
    figures: Vec<(Metric, Vec<Vec<Option<f64>>>)>,
}

/// Two contenders of one metric, by their places in the table.
#[derive(Clone, Copy)]
struct Pair<'a> {
    metric: Metric,
    a: usize,
    b: usize,
    figures: &'a [Vec<Option<f64>>],
}

impl Table {
    fn new(plan: &Plan, evidence: &Evidence, labels: Vec<String>) -> Table {
        let kind = plan.work.kind();
        let tested = Metric::tested(kind).into_iter();
        // A metric that follows another has its verdict: one question must not use up the error rate twice.
        let figures = tested.filter(|metric| metric.follows(kind).is_none()).map(|metric| {
            let of_label = |label: &String| metrics::to_compare(metric, plan, evidence, label);
            (metric, labels.iter().map(of_label).collect())
        });
        Table { figures: figures.collect(), labels }
    }

    /// Every metric of every pair: the family that Holm's method corrects over.
    fn pairs(&self) -> Vec<Pair<'_>> {
        let count = self.labels.len();
        let mut pairs = Vec::new();
        for (metric, figures) in &self.figures {
            for a in 0..count {
                pairs.extend((a + 1..count).map(|b| Pair { metric: *metric, a, b, figures }));
            }
        }
        pairs
    }

    /// The verdict on every metric of every pair, in the order of [`Metric::tested`].
    fn judged(&self, plan: &Plan, evidence: &Evidence, unmeasurable: Option<&str>) -> Vec<Comparison> {
        let kind = plan.work.kind();
        let pairs = self.pairs();
        let decided: Vec<_> =
            pairs.iter().zip(decide(&pairs, plan, evidence, evidence.is_last_look(plan))).collect();
        let compared = |metric: Metric| {
            let leads = metric.follows(kind).unwrap_or(metric);
            let of_metric = decided.iter().filter(move |(pair, _)| pair.metric == leads);
            of_metric.map(move |(pair, decision)| {
                let unmeasurable = unmeasurable.filter(|_| metric.depends_on_speed());
                let (a, b) = (&self.labels[pair.a], &self.labels[pair.b]);
                match decision {
                    Some(decision) if decision.ratio < 1.0 => {
                        Comparison::new(metric, b, a, Some(inverted(decision.clone())), unmeasurable)
                    }
                    decision => Comparison::new(metric, a, b, decision.clone(), unmeasurable),
                }
            })
        };
        Metric::tested(kind).into_iter().flat_map(compared).collect()
    }
}

impl<'a> Pair<'a> {
    /// In the sense "how many times better is a". Each metric has equally many pairs, so a pair's weight is
    /// the metric's share.
    ///
    /// For figures from turns, the other contenders show the state of the machine.
    fn series(&self, plan: &Plan) -> Series<'a> {
        let (a, b) = (self.figures[self.a].as_slice(), self.figures[self.b].as_slice());
        let (a, b) = if self.metric.higher_is_better() { (a, b) } else { (b, a) };
        let in_turns = plan.schedule == Schedule::Interleaved && self.metric.is_of_requests();
        let state = if in_turns { statistics::state(self.figures, self.a, self.b) } else { Vec::new() };
        Series { a, b, state, weight: self.metric.error_share(plan.work.kind()) }
    }
}

fn decide(pairs: &[Pair<'_>], plan: &Plan, evidence: &Evidence, last: bool) -> Vec<Option<Decision>> {
    let family: Vec<Series<'_>> = pairs.iter().map(|pair| pair.series(plan)).collect();
    let significance = plan.schedule.significance();
    let settings = Settings { margin: plan.margin, significance, seed: plan.seed };
    statistics::decide(&family, &evidence.looks(plan), last, &settings)
}

/// Whether the deciding metric needs no more rounds.
pub fn are_clear(plan: &Plan, evidence: &Evidence) -> bool {
    if !evidence.looks(plan).is_look(evidence.rounds) {
        return false;
    }
    let decisions: Vec<_> = deciding(plan, evidence).into_iter().map(|(_, decision)| decision).collect();
    statistics::settled(&decisions, plan.margin)
}

/// Every pair of contenders by name, with the decision on the deciding metric so far.
fn deciding(plan: &Plan, evidence: &Evidence) -> Vec<(String, Option<Decision>)> {
    let labels = plan.contenders.iter().map(|contender| contender.label.clone());
    let table =
        Table::new(plan, evidence, labels.filter(|label| !evidence.absent.contains_key(label)).collect());
    let pairs = table.pairs();
    let decisions = decide(&pairs, plan, evidence, false);
    let metric = Metric::deciding(plan.work.kind());
    let name = |pair: &Pair<'_>| format!("{}/{}", table.labels[pair.a], table.labels[pair.b]);
    let of_metric = pairs.iter().zip(decisions).filter(|(pair, _)| pair.metric == metric);
    of_metric.map(|(pair, decision)| (name(pair), decision)).collect()
}

/// The pair of contenders that differ most on the deciding metric, with the half width of the interval so
/// far: "candle/tch ± 2.1 %". `None` if there is none yet.
pub fn leading(plan: &Plan, evidence: &Evidence) -> Option<String> {
    let distance = |decision: &Decision| decision.ratio.ln().abs();
    let known = deciding(plan, evidence).into_iter().filter_map(|(pair, decision)| Some((pair, decision?)));
    let (pair, decision) = known.max_by(|a, b| distance(&a.1).total_cmp(&distance(&b.1)))?;
    let half = 50.0 * (decision.interval.1.ln() - decision.interval.0.ln());
    Some(format!("{pair} ± {half:.1} %"))
}

/// Compares every pair of `labels` on every metric of the table. `unmeasurable` is the reason why there can
/// be no verdict on anything that depends on the machine's speed.
pub fn compare(
    plan: &Plan,
    evidence: &Evidence,
    labels: Vec<String>,
    unmeasurable: Option<&str>,
) -> Vec<Comparison> {
    Table::new(plan, evidence, labels).judged(plan, evidence, unmeasurable)
}

/// Removes the verdict of every comparison with figures that depend on an impossible result.
pub fn without_impossible(mut comparisons: Vec<Comparison>, flags: &[Flag]) -> Vec<Comparison> {
    comparisons.iter_mut().for_each(|one| one.doubt(flags));
    comparisons
}

/// Compares one pair of labels on any metric, as a question of its own. `unmeasurable` as in [`compare`].
pub(crate) fn of_pair(
    metric: Metric,
    labels: [&str; 2],
    plan: &Plan,
    evidence: &Evidence,
    unmeasurable: Option<&str>,
) -> Comparison {
    let figures = labels.map(|label| metrics::to_compare(metric, plan, evidence, label)).to_vec();
    let table = Table { labels: labels.map(str::to_owned).to_vec(), figures: vec![(metric, figures)] };
    table.judged(plan, evidence, unmeasurable).remove(0)
}

#[cfg(test)]
mod tests {
    use protocol::{Event, Loaded, Marks, Sample};

    use super::*;
    use crate::report::work::sanity::Kind;
    use facts::evidence::End;
    use facts::{Run, testing};
    use plan::Rounds;

    const STEADY: [f64; 6] = [10.0, 10.1, 9.9, 10.0, 10.05, 9.95];

    fn scaled(by: f64) -> Vec<f64> {
        STEADY.iter().enumerate().map(|(i, x)| x * by * (1.0 + 0.002 * (i % 3) as f64)).collect()
    }

    /// Processes of `a` and `b` with loads and tokens of so many milliseconds, by round.
    fn evidence(a: &[f64], b: &[f64]) -> Evidence {
        let run = |label: &str, round: usize, ms: f64| {
            let ns = (ms * 1e6) as u64;
            let case = Sample { marks_ns: Marks::new(ns, [ns; 3]), ..Sample::default() };
            let loaded = Loaded { load_ns: ns, ..testing::loaded(1) };
            testing::measured(label, round, vec![Event::Loaded(loaded)], vec![vec![case]])
        };
        let runs = |label, values: &[f64]| {
            values.iter().enumerate().map(|(round, &ms)| run(label, round, ms)).collect::<Vec<_>>()
        };
        Evidence {
            runs: [runs("a", a), runs("b", b)].concat(),
            rounds: a.len(),
            end: End::Planned,
            ..Evidence::default()
        }
    }

    fn judge(metric: Metric, a: &[f64], b: &[f64]) -> Comparison {
        let mut plan = testing::plan(&["a", "b"]);
        plan.rounds = Rounds::Fixed(a.len());
        let all = compare(&plan, &evidence(a, b), vec!["a".into(), "b".into()], None);
        all.into_iter().find(|comparison| comparison.metric == metric).unwrap()
    }

    #[test]
    fn the_better_is_named_first_whichever_way_better_is() {
        let throughput = judge(Metric::Throughput, &scaled(1.9), &STEADY);
        assert_eq!((throughput.a.as_str(), throughput.b.as_str()), ("b", "a"));
        assert_eq!((throughput.verdict, throughput.verdict.turned()), (Verdict::Faster, Verdict::Slower));
        assert!((throughput.advantage.unwrap() - 1.9).abs() < 0.01, "{throughput:?}");
        let load = judge(Metric::Load, &STEADY, &scaled(2.0));
        assert!(load.a == "a" && (load.advantage.unwrap() - 2.0).abs() < 0.01, "{load:?}");
    }

    #[test]
    fn five_rounds_are_never_enough() {
        let few = judge(Metric::Load, &STEADY[..5], &scaled(3.0)[..5]);
        assert_eq!((few.verdict, few.statistics.unwrap().rounds), (Verdict::Inconclusive, 5));
    }

    #[test]
    fn a_small_but_certain_difference_is_equivalence_and_noise_is_inconclusive() {
        assert_eq!(judge(Metric::Latency, &STEADY, &scaled(1.004)).verdict, Verdict::Equivalent);
        let noisy = judge(Metric::Latency, &STEADY, &[5.0, 15.0, 9.0, 12.0, 8.0, 11.0]);
        assert_eq!(noisy.verdict, Verdict::Inconclusive);
        assert!(noisy.statistics.unwrap().detectable.is_some());
    }

    #[test]
    fn the_margin_is_the_users() {
        let (a, b) = (evidence(&STEADY, &scaled(1.03)), testing::plan(&["a", "b"]));
        let wide = Plan { margin: 0.10, ..b };
        let all = compare(&wide, &a, vec!["a".into(), "b".into()], None);
        let latency = all.iter().find(|comparison| comparison.metric == Metric::Latency).unwrap();
        assert_eq!(latency.verdict, Verdict::Equivalent);
    }

    #[test]
    fn what_nobody_measured_is_not_measurable() {
        let result = judge(Metric::PeakMemory, &STEADY, &STEADY);
        assert_eq!(result.verdict, Verdict::NotMeasurable);
        assert_eq!(result.reason, Some(Unmeasurable::FiguresMissing));
    }

    #[test]
    fn on_a_noisy_machine_there_is_no_verdict_on_speed() {
        let plan = testing::plan(&["a", "b"]);
        let all =
            compare(&plan, &evidence(&STEADY, &scaled(3.0)), vec!["a".into(), "b".into()], Some("noise"));
        assert_eq!(all.len(), Metric::tested(plan.work.kind()).len());
        let noise = Some(Unmeasurable::Noise("noise".into()));
        for found in all.into_iter().filter(|found| found.metric.depends_on_speed()) {
            assert_eq!((found.verdict, &found.reason), (Verdict::NotMeasurable, &noise), "{found:?}");
        }
    }

    #[test]
    fn an_older_report_that_gives_reasons_in_words_alone_has_them_again() {
        let flag = Flag { framework: "b".into(), kind: Kind::BelowWeights, finding: "too little".into() };
        let explained = |metric: Metric| {
            let mut found = judge(Metric::PeakMemory, &STEADY, &STEADY);
            (found.metric, found.reason) = (metric, None);
            found.explain(Some("noise"), std::slice::from_ref(&flag));
            found.reason.unwrap()
        };
        let impossible = Unmeasurable::Impossible { framework: "b".into(), finding: "too little".into() };
        assert_eq!(explained(Metric::PeakMemory), impossible);
        assert_eq!(explained(Metric::Load), Unmeasurable::Noise("noise".into()));
    }

    #[test]
    fn what_others_show_of_the_machine_is_taken_out_of_requests_that_took_turns() {
        // The first two depend differently on the state that the third shows.
        let state: [f64; 6] = [1.0, 1.5, 1.1, 1.4, 1.2, 1.3];
        let slower =
            |power: f64| -> Vec<f64> { state.iter().zip(STEADY).map(|(s, x)| x * s.powf(power)).collect() };
        let (two, third) = (evidence(&slower(1.0), &slower(0.5)), evidence(&STEADY, &slower(1.0)));
        let renamed = third.runs.into_iter().filter(|run| run.framework == "b");
        let runs = two.runs.iter().cloned().chain(renamed.map(|run| Run { framework: "c".into(), ..run }));
        let evidence = Evidence { runs: runs.collect(), ..two.clone() };
        let slope = |metric: Metric, schedule: Schedule| {
            let plan = Plan { schedule, rounds: Rounds::Fixed(6), ..testing::plan(&["a", "b", "c"]) };
            let all = compare(&plan, &evidence, ["a", "b", "c"].map(String::from).to_vec(), None);
            let is_pair =
                |it: &Comparison| it.metric == metric && (it.a.as_str(), it.b.as_str()) == ("b", "a");
            all.into_iter().find(is_pair).unwrap().statistics.unwrap().state_slope
        };
        // b/a grows as the state falls: throughput of c by state⁻¹, b/a by state^0.5.
        let found = slope(Metric::Throughput, Schedule::Interleaved).unwrap();
        assert!((found + 0.5).abs() < 0.05, "{found}");
        assert_eq!(slope(Metric::Throughput, Schedule::Sequential), None);
        assert_eq!(slope(Metric::Load, Schedule::Interleaved), None);
    }

    #[test]
    fn automatic_rounds_go_on_until_the_throughput_is_clear() {
        let mut plan = testing::plan(&["a", "b"]);
        plan.rounds = Rounds::Auto { max: 24, budget_s: 1e9 };
        assert!(are_clear(&plan, &evidence(&STEADY, &scaled(2.0))));
        assert!(!are_clear(&plan, &evidence(&STEADY, &[9.0, 12.0, 9.0, 11.0, 8.5, 11.0])));
        assert!(!are_clear(&plan, &evidence(&[10.0; 7], &[20.0; 7])), "seven rounds are no planned look");
    }
}

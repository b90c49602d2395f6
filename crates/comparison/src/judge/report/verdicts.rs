//! Turns figures into verdicts. The statistics are in the crate of that name.

use serde::{Deserialize, Serialize};
use statistics::{Decision, MIN_ROUNDS, Outcome, Series, Settings};

use crate::facts::evidence::Evidence;
use crate::facts::run::Run;
use crate::judge::clocks;
use crate::judge::metrics::{self, Metric};
use crate::judge::report::limit::Flag;
use crate::judge::report::warnings::Figures;
use crate::plan::{Plan, Schedule, Work};

struct Table {
    labels: Vec<String>,
    /// By the workers' clocks.
    questions: Vec<Question>,
    /// The same by the driver's.
    by_driver: Vec<Question>,
}

/// One metric of the compared contenders, `[contender][round]`.
struct Question {
    metric: Metric,
    average: Vec<Vec<Option<f64>>>,
    typical: Vec<Vec<Option<f64>>>,
    /// The contenders that have slow moments of their own: their averages are tested.
    slow: Vec<bool>,
    /// Numbers of layouts of their programs.
    layouts: Vec<usize>,
    /// Typical values for each prompt, if there are several.
    prompts: Vec<Vec<Vec<Option<f64>>>>,
}

/// Two contenders of one metric, by their places in the table.
#[derive(Clone, Copy)]
struct Pair<'a> {
    question: &'a Question,
    a: usize,
    b: usize,
}

impl Question {
    fn new(metric: Metric, plan: &Plan, evidence: &Evidence, labels: &[String]) -> Question {
        let all = Figures::new(metric, plan, evidence);
        let (mut average, mut typical) = (Vec::new(), Vec::new());
        let (mut slow, mut layouts) = (Vec::new(), Vec::new());
        for (place, contender) in plan.contenders.iter().enumerate() {
            if labels.contains(&contender.label) {
                average.push(all.average[place].clone());
                typical.push(all.typical[place].clone());
                slow.push(all.is_slow(place));
                layouts.push(contender.layouts);
            }
        }
        let cases = if metric.is_of_requests() && plan.work.cases() > 1 { plan.work.cases() } else { 0 };
        let mut prompts = Vec::new();
        for case in 0..cases {
            let of_label = |label: &String| metrics::typical(metric, case..case + 1, plan, evidence, label);
            prompts.push(labels.iter().map(of_label).collect());
        }
        Question { metric, average, typical, slow, layouts, prompts }
    }
}

impl Table {
    /// `compared`: the contenders, in any order; the table has that of the plan.
    fn new(plan: &Plan, evidence: &Evidence, compared: &[String], metrics: &[Metric]) -> Table {
        let all = plan.contenders.iter().map(|contender| &contender.label);
        let labels: Vec<String> = all.filter(|label| compared.contains(label)).cloned().collect();
        let question = |metric: &Metric| Question::new(*metric, plan, evidence, &labels);
        let questions: Vec<Question> = metrics.iter().map(question).collect();
        let seen = clocks::by_driver(plan, evidence);
        let by_driver = questions.iter().map(|told| {
            let slow = told.slow.clone();
            Question { slow, ..Question::new(told.metric, plan, &seen, &labels) }
        });
        Table { by_driver: by_driver.collect(), labels, questions }
    }

    /// Every metric of every pair: the family that Holm's method corrects over.
    fn pairs<'a>(&self, questions: &'a [Question]) -> Vec<Pair<'a>> {
        let count = self.labels.len();
        let mut pairs = Vec::new();
        for question in questions {
            for a in 0..count {
                pairs.extend((a + 1..count).map(|b| Pair { question, a, b }));
            }
        }
        pairs
    }

    /// The pairs with tests of their figures, each with what both clocks say.
    fn decided(&self, plan: &Plan, evidence: &Evidence, last: bool) -> Vec<(Pair<'_>, Held)> {
        let tested = |questions| {
            let pairs = self.pairs(questions).into_iter();
            pairs.filter(|pair| pair.question.metric.depends_on_speed()).collect::<Vec<_>>()
        };
        let (told, seen) = (tested(&self.questions), tested(&self.by_driver));
        let margin = clocks_margin(plan, evidence);
        let [by_workers, by_driver] = [&told, &seen].map(|pairs| decide(pairs, plan, evidence, last));
        let held = by_workers.into_iter().zip(by_driver).map(|(told, seen)| Held::new(told, seen, margin));
        told.into_iter().zip(held).collect()
    }

    /// The verdict on each of these metrics for every pair.
    fn judged(
        &self,
        metrics: &[Metric],
        plan: &Plan,
        evidence: &Evidence,
        unmeasurable: Option<&str>,
    ) -> Vec<Comparison> {
        let kind = plan.work.kind();
        let decided = self.decided(plan, evidence, evidence.is_last_look(plan));
        let mut ranged = self.pairs(&self.questions);
        ranged.retain(|pair| !pair.question.metric.depends_on_speed());
        let mut found = Vec::new();
        for &metric in metrics {
            let leads = metric.follows(kind).unwrap_or(metric);
            let unmeasurable = unmeasurable.filter(|_| metric.depends_on_speed());
            for (pair, held) in decided.iter().filter(|(pair, _)| pair.question.metric == leads) {
                let Held { decision, apart } = held.clone();
                let is_turned = decision.as_ref().is_some_and(|decision| decision.ratio < 1.0);
                let (a, b) = (&self.labels[pair.a], &self.labels[pair.b]);
                let (a, b) = if is_turned { (b, a) } else { (a, b) };
                let turned = |decision: Decision| if is_turned { decision.inverted() } else { decision };
                let found_here = Comparison::new(metric, a, b, decision.map(turned), unmeasurable);
                found.push(match apart {
                    Some(seen) if unmeasurable.is_none() => {
                        found_here.contradicted(if is_turned { seen.map(f64::recip) } else { seen })
                    }
                    _ => found_here,
                });
            }
            for pair in ranged.iter().filter(|pair| pair.question.metric == leads) {
                let figures = [pair.a, pair.b].map(|place| pair.question.average[place].as_slice());
                let labels = [pair.a, pair.b].map(|place| self.labels[place].as_str());
                found.push(Comparison::by_range(metric, labels, figures, plan.margin));
            }
        }
        found
    }
}

impl<'a> Pair<'a> {
    /// In the sense "how many times better is a". Each metric has equally many pairs, so a pair's weight is
    /// the metric's share.
    ///
    /// For figures from turns, the other contenders show the state of the machine.
    fn series(&self, plan: &Plan) -> Series<'a> {
        let Question { metric, typical, average, slow, layouts, prompts } = self.question;
        let figures = if slow[self.a] || slow[self.b] { average } else { typical };
        let (a, b) = if metric.higher_is_better() { (self.a, self.b) } else { (self.b, self.a) };
        let in_turns = plan.schedule == Schedule::Interleaved && metric.is_of_requests();
        let state = if in_turns { statistics::state(typical, self.a, self.b) } else { Vec::new() };
        let log_ratio = |(x, y): (&Option<f64>, &Option<f64>)| {
            Some(((*x)? / (*y)?).ln()).filter(|log: &f64| log.is_finite())
        };
        let of_prompt =
            |figures: &Vec<Vec<Option<f64>>>| figures[a].iter().zip(&figures[b]).map(log_ratio).collect();
        let prompts = prompts.iter().map(of_prompt).collect();
        let weight = metric.error_share(plan.work.kind());
        let layouts = layouts[a].max(layouts[b]);
        Series { a: &figures[a], b: &figures[b], state, prompts, layouts, weight }
    }
}

/// What both clocks say of a pair.
#[derive(Clone)]
struct Held {
    /// `None` if there are too few figures.
    decision: Option<Decision>,
    /// The ratio by the driver's clock, if it contradicts the decision by the workers'; `None` within it if there is
    /// none.
    apart: Option<Option<f64>>,
}

impl Held {
    /// An advantage may be larger by the driver's clock, for which answers of the other are late, but not smaller by
    /// more than the margin. If it is not clear by that clock, its decision stands.
    fn new(told: Option<Decision>, seen: Option<Decision>, margin: f64) -> Held {
        let Some(told) = told else { return Held { decision: None, apart: None } };
        let ratio = seen.as_ref().map(|seen| seen.ratio);
        let (log, margin) = (told.ratio.ln(), margin.ln_1p());
        let beyond = ratio.map_or(f64::INFINITY, |ratio| (log - ratio.ln()) * log.signum());
        let is_turned = ratio.is_none_or(|ratio| ratio.ln() * log <= 0.0);
        let is_apart = match told.outcome {
            Outcome::Different => beyond > margin || is_turned,
            Outcome::Equivalent => beyond.abs() > margin,
            Outcome::Inconclusive => false,
        };
        let is_open =
            |seen: &Decision| told.outcome == Outcome::Different && seen.outcome != Outcome::Different;
        match seen.filter(is_open) {
            Some(seen) if !is_apart => Held { decision: Some(seen), apart: None },
            _ => Held { decision: Some(told), apart: is_apart.then_some(ratio) },
        }
    }
}

/// By how much an advantage may be smaller by the driver's clock.
fn clocks_margin(plan: &Plan, evidence: &Evidence) -> f64 {
    if !matches!(plan.work, Work::Graph(_)) {
        return plan.margin;
    }
    // Making the inputs and handing over the outputs is part of the driver's time alone, and differs by worker.
    let request_ns = |run: &Run| {
        let whole = run.turns.iter().map(|turn| turn.sample.marks_ns.end() as f64);
        statistics::median(&whole.collect::<Vec<_>>())
    };
    let fastest = evidence.runs.iter().filter_map(request_ns).fold(f64::INFINITY, f64::min);
    plan.margin.max((HANDED_OVER_NS / fastest).clamp(MARGINS_OF_GRAPHS.0, MARGINS_OF_GRAPHS.1))
}

/// By how much the answers of one worker may be later than those of another. In the kept runs `onnx-*`, workers in
/// Rust are up to 0.15 ms later than the least late one where inputs and outputs are kilobytes, and up to 1.0 ms, 8 %
/// of the fastest request, where they are megabytes. OpenVINO's, in Python, is 0.7 to 8.6 ms later: its pairs may have
/// no verdict.
const HANDED_OVER_NS: f64 = 5e5;

/// The least and the most that this makes of a request.
const MARGINS_OF_GRAPHS: (f64, f64) = (0.05, 0.25);

fn decide(pairs: &[Pair<'_>], plan: &Plan, evidence: &Evidence, last: bool) -> Vec<Option<Decision>> {
    let family: Vec<Series<'_>> = pairs.iter().map(|pair| pair.series(plan)).collect();
    let significance = plan.schedule.significance();
    let settings = Settings { margin: plan.margin, significance, seed: plan.seed };
    statistics::decide(&family, &evidence.looks(plan), last, &settings)
}

/// The metrics that are tested, each with figures of its own. A metric that follows another has its verdict: one
/// question must not use up the error rate twice.
fn leading_metrics(plan: &Plan) -> Vec<Metric> {
    let kind = plan.work.kind();
    Metric::tested(kind).into_iter().filter(|metric| metric.follows(kind).is_none()).collect()
}

/// Whether no question of the answer needs more rounds.
pub fn are_clear(plan: &Plan, evidence: &Evidence) -> bool {
    if !evidence.looks(plan).is_look(evidence.rounds) {
        return false;
    }
    let questions = Metric::questions(plan.work.kind());
    let so_far = so_far(plan, evidence).into_iter().filter(|(metric, ..)| questions.contains(metric));
    let decisions: Vec<_> = so_far.map(|(_, _, decision)| decision).collect();
    statistics::settled(&decisions, plan.margin)
}

/// Every pair of contenders in every tested metric of speed, by name, with the decision so far.
fn so_far(plan: &Plan, evidence: &Evidence) -> Vec<(Metric, String, Option<Decision>)> {
    let labels = plan.contenders.iter().map(|contender| contender.label.clone());
    let labels: Vec<String> = labels.filter(|label| !evidence.absent.contains_key(label)).collect();
    let metrics: Vec<Metric> =
        leading_metrics(plan).into_iter().filter(|metric| metric.depends_on_speed()).collect();
    let table = Table::new(plan, evidence, &labels, &metrics);
    let name = |pair: &Pair<'_>| format!("{}/{}", table.labels[pair.a], table.labels[pair.b]);
    // Of clocks that contradict each other, no further round makes one: the workers' decision stands here.
    let so_far = |(pair, held): (Pair<'_>, Held)| (pair.question.metric, name(&pair), held.decision);
    table.decided(plan, evidence, false).into_iter().map(so_far).collect()
}

/// The pair of contenders that differ most on the deciding metric, with the half width of the interval so
/// far: "candle/tch ± 2.1 %". `None` if there is none yet.
pub fn leading(plan: &Plan, evidence: &Evidence) -> Option<String> {
    let deciding = Metric::deciding(plan.work.kind());
    let mut most: Option<(String, Decision)> = None;
    for (metric, pair, decision) in so_far(plan, evidence) {
        let Some(decision) = decision.filter(|_| metric == deciding) else { continue };
        if most.as_ref().is_none_or(|(_, most)| decision.ratio.ln().abs() > most.ratio.ln().abs()) {
            most = Some((pair, decision));
        }
    }
    let (pair, Decision { interval_alone: (low, high), .. }) = most?;
    Some(format!("{pair} ± {:.1} %", 50.0 * (high.ln() - low.ln())))
}

/// Compares every pair of `labels` on every metric of the table. `unmeasurable` is the reason why there can
/// be no verdict on anything that depends on the machine's speed.
pub fn compare(
    plan: &Plan,
    evidence: &Evidence,
    labels: Vec<String>,
    unmeasurable: Option<&str>,
) -> Vec<Comparison> {
    let table = Table::new(plan, evidence, &labels, &leading_metrics(plan));
    table.judged(&Metric::tested(plan.work.kind()), plan, evidence, unmeasurable)
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
    let table = Table::new(plan, evidence, &labels.map(str::to_owned), &[metric]);
    table.judged(&[metric], plan, evidence, unmeasurable).remove(0)
}

// One verdict: a pair of contenders on one metric.

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Better than the other: for memory, smaller.
    Faster,
    Slower,
    Equivalent,
    Inconclusive,
    NotMeasurable,
}

impl Verdict {
    /// The verdict for the other of the two.
    pub fn turned(self) -> Verdict {
        match self {
            Verdict::Faster => Verdict::Slower,
            Verdict::Slower => Verdict::Faster,
            other => other,
        }
    }
}

/// Why a pair has no verdict.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unmeasurable {
    /// One of the two has no figures, or none that can be compared.
    FiguresMissing,
    /// The machine was too noisy: the finding, and the remedy.
    Noise(String),
    /// A result of one of the two is impossible.
    Impossible { framework: String, finding: String },
    /// The advantage is another by the driver's clock than by the workers' own; `null` if it saw none.
    Clocks { workers: f64, driver: Option<f64> },
}

/// One metric of two contenders. Files add `verdict_of_b` and the verdict in words (crate `render`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    pub metric: Metric,
    /// The better of the two by its estimate.
    pub a: String,
    pub b: String,
    /// The verdict for `a` over `b`. `Slower` never occurs, because the better of the two comes first.
    pub verdict: Verdict,
    /// Why there is no verdict; `None` if there is one, and in a study's cell of an older version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Unmeasurable>,
    /// How many times better a is than b: b/a for times and memory, a/b for throughput, as the geometric mean over
    /// rounds. `null` if nothing can be compared.
    pub advantage: Option<f64>,
    /// The interval of the advantage that agrees with the verdict: those of the whole report hold together with 95 %
    /// certainty. Memory has none, and a pair with too few rounds for a verdict.
    #[serde(deserialize_with = "crate::facts::agreement::interval")]
    pub interval: Option<(f64, f64)>,
    /// The full result of the statistics, in the sense of `advantage`. Cells of older studies lack it.
    pub statistics: Option<Decision>,
}

impl Comparison {
    fn new(metric: Metric, a: &str, b: &str, decision: Option<Decision>, noise: Option<&str>) -> Comparison {
        let verdict = match decision.as_ref().filter(|_| noise.is_none()).map(|decision| decision.outcome) {
            None => Verdict::NotMeasurable,
            Some(Outcome::Different) => Verdict::Faster,
            Some(Outcome::Equivalent) => Verdict::Equivalent,
            Some(Outcome::Inconclusive) => Verdict::Inconclusive,
        };
        let mut found = Comparison {
            metric,
            a: a.to_owned(),
            b: b.to_owned(),
            verdict,
            reason: None,
            advantage: decision.as_ref().map(|decision| decision.ratio),
            interval: decision
                .as_ref()
                .filter(|decision| decision.rounds >= MIN_ROUNDS)
                .map(|it| it.interval),
            statistics: decision,
        };
        found.explain(noise, &[]);
        found
    }

    /// The same without a verdict, because the advantage is another by the driver's clock.
    fn contradicted(self, driver: Option<f64>) -> Comparison {
        let Comparison { metric, a, b, advantage, .. } = self;
        let reason = advantage.map(|workers| Unmeasurable::Clocks { workers, driver });
        Comparison { reason, ..Comparison::new(metric, &a, &b, None, None) }
    }

    /// The verdict on a figure that hardly varies, such as memory, where less is better: processes differ by less
    /// than what the figure means. It is decided if the ranges over at least [`MIN_ROUNDS`] processes have nothing in
    /// common, and equal if all are within the margin.
    fn by_range(metric: Metric, labels: [&str; 2], figures: [&[Option<f64>]; 2], margin: f64) -> Comparison {
        let known: [Vec<f64>; 2] = figures.map(|figures| figures.iter().copied().flatten().collect());
        let means: Option<Vec<f64>> =
            known.iter().map(|figures| statistics::geometric_mean(figures)).collect();
        let [a, b] = labels;
        let Some(means) = means else { return Comparison::new(metric, a, b, None, None) };
        let (better, worse) = if means[0] <= means[1] { (0, 1) } else { (1, 0) };
        let most = |place: usize| known[place].iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let least = |place: usize| known[place].iter().copied().fold(f64::INFINITY, f64::min);
        let widest = most(worse).max(most(better)) / least(better).min(least(worse));
        let verdict = if known.iter().any(|figures| figures.len() < MIN_ROUNDS) {
            Verdict::Inconclusive
        } else if widest < 1.0 + margin {
            Verdict::Equivalent
        } else if most(better) < least(worse) {
            Verdict::Faster
        } else {
            Verdict::Inconclusive
        };
        Comparison {
            metric,
            a: labels[better].to_owned(),
            b: labels[worse].to_owned(),
            verdict,
            reason: None,
            advantage: Some(means[worse] / means[better]),
            interval: None,
            statistics: None,
        }
    }

    /// Keeps the figures, but removes the verdict if they depend on an impossible result.
    fn doubt(&mut self, flags: &[Flag]) {
        if let Some(reason) = self.impossible(flags) {
            (self.verdict, self.reason) = (Verdict::NotMeasurable, Some(reason));
        }
    }

    /// Records why there is no verdict, if that is missing: older reports had it only in words.
    pub(in crate::judge::report) fn explain(&mut self, noise: Option<&str>, flags: &[Flag]) {
        if self.verdict == Verdict::NotMeasurable && self.reason.is_none() {
            let noise = noise.filter(|_| self.metric.depends_on_speed());
            let noise = noise.map(|noise| Unmeasurable::Noise(noise.to_owned()));
            let known = self.impossible(flags).or(noise);
            self.reason = Some(known.unwrap_or(Unmeasurable::FiguresMissing));
        }
    }

    fn impossible(&self, flags: &[Flag]) -> Option<Unmeasurable> {
        let concerns =
            |flag: &&Flag| [&self.a, &self.b].contains(&&flag.framework) && flag.spoils(self.metric);
        let Flag { framework, finding, .. } = flags.iter().find(concerns)?;
        Some(Unmeasurable::Impossible { framework: framework.clone(), finding: finding.clone() })
    }
}

#[cfg(test)]
mod tests {
    use crate::facts::evidence::End;
    use crate::facts::{Run, testing};
    use crate::judge::report::limit::Kind;
    use crate::plan::Rounds;
    use protocol::{Event, Loaded, Marks, Sample};
    use statistics::Cause;

    use super::*;

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
    fn a_ratio_that_follows_the_machine_has_both_ends() {
        // The first two depend differently on the state that the third shows.
        let state: [f64; 6] = [1.0, 1.5, 1.1, 1.4, 1.2, 1.3];
        let slower =
            |power: f64| -> Vec<f64> { state.iter().zip(STEADY).map(|(s, x)| x * s.powf(power)).collect() };
        let (two, third) = (evidence(&slower(1.0), &slower(0.5)), evidence(&STEADY, &slower(1.0)));
        let renamed = third.runs.into_iter().filter(|run| run.framework == "b");
        let runs = two.runs.iter().cloned().chain(renamed.map(|run| Run { framework: "c".into(), ..run }));
        let evidence = Evidence { runs: runs.collect(), ..two.clone() };
        let ends = |metric: Metric, schedule: Schedule| {
            let plan = Plan { schedule, rounds: Rounds::Fixed(6), ..testing::plan(&["a", "b", "c"]) };
            let all = compare(&plan, &evidence, ["a", "b", "c"].map(String::from).to_vec(), None);
            let is_pair =
                |it: &Comparison| it.metric == metric && (it.a.as_str(), it.b.as_str()) == ("b", "a");
            let splits = all.into_iter().find(is_pair).unwrap().statistics.unwrap().splits;
            splits.into_iter().find(|split| split.cause == Cause::State).map(|split| split.ratios)
        };
        // b is faster than a by state^0.5.
        let (slow, fast) = ends(Metric::Throughput, Schedule::Interleaved).unwrap();
        assert!((slow - 1.5_f64.sqrt()).abs() < 0.02 && (fast - 1.0).abs() < 0.02, "{slow} {fast}");
        assert_eq!(ends(Metric::Throughput, Schedule::Sequential), None);
        assert_eq!(ends(Metric::Load, Schedule::Interleaved), None);
    }

    #[test]
    fn memory_is_decided_by_its_ranges() {
        let of = |a: &[f64], b: &[f64]| {
            let some = |x: &[f64]| x.iter().copied().map(Some).collect::<Vec<_>>();
            let (a, b) = (some(a), some(b));
            let found = Comparison::by_range(Metric::PeakMemory, ["a", "b"], [&a, &b], 0.02);
            assert_eq!((found.interval, found.statistics), (None, None));
            (found.a, found.verdict)
        };
        let near: Vec<f64> = STEADY.iter().map(|x| x * 1.03).collect();
        assert_eq!(of(&near, &STEADY), ("b".into(), Verdict::Faster));
        assert_eq!(of(&[10.0; 6], &[10.1; 6]), ("a".into(), Verdict::Equivalent));
        assert_eq!(of(&STEADY, &[9.0, 10.2, 10.0, 9.5, 10.0, 10.0]).1, Verdict::Inconclusive);
        assert_eq!(of(&[10.0; 5], &[20.0; 5]).1, Verdict::Inconclusive, "too few rounds");
        assert_eq!(of(&[], &[20.0; 6]).1, Verdict::NotMeasurable);
    }

    #[test]
    fn automatic_rounds_go_on_until_every_question_is_clear() {
        let mut plan = testing::plan(&["a", "b"]);
        plan.rounds = Rounds::Auto { max: 24, budget_s: 1e9 };
        assert!(are_clear(&plan, &evidence(&STEADY, &scaled(2.0))));
        assert!(!are_clear(&plan, &evidence(&STEADY, &[9.0, 12.0, 9.0, 11.0, 8.5, 11.0])));
        assert!(!are_clear(&plan, &evidence(&[10.0; 7], &[20.0; 7])), "seven rounds are no planned look");
    }
}

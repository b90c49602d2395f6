//! Information needed before trusting the figures, the gravest first.

use serde::{Deserialize, Serialize};
use statistics::median;

use super::{Facts, Row};
use crate::facts::evidence::{End, Evidence};
use crate::facts::run::Run;
use crate::judge::metrics::{self, Metric};
use crate::judge::report::fairness::{MACHINE, RuleState};
use crate::plan::{Contender, Plan};

/// Coefficient of variation above which the figures of one contender differ too much for a meaningful mean.
const VARIES: f64 = 0.10;

/// Share of a rate, in percent, below which a contender does not keep up with it. The last requests of a turn
/// are still in progress when the others are done.
const KEEPS_UP: f64 = 90.0;

/// One warning. Crate `render` writes them in words, also into files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Warning {
    /// The user interrupted the run.
    Interrupted,
    /// The run was ended before it could save its report.
    Killed,
    /// Why there is no reference for parity.
    NoReference(String),
    /// Outputs whose agreement shows nothing: of so many of the reference, these have no finite number, and these one
    /// number throughout.
    SaysNothing { outputs: usize, undefined: usize, uniform: usize },
    /// Noise that was accepted.
    AcceptedNoise { rule: String, finding: String },
    /// The machine was noisy so often, and disturbed parts were repeated where possible; so many starts
    /// stayed disturbed.
    Disturbed { times: usize, starts: usize, last: String },
    /// Throughput differs by more than the limit from process to process: the coefficient of variation of each contender.
    Varies { limit: f64, contenders: Vec<(String, f64)> },
    /// Steady-state latency varies by more than was asked for (`--max-cv`), or one process alone does not show by how much:
    /// the coefficient of variation of each contender.
    MaxCv { metric: Metric, limit: f64, contenders: Vec<(String, Option<f64>)> },
    /// Most processes never settled or slowed down: how many of how many, for each contender.
    Unsteady(Vec<(String, usize, usize)>),
    /// Warm-up hit its limit in so many processes.
    Unsettled { contender: String, unsettled: usize, rounds: usize },
    /// More requests a second arrive than are answered; `kept` is in percent of the rate.
    Overloaded { contender: String, rate: f64, answered: f64, kept: f64 },
    /// Why the quality of a contender's text is unknown.
    QualityUnknown { contender: String, reason: String },
    /// Why the tokenizer was not timed in every round.
    TokenizerNotTimed(String),
    /// A departure from a rule that gives no advantage.
    Noted { rule: String, contender: String, finding: String, is_compared: bool },
    /// Why a rule could not be verified.
    Unverified { rule: String, reason: String },
    /// Why the machine was not probed.
    NoProbe(String),
    /// A file missing from the results directory, and the consequence.
    Missing(String),
    /// In the words of a report that was read.
    #[serde(untagged)]
    Told(String),
}

impl Warning {
    /// Whether it only states the subject of a study.
    pub(crate) fn is_of_study(&self) -> bool {
        matches!(self, Warning::Noted { is_compared: true, .. })
    }
}

impl From<String> for Warning {
    fn from(text: String) -> Warning {
        Warning::Told(text)
    }
}

pub(super) fn warnings(facts: &Facts, rows: &[Row], rules: &[RuleState]) -> Vec<Warning> {
    let Facts { plan, evidence, .. } = facts;
    let mut warnings: Vec<Warning> = match evidence.end {
        End::Interrupted => vec![Warning::Interrupted],
        End::Killed => vec![Warning::Killed],
        _ => Vec::new(),
    };
    warnings.extend(evidence.no_reference.clone().map(Warning::NoReference));
    warnings.extend(says_nothing(evidence));
    warnings.extend(accepted_noise(plan, rules));
    warnings.extend(disturbed(plan, evidence));
    warnings.extend(varies(rows));
    warnings.extend(beyond_max_cv(plan, rows));
    warnings.extend(unsteady(rows));
    warnings.extend(unsettled(plan, evidence));
    warnings.extend(overloaded(plan, rows));
    for (label, score) in &evidence.texts {
        let unknown = score.as_ref().err();
        warnings.extend(
            unknown
                .map(|reason| Warning::QualityUnknown { contender: label.clone(), reason: reason.clone() }),
        );
    }
    let untimed = evidence.tokenised.iter().find_map(|round| round.as_ref().err());
    warnings.extend(untimed.cloned().map(Warning::TokenizerNotTimed));
    for rule in rules {
        warnings.extend(rule.notes.iter().map(|breach| Warning::Noted {
            rule: rule.id.clone(),
            contender: breach.framework.clone(),
            finding: breach.finding.clone(),
            is_compared: breach.is_compared,
        }));
    }
    let mut unverified: Vec<(String, String)> = Vec::new();
    for rule in rules {
        let Some(reason) = &rule.unverified else { continue };
        match unverified.iter_mut().find(|(_, known)| known == reason) {
            Some((ids, _)) => *ids = format!("{ids}, {}", rule.id),
            None => unverified.push((rule.id.clone(), reason.clone())),
        }
    }
    warnings.extend(unverified.into_iter().map(|(rule, reason)| Warning::Unverified { rule, reason }));
    warnings.extend(evidence.no_probe.clone().map(Warning::NoProbe));
    warnings
}

/// An output that is NaN throughout is one too many. One that is the same throughout may be right, unless all are.
fn says_nothing(evidence: &Evidence) -> Option<Warning> {
    let mut found = evidence.runs.iter().filter_map(|run| {
        let agreement = run.agreement.as_ref()?;
        match (agreement.logits, agreement.vectors) {
            (Some(logits), _) => {
                Some((logits.positions, 0, if logits.uniform { logits.positions } else { 0 }))
            }
            (None, vectors) => vectors.map(|vectors| (vectors.compared, vectors.undefined, vectors.uniform)),
        }
    });
    let (outputs, undefined, uniform) =
        found.find(|&(outputs, undefined, uniform)| undefined > 0 || outputs > 0 && uniform == outputs)?;
    Some(Warning::SaysNothing { outputs, undefined, uniform })
}

/// Contenders that could not keep up with the requested rate.
fn overloaded(plan: &Plan, rows: &[Row]) -> Vec<Warning> {
    let Some(arrivals) = plan.work.load().and_then(|load| load.arrivals) else { return Vec::new() };
    let found = |row: &Row| {
        let kept = row.typical(Metric::KeptUp).filter(|&kept| kept < KEEPS_UP)?;
        let answered = row.typical(Metric::RequestThroughput)?;
        Some(Warning::Overloaded { contender: row.framework.clone(), rate: arrivals.rate, answered, kept })
    };
    rows.iter().filter_map(found).collect()
}

fn accepted_noise(plan: &Plan, rules: &[RuleState]) -> Vec<Warning> {
    let broken = rules.iter().flat_map(|rule| rule.broken_by.iter().map(move |breach| (&rule.id, breach)));
    let accepted = broken.filter(|(_, breach)| breach.framework == MACHINE && plan.accept_noise);
    let of_rule = |(id, breach): (&String, &super::fairness::Breach)| Warning::AcceptedNoise {
        rule: id.clone(),
        finding: breach.finding.clone(),
    };
    accepted.map(of_rule).collect()
}

/// Disturbances that did not affect the reported figures.
fn disturbed(plan: &Plan, evidence: &Evidence) -> Option<Warning> {
    let last = evidence.complaints.last()?.clone();
    if plan.accept_noise || matches!(evidence.end, End::Noisy { .. }) {
        return None;
    }
    let starts = evidence.runs.iter().filter(|run| !run.is_quiet()).count();
    Some(Warning::Disturbed { times: evidence.complaints.len(), starts, last })
}

/// Contenders with throughput that differs much from process to process.
fn varies(rows: &[Row]) -> Option<Warning> {
    let share = |row: &Row| {
        let share = row.figure(Metric::Throughput)?.coefficient_of_variation?;
        (share > VARIES && row.state.takes_part()).then(|| (row.framework.clone(), share))
    };
    let contenders: Vec<(String, f64)> = rows.iter().filter_map(share).collect();
    (!contenders.is_empty()).then_some(Warning::Varies { limit: VARIES, contenders })
}

/// Contenders with steady-state latency that varies by more than the request allows. What has no such latency is judged by
/// the metric of its first question.
pub(super) fn beyond_max_cv(plan: &Plan, rows: &[Row]) -> Option<Warning> {
    let (limit, kind) = (plan.max_cv?, plan.work.kind());
    let has_latency = Metric::all(kind).contains(&Metric::Latency);
    let metric = if has_latency { Metric::Latency } else { Metric::deciding(kind) };
    let beyond = |row: &&Row| {
        let figure = row.figure(metric).filter(|figure| figure.typical.is_some() && row.state.takes_part());
        figure.is_some_and(|figure| figure.coefficient_of_variation.is_none_or(|share| share > limit))
    };
    let share = |row: &Row| {
        let share = row.figure(metric).and_then(|figure| figure.coefficient_of_variation);
        (row.framework.clone(), share)
    };
    let contenders: Vec<(String, Option<f64>)> = rows.iter().filter(beyond).map(share).collect();
    (!contenders.is_empty()).then_some(Warning::MaxCv { metric, limit, contenders })
}

/// Contenders with a warm-up that ended before they had settled.
fn unsettled(plan: &Plan, evidence: &Evidence) -> Vec<Warning> {
    // With a fixed length, settling does not end warm-up.
    if plan.warmup.min_iterations == plan.warmup.max_iterations {
        return Vec::new();
    }
    let found = |contender: &Contender| {
        let runs = evidence.runs.iter().filter(|run| run.framework == contender.label);
        let unsettled = runs.filter(|run| run.warmup().is_some_and(|warmup| !warmup.settled)).count();
        let (contender, rounds) = (contender.label.clone(), evidence.rounds);
        (unsettled > 0).then_some(Warning::Unsettled { contender, unsettled, rounds })
    };
    plan.contenders.iter().filter_map(found).collect()
}

/// Contenders with a majority of processes that never settled: their latency is that of a speed that was
/// still changing.
fn unsteady(rows: &[Row]) -> Option<Warning> {
    let of_row = |row: &Row| {
        let unsteady = row.steadiness.no_steady_state + row.steadiness.slowdown;
        (2 * unsteady > row.rounds).then(|| (row.framework.clone(), unsteady, row.rounds))
    };
    let known: Vec<(String, usize, usize)> = rows.iter().filter_map(of_row).collect();
    (!known.is_empty()).then_some(Warning::Unsteady(known))
}

// Slow moments that a contender causes itself: collecting garbage, growing a cache, compiling again. What is tested
// leaves out the slowest moments of each process, because most are the machine's. A contender that has more of them
// than the others causes them, and then its averages are tested.

/// Share by which an average has to differ from the typical value, beyond that of the others.
const LEAST: f64 = 0.02;

/// A moment is slow if it takes as many times as long as the median of its request.
const SLOW: f64 = 1.5;

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

// Counts the threads that really computed (rule R5).

/// Threads of one contender: its budget and the observations, medians over processes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Threads {
    /// Number of threads that the contender may use.
    pub budget: usize,
    /// Number of threads that the framework uses, as the engine reports it.
    pub reported: Option<usize>,
    /// CPU seconds ÷ wall seconds of the measured iterations.
    pub busy: Option<f64>,
    /// Threads that ran or waited for a CPU, on average: (CPU time + time on a run queue) ÷ wall time.
    pub runnable: Option<f64>,
    /// The time over which these were counted, in nanoseconds.
    pub over_ns: Option<u64>,
    /// CPUs that the process may use.
    pub cpus: Option<Vec<usize>>,
    /// Number of threads of the process, including idle ones.
    pub alive: Option<usize>,
}

/// Excess over the budget above which there were too many threads. A framework's own timers, and a pool that
/// hands work to another, explain less.
const SLACK: f64 = 0.5;

/// Multiple of the budget from which runnable threads count as a second set. Pools that spin for a moment
/// next to one another reach 1.6 on short requests, and gain no CPU time by it.
const SECOND_SET: f64 = 1.75;

/// Multiple of the budget that not even two pools spinning at the same time explain.
const THIRD_SET: f64 = 2.5;

/// Shortest time over which a second set of threads can be distinguished from pools that have not gone to
/// sleep yet.
const SUSTAINED_NS: u64 = 1_000_000_000;

/// Share of the budget below which a framework left threads unused.
const UNUSED: f64 = 0.75;

/// Shortest time over which threads that wanted to run can be counted: the kernel updates a thread's times
/// only every few milliseconds.
const SHORTEST_NS: u64 = 100_000_000;

/// Share of its CPU time by the driver's reading that a process has used in its turns at least: threads that spin do so
/// until they are stopped.
const OF_TURNS: f64 = 0.8;

/// The CPUs that a worker kept busy in its turns by the driver's reading, if that is needed: it does not say it itself, or
/// has several processes.
fn seen_busy(run: &Run) -> Option<f64> {
    let seen = run.seen.as_ref()?;
    let turns: u64 = run.turns.iter().flat_map(|turn| turn.seen_ns.iter().chain(&turn.prepared_ns)).sum();
    // One that was never stopped may have spun between its turns.
    let waited = run.waited.filter(|waited| waited.was_stopped && turns > 0)?;
    let is_needed = seen.family_bytes.is_some() || run.usage()?.cpu_ns.is_none();
    let used = (seen.cpu_ns? as f64 - waited.cpu_s? * 1e9).max(0.0);
    is_needed.then(|| OF_TURNS * used / turns as f64)
}

impl Threads {
    /// Over the complete processes of `label`.
    pub fn new(plan: &Plan, evidence: &Evidence, label: &str) -> Threads {
        let runs = || evidence.complete(label);
        let over = |figure: fn(&Run) -> Option<f64>| median(&runs().filter_map(figure).collect::<Vec<_>>());
        Threads {
            budget: plan.threads,
            reported: runs().find_map(|run| Some(run.loaded()?.in_effect.threads)),
            busy: over(|run| {
                let usage = run.usage()?;
                let own = usage.cpu_ns.map(|ns| ns as f64 / usage.wall_ns.max(1) as f64);
                own.into_iter().chain(seen_busy(run)).reduce(f64::max)
            }),
            runnable: over(|run| {
                let usage = run.usage().filter(|usage| usage.wall_ns >= SHORTEST_NS)?;
                Some((usage.cpu_ns? + usage.run_queue_ns?) as f64 / usage.wall_ns.max(1) as f64)
            }),
            over_ns: runs().filter_map(|run| Some(run.usage()?.wall_ns)).min(),
            cpus: runs().find_map(|run| run.usage()?.cpus.clone()),
            alive: runs().filter_map(|run| run.usage()?.threads).max(),
        }
    }

    /// The reason why the observed threads exceed the budget, if they do: an advantage, or a handicap that
    /// the framework caused itself.
    pub fn excess(&self, given: Option<&[usize]>) -> Option<String> {
        let budget = self.budget;
        let limit = budget as f64 + SLACK;
        let beyond = |value: Option<f64>| value.filter(|&value| value > limit);
        if let Some(reported) = self.reported.filter(|&reported| reported > budget) {
            return Some(format!("it uses {reported} threads, the budget is {budget}"));
        }
        if let Some(busy) = beyond(self.busy) {
            return Some(format!("it kept {busy:.1} CPUs busy; the budget is {budget}"));
        }
        let is_sustained = self.over_ns.is_none_or(|ns| ns >= SUSTAINED_NS);
        let most = if is_sustained { SECOND_SET } else { THIRD_SET } * budget as f64;
        if let Some(runnable) = self.runnable.filter(|&runnable| runnable > most.max(limit)) {
            return Some(format!("{runnable:.1} threads ran or wanted to, the budget is {budget}"));
        }
        match (given, &self.cpus) {
            (Some(given), Some(cpus)) if given != cpus.as_slice() => {
                Some(format!("it could use CPUs {cpus:?}, it was given {given:?}"))
            }
            _ => None,
        }
    }

    /// The reason why the observed threads fall below the budget, if they do. This gives no contender an advantage.
    pub fn shortfall(&self) -> Option<String> {
        let budget = self.budget;
        if let Some(reported) = self.reported.filter(|&reported| reported < budget) {
            return Some(format!("it uses {reported} of {budget} threads"));
        }
        let busy = self.busy.filter(|&busy| busy < UNUSED * budget as f64)?;
        Some(format!("it kept {busy:.1} of {budget} CPUs busy"))
    }

    /// Threads that hindered one another, within the budget of CPU time: no advantage, only a loss.
    pub fn crowding(&self) -> Option<String> {
        let (budget, busy) = (self.budget, self.busy?);
        let runnable = self.runnable.filter(|&runnable| runnable > budget as f64 + SLACK)?;
        Some(format!(
            "{runnable:.1} threads ran or wanted to, within {busy:.1} of {budget} CPUs: its own pools get in one another's way"
        ))
    }

    /// The value that the system did not report, in words.
    pub fn unknown(&self) -> Option<&'static str> {
        match (self.busy, self.runnable) {
            (None, _) => Some("the system does not report CPU time"),
            (_, None) => Some(
                "how long threads waited for a CPU is not known, or the measured iterations are too short to measure it",
            ),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::facts::testing;
    use crate::plan::Schedule;
    use protocol::{Marks, Sample};

    use super::*;

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

    fn threads(reported: usize, busy: f64, runnable: f64) -> Threads {
        Threads {
            budget: 2,
            reported: Some(reported),
            busy: Some(busy),
            runnable: Some(runnable),
            over_ns: Some(2_000_000_000),
            cpus: Some(vec![0, 1]),
            alive: Some(4),
        }
    }

    #[test]
    fn twice_the_threads_on_as_many_cpus_show_on_the_run_queue() {
        let finding = threads(2, 1.99, 3.9).excess(Some(&[0, 1])).unwrap();
        assert_eq!(finding, "3.9 threads ran or wanted to, the budget is 2");
        assert_eq!(threads(2, 1.99, 2.2).excess(Some(&[0, 1])), None);
    }

    #[test]
    fn pools_that_spin_within_the_budget_of_cpu_time_are_no_excess() {
        let spinning = threads(2, 1.99, 3.1);
        assert_eq!(spinning.excess(Some(&[0, 1])), None);
        assert!(spinning.crowding().unwrap().contains("3.1 threads ran or wanted to, within 2.0 of 2 CPUs"));
        let short = Threads { over_ns: Some(200_000_000), ..threads(2, 1.99, 3.9) };
        assert_eq!(short.excess(Some(&[0, 1])), None, "a short-lived contender has no time to calm down");
        let crowd = Threads { runnable: Some(6.1), ..short };
        assert!(crowd.excess(Some(&[0, 1])).unwrap().contains("6.1 threads ran or wanted to"));
        assert_eq!(threads(2, 1.99, 2.2).crowding(), None);
    }

    #[test]
    fn more_than_the_budget_is_found_wherever_it_shows() {
        assert!(threads(4, 1.9, 1.9).excess(None).unwrap().contains("uses 4 threads"));
        assert!(threads(2, 3.8, 2.0).excess(None).unwrap().contains("3.8 CPUs busy"));
        assert!(threads(2, 1.9, 1.9).excess(Some(&[0])).unwrap().contains("CPUs [0, 1]"));
    }

    #[test]
    fn fewer_are_a_shortfall_and_no_excess() {
        assert_eq!(threads(1, 1.0, 1.0).excess(None), None);
        assert_eq!(threads(1, 1.0, 1.0).shortfall().unwrap(), "it uses 1 of 2 threads");
        assert_eq!(threads(2, 1.0, 1.0).shortfall().unwrap(), "it kept 1.0 of 2 CPUs busy");
        assert_eq!(threads(2, 1.9, 1.9).shortfall(), None);
    }
}

//! Turns the figures of two runs into verdicts, metric by metric.

use history::{Figure, Record};
use statistics::{Change, Decision, MIN_ROUNDS, SIGNIFICANCE, Samples, Settings};

pub use super::finding::{Finding, Reason, Verdict};
use super::machine::Speed;
use super::pairing::Pair;
use super::thresholds::{ALL, Thresholds};
use crate::metrics::Metric;
use crate::records::case;
use crate::work;

/// The limits that changes are compared with.
pub struct Bar<'a> {
    pub thresholds: &'a Thresholds,
    /// Whether exceeding the threshold is a regression; otherwise it is only the margin of equivalence.
    pub gates: bool,
    /// The change that the machine may explain.
    pub speed: Speed,
}

/// A metric of a pair, before it is judged.
pub struct Subject<'a> {
    pub pair: Pair<'a>,
    pub metric: String,
    baseline: Option<&'a Figure>,
    current: Option<&'a Figure>,
}

/// The metrics to judge in a pair: the requested ones, or those of the table, if either run has them.
pub fn subjects<'a>(pair: Pair<'a>, asked: &[String]) -> Vec<Subject<'a>> {
    let name = |metric: &Metric| metric.name().to_owned();
    let names: Vec<String> = match asked {
        [] => Metric::tested(work::kind(&pair.current.case)).iter().map(name).collect(),
        asked if asked.iter().any(|asked| asked == ALL) => Metric::ALL.iter().map(name).collect(),
        asked => asked.to_vec(),
    };
    let of = |record: &'a Record, metric: &str| record.metrics.get(metric);
    let subject = |metric: String| {
        let (baseline, current) = (of(pair.baseline, &metric), of(pair.current, &metric));
        (baseline.is_some() || current.is_some()).then_some(Subject { pair, metric, baseline, current })
    };
    names.into_iter().filter_map(subject).collect()
}

fn known(figure: Option<&Figure>) -> Vec<f64> {
    figure.map_or(Vec::new(), |figure| figure.values.iter().copied().flatten().collect())
}

impl<'a> Subject<'a> {
    fn higher_is_better(&self) -> bool {
        self.current.or(self.baseline).is_some_and(|figure| figure.higher_is_better)
    }

    /// Figures by round, of the baseline and of the current run.
    pub fn values(&self) -> (&'a [Option<f64>], &'a [Option<f64>]) {
        let of = |figure: Option<&'a Figure>| figure.map_or(&[][..], |figure| figure.values.as_slice());
        (of(self.baseline), of(self.current))
    }

    /// The sides as (worse, better), in the order of a ratio "how many times worse".
    pub fn turned<T>(&self, baseline: T, current: T) -> (T, T) {
        if self.higher_is_better() { (baseline, current) } else { (current, baseline) }
    }
}

/// The result of the statistics, as "how many times worse".
struct Evidence {
    worse: f64,
    interval: (f64, f64),
    p: f64,
    p_adjusted: f64,
    p_rank: f64,
    significant: bool,
    rounds: (usize, usize),
    rounds_needed: Option<usize>,
}

/// Judges runs without common rounds.
pub fn unpaired(subjects: &[Subject<'_>], bar: &Bar<'_>) -> Vec<Finding> {
    let figures: Vec<(Vec<f64>, Vec<f64>)> = subjects
        .iter()
        .map(|subject| subject.turned(known(subject.baseline), known(subject.current)))
        .collect();
    let family: Vec<Samples<'_>> = figures.iter().map(|(a, b)| Samples { a, b }).collect();
    let contrasts = statistics::contrast(&family, &Settings::default());
    let evidence = contrasts.into_iter().zip(subjects).map(|(contrast, subject)| {
        let contrast = contrast?;
        let (a, b) = contrast.rounds;
        let (baseline, current) = if subject.higher_is_better() { (a, b) } else { (b, a) };
        Some(Evidence {
            worse: contrast.ratio,
            interval: contrast.interval,
            p: contrast.p_welch,
            p_adjusted: contrast.p_adjusted,
            p_rank: contrast.p_mann_whitney,
            significant: contrast.significant,
            rounds: (baseline, current),
            rounds_needed: contrast.rounds_needed,
        })
    });
    conclude(subjects, evidence.collect(), bar)
}

/// Judges runs with interleaved rounds, from the statistics of their comparison as "how many times worse".
pub fn paired(subjects: &[Subject<'_>], decisions: Vec<Option<Decision>>, bar: &Bar<'_>) -> Vec<Finding> {
    let evidence = decisions.into_iter().map(|decision| {
        let decision = decision?;
        let enough = decision.rounds >= MIN_ROUNDS;
        let rejected = decision.p_adjusted < SIGNIFICANCE && decision.p_sign_flip < SIGNIFICANCE;
        Some(Evidence {
            worse: decision.ratio,
            interval: decision.interval,
            p: decision.p_t,
            p_adjusted: decision.p_adjusted,
            p_rank: decision.p_sign_flip,
            significant: enough && rejected,
            rounds: (decision.rounds, decision.rounds),
            rounds_needed: None,
        })
    });
    conclude(subjects, evidence.collect(), bar)
}

fn conclude(subjects: &[Subject<'_>], evidence: Vec<Option<Evidence>>, bar: &Bar<'_>) -> Vec<Finding> {
    let judged = subjects.iter().zip(evidence);
    let mut findings: Vec<Finding> =
        judged.map(|(subject, evidence)| finding(subject, evidence, bar)).collect();
    // Two metrics with the same meaning raise one alarm, which names both.
    let regressed = |finding: &&Finding| finding.verdict == Verdict::Regression;
    let place = |finding: &Finding| (finding.framework.clone(), finding.case.clone());
    let told: Vec<_> = findings.iter().filter(regressed).map(|f| (f.metric.clone(), place(f))).collect();
    for (finding, subject) in findings.iter_mut().zip(subjects) {
        let kind = work::kind(&subject.pair.current.case);
        let leads = Metric::parse(&finding.metric).and_then(|metric| metric.follows(kind));
        let leads = leads.map(|leads| leads.name().to_owned());
        finding.follows = leads.filter(|leads| {
            finding.verdict == Verdict::Regression && told.contains(&(leads.clone(), place(finding)))
        });
    }
    findings
}

fn finding(subject: &Subject<'_>, evidence: Option<Evidence>, bar: &Bar<'_>) -> Finding {
    let threshold = bar.thresholds.share(&subject.metric);
    let (verdict, reason) = match &evidence {
        None => (Verdict::NotMeasurable, Some(missing(subject))),
        Some(evidence) => judge(evidence, threshold, subject, bar),
    };
    let raw = |worse: f64| if subject.higher_is_better() { 1.0 / worse } else { worse };
    Finding {
        framework: subject.pair.current.framework.clone(),
        case: case::in_full(&subject.pair.current.case),
        metric: subject.metric.clone(),
        unit: subject.current.or(subject.baseline).map_or_else(String::new, |figure| figure.unit.clone()),
        baseline: subject.baseline.map(|figure| figure.typical),
        current: subject.current.map(|figure| figure.typical),
        ratio: evidence.as_ref().map(|evidence| raw(evidence.worse)),
        interval: evidence.as_ref().map(|evidence| {
            let (low, high) = evidence.interval;
            if subject.higher_is_better() { (raw(high), raw(low)) } else { (low, high) }
        }),
        worse: evidence.as_ref().map(|evidence| evidence.worse),
        rounds: evidence.as_ref().map_or_else(
            || (known(subject.baseline).len(), known(subject.current).len()),
            |evidence| evidence.rounds,
        ),
        p: evidence.as_ref().map(|evidence| evidence.p),
        p_adjusted: evidence.as_ref().map(|evidence| evidence.p_adjusted),
        p_rank: evidence.as_ref().map(|evidence| evidence.p_rank),
        threshold,
        verdict,
        rounds_needed: evidence
            .as_ref()
            .filter(|_| verdict == Verdict::Inconclusive)
            .and_then(|evidence| evidence.rounds_needed),
        follows: None,
        reason,
    }
}

fn missing(subject: &Subject<'_>) -> Reason {
    match (subject.baseline, subject.current) {
        (None, _) => Reason::NotInBaseline,
        (_, None) => Reason::NotInCurrent,
        _ => Reason::Figures,
    }
}

/// The verdict, or the reason why there is none.
fn judge(
    evidence: &Evidence,
    threshold: f64,
    subject: &Subject<'_>,
    bar: &Bar<'_>,
) -> (Verdict, Option<Reason>) {
    if evidence.rounds.0.min(evidence.rounds.1) < MIN_ROUNDS {
        let of_baseline = evidence.rounds.0 < MIN_ROUNDS;
        let reason = if of_baseline { Reason::RoundsOfBaseline } else { Reason::RoundsOfCurrent };
        return (Verdict::NotMeasurable, Some(reason));
    }
    let found = classify(evidence, 1.0, threshold, bar.gates);
    // Bytes do not depend on the speed of reading them.
    let is_timed = Metric::parse(&subject.metric).is_none_or(Metric::depends_on_speed);
    if !is_timed || bar.speed == Speed::SAME || !bar.gates {
        return (found, None);
    }
    let (least, most) = bar.speed.allowed_for(1.0);
    let others = [least, most].map(|factor| classify(evidence, factor, threshold, true));
    let is_stopped = |verdict: Verdict| verdict == Verdict::Regression;
    if others.iter().all(|other| is_stopped(*other) == is_stopped(found)) {
        return (found, None);
    }
    let reason = if is_stopped(found) { Reason::SlowerMachine } else { Reason::FasterMachine };
    (Verdict::NotMeasurable, Some(reason))
}

/// The verdict as if the current run were `factor` times as bad.
fn classify(evidence: &Evidence, factor: f64, threshold: f64, gates: bool) -> Verdict {
    let (low, high) = evidence.interval;
    let interval = (low * factor, high * factor);
    let differs = match factor == 1.0 {
        true => evidence.significant,
        // The test used the unscaled figures; for scaled ones only the interval can decide.
        false => interval.0 > 1.0 || interval.1 < 1.0,
    };
    match statistics::classify(evidence.worse * factor, interval, differs, threshold) {
        Change::Regression if gates => Verdict::Regression,
        Change::Regression | Change::Worse => Verdict::Worse,
        Change::Better => Verdict::Better,
        Change::Equivalent => Verdict::Equivalent,
        Change::Inconclusive => Verdict::Inconclusive,
    }
}
